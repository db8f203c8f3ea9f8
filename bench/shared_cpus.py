"""Several models of one process on the same CPUs, with and without sharing them.

    python bench/shared_cpus.py                       all cases, 4 rounds
    python bench/shared_cpus.py "a lone client" -n 8  one case, more rounds

Each case is a group of models and their clients, threads that send the next request after the last
result. Runners of workers_num=0 share the CPUs of the process ("shared"); beside them are the same
runners, each as if it were alone ("own"), twice as a control (A/A). The three take turns, in an
order drawn anew each round. Requests a second are medians of the rounds; p99 is of the latencies of
all rounds. Needs the cpu backend and the onnx package. `--json` for programs.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import models
import numpy as np
from measure import bar, parser_of

import engine
from engine.host.fair_semaphore import FairSemaphore
from engine.serving import built_model


@dataclass(frozen=True)
class Load:
    """The clients of a model: how many, and the priority of their requests.

    run: how long a run takes on an idle core, as the name of a model in MODELS.
    """

    run: str
    clients: int
    priority: int = 0


CASES = {
    "two models": [Load("5 ms", 16), Load("50 ms", 16)],
    "a short model": [Load("60 us", 8), Load("50 ms", 16)],
    "a lone client": [Load("5 ms", 1), Load("50 ms", 16)],
    "an urgent client": [Load("5 ms", 1, 100), Load("50 ms", 16)],
    "urgent clients": [Load("5 ms", 16, 100), Load("50 ms", 16)],
    "an urgent client of six models": [Load("5 ms", 1, 100), *[Load("50 ms", 16)] * 5],
    "six models": [Load("5 ms", 16), *[Load("50 ms", 16)] * 5],
}
# Width, layers and rows of a model that takes about so long.
MODELS = {"60 us": (384, 6, 1), "5 ms": (256, 20, 256), "50 ms": (256, 200, 256)}
WAYS = ("own", "shared", "control")


@dataclass(frozen=True)
class Row:
    """One model of a case. Rates in requests a second, times in ms."""

    case: str
    model: str
    own_per_s: float
    shared_per_s: float
    ratio: float
    control: float
    own_p50_ms: float
    shared_p50_ms: float
    own_p99_ms: float
    shared_p99_ms: float
    control_p99_ms: float


@contextmanager
def runners(paths: list[Path], way: str) -> Iterator[list[engine.ModelParallelRunner]]:
    """Build a runner for each file; of "shared" alone they share the CPUs."""
    sharing = built_model.SharedSemaphore
    with ExitStack() as stack:
        if way != "shared":
            built_model.SharedSemaphore = lambda slots, width: FairSemaphore(slots)
        try:
            made = []
            for path in paths:
                made.append(stack.enter_context(engine.ModelParallelRunner()))
                made[-1].build_from_file(str(path), max_batch_size=1)
        finally:
            built_model.SharedSemaphore = sharing
        yield made


def run(
    loads: list[Load],
    made: list[engine.ModelParallelRunner],
    feeds: list[np.ndarray],
    seconds: float,
) -> tuple[list[list[float]], list[int]]:
    """Return the latencies of each model's requests, and how many had ended in time."""
    latencies: list[list[list[float]]] = [[[] for _ in range(load.clients)] for load in loads]
    begin = threading.Barrier(1 + sum(load.clients for load in loads))
    end_s = [0.0]

    def client(place: int, own: list[float]) -> None:
        priority, predict, x = loads[place].priority, made[place].predict, feeds[place]
        begin.wait()
        while (start := time.perf_counter()) < end_s[0]:
            predict([x], priority=priority)
            own.append(time.perf_counter() - start)

    threads = [
        threading.Thread(target=client, args=(place, own))
        for place, clients in enumerate(latencies)
        for own in clients
    ]
    for thread in threads:
        thread.start()
    end_s[0] = time.perf_counter() + seconds
    begin.wait()
    time.sleep(max(0.0, end_s[0] - time.perf_counter()))
    in_time = [sum(map(len, clients)) for clients in latencies]
    for thread in threads:
        thread.join()
    return [[s for own in clients for s in own] for clients in latencies], in_time


def measure(folder: Path, case: str, rounds: int, seconds: float) -> list[Row]:
    loads = CASES[case]
    shapes = [MODELS[load.run] for load in loads]
    paths = [models.layers(folder, width, layers) for width, layers, _ in shapes]
    feeds = [np.ones((rows, width), np.float32) for width, _, rows in shapes]
    per_s: dict[str, list[list[float]]] = {way: [[] for _ in loads] for way in WAYS}
    latencies: dict[str, list[list[float]]] = {way: [[] for _ in loads] for way in WAYS}
    order, show = random.Random(0), bar(case)
    with ExitStack() as stack:
        made = {way: stack.enter_context(runners(paths, way)) for way in WAYS}
        for way in WAYS:
            run(loads, made[way], feeds, 0.2)
        for round_ in range(rounds):
            for way in order.sample(WAYS, len(WAYS)):
                found = run(loads, made[way], feeds, seconds)
                for place, (own, in_time) in enumerate(zip(*found, strict=True)):
                    per_s[way][place].append(in_time / seconds)
                    latencies[way][place] += own
            if show:
                show(round_ + 1, rounds)

    def ratio(way: str, place: int) -> float:
        pairs = zip(per_s[way][place], per_s["own"][place], strict=True)
        return statistics.median(a / b if b else float("nan") for a, b in pairs)

    def quantile_ms(way: str, place: int, part: float) -> float:
        return 1e3 * float(np.quantile(latencies[way][place], part))

    return [
        Row(
            case,
            f"{load.run} x {load.clients}" + f", priority {load.priority}" * bool(load.priority),
            statistics.median(per_s["own"][place]),
            statistics.median(per_s["shared"][place]),
            ratio("shared", place),
            ratio("control", place),
            quantile_ms("own", place, 0.5),
            quantile_ms("shared", place, 0.5),
            *(quantile_ms(way, place, 0.99) for way in WAYS),
        )
        for place, load in enumerate(loads)
    ]


HEAD = (
    f"{'case':31} {'model':24} {'own /s':>8} {'shared':>8} {'ratio':>6} {'A/A':>5} "
    f"{'p50':>8} {'shared':>8} {'p99':>8} {'shared':>8} {'A/A':>8} ms"
)


def report(rows: list[Row]) -> None:
    for row in rows:
        print(
            f"{row.case:31} {row.model:24} {row.own_per_s:8.1f} {row.shared_per_s:8.1f} "
            f"{row.ratio:6.2f} {row.control:5.2f} {row.own_p50_ms:8.1f} {row.shared_p50_ms:8.1f} "
            f"{row.own_p99_ms:8.1f} {row.shared_p99_ms:8.1f} {row.control_p99_ms:8.1f}",
            flush=True,
        )


def main() -> None:
    parser = parser_of(__doc__, json=True)
    parser.add_argument("case", nargs="*", choices=[*CASES, []], default=[*CASES])
    parser.add_argument("-n", "--rounds", type=int, default=4, metavar="N")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each way in a round")
    arguments = parser.parse_args()
    rows = []
    if not arguments.json:
        print(HEAD)
    with tempfile.TemporaryDirectory() as folder:
        for case in arguments.case:
            rows += measure(Path(folder), case, arguments.rounds, arguments.seconds)
            if not arguments.json:
                report(rows[-len(CASES[case]) :])
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
