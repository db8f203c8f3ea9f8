"""MLPerf LoadGen as an outside judge: MobileNetV2 on this engine and on plain ONNX Runtime.

    python bench/loadgen.py                               all four scenarios, a minute each and more
    python bench/loadgen.py --scenario Server             one of them
    python bench/loadgen.py --system onnxruntime --scenario Offline
    python bench/loadgen.py --seconds 5                   a short try

LoadGen (mlcommons/inference, `pip install mlcommons-loadgen`) issues the queries, takes the times
and says VALID or INVALID; this only serves it. Of the engine, a Model answers SingleStream and a
ModelParallelRunner the other scenarios; of ONNX Runtime, one default InferenceSession does all,
with 8 threads that call it where there are several queries at once. MultiStream has 8 samples in a
query. Server's target is 0.8 of the requests a second of a system that has 8 in flight, and its
bound 10 times the 90th percentile of single requests, both measured just before, for each system.
Its limit is measured again just after: a machine that drifts between the two by more than a
few per cent was not quiet, and says nothing.

Needs the cpu backend and the onnx package. `--json` for programs. Exits 1 where a run is INVALID.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlperf_loadgen as loadgen
import models
import numpy as np
import onnxruntime as ort
from measure import bar, parser_of
from runner import quantile

import engine

SCENARIOS = ("SingleStream", "MultiStream", "Server", "Offline")
SYSTEMS = ("engine", "onnxruntime")
SAMPLES = 64
SHORTEST_S = 60.0  # what a run takes at least by MLPerf's rules, as far as this project uses them
THREADS = IN_FLIGHT = 8
SERVER_LOAD = 0.8
SERVER_BOUND = 10
# LoadGen makes its queries before it starts: enough of them, should the system be faster than here.
MARGIN = 2.0

Predict = Callable[[np.ndarray], np.ndarray]
Submit = Callable[[np.ndarray], "Future[np.ndarray]"]


@dataclass(frozen=True)
class Row:
    """One run. figure: LoadGen's result in the scenario's unit; verdict: VALID or INVALID."""

    system: str
    scenario: str
    figure: float
    unit: str
    p99_ms: float
    verdict: str
    remark: str


class System:
    """A tested system. predict: in the calling thread; submit: beside others."""

    def __init__(self, name: str, path: Path, closing: ExitStack) -> None:
        self.name = name
        if name == "engine":
            model = engine.load(path)
            closing.callback(model.close)
            runner = closing.enter_context(engine.ModelParallelRunner())
            runner.build_from_file(str(path))
            self.predict: Predict = lambda x: _array(model.predict([x]))
            self.submit: Callable[[np.ndarray], Future[Any]] = lambda x: runner.submit([x])
        else:
            session = ort.InferenceSession(path)
            threads = closing.enter_context(ThreadPoolExecutor(THREADS))
            [value] = session.get_inputs()
            self.predict = lambda x: session.run(None, {value.name: x})[0]
            self.submit = lambda x: threads.submit(self.predict, x)


def _array(result: Any) -> np.ndarray:
    """Return the array of a result: the engine's are lists of tensors."""
    return result[0].get_data_to_numpy() if isinstance(result, list) else result


