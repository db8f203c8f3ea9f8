"""`engine bench`: what it measures, what it says of it, and what it draws."""

from __future__ import annotations

import os
import re
import statistics
import sys
import threading
import time
from importlib.util import find_spec

import numpy as np
import pytest

import engine
from engine.cli.latency import draw, histogram
from engine.report.clients import Clients
from engine.report.measurement import BenchResult
from engine.report.measurement import latency_summary as summary
from engine.report.sweep import Point, arrivals, batch_axes, due_rate, in_batch
from engine.types import DType, TensorSpec
from engine_testing import models
from engine_testing.plugins import install

# ---------------------------------------------------------------------------- what is measured


class Work:
    """Takes at least `seconds`; counts its calls and how many there are at once.

    at_once: the first calls, which wait until there are so many.
    """

    def __init__(self, seconds: float = 0.0, fail_at: int = 0, at_once: int = 1) -> None:
        self.seconds = seconds
        self.fail_at = fail_at
        self.at_once, self.together = at_once, threading.Barrier(at_once)
        self.calls = self.now = self.most = 0
        self.lock = threading.Lock()

    def __call__(self) -> None:
        with self.lock:
            self.calls += 1
            number = self.calls
            self.now += 1
            self.most = max(self.most, self.now)
            if self.calls == self.fail_at:
                raise ValueError("the model failed")
        if number <= self.at_once:
            self.together.wait(60)
        time.sleep(self.seconds)
        with self.lock:
            self.now -= 1


def served(*arguments: object, **named: object) -> Clients:
    """Return clients that have done their calls."""
    clients = Clients(*arguments, **named)
    clients.start()
    assert clients.wait(60)
    return clients


@pytest.mark.parametrize("count", [1, 3])
def test_the_calls_asked_for_are_made_and_timed(count):
    work = Work(0.002, at_once=count)
    clients = served(work, count, calls=20)
    measured = clients.measured()
    assert work.calls == clients.calls == len(measured.latencies_s) == 20
    assert measured.latencies_s.min() >= 0.002
    # One client's calls come one after another; those of three overlap.
    assert work.most == count
    assert measured.seconds >= measured.latencies_s.sum() / count


@pytest.mark.parametrize("warmup_s", [0, 1e-9])
def test_the_first_run_is_told_whether_it_counts_or_not(warmup_s):
    work = Work()
    seconds = iter([0.02])
    clients = served(lambda: (time.sleep(next(seconds, 0)), work()), warmup_s=warmup_s, calls=3)
    measured = clients.measured()
    assert measured.first_s >= 0.02
    assert (measured.first_s in measured.latencies_s.tolist()) == (warmup_s == 0)


def test_a_request_that_waits_for_a_client_has_waited_since_it_was_due():
    work = Work(0.01)
    latencies = served(work, arrivals_s=[0.0] * 5).measured().latencies_s
    assert [latency >= 0.01 * place for place, latency in enumerate(latencies, 1)] == [True] * 5


def test_no_request_begins_before_it_is_due():
    begins = []
    clients = served(lambda: begins.append(time.perf_counter()), 2, arrivals_s=[0, 0.03, 0.05])
    for begin, due in zip(sorted(begins), [0, 0.03, 0.05], strict=True):
        assert begin - clients.began >= due


def test_a_load_that_is_too_much_ends_in_time_with_what_was_served():
    work = Work(0.01)
    assert 1 <= served(work, duration_s=0.05, arrivals_s=[0.0] * 1000).calls <= 6


def test_arrivals_are_as_many_as_the_rate_says_and_the_same_every_time():
    due = arrivals(500, 20.0, None)
    assert due[0] == 0
    assert (np.diff(due) >= 0).all()
    assert due[-1] < 20
    assert abs(len(due) - 10_000) < 5 * 100  # a Poisson number's deviation is its mean's root
    assert np.diff(due).std() == pytest.approx(1 / 500, rel=0.1)  # exponential gaps: std is mean
    assert arrivals(500, 20.0, None).tolist() == due.tolist()
    assert len(arrivals(500, None, 7)) == 7


