"""Times of ONNX Runtime's kernels, and whose nodes they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine.formats.encryption import encrypt
from engine_testing.making import graph


def model(folder: Path, names: list[str]) -> Path:
    """Conv, Relu, Conv, Relu, Sigmoid; the first four become two kernels."""
    rng = np.random.default_rng(0)
    weights = {f"w{n}": rng.normal(size=(16, 16, 3, 3)).astype(np.float32) for n in range(2)}
    operators = (
        "a = Conv <pads = [1, 1, 1, 1]> (x, w0)", "b = Relu (a)",
        "c = Conv <pads = [1, 1, 1, 1]> (b, w1)", "d = Relu (c)", "y = Sigmoid (d)",
    )  # fmt: skip
    nodes = "\n".join(
        f"[{name}] {operator}" if name else operator
        for name, operator in zip(names, operators, strict=True)
    )
    kind = "float[1, 16, 24, 24]"
    return graph(folder, "convs", f"({kind} x) => ({kind} y) {{ {nodes} }}", weights)


def nodes_of(profile: Any) -> set[tuple[str, tuple[int, ...]]]:
    return {(kernel.op_type, kernel.nodes) for kernel in profile.kernels if kernel.nodes}


X = np.ones((1, 16, 24, 24), np.float32)


@pytest.mark.parametrize("names", [["c0", "r0", "c1", "r1", "s"], [""] * 5], ids=["named", "not"])
def test_a_fused_kernel_names_all_nodes_that_it_computes(tmp_path: Path, names: list[str]) -> None:
    with engine.load(model(tmp_path, names)) as loaded:
        profile = loaded.profile([X], 3)
        states = {each.index: str(each.state) for each in loaded.placement}
    fused = [index for index, state in states.items() if state == "fused"]
    assert len(fused) == 2, "ONNX Runtime puts each Relu into its Conv"
    convs = {kernel.nodes for kernel in profile.kernels if kernel.op_type == "Conv"}
    assert convs == {(0, 1), (2, 3)}
    assert ("Sigmoid", (4,)) in nodes_of(profile)
    assert profile.kernels[0].op_type == "Conv", "the two convolutions are most of the work"


def test_a_secret_model_is_measured_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr("tempfile.TemporaryDirectory", lambda **_: made.append("on disk"))
    path, key = model(tmp_path, ["c0", "r0", "c1", "r1", "s"]), b"0123456789abcdef"
    path.write_bytes(encrypt(path.read_bytes(), key))
    with engine.load(path, dec_key=key) as loaded:
        assert loaded.profile([X], 1).kernels
    assert made == []


def test_a_profile_needs_no_file_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model(tmp_path, ["c0", "r0", "c1", "r1", "s"])
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with engine.load(path) as loaded:
        loaded.profile([X], 2)
    assert list((tmp_path / "here").iterdir()) == []