class Service:
    """Answers LoadGen's queries with a system, from samples in memory."""

    def __init__(self, system: System, scenario: str, seconds: float) -> None:
        self._system = system
        self._is_single = scenario == "SingleStream"
        self._samples: dict[int, np.ndarray] = {}
        self._seconds = seconds
        self._begin_s = time.monotonic()
        self._show = bar(f"{system.name} {scenario}")
        self.errors: list[BaseException] = []

    def load(self, indices: Sequence[int]) -> None:
        for index in indices:
            chance = np.random.default_rng(index)
            self._samples[index] = chance.standard_normal((1, 3, 224, 224)).astype(np.float32)

    def unload(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._samples.pop(index, None)  # of MultiStream's, one may be there twice

    def issue(self, queries: Sequence[Any]) -> None:
        for query in queries:
            sample = self._samples[query.index]
            if self._is_single:
                self._complete(query.id, partial(self._system.predict, sample))
            else:
                done = partial(self._done, query.id)
                self._system.submit(sample).add_done_callback(done)

    def flush(self) -> None:
        """Nothing is held back."""

    def _done(self, query: int, future: Future[Any]) -> None:
        self._complete(query, lambda: _array(future.result()))

    def _complete(self, query: int, result: Callable[[], np.ndarray]) -> None:
        """Give LoadGen the result. A query without an answer would let it wait for ever."""
        try:
            found = result()
            response = loadgen.QuerySampleResponse(query, found.ctypes.data, found.nbytes)
        except Exception as error:
            self.errors.append(error)
            response = loadgen.QuerySampleResponse(query, 0, 0)
        loadgen.QuerySamplesComplete([response])
        if self._show:
            passed_s = min(time.monotonic() - self._begin_s, self._seconds)
            self._show(int(passed_s * 10), int(self._seconds * 10))


def settings_of(system: System, scenario: str, seconds: float) -> tuple[Any, str, float]:
    """Return LoadGen's settings for a scenario, and what was measured for them: in words, and how
    many requests a second the system can do, 0 where that does not matter.
    """
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    singles_s = [timed(system.predict, x) for _ in range(200)]
    per_s = 0.0
    if scenario != "SingleStream":
        capacity(system, x, 0.5)
        per_s = steady_capacity(system, x, seconds)
    settings = loadgen.TestSettings()
    settings.scenario = getattr(loadgen.TestScenario, scenario)
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.min_duration_ms = round(seconds * 1e3)
    single_s = quantile(singles_s, 0.5)
    remark = ""
    if scenario == "SingleStream":
        settings.single_stream_expected_latency_ns = round(single_s / MARGIN * 1e9)
    elif scenario == "MultiStream":
        each_s = settings.multi_stream_samples_per_query / per_s
        settings.multi_stream_expected_latency_ns = round(each_s / MARGIN * 1e9)
    elif scenario == "Offline":
        settings.offline_expected_qps = per_s
    else:
        bound_s = SERVER_BOUND * quantile(singles_s, 0.9)
        settings.server_target_qps = SERVER_LOAD * per_s
        settings.server_target_latency_ns = round(bound_s * 1e9)
        remark = f"{SERVER_LOAD:g} of {per_s:.0f}/s, p99 within {bound_s * 1e3:.1f} ms"
    return settings, remark, per_s


def steady_capacity(system: System, x: np.ndarray, seconds: float) -> float:
    """Return the median over some stretches: one of them may meet another process."""
    each_s = min(seconds / 10, 3.0)
    return statistics.median(capacity(system, x, each_s) for _ in range(5))


def capacity(system: System, x: np.ndarray, seconds: float) -> float:
    """Return the requests a second that a system ends with 8 in flight all the time."""
    room = threading.Semaphore(IN_FLIGHT)
    ended = itertools.count()

    def issue() -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            room.acquire()
            system.submit(x).add_done_callback(done)

    def done(future: Future[Any]) -> None:
        if future.exception() is None:
            next(ended)
        room.release()

    in_thread(issue)
    per_s = next(ended) / seconds
    for _ in range(IN_FLIGHT):
        room.acquire()
    return per_s


def stolen_s() -> float:
    """Return the CPU time that a virtual machine's host has given to others, since its start."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return int(fields[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):  # not Linux
        return 0.0


def in_thread(work: Callable[[], object]) -> None:
    """Call `work` in a thread, and wait for its end.

    A submit in the main thread pays for what signal handlers may raise there.
    """
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def timed(predict: Predict, x: np.ndarray) -> float:
    begin = time.perf_counter()
    predict(x)
    return time.perf_counter() - begin


def judge(name: str, path: Path, scenario: str, seconds: float) -> Row:
    """Have LoadGen run a scenario."""
    with ExitStack() as closing:
        system = System(name, path, closing)
        settings, remark, before = settings_of(system, scenario, seconds)
        service = Service(system, scenario, seconds)
        logs = loadgen.LogSettings()
        logs.enable_trace = False
        folder = closing.enter_context(tempfile.TemporaryDirectory())
        logs.log_output.outdir = folder
        sut = loadgen.ConstructSUT(service.issue, service.flush)
        qsl = loadgen.ConstructQSL(SAMPLES, SAMPLES, service.load, service.unload)
        stolen = stolen_s()
        in_thread(partial(loadgen.StartTestWithLogSettings, sut, qsl, settings, logs))
        stolen = stolen_s() - stolen
        loadgen.DestroyQSL(qsl)
        loadgen.DestroySUT(sut)
        if service.errors:
            raise SystemExit(f"{len(service.errors)} requests failed: {service.errors[0]}")
        if stolen > 0.01 * seconds:
            remark = f"{remark}{remark and ', '}the host took {stolen:.1f} s of CPU time"
        if before:
            x = np.zeros((1, 3, 224, 224), np.float32)
            drift = steady_capacity(system, x, seconds) / before - 1
            remark = f"{remark}{remark and ', '}machine {drift:+.1%} after"
        return read(name, scenario, Path(folder, "mlperf_log_summary.txt").read_text(), remark)


def read(system: str, scenario: str, summary: str, remark: str) -> Row:
    """Read LoadGen's own summary of a run."""
    given = {}
    for line in summary.splitlines():
        name, separator, value = line.partition(":")
        if separator:
            given[name.strip()] = value.strip()
    figure, unit = {
        "SingleStream": (_ms(given, "90.0th percentile latency (ns)"), "ms, p90"),
        "MultiStream": (_ms(given, "99.0th percentile latency (ns)"), "ms, p99"),
        "Server": (_number(given, "Completed samples per second"), "/s"),
        "Offline": (_number(given, "Samples per second"), "/s"),
    }[scenario]
    p99_ms = _ms(given, "99.00 percentile latency (ns)")
    verdict = given["Result is"]
    if verdict != "VALID":
        print(summary, file=sys.stderr)
    return Row(system, scenario, figure, unit, p99_ms, verdict, remark)


def _number(given: dict[str, str], name: str) -> float:
    return float(given.get(name, "nan"))


def _ms(given: dict[str, str], name: str) -> float:
    return _number(given, name) / 1e6


def report(rows: list[Row], seconds: float, as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"{'scenario':14} {'system':12} {'result':>18} {'p99':>12}  LoadGen says")
    for row in rows:
        print(
            f"{row.scenario:14} {row.system:12} {row.figure:9.2f} {row.unit:8} "
            f"{row.p99_ms:9.2f} ms  {row.verdict}{row.remark and f' ({row.remark})'}"
        )
    if seconds < SHORTEST_S:
        print(f"too short to count: {seconds:g} s each; MLPerf's rules want {SHORTEST_S:g} s")


def main() -> None:
    parser = parser_of(__doc__, json=True)
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="default: all")
    parser.add_argument("--system", action="append", choices=SYSTEMS, help="default: both")
    parser.add_argument("--seconds", type=float, default=SHORTEST_S, help="of each run, at least")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = models.mobilenet_v2(Path(folder))
        rows = [
            judge(system, path, scenario, arguments.seconds)
            for scenario in arguments.scenario or SCENARIOS
            for system in arguments.system or SYSTEMS
        ]
    report(rows, arguments.seconds, arguments.json)
    raise SystemExit(any(row.verdict != "VALID" for row in rows))


if __name__ == "__main__":
    main()
