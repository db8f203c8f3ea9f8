"""The time of real models, by parts: time by operator and shapes, over a corpus.

    python bench/kernel_times.py DIR [NAME ...] [--top 12] [--json FILE]

ONNX Runtime's own profile of runs with one thread, of the graph as it optimises it. For each model
its time by operator, then the kernels of the same operator and shapes; at the end the sum over the
corpus, each model counted as 1.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import onnxruntime as ort

sys.path.insert(0, str(Path(__file__).parent / "real_models"))
from corpus import Entry, entries

Times = dict[tuple[str, str], tuple[float, int]]


def kernel_times(entry: Entry, seconds: float = 1.0) -> Times:
    """Return by operator and shapes the microseconds of a run, and the number of kernels."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = os.path.join(folder, "profile")
        session = ort.InferenceSession(str(entry.path), options, ["CPUExecutionProvider"])
        feeds = entry.feeds()
        end, runs = time.monotonic() + seconds, 0
        while runs < 6 or (time.monotonic() < end and runs < 300):
            session.run(None, feeds)
            runs += 1
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    # A busy machine interrupts kernels: the fastest run of each node counts.
    spent: dict[tuple[str, str, str], list[float]] = collections.defaultdict(list)
    for event in events:
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time"):
            about = event["args"]
            spent[about["op_name"], _shapes(about), event["name"]].append(event["dur"])
    found: dict[tuple[str, str], tuple[float, int]] = {}
    for (operator, shapes, _), times in spent.items():
        total, count = found.get((operator, shapes), (0.0, 0))
        often = round(len(times) / runs) or 1  # a node in a loop runs several times in a run
        own = min(times) * often
        found[operator, shapes] = (total + own, count + often)
    return found


def _shapes(about: dict[str, Any]) -> str:
    def text(key: str) -> str:
        return " ".join(
            "x".join(map(str, shape)) or "()"
            for given in about.get(key, [])
            for shape in given.values()
        )

    return f"{text('input_type_shape')} -> {text('output_type_shape')}"


def by_operator(times: Times) -> dict[str, float]:
    """Return the microseconds of each operator."""
    total: dict[str, float] = collections.defaultdict(float)
    for (operator, _), (spent, _) in times.items():
        total[operator] += spent
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def main() -> None:
    """Print the times of all models, and their sum."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--top", type=int, default=12)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    shares: dict[str, float] = collections.defaultdict(float)
    kept = {}
    for entry in entries(given.folder):
        if given.names and entry.name not in given.names:
            continue
        times = kernel_times(entry)
        operators = by_operator(times)
        total = sum(operators.values()) or 1.0
        kept[entry.name] = {"us": total, "operators": operators}
        for operator, spent in operators.items():
            shares[operator] += spent / total
        print(f"\n{entry.name}: {total / 1e3:.3f} ms in kernels")
        print(
            "  "
            + ", ".join(f"{o} {t / total:.0%}" for o, t in operators.items() if t > total / 100)
        )
        ranked = sorted(times.items(), key=lambda item: -item[1][0])
        for (operator, shapes), (spent, count) in ranked[: given.top]:
            print(
                f"  {spent / total:6.1%} {spent:9.0f} us {count:4} x {operator:22} {shapes[:110]}"
            )
    print("\nshare of an average model")
    for operator, share in sorted(shares.items(), key=lambda item: -item[1])[:40]:
        print(f"  {share / max(len(kept), 1):6.2%} {operator}")
    if given.json:
        given.json.write_text(json.dumps(kept, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
