"""Where no choice of open sizes runs, the error names two that disagree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import engine
from engine.cli import main


def without_sizes_that_fit(folder: Path) -> Path:
    """A height that no choice has, and that another axis is to have."""
    value = helper.make_tensor_value_info
    seven = numpy_helper.from_array(np.zeros((7, 4), np.float32), "seven")
    graph = helper.make_graph(
        [
            helper.make_node("Concat", ["one", "other"], ["y"], name="join", axis=1),
            helper.make_node("Concat", ["one", "seven"], ["z"], axis=1),
        ],
        "meet",
        [
            value("one", TensorProto.FLOAT, ["height", 4]),
            value("other", TensorProto.FLOAT, ["frames", 4]),
        ],
        [value(name, TensorProto.FLOAT, [None, 8]) for name in "yz"],
        [seven],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opsets), folder / "m.onnx")
    return folder / "m.onnx"


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
