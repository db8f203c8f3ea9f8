"""Measure the speed of tuned models over the default's, idle and beside a busy process.

    python bench/tune.py                            every network, float32, idle and busy
    python bench/tune.py bert --max-error 0.01      one network, less precise arithmetic too
    python bench/tune.py mobilenet --times 5        the same tuning five times
    python bench/tune.py resnet50 --clients 4       requests of four clients

Of MobileNetV2, ResNet-50 and a BERT-like encoder (6 layers of 768, 128 tokens). Each is tuned by
`engine.tune`, then built without and with the configuration that was written. Both are timed in
interleaved rounds by the clock: the default, the default again (A/A), the tuned one. "busy":
another process keeps one CPU busy, while tuning and while timing. "speed" is the default's time
over the tuned one's, "differs" the largest difference of the first output over its largest value.
With --clients, requests a second of ModelParallelRunners are compared. Needs the cpu backend, the
extra `quantize` for quantized forms, and the OpenVINO backend (examples/third_party) if it is to be
tried.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path

import models
import numpy as np
from measure import busy_neighbour, compare, parser_of

import engine
from engine.report.clients import Clients
from engine.report.tuning.tuning import Tuning
from engine.types import TensorSpec

NETWORKS: dict[str, Callable[[Path], Path]] = {
    "mobilenet": models.mobilenet_v2,
    "resnet50": models.resnet50,
    "bert": lambda folder: models.bert_like(folder, hidden=768),
}
_CALLS_S, _CLIENTS_S = 0.05, 0.3
"""Seconds of one timing, of one client and of several."""
_REST_S = 0.03  # longer than idle threads of the one before spin

Arrays = dict[str, np.ndarray]
Figures = tuple[float, float, float]
"""The tuned model's speed over the default's, the A/A control, and their results' difference."""


def inputs_of(specs: Sequence[TensorSpec]) -> Arrays:
    """Return random inputs of one sample."""
    generator = np.random.default_rng(0)
    shapes = {
        spec.name: [d if isinstance(d, int) else 1 for d in spec.shape or ()] for spec in specs
    }
    return {name: generator.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference over the largest value."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def alone(path: Path, tuning: Tuning, rounds: int) -> Figures:
    """Compare latencies of one client."""
    with engine.load(path) as default, engine.load(tuning.model, config=tuning.path) as tuned:
        given = inputs_of(default.inputs)
        found = tuned.predict(given)[0].get_data_to_numpy()
        default.predict(given)
        begin = time.perf_counter()
        expected = default.predict(given)[0].get_data_to_numpy()
        calls = max(1, round(_CALLS_S / (time.perf_counter() - begin)))
        [row] = compare(
            partial(default.predict, given),
            {"tuned": (partial(tuned.predict, given), None)},
            rounds=rounds,
            calls=calls,
            pause_s=_REST_S,
        )
    return 1 / row.ratio, row.control, difference(found, expected)


def served(path: str, config: str = "") -> engine.ModelParallelRunner:
    """Return a runner, with a configuration or as it is by default."""
    context = engine.Context()
    if config:
        context.parallel.config_path = config
    runner = engine.ModelParallelRunner()
    runner.build_from_file(path, context)
    return runner


def throughput(runner: engine.ModelParallelRunner, given: Arrays, clients: int) -> float:
    """Return the requests a second of some clients."""
    working = Clients(partial(runner.predict, given), clients, 0.05, _CLIENTS_S)
    working.start()
    working.wait()
    measured = working.measured()
    return len(measured.latencies_s) / measured.seconds


def shared(path: Path, tuning: Tuning, rounds: int, clients: int) -> Figures:
    """Compare requests a second of several clients."""
    with ExitStack() as stack:
        default = stack.enter_context(served(str(path)))
        tuned = stack.enter_context(served(tuning.model, tuning.path))
        given = inputs_of(default.inputs)
        speeds, controls = [], []
        for _ in range(rounds):
            first = throughput(default, given, clients)
            speeds.append(throughput(tuned, given, clients) / first)
            controls.append(throughput(default, given, clients) / first)
        found, expected = (
            runner.predict(given)[0].get_data_to_numpy() for runner in (tuned, default)
        )
    return statistics.median(speeds), statistics.median(controls), difference(found, expected)


def tunings(path: Path, load: str, given: argparse.Namespace) -> list[float]:
    """Tune a network so often, print a line for each, and return the speeds."""
    speeds = []
    for _ in range(given.times):
        begin = time.monotonic()
        tuning = engine.tune(
            path,
            clients=given.clients,
            max_error=given.max_error,
            budget_s=given.budget,
            out=path.with_name("tuned.ini"),
        )
        took_s = time.monotonic() - begin
        if given.clients > 1:
            figures = shared(path, tuning, given.rounds, given.clients)
        else:
            figures = alone(path, tuning, given.rounds)
        speed, control, differs = figures
        speeds.append(speed)
        print(
            f"{path.stem:14} {load:5} {speed:6.3f} {control:6.3f} {differs:8.1e} {took_s:4.0f} s  "
            f"{tuning.evidence.chosen}",
            flush=True,
        )
    if given.times > 1:
        spread = max(speeds) / min(speeds) - 1
        print(f"{path.stem:14} {load:5} the speeds differ by {spread:.1%}", flush=True)
    return speeds


def main() -> None:
    """Print a line for each tuning, and geometric means."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", metavar="network", help=f"of {', '.join(NETWORKS)}")
    parser.add_argument("-n", "--rounds", type=int, default=20)
    parser.add_argument("--max-error", type=float)
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--times", type=int, default=1, help="tunings of each, one after the other")
    parser.add_argument("--only", choices=("idle", "busy"))
    given = parser.parse_args()
    if wrong := [name for name in given.networks if name not in NETWORKS]:
        parser.error(f"no network {wrong[0]!r}: expected {', '.join(NETWORKS)}")
    speeds: dict[str, list[float]] = {}
    print(f"{'network':14} {'load':5} {'speed':>6} {'A/A':>6} {'differs':>8} {'took':>6}  chosen")
    for network in given.networks or NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            path = NETWORKS[network](Path(folder))
            for load in (given.only,) if given.only else ("idle", "busy"):
                with busy_neighbour() if load == "busy" else nullcontext():
                    speeds.setdefault(load, []).extend(tunings(path, load, given))
    for load, found in speeds.items():
        mean = statistics.geometric_mean(found)
        print(f"{load}: geometric mean of {len(found)}: {mean:.3f}, least {min(found):.3f}")


if __name__ == "__main__":
    main()
