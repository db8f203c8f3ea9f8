"""`engine run --profile` and `--trace`."""

from __future__ import annotations

import json

from engine_testing import models


def test_the_hottest_kernels_are_printed_below_the_outputs(cli, tmp_path):
    done = cli(
        "run", models.affine(tmp_path), "--profile", "--set", "cpu_context.graph_optimization=none"
    )
    assert done.status == 0, done.err
    outputs, _, profile = done.out.partition("predict ")
    assert "tensor name is: y" in outputs
    assert "kernels" in profile
    for text in ("█", "Mul scale", "Add shift"):
        assert text in profile


def test_a_trace_has_every_run_and_json_every_kernel(cli, tmp_path):
    trace = tmp_path / "trace.json"
    settings = ("--set", "cpu_context.graph_optimization=none")
    done = cli("run", models.affine(tmp_path), "--trace", trace, "--json", *settings)
    assert done.status == 0, done.err
    profile = json.loads(done.out)["profile"]
    assert profile["predicts"] == 10
    assert {tuple(kernel["nodes"]) for kernel in profile["kernels"]} == {(0,), (1,)}
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 20


def test_a_trace_that_cannot_be_written_is_said_before_any_work(cli, tmp_path):
    done = cli("run", models.affine(tmp_path), "--trace", tmp_path / "not" / "there.json").fails(
        "there.json"
    )
    assert done.out == ""


def test_an_isolated_model_that_cannot_be_profiled_is_one_line_of_error(cli, tmp_path):
    isolated = ("--set", "common_context.isolate=1")
    done = cli("run", models.affine(tmp_path), "--profile", *isolated).fails(
        "runs in a process of its own"
    )
    assert "leave out common_context.isolate" in done.err
    assert done.err.count("\n") == 1
