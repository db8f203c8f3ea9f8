"""Time of rewritten graphs over the originals', on plain ONNX Runtime with one thread.

    python bench/rewrites.py ORIGINAL.onnx CANDIDATE.onnx ... [--corpus DIR] [--mode MODE ...]
    python bench/rewrites.py --all DIR [NAME ...] [--mode MODE]

--mode: Model.predict with the option `rewrites` as the cpu backend has it (off, exact, on), with
what it chooses at build. --all: a row for each model of the corpus, and what they come to.
A round times the original, a second session of it (the A/A control) and each candidate, in an order
drawn anew, a few milliseconds each by the process's CPU time. The machine may be busy: neighbours
in time are compared, short timings find quiet moments, and the interval says how sure the figure
is. ratio: the median over rounds of candidate / original. low: the same of the 20 % fastest
timings of each. Inputs are those of the corpus (bench/real_models), by the original's name.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import engine
from engine.errors import EngineError

sys.path.insert(0, str(Path(__file__).parent / "real_models"))
from corpus import entries

TIMING_S = 0.004  # of one timing, at least


@dataclass(frozen=True)
class Figure:
    """A candidate over the original. low, high: 95 % of resampled rounds are between these."""

    ratio: float
    low: float
    high: float
    fastest: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}] fastest {self.fastest:.3f}"


def session(model: Path | bytes, **entries: str) -> ort.InferenceSession:
    """Return a session as most programs make it, with one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    for key, value in entries.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    given = model if isinstance(model, bytes) else str(model)
    return ort.InferenceSession(given, options, ["CPUExecutionProvider"])


