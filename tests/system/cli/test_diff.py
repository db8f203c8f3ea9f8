"""`engine diff`: the node that sets two sides apart, and its reproducer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from deep_models import deep, planted
from graphs import written

from engine.formats import encryption
from engine_testing import models


@pytest.fixture
def sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str, str]:
    """A faulty model, the model without the fault, and the value of the faulty node."""
    monkeypatch.chdir(tmp_path)
    model = deep(60, 4)
    faulty, value = planted(model, "axis", 4)
    onnx.save(model, "model.onnx")
    onnx.save(faulty, "faulty.onnx")
    return "faulty.onnx", "model.onnx", value


def test_the_faulty_node_is_printed_and_its_reproducer_written(cli, sides):
    *both, value = sides
    done = cli("diff", *both)
    assert done.status == 1
    assert "found one node makes the error" in done.text
    assert f"node Softmax 'n{value[1:]}'" in done.text
    assert "b differs in 0 of 128 values" in done.text
    assert "reproducer faulty.diff" in done.text
    facts = json.loads(Path("faulty.diff/fault.json").read_text())
    assert facts["command"] == [
        "engine", "compare", "a.onnx", "b.onnx", "--a", "cpu", "--b", "cpu",
        "--input", "inputs.npz",
    ]  # fmt: skip
    assert cli("diff", *both).status == 1  # it may be written again


def test_json_has_what_compare_has_and_the_fault(cli, sides):
    *both, value = sides
    done = cli("diff", *both, "--no-write", "--json")
    compared = cli("compare", *both, "--json")
    assert (done.status, compared.status) == (1, 1)
    assert done.json.keys() >= compared.json.keys()
    assert done.json["outputs"] == compared.json["outputs"]
    fault = done.json["fault"]
    assert (fault["kind"], fault["value"]) == ("node", value)
    assert [node["op_type"] for node in fault["nodes"]] == ["Softmax"]
    assert fault["spread"]["apart"] > fault["b_from_float64"]["apart"] == 0
    assert done.json["folder"] == ""
    assert not Path("faulty.diff").exists()


def test_equal_sides_have_nothing_apart_and_status_0(cli, sides, tmp_path):
    model = sides[1]
    done = cli("diff", model, "--b", "cpu")
    assert (done.status, "Nothing is apart" in done.out, "--inside" in done.out) == (0, True, True)
    assert cli("diff", model, "--b", "cpu", "--inside", "--json").json["fault"] is None
    assert not Path("model.diff").exists()


def test_settings_of_a_side_are_in_the_reproducers_command(cli, sides):
    *both, _ = sides
    words = ("--set-b", "cpu_context.spin_us=0", "--threads", "1", "--rtol", "0.002")
    assert cli("diff", *both, *words, "--out", "here").status == 1
    command = json.loads(Path("here/fault.json").read_text())["command"]
    assert command[command.index("--set-b") + 1] == "cpu_context.spin_us=0"
    assert command[command.index("--threads") + 1] == "1"
    assert command[command.index("--rtol") + 1] == "0.002"


def test_what_cannot_be_done_is_said_before_anything_runs(cli, sides):
    *both, _ = sides
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("my own")
    cli("diff", *both, "--out", "mine").fails("mine: exists and is no reproducer")
    cli("diff", *both, "--out", "x", "--no-write").fails("--out, --no-write: expected one", 2)
    cli("diff", *both, "--rtol", "-1").fails("expected a number of 0 or more", 2)
    cli("diff", *both, "--set-a", "cpu_context.spinus=0").fails("did you mean 'spin_us'", 2)


@pytest.mark.parametrize(("side", "op"), [("a", "Relu"), ("b", "Exp")])
def test_an_error_of_a_part_of_a_side_is_said_of_that_side(cli, tmp_path, install, side, op):
    """A backend that compiles its first model, and no other."""
    install(
        "whole_only",
        """
from engine.errors import ModelError

@hookimpl
def engine_compile(loaded, options):
    if opened:
        raise ModelError("parts are too hard")
    opened.append(loaded.compile(options))
    return opened[0]
""",
    )
    text = "g (float[4] x) => (float[4] y) {{ h = {}(x) y = Neg(h) }}"
    both = [written(tmp_path / f"{kind}.onnx", text.format(kind)) for kind in ("Relu", "Exp")]
    done = cli("diff", *both, f"--{side}", "whole_only")
    done.fails(f"error: {side}: {tmp_path / op}.onnx: parts are too hard\n")


def test_nothing_is_written_of_an_encrypted_model(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = models.affine(tmp_path)
    other = written(
        tmp_path / "b.onnx",
        "g (float[batch, 3] x) => (float[batch, 3] y) { d = Mul(x, k) y = Add(d, k) }",
        k=np.float32(3),
    )
    secret = tmp_path / "secret.onnx"
    key = bytes(range(16))
    secret.write_bytes(encryption.encrypt(plain.read_bytes(), key, "AES-GCM"))
    done = cli("diff", secret, other, "--dec-key", key.hex(), "--shape", "x=2,3")
    assert done.status == 1
    assert "no reproducer was written: the model is encrypted" in done.err
    assert not list(tmp_path.glob("**/a.onnx"))


def test_an_output_that_is_apart_without_a_node_to_blame_is_not_called_within(cli, tmp_path):
    text = "g (float[3] x) => (float[3] y, float[3] k) { y = Relu(x) }"
    both = [
        written(tmp_path / f"{factor}.onnx", text, k=np.full(3, factor, np.float32))
        for factor in (1, 2)
    ]
    done = cli("diff", *both, "--no-write")
    assert (done.status, "Nothing is apart" in done.out) == (1, False)
    assert "No node was found that makes the error" in done.out
    assert "output 'k' is apart" in done.err
    facts = cli("diff", *both, "--no-write", "--json").json
    assert (facts["is_within"], facts["fault"], len(facts["notes"])) == (False, None, 1)