def test_the_rate_at_which_requests_were_due_is_that_of_the_moments_drawn():
    assert due_rate(np.array([0.0, 0.1, 0.7]), 2.0) == 1.5
    assert due_rate(np.array([0.0, 0.1, 0.5]), None) == 4  # two gaps in half a second
    assert due_rate(np.array([0.0]), None) is None


def point(runs=100, due=None, clients=1, seconds=1.0, last_due_s=None):
    latencies = np.full(runs, 1e-3)
    result = BenchResult("", "null", (), 1, None, 0, clients, seconds, latencies)
    more = {} if last_due_s is None else {"last_due_s": last_due_s}
    return Point(result, 100.0, due or runs, **more)


def test_a_point_is_overloaded_where_much_of_its_load_was_not_served():
    found = [point(runs, due=100).is_overloaded for runs in (100, 96, 80)]
    assert found == [False, False, True]
    assert not point(1, due=1).is_overloaded
    assert [point(due).is_too_short for due in (1, 19, 20)] == [True, True, False]
    assert not point(1, due=10).is_too_short


def test_of_a_number_of_requests_one_that_ends_late_is_overloaded():
    ends = [point(seconds=seconds, last_due_s=1.0) for seconds in (1.01, 1.05, 1.2)]
    assert [end.is_overloaded for end in ends] == [False, False, True]
    at_once = point(clients=20, seconds=1.2, last_due_s=1.0)
    assert not at_once.is_overloaded
    assert point(3, seconds=1.2, last_due_s=1.0).is_overloaded
    assert point(3, seconds=1.01, last_due_s=1.0).is_too_short


def test_the_batch_is_every_axis_of_the_first_open_name():
    ids = TensorSpec("ids", DType.INT64, ("batch", "sequence"))
    past = TensorSpec("past", DType.FLOAT32, (2, "batch", 4))
    scale = TensorSpec("scale", DType.FLOAT32, ())
    axes = batch_axes([ids, past, scale])
    assert axes == {"ids": (0,), "past": (1,)}
    values = [np.arange(6).reshape(2, 3), np.arange(16.0).reshape(2, 2, 4), np.float32(3)]
    grown = in_batch([ids, past, scale], values, axes, 5)
    assert [np.shape(value) for value in grown] == [(5, 3), (2, 5, 4), ()]
    np.testing.assert_array_equal(grown[0], values[0][[0, 1, 0, 1, 0]])
    np.testing.assert_array_equal(grown[1], values[1][:, [0, 1, 0, 1, 0]])
    with pytest.raises(engine.InputError, match=r"batch is fixed: input 'x' float32\[4\]"):
        batch_axes([TensorSpec("x", DType.FLOAT32, (4,))])


def test_the_warm_up_is_not_counted_and_is_at_least_one_call():
    work = Work()
    clients = served(work, warmup_s=1e-9, calls=5)
    assert (work.calls, clients.calls) == (6, 5)
    work = Work()
    served(work, warmup_s=0, calls=5)
    assert work.calls == 5


def test_a_duration_is_kept_and_a_call_that_has_begun_counts():
    work = Work(0.05)
    begin = time.perf_counter()
    clients = served(work, 2, duration_s=0.12)
    measured = clients.measured()
    assert 0.12 <= measured.seconds <= time.perf_counter() - begin
    assert work.calls == len(measured.latencies_s)
    assert work.now == 0


def test_an_error_ends_all_clients_and_is_raised():
    clients = Clients(Work(0.001, fail_at=7), 3, duration_s=3600)
    clients.start()
    with pytest.raises(ValueError, match="the model failed"):
        clients.wait(60)


def test_more_clients_than_can_be_had_are_refused(monkeypatch):
    real, begun = threading.Thread.start, []

    def start(thread):
        if len(begun) == 3:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    work = Work()
    with pytest.raises(ValueError, match=r"5 clients are too many, 3 could be started: can't"):
        Clients(work, 5, calls=10).start()
    for thread in begun:
        thread.join(60)
    assert work.calls == 0


