"""Throughput and tail latency of ModelParallelRunner under closed-loop clients.

    python bench/runner.py                       8 clients, MobileNetV2 and a BERT-like model
    python bench/runner.py batching              a weight-bound model, requests one by one or shared
    python bench/runner.py small                 models of 14 us to 1.5 ms, Model beside the runner
    python bench/runner.py --seconds 4 -n 10     longer rounds, and more of them

Each round lets all contenders run for some seconds, in an order drawn anew: 8 threads on one
default InferenceSession (the baseline, twice: A/A), the same number of one-thread sessions as the
machine has CPUs, OpenVINO's AsyncInferQueue with float32 (where openvino is installed), and the
runner. Requests a second are compared as medians of ratios; p99 is of the latencies of all rounds.
Needs the cpu backend and the onnx package. `--json` for programs.
"""

from __future__ import annotations

import itertools
import json
import queue
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnxruntime as ort
from measure import bar, parser_of

import engine
from engine.host.cpus import usable_cpus

CLIENTS = 8
Predict = Callable[[dict[str, np.ndarray]], Any]


@dataclass(frozen=True)
class Row:
    """One contender. ratio: its requests a second over the baseline's; p99_ratio: likewise.

    cpu_s: CPU time of the process for one request: on a busy machine steadier than the rate.
    """

    model: str
    what: str
    per_s: float
    ratio: float
    p50_s: float
    p99_s: float
    p99_ratio: float
    control: float
    cpu_s: float


def clients(predict: Predict, feeds: dict[str, np.ndarray], seconds: float) -> list[float]:
    """Return the latencies of requests that 8 threads make, each after the last, in seconds."""
    latencies: list[list[float]] = [[] for _ in range(CLIENTS)]
    begin = threading.Barrier(CLIENTS + 1)
    end_s = [0.0]

    def client(own: list[float]) -> None:
        begin.wait()
        while (start := time.perf_counter()) < end_s[0]:
            predict(feeds)
            own.append(time.perf_counter() - start)

    threads = [threading.Thread(target=client, args=(own,)) for own in latencies]
    for thread in threads:
        thread.start()
    end_s[0] = time.perf_counter() + seconds
    begin.wait()
    for thread in threads:
        thread.join()
    return list(itertools.chain(*latencies))


def sessions(path: Path, count: int) -> Predict:
    """Let requests take turns on one-thread sessions, with a queue of free ones."""
    free: queue.SimpleQueue[ort.InferenceSession] = queue.SimpleQueue()
    for _ in range(count):
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        free.put(ort.InferenceSession(path, options))

    def predict(feeds: dict[str, np.ndarray]) -> Any:
        session = free.get()
        try:
            return session.run(None, feeds)
        finally:
            free.put(session)

    return predict


def openvino(path: Path) -> Predict | None:
    """OpenVINO's queue of requests, in float32: its default here would be bfloat16."""
    if find_spec("openvino") is None:
        return None
    import openvino as ov

    core = ov.Core()
    settings = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(path, "CPU", settings)
    requests = ov.AsyncInferQueue(compiled)
    requests.set_callback(lambda _, done: done.set())
    turn = threading.Lock()  # start_async of one queue is for one thread at a time

    def predict(feeds: dict[str, np.ndarray]) -> Any:
        done = threading.Event()
        with turn:
            requests.start_async(feeds, done)
        done.wait()

    return predict


def runner(path: Path, **settings: Any) -> engine.ModelParallelRunner:
    made = engine.ModelParallelRunner()
    made.build_from_file(str(path), **settings)
    return made


def compare(
    model: str,
    contenders: dict[str, Predict],
    feeds: dict[str, np.ndarray],
    rounds: int,
    seconds: float,
) -> list[Row]:
    """Measure the contenders in turn; the first is the baseline, and is measured twice."""
    names = list(contenders)
    order = random.Random(0)
    columns = [names[0], *names]
    per_s: list[list[float]] = [[] for _ in columns]
    cpu_s: list[list[float]] = [[] for _ in columns]
    latencies: list[list[float]] = [[] for _ in columns]
    show = bar(model)
    for predict in contenders.values():
        clients(predict, feeds, 0.3)
    for round_ in range(rounds):
        for place in order.sample(range(len(columns)), len(columns)):
            begin_s = time.process_time()
            found = clients(contenders[columns[place]], feeds, seconds)
            per_s[place].append(len(found) / seconds)
            cpu_s[place].append((time.process_time() - begin_s) / len(found))
            latencies[place] += found
        if show:
            show(round_ + 1, rounds)
    base_p99 = quantile(latencies[1], 0.99)
    control = ratio(per_s[0], per_s[1])
    return [
        Row(
            model,
            name,
            statistics.median(per_s[place]),
            ratio(per_s[place], per_s[1]),
            quantile(latencies[place], 0.5),
            quantile(latencies[place], 0.99),
            quantile(latencies[place], 0.99) / base_p99,
            control,
            statistics.median(cpu_s[place]),
        )
        for place, name in enumerate(names, start=1)
    ]


def ratio(own: list[float], base: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(own, base, strict=True))


