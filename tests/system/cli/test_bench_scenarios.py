"""`engine bench --scenario`, sweeps of clients and threads, and the time by operator and layer."""

from __future__ import annotations

import re
from importlib.util import find_spec

import onnx
import pytest

from engine_testing import models
from engine_testing.plugins import install


@pytest.fixture
def path(tmp_path):
    return models.affine(tmp_path)


@pytest.fixture
def null(plugin_folder, path):
    """Return the arguments for a model whose run takes 10 ms and not much more."""
    install(plugin_folder, "null", "engine_testing.null_device")
    return (path, "--target", "null", "--set", "null_context.delay_s=0.01", "--warmup", 0)


def test_a_single_stream_is_judged_by_its_p90(cli, path):
    arguments = ("bench", path, "--runs", 200, "--scenario", "single-stream")
    found = cli(*arguments, "--json").json
    assert found["scenario"]["value"] == found["latency_s"]["p90"]
    assert (found["scenario"]["name"], found["clients"]) == ("p90 latency", 1)
    assert cli(*arguments).out.splitlines()[-1].startswith("single-stream: p90 latency ")


def test_a_multi_stream_sends_eight_samples_a_query(cli, null):
    found = cli("bench", *null, "--runs", 12, "--scenario", "multi-stream", "--json").json
    assert found["scenario"] == {
        "scenario": "multi-stream", "name": "p99 latency of a query", "unit": "s",
        "value": found["latency_s"]["p99"], "samples_a_query": 8, "runs_a_query": 1,
    }  # fmt: skip
    assert found["samples_per_s"] == pytest.approx(8 * 12 / found["seconds"])
    arguments = ("--scenario", "multi-stream", "--samples", 3)
    done = cli("bench", *null, "--runs", 3, *arguments)
    assert done.out.splitlines()[-1].endswith(", 3 samples a query in one batch")


def test_the_samples_of_queries_are_counted_whatever_the_inputs_batch_is(cli, null, tmp_path):
    common = ("--runs", 3, "--scenario", "multi-stream", "--json")
    found = cli("bench", *null, *common, "--samples", 1, "--shape", "x=4,3").json
    assert found["samples_per_s"] == pytest.approx(3 / found["seconds"])
    fixed = onnx.load(null[0])
    for value in (*fixed.graph.input, *fixed.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 2
    path = tmp_path / "fixed.onnx"
    onnx.save(fixed, path)
    found = cli("bench", path, *null[1:], *common).json
    assert found["scenario"]["runs_a_query"] == 4
    assert found["samples_per_s"] == pytest.approx(3 * 8 / found["seconds"])


def test_offline_is_judged_by_its_samples(cli, null):
    arguments = ("--runs", 8, "--clients", 2, "--shape", "x=4,3", "--scenario", "offline")
    found = cli("bench", *null, *arguments, "--json").json
    assert found["scenario"]["value"] == found["samples_per_s"]
    assert found["samples_per_s"] == pytest.approx(32 / found["seconds"])
    assert (found["scenario"]["unit"], found["batch"]) == ("/s", 4)
    assert re.fullmatch(
        r"offline: [\d,.]+ samples/s", cli("bench", *null, *arguments).out.splitlines()[-1]
    )


def test_a_server_is_judged_by_the_rates_within_its_bound(cli, null):
    # A rate counts as served with as many requests late at the end as there are clients: of 20 a
    # second those are most of a second, for which a busy machine may stand still.
    arguments = ("--rates", "20,5000", "--duration", 1.5, "--clients", 16, "--scenario", "server")
    # 1600 a second are all that there can be: 5000 are not served.
    done = cli("bench", *null, *arguments, "--p99-ms", 10_000, "--json")
    assert [point["valid"] for point in done.json["points"]] == [True, False]
    assert done.json["scenario"]["best_per_s"] == 20
    done = cli("bench", *null, *arguments, "--p99-ms", 1)
    assert "p99 above 1.00 ms" in done.out
    assert "no rate was served with a p99 within 1.00 ms" in done.err


def test_the_highest_rate_of_a_server_is_searched_for(cli, null):
    arguments = ("--scenario", "server", "--p99-ms", 2_000, "--duration", 0.5)
    found = cli("bench", *null, *arguments, "--json").json
    rates = [point["offered_per_s"] for point in found["points"]]
    assert rates == sorted(rates)
    best = found["scenario"]["best_per_s"]
    assert best is None or 5 < best <= 110
    assert best == max((p["offered_per_s"] for p in found["points"] if p["valid"]), default=None)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("single-stream", "--clients", 2), "--clients: is not for --scenario single-stream"),
        (("multi-stream", "--batches", "1,2"), "--batches: is not for --scenario multi-stream"),
        (("offline", "--rates", "5"), "--rates: is not for --scenario offline"),
        (("offline", "--samples", 8), "--samples: is for --scenario multi-stream"),
        (("offline", "--p99-ms", 8), "--p99-ms: is for --scenario server"),
        (("server",), "--scenario server: give --rates, or --p99-ms to find the highest rate"),
        (("server", "--p99-ms", 0), "--p99-ms: expected milliseconds above 0, got 0"),
        (("server", "--p99-ms", 5, "--clients", "1,2"), "expected one number of clients"),
        (("server", "--p99-ms", 5, "--runs", 9), "expected one number of clients and --duration"),
        (("server", "--p99-ms", 5, "--by-layer"), "--by-layer: is for the runs of one model"),
        (("sever",), "did you mean 'server'?"),
        (("offline", "--versus", "a.b=1"), "--scenario: a comparison, or a run to save, chooses"),
    ],
)
def test_a_scenario_that_cannot_be_is_wrong_usage(cli, path, options, error):
    cli("bench", path, "--scenario", *options).fails(error, 2, out="")


