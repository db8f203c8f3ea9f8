"""Load on a MultiDeviceRunner while its workers are killed.

    python bench/chaos.py                   a minute, 4 workers, a SIGKILL every second
    python bench/chaos.py --seconds 120 --every 0.2      more often than a worker can start
    python bench/chaos.py --seconds 10 --every 0.3 --workers 2

Clients send requests of 1 to 8 samples without a pause, half of them through `submit`. Each has an
input of its own, and its answer is compared with what numpy gives, bit by bit: the model permutes
columns by products with matrices of 0 and 1. Meanwhile a random worker gets SIGKILL, whether it
runs, waits or builds.

    lost        requests that got an error, or no answer within two minutes of the last kill
    duplicated  requests that were answered more than once
    wrong       answers that are another request's, or no one's
    left        processes, and files in /dev/shm that nobody has open, after `close`
    back        seconds from the last kill until every device has a worker that is ready

Exits with status 1 unless these are 0. Needs the cpu backend, the onnx package and Linux. `--json`
for programs.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from measure import bar, parser_of
from onnx import TensorProto, helper, numpy_helper

import engine

WIDTH = 768
LAYERS = 4
LARGEST = 8
ANSWER_S = 60.0

Array = np.ndarray[Any, Any]


@dataclass
class Outcome:
    """The outcome of a run."""

    seconds: float
    workers: int
    clients: int
    kills: int
    restarts: int
    retries: int
    answered: int
    lost: int
    duplicated: int
    wrong: int
    p50_ms: float
    p99_ms: float
    longest_ms: float
    back_s: float
    left_processes: int
    left_in_shm: int

    @property
    def is_clean(self) -> bool:
        """Nothing is lost, answered twice, wrong or left behind."""
        faults = self.lost, self.duplicated, self.wrong, self.left_processes, self.left_in_shm
        return not any(faults) and self.kills > 0 and self.answered > 0


def permutation(path: Path) -> Array:
    """Write a model that permutes columns; return where column i of its output is from."""
    chance = np.random.default_rng(0)
    place = np.arange(WIDTH)
    nodes, weights = [], []
    for layer in range(LAYERS):
        order = chance.permutation(WIDTH)
        weights.append(
            numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32)[:, order], f"w{layer}")
        )
        nodes.append(helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"x{layer + 1}"]))
        place = place[order]
    shape = ["batch", WIDTH]
    graph = helper.make_graph(
        nodes,
        "permutation",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(f"x{LAYERS}", TensorProto.FLOAT, shape)],
        weights,
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opsets), path)
    return place


class Clients:
    """Threads that send requests and check what comes back."""

    def __init__(self, runner: engine.MultiDeviceRunner, place: Array, count: int) -> None:
        self.errors: Counter[str] = Counter()
        self.wrong = 0
        self.latencies: list[float] = []
        self.answers: Counter[int] = Counter()  # by request
        self._runner, self._place = runner, place
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(i,), daemon=True) for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let each finish its request."""
        self._end.set()
        until = time.monotonic() + 2 * ANSWER_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                self.errors["no answer"] += 1

    def _work(self, number: int) -> None:
        chance = np.random.default_rng(number)
        ask = self._submit if number % 2 else self._predict
        turn = 0
        while not self._end.is_set():
            request = number + turn * len(self._threads)
            turn += 1
            x = chance.standard_normal((int(chance.integers(1, LARGEST + 1)), WIDTH), np.float32)
            begin = time.perf_counter()
            try:
                y = ask(request, x)
            except Exception as error:  # whatever it is: that request is lost
                with self._lock:
                    self.errors[f"{type(error).__name__}: {error}"] += 1
                continue
            taken_s = time.perf_counter() - begin
            is_right = np.array_equal(y, x[:, self._place])
            with self._lock:
                self.latencies.append(taken_s)
                self.wrong += not is_right

    def _predict(self, request: int, x: Array) -> Array:
        [y] = self._runner.predict([x])
        self._answered(request)
        return y.get_data_to_numpy()

    def _submit(self, request: int, x: Array) -> Array:
        done = threading.Event()

        def note(_: Future[Any]) -> None:
            self._answered(request)
            done.set()

        future = self._runner.submit([x])
        future.add_done_callback(note)
        [y] = future.result()
        if not done.wait(ANSWER_S):
            raise TimeoutError("its callback was not called")
        return y.get_data_to_numpy()

    def _answered(self, request: int) -> None:
        with self._lock:
            self.answers[request] += 1


