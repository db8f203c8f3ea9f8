"""The least time over plain ONNX Runtime's that any setting installed here reaches, one thread.

    python bench/best.py CORPUS [NAME ...] [--seconds SECONDS]

Each model of the corpus (bench/real_models) is timed as in bench/rewrites.py with all settings of
`SETTINGS`, and with OpenVINO called without this package: as it reads the file, and with the sizes
of the inputs fixed before it compiles. Nothing is left to cpu there, whatever OpenVINO computes
otherwise: this tells what could be had, not what may be chosen. A setting counts for a model where
its results are within --error of ONNX Runtime's, by norm; what takes more than 1.6 of its time is
timed by a few calls alone. A model counts with 1 at most.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import engine

sys.path.insert(0, str(Path(__file__).parent / "real_models"))
sys.path.insert(0, str(Path(__file__).parent))
from corpus import Entry, entries
from rewrites import compare, difference, session

os.environ["ENGINE_CACHE"] = "off"

Run = Callable[[], list[Any]]
ON = {"rewrites": "on", "measure_rewrites": "off"}
SETTINGS: dict[str, tuple[list[str], Mapping[str, str]]] = {
    "cpu": (["cpu"], {}),
    "cpu, exact": (["cpu"], {"rewrites": "exact"}),
    "cpu, on": (["cpu"], ON),
    "cpu, on, measured": (["cpu"], {"rewrites": "on"}),
    "openvino+cpu": (["openvino", "cpu"], {}),
    "openvino+cpu, on": (["openvino", "cpu"], ON),
}
GROUPS = {
    "cpu": [name for name in SETTINGS if name.startswith("cpu")],
    "cpu, openvino": list(SETTINGS),
    "and OpenVINO itself": [*SETTINGS, "OpenVINO"],
    "and with fixed sizes": [*SETTINGS, "OpenVINO", "OpenVINO, fixed sizes"],
}
PROPERTIES = {
    "INFERENCE_PRECISION_HINT": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    "INFERENCE_NUM_THREADS": 1,
    "NUM_STREAMS": 1,
    "ENABLE_CPU_PINNING": False,
}


def of_engine(entry: Entry, feeds: Mapping[str, Any], name: str) -> Run:
    """Return a predict with one of `SETTINGS`."""
    target, options = SETTINGS[name]
    config = {"cpu_context": options}
    model = engine.load(entry.path, target=target, threads=1, config=config)
    arrays = [feeds[spec.name] for spec in model.inputs]
    return lambda: [np.asarray(result) for result in model.predict(arrays)]


def of_openvino(entry: Entry, feeds: Mapping[str, Any], is_fixed: bool) -> Run:
    """Return a run of OpenVINO itself, with copies of inputs and results as a predict has."""
    import openvino

    core = openvino.Core()
    model = core.read_model(str(entry.path))
    values = [
        next((feeds[name] for name in port.names if name in feeds), array)
        for port, array in zip(model.inputs, feeds.values(), strict=True)
    ]
    if is_fixed:
        model.reshape(
            {port: list(value.shape) for port, value in zip(model.inputs, values, strict=True)}
        )
    request = core.compile_model(model, "CPU", PROPERTIES).create_infer_request()

    def run() -> list[Any]:
        for index, value in enumerate(values):
            tensor = request.get_input_tensor(index)
            tensor.shape = value.shape
            np.copyto(tensor.data, value)
        request.infer()
        return [np.copy(tensor.data) for tensor in request.output_tensors]

    return run


def fastest(run: Run) -> float:
    """Return the least time of three calls, of the process's CPU time."""
    times = []
    for _ in range(3):
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)
    return min(times)


def figures_of(entry: Entry, seconds: float, error: float) -> dict[str, float]:
    """Return the ratio of each setting that gives the results of ONNX Runtime."""
    feeds = entry.feeds()
    first, second = (partial(session(entry.path).run, None, feeds) for _ in range(2))
    makers: dict[str, Callable[[], Run]] = {
        **{name: partial(of_engine, entry, feeds, name) for name in SETTINGS},
        "OpenVINO": partial(of_openvino, entry, feeds, False),
        "OpenVINO, fixed sizes": partial(of_openvino, entry, feeds, True),
    }
    expected, own_s = first(), fastest(first)
    runs, found = {}, {}
    for name, make in makers.items():
        try:
            run = make()
            if difference(run(), expected) > error:
                continue
        except Exception as why:  # of any library
            print(f"{entry.name}: {name}: {str(why)[:100]!r}", file=sys.stderr)
            continue
        if (ratio := fastest(run) / own_s) > 1.6:
            found[name] = ratio
        else:
            runs[name] = run
    timed = compare(first, second, runs, seconds=seconds)
    return found | {name: figure.ratio for name, figure in timed.items()}


def best(figures: Mapping[str, float], names: Sequence[str]) -> float:
    """Return the least ratio of these settings, 1 at most."""
    return min([1.0, *(figures[name] for name in names if name in figures)])


def main() -> None:
    """Print a line for each model, and the geometric means of the best of each group."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=0.25, help="of each timing")
    parser.add_argument("--error", type=float, default=1e-4)
    given = parser.parse_args()
    found = []
    for entry in entries(given.corpus):
        if given.names and entry.name not in given.names:
            continue
        found.append(figures_of(entry, given.seconds, given.error))
        words = "  ".join(f"{name} {ratio:.3f}" for name, ratio in found[-1].items())
        print(f"{entry.name:28} {words}", flush=True)
    for group, names in GROUPS.items():
        ratios = [best(figures, names) for figures in found]
        mean, low = statistics.geometric_mean(ratios), sum(ratio < 0.8 for ratio in ratios)
        print(f"best of {group}: geometric mean of {len(ratios)}: {mean:.3f}, {low} below 0.8")


if __name__ == "__main__":
    main()