def test_lists_of_clients_threads_and_batches_are_measured_in_every_combination(cli, path):
    arguments = ("--clients", "1,2", "--threads", "1,2", "--batches", "1,8")
    common = ("bench", path, *arguments, "--runs", 20, "--warmup", 0)
    points = cli(*common, "--json").json["points"]
    found = [(point["threads"], point["batch"], point["clients"]) for point in points]
    assert found == [(t, b, c) for t in (1, 2) for b in (1, 8) for c in (1, 2)]
    assert all(point["runs"] == 20 for point in points)
    lines = cli(*common).out.splitlines()
    [heading] = [place for place, line in enumerate(lines) if "clients  batch" in line]
    rows = [tuple(map(int, line.split()[:3])) for line in lines[heading + 1 :]]
    assert rows == [(t, c, b) for t, b, c in found]


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
@pytest.mark.parametrize("lists", [("--clients", "1,2"), ("--clients", "1,2", "--batches", "1,4")])
def test_a_sweep_is_drawn_with_a_line_for_each_of_the_others(cli, path, tmp_path, lists):
    file = tmp_path / "sweep.svg"
    cli("bench", path, *lists, "--runs", 9, "--warmup", 0, "--plot-file", file)
    assert file.read_bytes().startswith(b"<?xml")


def test_the_time_is_shown_by_operator_and_by_layer(cli, path):
    arguments = ("bench", path, "--runs", 100, "--warmup", 0, "--by-operator", "--by-layer")
    found = cli(*arguments, "--json").json
    assert {one["op_type"] for one in found["operators"]} == {"Mul", "Add"}
    assert [one["name"] for one in found["layers"]] == ["scale", "shift"]  # as they run
    assert sum(one["share"] for one in found["layers"]) == pytest.approx(1)
    text = cli(*arguments).out
    assert "By operator type" in text
    assert text.index("scale") < text.index("shift")
    only = cli(*arguments[:-1], "--json").json
    assert "layers" not in only


def test_where_kernels_cannot_be_measured_the_rest_is_printed_first(cli, path):
    isolated = ("--set", "common_context.isolate=true", "--by-operator")
    done = cli("bench", path, "--runs", 100, "--warmup", 0, *isolated)
    done.fails("does not tell the time of its kernels")
    assert "latency p50" in done.out


def test_the_server_of_a_url_is_measured_alone(cli):
    for options in (("--by-layer",), ("--threads", "1,2"), ("--versus", "a.b=1")):
        done = cli("bench", "--url", "http://localhost:1", *options)
        assert done.status == 2, done
