"""engine.diff writes a reproducer: the block at fault, its inputs, and a command that shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from diffs import diff_of, fused_overflow, named
from graphs import parsed, written

import engine
from engine.errors import InputError
from engine.report.fault.found import FaultKind


def test_a_reproducer_shows_the_fault_by_its_own_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.cli import main

    folder = tmp_path / "fault"
    found, value = diff_of(tmp_path, "axis", 2, count=30, folder=folder)
    assert found.folder == str(folder)
    facts = json.loads((folder / "fault.json").read_text())
    assert facts["value"] == value
    assert {"python", "onnx", "onnxruntime", "engine"} <= facts["versions"].keys()
    assert len(onnx.load(folder / "a.onnx").graph.node) == 1
    monkeypatch.chdir(folder)
    assert main(facts["command"][1:]) == 1  # its status where outputs are apart
    # It may be written again.
    diff_of(tmp_path, "axis", 2, count=30, folder=folder)


@pytest.mark.parametrize(
    ("reads_a", "reads_b", "name"),
    [
        ("p, q", "p, p", "p"),  # a alone reads q
        ("p, p", "p, q", "p"),
        ("p, q", "q, p", "file"),  # an argument of np.savez
        ("p, q", "q, p", "allow_pickle"),
    ],
)
def test_a_reproducer_has_the_inputs_of_both_sides_whatever_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads_a: str, reads_b: str, name: str
) -> None:
    from engine.cli import main

    def model(side: str, reads: str) -> Path:
        text = f"{name} = Relu(x) q = Exp(x) y = Sub({reads.replace('p', name)})"
        return written(tmp_path / f"{side}.onnx", f"g (float[3] x) => (float[3] y) {{ {text} }}")

    found = engine.diff(model("a", reads_a), model("b", reads_b), folder=tmp_path / "fault")
    assert named(found) == {"y"}
    monkeypatch.chdir(tmp_path / "fault")
    with np.load("inputs.npz", allow_pickle=False) as arrays:
        assert (len(arrays), name in arrays) == (2, True)
    assert main(["compare", "a.onnx", "b.onnx", "--b", "cpu", "--input", "inputs.npz"]) == 1


@pytest.mark.parametrize(
    ("text", "other", "value"),
    [
        (
            "g (string[3] x) => (string[3] y) { h = Identity(x) y = Gather(h, k) }",
            ("(h, k)", "(h, l)"),
            np.array(["a", "b", "c"], object),
        ),
        (
            "g (float[3] x) => (float[3] y) { h = Cast<to = 16>(x) y = Cast<to = 1>(h) }",
            ("y = Cast<to = 1>(h)", "i = Cast<to = 1>(h) y = Neg(i)"),
            np.array([1, 2, 3], np.float32),
        ),
    ],
)
def test_text_and_bfloat16_are_in_a_reproducer_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, other: tuple[str, str], value: Any
) -> None:
    from engine.cli import main

    constants = {"k": np.array([0, 1, 2]), "l": np.array([0, 2, 1])} if "Gather" in text else {}
    sides = [
        written(tmp_path / f"{side}.onnx", body, **constants)
        for side, body in (("a", text), ("b", text.replace(*other)))
    ]
    found = engine.diff(*sides, {"x": value}, folder=tmp_path / "fault")
    assert named(found) == {"y"}
    monkeypatch.chdir(tmp_path / "fault")
    assert main(["compare", "a.onnx", "b.onnx", "--b", "cpu", "--input", "inputs.npz"]) == 1


def test_a_fault_is_told_where_its_reproducer_cannot_be_written(tmp_path: Path) -> None:
    sides = [
        written(tmp_path / f"{kind}.onnx", f"g (float[3] x) => (float[3] y) {{ y = {kind}(x) }}")
        for kind in ("Relu", "Neg")
    ]
    place = tmp_path / "fault"
    (place / "inputs.npz").mkdir(parents=True)
    (place / "fault.json").write_text("{}")
    for folder in (sides[0] / "below", place):
        found = engine.diff(*sides, folder=folder)
        assert (named(found), found.folder) == ({"y"}, "")
        assert any("no reproducer was written" in note for note in found.notes)
    assert [*place.iterdir()] == [place / "inputs.npz"]  # no half of a reproducer is left


def test_the_settings_of_a_side_are_in_the_command_of_the_reproducer(tmp_path: Path) -> None:
    path = fused_overflow(tmp_path / "m.onnx")
    configs: Any = (None, {"cpu_context": {"graph_optimization": "none"}})
    given: Any = {"targets": ("cpu", "cpu"), "configs": configs, "rtol": 0.002}
    found = engine.diff(path, folder=tmp_path / "fault", **given)
    assert found.fault is not None
    assert found.fault.kind is FaultKind.FUSED
    assert json.loads((tmp_path / "fault" / "fault.json").read_text())["command"] == [
        "engine", "compare", "a.onnx", "b.onnx", "--a", "cpu", "--b", "cpu",
        "--set-b", "cpu_context.graph_optimization=none", "--rtol", "0.002",
        "--input", "inputs.npz",
    ]  # fmt: skip


def test_a_reproducer_of_two_precisions_and_other_names_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.cli import main

    def model(name: str, dtype: str, p: str, axis: int) -> Path:
        return written(
            tmp_path / name,
            f"""g ({dtype}[4, 4] {p}x) => ({dtype}[4, 4] {p}y) {{ {p}p = Neg({p}x)
                {p}q = Abs({p}p) {p}r = Softmax<axis = {axis}>({p}p)
                {p}s = Mul({p}r, {p}q) {p}y = Tanh({p}s) }}""",
        )

    found = engine.diff(
        model("a.onnx", "float16", "a", 0), model("b.onnx", "float", "b", 1),
        folder=tmp_path / "fault",
    )  # fmt: skip
    assert named(found) == {"ar"}
    monkeypatch.chdir(tmp_path / "fault")
    assert main(["compare", "a.onnx", "b.onnx", "--b", "cpu", "--input", "inputs.npz"]) == 1


def test_large_weights_and_those_in_other_files_are_in_the_reproducer(tmp_path: Path) -> None:
    def model(name: str, axis: int) -> Path:
        text = f"g (float[2, 200] x) => (float[2, 200] y) {{ h = MatMul(x, w) y = Softmax<axis = {axis}>(h) }}"  # noqa: E501
        proto = parsed(text, w=np.eye(200, dtype=np.float32))
        onnx.save(proto, tmp_path / name, save_as_external_data=True, location=f"{name}.data")
        return tmp_path / name

    a, b = model("a.onnx", 0), model("b.onnx", 1)
    found = engine.diff(a, b, folder=tmp_path / "fault")
    assert named(found) == {"y"}
    (tmp_path / "a.onnx.data").unlink()
    assert onnx.load(tmp_path / "fault" / "a.onnx").graph.node[0].op_type == "Softmax"


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("my own")
    path = written(tmp_path / "m.onnx", "g (float[4] x) => (float[4] y) { y = Neg(x) }")
    with pytest.raises(InputError, match="exists and is no reproducer"):
        engine.diff(path, folder=tmp_path / "mine")
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