def compare(
    original: Callable[[], object],
    again: Callable[[], object],
    candidates: Mapping[str, Callable[[], object]],
    *,
    seconds: float,
) -> dict[str, Figure]:
    """Return a figure of each candidate, and of the control under the name "A/A"."""
    functions = {"": original, "A/A": again, **candidates}
    names = list(functions)
    for function in functions.values():
        function()
    begin = time.process_time()
    original()
    calls = max(1, round(TIMING_S / max(time.process_time() - begin, 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in names}
    order, end = random.Random(0), time.monotonic() + seconds * len(names)
    while time.monotonic() < end or len(times[""]) < 7:
        for name in order.sample(names, len(names)):
            function = functions[name]
            begin = time.process_time()
            for _ in range(calls):
                function()
            times[name].append((time.process_time() - begin) / calls)
    return {name: _figure(times[name], times[""]) for name in names if name}


def _figure(own: Sequence[float], base: Sequence[float]) -> Figure:
    ratios = [a / b for a, b in zip(own, base, strict=True)]
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(400))
    few = max(1, len(base) // 5)
    fastest = statistics.mean(sorted(own)[:few]) / statistics.mean(sorted(base)[:few])
    middle = statistics.median(ratios)
    return Figure(middle, medians[10], medians[-10], fastest, statistics.median(base))


def difference(results: Sequence[Any], expected: Sequence[Any]) -> float:
    """Return the largest relative error of all outputs, by norms; 0.0 for the same bits."""
    worst = 0.0
    for own, other in zip(results, expected, strict=True):
        own, other = np.asarray(own), np.asarray(other)
        if own.shape != other.shape or own.dtype != other.dtype:
            return float("inf")
        if own.tobytes() == other.tobytes():
            continue
        if own.dtype.kind != "f":
            return float("inf")
        own, other = own.astype(np.float64), other.astype(np.float64)
        norm = np.linalg.norm(other) or 1.0
        error = float(np.linalg.norm(own - other) / norm)
        worst = max(worst, error if error == error else float("inf"))
    return worst


def _of_mode(path: Path, mode: str, feeds: Mapping[str, Any]) -> Callable[[], Sequence[Any]]:
    """Return a predict with one thread, of arrays in the model's order."""
    config = {"cpu_context": {"rewrites": mode}}
    return _predict(engine.load(path, target="cpu", threads=1, config=config), feeds)


def _predict(model: engine.Model, feeds: Mapping[str, Any]) -> Callable[[], Sequence[Any]]:
    arrays = [feeds[spec.name] for spec in model.inputs]
    return lambda: [result.get_data_to_numpy() for result in model.predict(arrays)]


def table(folder: Path, mode: str, seconds: float, names: Sequence[str]) -> None:
    """Print a row for each model of a corpus; then the geometric mean, and how many are beyond.

    names: of the models to measure; all where there are none.
    """
    print("| model | original | predict | fastest | A/A | fastest | differs | build | rewritten |")
    print("|---|---|---|---|---|---|---|---|---|")
    medians, fastest = [], []
    for entry in entries(folder):
        if names and entry.name not in names:
            continue
        feeds = entry.feeds()
        first, second = session(entry.path), session(entry.path)
        expected = first.run(None, feeds)
        begin = time.monotonic()
        config = {"cpu_context": {"rewrites": mode}}
        try:
            model = engine.load(entry.path, target="cpu", threads=1, config=config)
        except EngineError as error:
            print(f"| {entry.name} | {str(error)[:80]} |", flush=True)
            continue
        built_s = time.monotonic() - begin
        run = _predict(model, feeds)
        found = compare(
            partial(first.run, None, feeds),
            partial(second.run, None, feeds),
            {"own": run},
            seconds=seconds,
        )
        own, control = found["own"], found["A/A"]
        medians.append(own.ratio)
        fastest.append(own.fastest)
        reasons = [place.reason for place in model.placement]
        print(
            f"| {entry.name} | {own.seconds * 1e3:.2f} ms | {own.ratio:.3f} | {own.fastest:.3f} "
            f"| {control.ratio:.3f} | {control.fastest:.3f} | {difference(run(), expected):.0e} "
            f"| {built_s:.1f} s | {_verdict(reasons)} |",
            flush=True,
        )
    for name, ratios in (("median", medians), ("fastest", fastest)):
        print(
            f"{name}: geometric mean {statistics.geometric_mean(ratios):.3f} of {len(ratios)}, "
            f"{sum(ratio < 0.8 for ratio in ratios)} below 0.8, "
            f"{sum(ratio > 1.02 for ratio in ratios)} above 1.02"
        )


def _verdict(reasons: Sequence[str]) -> str:
    """Return the verdict that placement gives: the ratio at build, or why nothing is rewritten."""
    for word in ("rewritten: ", "not used: "):
        for reason in reasons:
            if word in reason:
                text = reason[reason.index(word) :].split("; onnxruntime")[0]
                found = re.search(r"[0-9.]+ of the time|not measured: .{0,40}", text)
                return word.rstrip(": ") + (f", {found[0]}" if found else "")
    return ""


def main() -> None:
    """Print a line for each candidate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", action="append", default=[])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--all", type=Path)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each candidate")
    given = parser.parse_args()
    if given.all is not None:
        table(
            given.all,
            *given.mode[:1] or ["on"],
            given.seconds,
            [path.stem for path in given.models],
        )
        return
    original, *candidates = given.models
    corpus = {entry.name: entry for entry in entries(given.corpus or original.parent)}
    feeds = corpus[original.stem].feeds()
    runs: dict[str, Callable[[], Any]] = {
        str(path): partial(session(path).run, None, feeds) for path in candidates
    }
    for mode in given.mode:
        runs[f"rewrites = {mode}"] = _of_mode(original, mode, feeds)
    first, second = session(original), session(original)
    expected = first.run(None, feeds)
    figures = compare(
        lambda: first.run(None, feeds),
        lambda: second.run(None, feeds),
        runs,
        seconds=given.seconds,
    )
    for name, figure in figures.items():
        own = runs.get(name)
        error = "" if own is None else f"  differs by {difference(own(), expected):.1e}"
        print(f"{name:50} {figure}  original {figure.seconds * 1e3:.3f} ms{error}")


if __name__ == "__main__":
    main()
