"""Time of target "auto" over plain ONNX Runtime's, model by model, with one thread.

    python bench/auto.py CORPUS [NAME ...] [--budget SECONDS] [--builds N] [--max-error ERROR]

Each model of the corpus (bench/real_models), or those of these names, is built with target "auto",
then timed as in bench/rewrites.py: its predict, that of target "cpu" and a second session (the A/A
control) over a session's run, in rounds by the process's CPU time. --budget: for
[common_context] auto_budget_s; a busy machine needs more. --builds: how often each model is built
anew, each time measuring again, to see whether the choice is the same. --max-error: for
[common_context] max_error, so that less precise arithmetic is tried.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import engine

sys.path.insert(0, str(Path(__file__).parent / "real_models"))
sys.path.insert(0, str(Path(__file__).parent))
from corpus import Entry, entries
from rewrites import compare, difference, session

os.environ["ENGINE_CACHE"] = "off"  # each build measures


def built(entry: Entry, target: str, budget: float, max_error: str = "") -> engine.Model:
    """Build a model; the budget is also what tells one measurement in this process from another."""
    config = {"common_context": {"auto_budget_s": budget, "max_error": max_error}}
    return engine.load(entry.path, target=target, threads=1, config=config)


def chosen(model: engine.Model) -> str:
    """Return the choice in words, from the reason of a node's place."""
    return model.placement[0].reason.rpartition("target ['auto']: ")[2]


def run(model: engine.Model, arrays: list[Any]) -> list[Any]:
    """Predict."""
    return [np.asarray(result) for result in model.predict(arrays)]


def main() -> None:
    """Print a line for each model, and the geometric means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--budget", type=float, default=5.0)
    parser.add_argument("--builds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each timing")
    parser.add_argument("--max-error", default="")
    given = parser.parse_args()
    ratios: dict[str, list[float]] = {"auto": [], "cpu": [], "A/A": [], "auto/cpu": []}
    for entry in entries(given.corpus):
        if given.names and entry.name not in given.names:
            continue
        feeds = entry.feeds()
        begin = time.monotonic()
        model = built(entry, "auto", given.budget, given.max_error)
        took = time.monotonic() - begin
        choices = [chosen(model)]
        for number in range(1, given.builds):
            budget = given.budget + number / 1000
            with built(entry, "auto", budget, given.max_error) as again:
                choices.append(chosen(again))
        cpu = built(entry, "cpu", given.budget)
        arrays = [feeds[spec.name] for spec in model.inputs]
        first, second = session(entry.path), session(entry.path)
        figures = compare(
            partial(first.run, None, feeds),
            partial(second.run, None, feeds),
            {"auto": partial(run, model, arrays), "cpu": partial(run, cpu, arrays)},
            seconds=given.seconds,
        )
        error = difference(run(model, arrays), first.run(None, feeds))
        for name, figure in figures.items():
            ratios[name].append(figure.ratio)
        ratios["auto/cpu"].append(figures["auto"].ratio / figures["cpu"].ratio)
        print(
            f"{entry.name:28} "
            + "  ".join(f"{name} {figure}" for name, figure in figures.items())
            + f"  differs by {error:.1e}  built in {took:.1f} s: {'; '.join(choices)}",
            flush=True,
        )
        model.close()
        cpu.close()
    for name, values in ratios.items():
        mean = statistics.geometric_mean(values)
        print(f"{name}: geometric mean of {len(values)}: {mean:.3f}, largest {max(values):.3f}")


if __name__ == "__main__":
    main()