@pytest.mark.parametrize("warmup_s", [0, 3600])
def test_clients_that_are_stopped_keep_what_they_have(warmup_s):
    work = Work(0.001)
    clients = Clients(work, 2, warmup_s, duration_s=3600)
    clients.start()
    while work.calls < 10:
        time.sleep(0.001)
    clients.stop()
    assert clients.wait(60)
    assert (clients.calls > 0) == (warmup_s == 0)
    assert len(clients.measured().latencies_s) == clients.calls


# ---------------------------------------------------------------------------------- the numbers


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_percentiles_are_linear_between_the_two_nearest(count):
    latencies = np.random.default_rng(count).exponential(1e-3, count)
    shown = summary(latencies)
    if count == 1:
        assert shown.pop("std") == 0
        assert set(shown.values()) == {float(latencies[0])}
        return
    cuts = statistics.quantiles(latencies, n=100, method="inclusive")  # a second implementation
    for rank in (50, 90, 95, 99):
        assert shown[f"p{rank}"] == pytest.approx(cuts[rank - 1], rel=1e-12)
    thousandths = statistics.quantiles(latencies, n=1000, method="inclusive")
    assert shown["p99.9"] == pytest.approx(thousandths[998], rel=1e-12)
    assert shown["std"] == pytest.approx(statistics.pstdev(latencies))
    assert shown["min"] == min(latencies)
    assert shown["max"] == max(latencies)
    assert shown["mean"] == pytest.approx(statistics.fmean(latencies))


def test_a_histogram_holds_every_latency_once():
    latencies = np.random.default_rng(1).lognormal(-8, 1, 5000)
    edges, counts = histogram(latencies)
    assert counts.sum() == 5000
    assert (edges[0], edges[-1]) == (latencies.min(), latencies.max())
    ratios = edges[1:] / edges[:-1]
    assert ratios == pytest.approx(ratios[0])
    for place, count in enumerate(counts):
        inside = (latencies >= edges[place]) & (latencies < edges[place + 1])
        assert count == inside.sum() + (place == len(counts) - 1)
    assert histogram(np.full(9, 2e-3))[1].tolist() == [9]


def test_the_drawing_shows_counts_in_proportion_and_marks_the_percentiles(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    latencies = np.concatenate([np.full(800, 1e-3), np.full(199, 2e-3), np.full(1, 16e-3)])
    draw(latencies)
    lines = capsys.readouterr().out.splitlines()
    bars = {int(re.findall(r"(\d+)(?:  p.*)?$", line)[0]): line.count("█") for line in lines}
    assert sum(bars) == 1000
    assert bars[800] == max(bars.values()) > 40
    assert bars[199] == pytest.approx(bars[800] * 199 / 800, abs=1)
    assert "▏" in lines[-1]  # one of 1000 can be seen
    assert lines[0].startswith("1.00 ms")
    assert lines[0].endswith("800  p50")
    assert [line for line in lines if line.endswith("p90 p95 p99")] == [
        line for line in lines if "  199  " in line
    ]
    assert max(map(len, lines)) <= 80


# ---------------------------------------------------------------------------------- the command


def test_prints_percentiles_throughput_and_where_it_ran(cli, tmp_path):
    done = cli("bench", models.affine(tmp_path), "--runs", 200, "--warmup", 0, "--shape", "x=4,3")
    assert (done.status, done.err) == (0, "")
    time_ = r"\d[\d.]* (us|ms|s)"
    for name in ("p50", "p90", "p95", "p99", "p99.9"):
        assert re.search(rf"^latency {name} +{time_} \+- {time_}$", done.out, re.M), done.out
    for name in ("min", "max", "mean", "std"):
        assert re.search(rf"^latency {name} +{time_}$", done.out, re.M), done.out
    samples = r"[\d,.]+ samples/s in batches of 4"
    assert re.search(rf"^throughput +[\d,.]+ runs/s, {samples}$", done.out, re.M)
    assert re.search(rf"^first run +{time_}$", done.out, re.M)
    assert re.search(r"^ran on +cpu:0 \(", done.out, re.M)
    assert re.search(r"^CPUs +\d+ usable of \d+, host threads: \d+$", done.out, re.M)
    assert re.search(rf"^measured +200 runs in {time_}, 1 client, without warm-up$", done.out, re.M)
    assert "input x: float32[4, 3], generated: all ones" in done.out


def test_json_holds_what_the_text_says_in_seconds(cli, plugin_folder, tmp_path):
    install(plugin_folder, "null", "engine_testing.null_device")
    done = cli(
        "bench", models.affine(tmp_path), "--target", "null", "--set", "null_context.delay_s=0.1",
        "--runs", 10, "--clients", 2, "--warmup", 0.001, "--threads", 3, "--json", "--plot",
    )  # fmt: skip
    values = done.json
    assert (values["runs"], values["clients"], values["threads"]) == (10, 2, 3)
    assert (values["warmup_s"], values["interrupted"]) == (0.001, False)
    assert values["throughput_per_s"] == pytest.approx(10 / values["seconds"])
    assert (values["batch"], values["samples_per_s"]) == (1, values["throughput_per_s"])
    assert values["first_run_s"] >= 0.1
    latency = values["latency_s"]
    assert latency["min"] >= 0.1
    assert latency["min"] <= latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]
    # Two at once: the runs take longer together than the time that passed.
    assert latency["mean"] * 10 > values["seconds"]
    assert sum(values["histogram"]["counts"]) == 10
    assert values["backend"] == "null"
    assert values["devices"][0]["nodes"] == 2
    assert values["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": [1, 3], "source": "generated: all ones"}
    ]