def children() -> set[int]:
    """The processes whose parent this one is."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found.update(map(int, (task / "children").read_text().split()))
    return found


def in_shm() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def is_open(name: str) -> bool:
    """Return True where a living process maps a file of /dev/shm: it is not left behind."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            if f"/dev/shm/{name}" in maps.read_text():
                return True
    return False


def kills(runner: engine.MultiDeviceRunner, seconds: float, every_s: float) -> Iterator[int]:
    """Kill a random worker now and then, and give the pids of all."""
    chance = random.Random(0)
    progress = bar("chaos")
    begin = time.monotonic()
    while (gone := time.monotonic() - begin) < seconds:
        time.sleep(every_s)
        alive = children() & {worker.pid for worker in runner.statistics().workers}
        if alive:
            pid = chance.choice(sorted(alive))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                yield pid
        if progress is not None:
            progress(min(int(gone), int(seconds) - 1), int(seconds))
    if progress is not None:
        progress(int(seconds), int(seconds))


def until_ready(runner: engine.MultiDeviceRunner, killed: int = 0) -> float:
    """Wait until every device has a worker that is ready; return how long that took.

    killed: the last one that was killed, which counts as ready until its end is seen.
    """
    begin = time.monotonic()
    while time.monotonic() < begin + ANSWER_S:
        workers = runner.statistics().workers
        if all(w.state in ("ready", "busy") and w.pid != killed for w in workers):
            break
        time.sleep(0.01)
    return time.monotonic() - begin


def run(folder: Path, seconds: float, every_s: float, workers: int, clients: int) -> Outcome:
    path = folder / "permutation.onnx"
    place = permutation(path)
    shm, others = in_shm(), children()
    with engine.MultiDeviceRunner(str(path), [*range(workers)]) as runner:
        load = Clients(runner, place, clients)
        killed = [*kills(runner, seconds, every_s)]
        back_s = until_ready(runner, killed[-1] if killed else 0)
        load.end()
        told = runner.statistics()
    for error, count in load.errors.items():
        print(f"{count} x {error}", file=sys.stderr)
    latencies_ms = np.array(load.latencies) * 1e3
    p50, p99, longest = np.percentile(latencies_ms, (50, 99, 100)) if load.latencies else (0, 0, 0)
    return Outcome(
        seconds,
        workers,
        clients,
        len(killed),
        told.restarts,
        told.retries,
        len(load.latencies),
        sum(load.errors.values()),
        sum(count > 1 for count in load.answers.values()),
        load.wrong,
        float(p50),
        float(p99),
        float(longest),
        back_s,
        len(children() - others),
        sum(not is_open(name) for name in in_shm() - shm),
    )


def show(found: Any, claim: str, *, as_json: bool) -> None:
    """Print an outcome, a dataclass with `is_clean`; claim: what holds where it is."""
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return
    for what, value in asdict(found).items():
        text = f"{value:.2f}" if isinstance(value, float) else str(value)
        print(f"{what.replace('_', ' '):24} {text:>10}")
    print(claim if found.is_clean else "FAILED")


def main() -> None:
    parser = parser_of(__doc__, json=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two SIGKILLs")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--clients", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = run(Path(name), given.seconds, given.every, given.workers, given.clients)
    show(found, "nothing lost, duplicated, wrong or left", as_json=given.json)
    sys.exit(not found.is_clean)


if __name__ == "__main__":
    main()
