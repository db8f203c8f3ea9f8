"""Names from files never drive the terminal: what is printed of them has no control characters."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

EVIL = "\x1b[31m\x1b]0;title\x07\r\x9b2J\u202e"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A model all of whose names would clear the screen, in a file of such a name."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", [f"x{EVIL}", f"w{EVIL}"], [f"y{EVIL}"], name=f"node{EVIL}")],
        f"graph{EVIL}",
        [helper.make_tensor_value_info(f"x{EVIL}", TensorProto.FLOAT, [f"n{EVIL}", 4])],
        [helper.make_tensor_value_info(f"y{EVIL}", TensorProto.FLOAT, [f"n{EVIL}", 8])],
        [numpy_helper.from_array(np.ones((4, 8), np.float32), f"w{EVIL}")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.producer_name = f"me{EVIL}"
    helper.set_model_props(model, {f"key{EVIL}": f"value{EVIL}"})
    path = tmp_path / f"net{EVIL}.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "--nodes", "--parameters", "--memory", "--target", "cpu"],
        ["run"],
        ["run", "-v"],
        ["run", "--profile"],
        ["bench", "--runs", "3", "--warmup", "0"],
        ["compare"],
        ["diff", "--inside", "--rtol", "0", "--atol", "0"],
        ["explain", "--nodes", "--profile", "--html", "net.html", "--roof", "1e9,1e9"],
        ["slice", "--tp", "2", "--out", "out"],
        ["slice", "--tp", "3", "--out", "out"],
        ["convert", "net.mindir"],
        ["cache", "why"],
        ["run", "--input", f"z{EVIL}=a.npy"],
        ["run", "--shape", f"z{EVIL}=1,4"],
        ["run", "--set", f"cpu_context.{EVIL}=1"],
        ["run", "--target", f"cpu{EVIL}"],
        ["run", f"--opt{EVIL}"],
        ["inspect", "--config", f"c{EVIL}.ini", "--target", "cpu"],
    ],
    ids=" ".join,
)
def test_no_control_character_of_a_name_is_printed(cli, hostile, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    at = 2 if words[0] == "cache" else 1
    command = [*words[:at], hostile, *words[at:]]
    done = cli(*command)
    assert done.out + done.err
    assert not CONTROL.search(done.out + done.err)
    (tmp_path / "net.mindir").unlink(missing_ok=True)
    with_json = cli(*command, "--json")
    json.loads(with_json.out)
    assert not CONTROL.search(with_json.out + with_json.err)


def test_a_folder_and_a_word_of_such_names_are_escaped_too(cli, hostile, tmp_path):
    folder = tmp_path / f"models{EVIL}"
    folder.mkdir()
    for number in range(2):
        (folder / f"m{number}{EVIL}.onnx").write_bytes(hostile.read_bytes())
    for command in (["inspect", folder], [f"rn{EVIL}"], ["rank-table", "show", folder]):
        done = cli(*command)
        assert done.out + done.err
        assert not CONTROL.search(done.out + done.err)