def test_the_threads_printed_are_those_that_are_used(cli, tmp_path):
    arguments = ("bench", models.affine(tmp_path), "--runs", 5, "--warmup", 0)
    most = 5 * os.cpu_count()
    assert cli(*arguments, "--threads", 9999, "--json").json["threads"] == most
    assert cli(*arguments, "--threads", 1, "--json").json["threads"] == 1


def test_a_duration_is_how_long_it_measures(cli, tmp_path):
    arguments = ("bench", models.affine(tmp_path), "--warmup", 0, "--json")
    assert 0.2 <= cli(*arguments, "--duration", 0.2).json["seconds"] < 60


def test_few_runs_are_said_to_say_little(cli, tmp_path):
    path = models.affine(tmp_path)
    assert re.match(
        r"note: with 99 runs the p99 ", cli("bench", path, "--runs", 99, "--warmup", 0).err
    )
    assert cli("bench", path, "--runs", 100, "--warmup", 0).err == ""


def test_inputs_come_from_files_as_for_a_run(cli, digits):
    path, images = digits / "digits.onnx", digits / "test_images.npz"
    done = cli("bench", path, "-i", images, "--runs", 3, "--warmup", 0, "--json")
    assert done.json["inputs"][0]["shape"][0] == 360
    assert "not used: 'label'" in done.err


def test_what_fails_in_a_run_is_one_line_of_error(cli, tmp_path):
    done = cli("bench", models.affine(tmp_path), "--shape", "x=2,4", "--clients", 3).fails(
        "expected float32[batch, 3], got float32[2, 4]", out=""
    )
    assert done.err.count("\n") == 1


# -------------------------------------------------------------------------------------- sweeps


def test_batches_are_measured_one_after_the_other(cli, tmp_path):
    arguments = (
        "bench",
        models.affine(tmp_path),
        "--batches",
        "1,3,8",
        "--runs",
        20,
        "--warmup",
        0,
    )
    points = cli(*arguments, "--json").json["points"]
    assert [point["batch"] for point in points] == [1, 3, 8]
    for point in points:
        assert point["runs"] == 20
        assert point["samples_per_s"] == pytest.approx(point["batch"] * 20 / point["seconds"])
    assert cli(*arguments, "--shape", "x=1,3").err == ""
    said = cli(*arguments, "--shape", "x=5,3").err
    assert (
        said == "note: --shape: the batch of 5 for 'x' is not measured: --batches says which are\n"
    )
    lines = cli(*arguments, "--plot").out.splitlines()
    [heading] = [place for place, line in enumerate(lines) if line.split()[:1] == ["batch"]]
    rows = lines[heading + 1 :]
    assert [row.split()[0] for row in rows] == ["1", "3", "8"]
    assert max(row.count("█") for row in rows) == 20


