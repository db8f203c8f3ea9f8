"""`engine slice`: what it writes, prints and refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import written

import engine
from engine.formats.collectives import part_of


def product(path: Path, rows: int, columns: int) -> Path:
    """A matrix product of float32[b, rows] with weights of ones."""
    ends = f"(float[b, {rows}] x) => (float[b, {columns}] y)"
    text = f"product {ends} {{ [product] y = MatMul(x, w) }}"
    return written(path, text, w=np.ones((rows, columns), np.float32))


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """A model of which two ranks and four can share the work."""
    return product(tmp_path / "net.onnx", 4, 8)


def test_it_slices_and_says_what_each_rank_holds(cli, net, tmp_path):
    done = cli("slice", net, "--tp", "2", "--out", tmp_path / "out")
    assert done.status == 0
    assert "Against the original" in done.out
    assert f"{net.stem}1.onnx" in done.out
    assert "sends are those of a predict with open sizes of 1: x=1,4\n" in done.out
    assert (tmp_path / "out" / f"{net.stem}1.onnx").exists()


def test_its_report_is_json_too(cli, net, tmp_path):
    facts = cli("slice", net, "--tp", "2", "--out", tmp_path / "out", "--json").json
    assert facts["tp"] == 2
    assert [rank["rank"] for rank in facts["ranks"]] == [0, 1]
    assert facts["differences"][0]["is_equal"]


def test_what_is_no_model_is_an_error_in_one_line(cli, tmp_path):
    (tmp_path / "m.onnx").write_text("no model")
    done = cli("slice", tmp_path / "m.onnx", "--tp", "2", "--out", tmp_path / "out")
    assert done.status == 1
    assert done.err.startswith("error: ")
    assert len(done.err.splitlines()) == 1
    assert cli("slice", tmp_path / "no.onnx", "--out", tmp_path / "out").status == 1
    assert cli("slice", tmp_path / "m.onnx").status == 2


# ----------------------------------------------------------------------------- nothing is divided


def test_a_slicing_that_divides_nothing_fails_with_the_reason_of_each_node(cli, tmp_path):
    odd, out = product(tmp_path / "odd.onnx", 1, 1), tmp_path / "out"
    done = cli("slice", odd, "--tp", "2", "--out", out)
    assert done.status == 1
    assert "product  no axis can be divided by 2" in done.out
    assert "nothing in it is divided among 2 ranks" in done.err
    assert "--replicas" in done.err
    assert not out.exists()
    error = cli("slice", odd, "--tp", "2", "--out", out, "--json").json["error"]
    assert error["nodes"] == {"product": "no axis can be divided by 2"}
    assert cli("slice", odd, "--tp", "2", "--out", out, "--replicas").status == 0
    assert sorted(file.name for file in out.glob("*.onnx")) == ["odd0.onnx", "odd1.onnx"]


def test_a_strategy_that_leaves_all_whole_is_said_to(cli, net, tmp_path):
    strategy = tmp_path / "whole.json"
    engine.sharding.Strategy(
        {"product": engine.sharding.NodeStrategy(((1, 1), (1, 1)))}
    ).save(strategy)  # fmt: skip
    done = cli("slice", net, "--tp", "2", "--out", tmp_path / "out", "--strategy", strategy)
    assert done.status == 1
    assert "product  the strategy leaves it whole" in done.out


def test_slicing_without_a_number_of_ranks_asks_for_one(cli, net, tmp_path):
    cli("slice", net, "--out", tmp_path / "out").fails("give --tp N or --pp N", 2)


def test_two_slicers_started_at_once_leave_the_slices_of_one(tmp_path):
    out, commands = tmp_path / "out", []
    for ranks in (2, 4):
        (tmp_path / str(ranks)).mkdir()
        path = product(tmp_path / str(ranks) / "net.onnx", 64, 64)
        commands.append([sys.executable, "-m", "engine", "slice", path, "--tp", str(ranks),
                         "--out", out, "-q"])  # fmt: skip
    started = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    assert [process.wait(120) for process in started] == [0, 0]
    files = sorted(out.glob("net*.onnx"))
    parts = [
        part_of({entry.key: entry.value for entry in onnx.load(file).metadata_props})
        for file in files
    ]
    [(world_size, _)] = {(part.world_size, part.slicing) for part in parts if part}
    assert [part and part.rank for part in parts] == list(range(world_size))
    assert not [file for file in out.iterdir() if file.name.startswith(".")]