def quantile(values: list[float], part: float) -> float:
    return float(np.quantile(values, part))


def throughput(folder: Path, rounds: int, seconds: float) -> list[Row]:
    cpus = usable_cpus()
    made = {
        "MobileNetV2": models.mobilenet_v2(folder),
        "BERT-like": models.bert_like(folder),
    }
    rows = []
    for name, path in made.items():
        session = ort.InferenceSession(path)
        feeds = feeds_of(session)
        with runner(path) as own:
            print_batching(name, own)
            contenders: dict[str, Predict] = {
                "8 threads on one session": lambda x, s=session: s.run(None, x),
                f"{cpus} sessions of 1 thread": sessions(path, cpus),
                "ModelParallelRunner": own.predict,
            }
            if other := openvino(path):
                contenders["OpenVINO, float32"] = other
            rows += compare(name, contenders, feeds, rounds, seconds)
    return rows


def batching(folder: Path, rounds: int, seconds: float) -> list[Row]:
    """One MatMul of 4096 x 4096: reading 64 MB of weights is all that a request costs."""
    g = models.Graph()
    y = g.add("MatMul", ["x", g.weight(4096, 4096)])
    path = g.save(folder / "weights.onnx", {"x": (1, ["b", 4096])}, {y: ["b", 4096]})
    cpus = usable_cpus()
    session = ort.InferenceSession(path)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 4096)).astype(np.float32)}
    [expected] = session.run(None, feeds)
    with runner(path) as own, runner(path, max_batch_size=1) as alone:
        print_batching("MatMul", own)
        wrong: list[int] = []

        def checked(x: dict[str, np.ndarray]) -> None:
            [found] = own.predict(x)
            if found.get_data_to_numpy().tobytes() != expected.tobytes():
                wrong.append(1)

        rows = compare(
            "MatMul 4096 x 4096",
            {
                "the runner without batching": alone.predict,
                "8 threads on one session": lambda x: session.run(None, x),
                f"{cpus} sessions of 1 thread": sessions(path, cpus),
                "ModelParallelRunner": checked,
            },
            feeds,
            rounds,
            seconds,
        )
        if wrong:
            raise SystemExit(f"{len(wrong)} results of a batch differ from a session's")
        print(f"batches: {own.statistics().batch_sizes}; all results bit-equal to a session's")
    return rows


def small(folder: Path, rounds: int, seconds: float) -> list[Row]:
    """Models whose run takes about as long as a thread takes to be woken."""
    cpus, rows = usable_cpus(), []
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    for name, width, layers in (
        ("14 us", 128, 8), ("66 us", 384, 6), ("490 us", 768, 12), ("1.5 ms", 1024, 20),
    ):  # fmt: skip
        path = models.layers(folder, width, layers)
        session = ort.InferenceSession(path, options)
        feeds = feeds_of(session)
        with runner(path) as own, engine.load(str(path), target="cpu", threads=1) as model:
            print_batching(name, own)
            contenders: dict[str, Predict] = {
                "8 threads on a 1-thread session": lambda x, s=session: s.run(None, x),
                f"{cpus} sessions of 1 thread": sessions(path, cpus),
                "Model, 1 thread": model.predict,
                "ModelParallelRunner": own.predict,
            }
            if other := openvino(path):
                contenders["OpenVINO, float32"] = other
            rows += compare(name, contenders, feeds, rounds, seconds)
    return rows


def feeds_of(session: ort.InferenceSession) -> dict[str, np.ndarray]:
    chance = np.random.default_rng(0)
    feeds = {}
    for value in session.get_inputs():
        shape = [dim if isinstance(dim, int) else 1 for dim in value.shape]
        whole = value.type != "tensor(float)"
        feeds[value.name] = (
            np.ones(shape, np.int64) if whole else chance.standard_normal(shape).astype(np.float32)
        )
    return feeds


def print_batching(name: str, own: engine.ModelParallelRunner) -> None:
    print(f"{name}: requests share runs: {own.statistics().batching}")


def report(rows: list[Row], as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(
        f"{'model':20} {'what':31} {'/s':>9} {'ratio':>6} {'p50':>9} {'p99':>9} {'p99':>6} "
        f"{'CPU':>9} A/A"
    )
    for row in rows:
        print(
            f"{row.model:20} {row.what:31} {row.per_s:9.1f} {row.ratio:6.3f} "
            f"{row.p50_s * 1e3:6.2f} ms {row.p99_s * 1e3:6.2f} ms {row.p99_ratio:6.3f} "
            f"{row.cpu_s * 1e6:6.0f} us {row.control:.3f}"
        )


MEASURES = {"throughput": throughput, "batching": batching, "small": small}


def main() -> None:
    parser = parser_of(__doc__, json=True)
    parser.add_argument("what", nargs="?", choices=[*MEASURES], default="throughput")
    parser.add_argument("-n", "--rounds", type=int, default=8, metavar="N")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each contender in a round")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = MEASURES[arguments.what](Path(folder), arguments.rounds, arguments.seconds)
    report(rows, arguments.json)


if __name__ == "__main__":
    main()
