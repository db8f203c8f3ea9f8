"""Where no choice of open sizes runs, the error names two that disagree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import engine
from engine.cli import main
from engine_testing.making import graph


def without_sizes_that_fit(folder: Path) -> Path:
    """A height that no choice has, and that another axis is to have."""
    text = """(float[height, 4] one, float[frames, 4] other) => (float[?, 8] y, float[?, 8] z) {
        [join] y = Concat <axis = 1> (one, other)
        z = Concat <axis = 1> (one, seven)
    }"""
    return graph(folder, "meet", text, {"seven": np.zeros((7, 4), np.float32)}, valid=False)


WHERE = (
    "axis 0 of input 'one' is 64 and axis 0 of input 'other' 1, but Concat 'join' needs them to be "
    "equal"
)


def test_a_conversions_trial_says_which_inputs_do_not_fit(tmp_path: Path) -> None:
    converter = engine.Converter()
    converter.save_type = engine.ModelType.MINDIR
    converter.infer = True
    path = without_sizes_that_fit(tmp_path)
    with pytest.raises(engine.ModelError, match=r"none of .* choices runs") as caught:
        converter.convert(engine.FmkType.ONNX, str(path), str(tmp_path / "out"))
    assert f"{WHERE}; convert it without infer" in str(caught.value)


def test_a_command_says_which_inputs_do_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(without_sizes_that_fit(tmp_path))])
    printed = capsys.readouterr()
    assert WHERE in " ".join(printed.err.split())
    assert "--shape" in printed.err