def test_loads_are_offered_one_after_the_other(cli, tmp_path, plugin_folder):
    install(plugin_folder, "null", "engine_testing.null_device")
    arguments = (
        "bench", models.affine(tmp_path), "--target", "null", "--set", "null_context.delay_s=0.02",
        "--rates", "5,1000", "--duration", 0.5, "--warmup", 0,
    )  # fmt: skip
    low, high = cli(*arguments, "--json").json["points"]
    assert (low["offered_per_s"], high["offered_per_s"]) == (5, 1000)
    assert high["overloaded"]  # 50 a second are all that there can be
    assert high["due"] > 300 > high["runs"]
    assert high["latency_s"]["max"] > 5 * 0.02  # it has waited
    table = cli(*arguments).out.splitlines()
    assert high["due_per_s"] == high["due"] / 0.5
    assert table[-1].split()[:2] == ["1,000", f"{high['due_per_s']:,.0f}"]
    assert table[-1].endswith("overloaded")
    assert table[-2].endswith("too short to judge")
    assert low["overloaded"] is None


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--batches", "1,2", "--rates", "5"), "--batches, --rates: expected one of the two"),
        (("--batches", "0"), "--batches: expected sizes of 1 or more, as 1,2,4,8, got '0'"),
        (("--batches", "1.5"), "--batches: expected whole numbers, got '1.5'"),
        (
            ("--rates", "fast"),
            "--rates: expected requests a second, 0.001 or more, as 10,20,50, got 'fast'",
        ),
        (("--rates", "inf"), "--rates: expected requests a second"),
    ],
)
def test_a_sweep_that_cannot_be_is_wrong_usage(cli, tmp_path, options, error):
    cli("bench", models.affine(tmp_path), *options).fails(error, 2)


# --------------------------------------------------------------------------------------- plots


def test_a_plot_is_drawn_below_the_numbers(cli, tmp_path):
    done = cli("bench", models.affine(tmp_path), "--runs", 300, "--warmup", 0, "--plot")
    below = done.out.partition("latency std")[2].splitlines()[2:]
    assert sum(int(re.findall(r"(\d+)(?:  p.*)?$", line)[0]) for line in below) == 300


def test_a_plot_is_drawn_in_ascii_where_nothing_else_can_be_printed(shell, tmp_path):
    done = shell(
        "bench", models.affine(tmp_path), "--runs", 300, "--warmup", 0, "--plot",
        PYTHONIOENCODING="ascii",
    )  # fmt: skip
    assert done.status == 0
    assert "#####" in done.out
    assert "\\u" not in done.out


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
@pytest.mark.parametrize(
    ("name", "begins"), [("p.png", b"\x89PNG\r\n"), ("p.svg", b"<?xml"), ("p.pdf", b"%PDF-")]
)
def test_a_plot_is_written_into_a_file(cli, tmp_path, name, begins):
    path = models.affine(tmp_path).rename(tmp_path / "$a_{b$.onnx")  # no formula
    done = cli("bench", path, "--runs", 100, "--warmup", 0, "--plot-file", tmp_path / name)
    assert (done.status, done.err) == (0, f"plot written to {tmp_path / name}\n")
    assert (tmp_path / name).read_bytes().startswith(begins)
    again = cli("bench", path, "--runs", 100, "--plot-file", tmp_path / "absent" / name)
    assert (again.status, again.out) == (1, "")  # before anything is measured
    folder = tmp_path / "absent"
    assert again.err == f"error: {folder / name}: no such folder: {folder}; make it first\n"


def test_without_matplotlib_a_plot_file_is_refused_before_anything_is_measured(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    done = cli("bench", "absent.onnx", "--plot-file", "p.png").fails("[plot]", out="")
    assert done.err.startswith("error: a plot in a file needs matplotlib")
    assert 'run: pip install "inference-engine[plot]", or use --plot for one in the' in done.err
    assert done.err.count("\n") == 1
