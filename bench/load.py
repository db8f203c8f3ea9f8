"""An uncached engine.load over ONNX Runtime's own InferenceSession(path): CPU time and memory.

    python bench/load.py                    every model, 9 rounds
    python bench/load.py bert_43 -n 25      one model, more rounds

Each load is a process of its own, which has imported everything and loaded a tiny model both ways
before: imports are aside. The three ways take turns, in an order that changes from round to round:
"engine", "ONNX RT", and "ONNX RT" once more as a control (A/A). Time is the CPU time of the
process, all threads, from before the load until after it; ratios are of medians, and "best" of
the shortest. "anonymous" is the most anonymous memory (RssAnon, which another process reads every
two milliseconds) beyond what there was before the load, in the round where that was least: ONNX
Runtime's own differs by half from run to run with large models. Pages of mapped files are the
system's.

Random weights; about 460 MB of disk while this runs. Needs the cpu backend, the onnx package and
Linux. `--json` for programs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from select import select

import models
from measure import parser_of
from mindir_memory import anonymous_bytes

WAYS = ("engine", "ONNX RT", "control")


@dataclass(frozen=True)
class Case:
    """A model, and what engine.load may cost over ONNX Runtime's own."""

    make: Callable[[Path], Path]
    at_most: float


CASES = {
    "mobilenet_v2": Case(models.mobilenet_v2, 1.25),
    "bert_43": Case(models.bert_like, 1.10),
    "bert_400": Case(lambda folder: models.bert_like(folder, layers=14, hidden=768), 1.10),
}


@dataclass(frozen=True)
class Row:
    """One model. Times in ms of CPU, memory in MB; ratios over "ONNX RT"."""

    model: str
    file_mb: float
    onnxruntime_ms: float
    engine_ms: float
    ratio: float
    best: float
    control: float
    onnxruntime_mb: float
    engine_mb: float
    at_most: float
    verdict: str


def measure(folder: Path, name: str, rounds: int) -> Row:
    case = CASES[name]
    tiny, path = models.tiny(folder), case.make(folder)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    megabytes: dict[str, list[float]] = {way: [] for way in WAYS}
    for count in range(rounds):
        for way in WAYS[count % 3 :] + WAYS[: count % 3]:
            cpu_s, peak_bytes = _load(way, path, tiny)
            seconds[way].append(cpu_s)
            megabytes[way].append(peak_bytes / 1e6)
    typical = {way: statistics.median(values) for way, values in seconds.items()}
    memory = {way: min(values) for way, values in megabytes.items()}
    ratio = typical["engine"] / typical["ONNX RT"]
    return Row(
        model=name,
        file_mb=path.stat().st_size / 1e6,
        onnxruntime_ms=1e3 * typical["ONNX RT"],
        engine_ms=1e3 * typical["engine"],
        ratio=ratio,
        best=min(seconds["engine"]) / min(seconds["ONNX RT"]),
        control=typical["control"] / typical["ONNX RT"],
        onnxruntime_mb=memory["ONNX RT"],
        engine_mb=memory["engine"],
        at_most=case.at_most,
        verdict="reached" if ratio <= case.at_most else "missed",
    )


_CHILD = """
import sys
import time

import numpy
import onnxruntime as ort
import engine
way, path, tiny = sys.argv[1:]
def load(path):
    if way == "engine":
        return engine.load(path)
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"])
engine.load(tiny).close()
ort.InferenceSession(tiny, providers=["CPUExecutionProvider"])
print("ready", flush=True)
sys.stdin.readline()
begin = time.process_time()
model = load(path)
print(time.process_time() - begin, flush=True)
sys.stdin.readline()
"""


def _load(way: str, path: Path, tiny: Path) -> tuple[float, int]:
    """Load in a new process: seconds of CPU, and anonymous bytes at the peak."""
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD, way, str(path), str(tiny)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            raise SystemExit(f"the process that loads {path.name} failed")
        before = peak = anonymous_bytes(child.pid)
        child.stdin.write("go\n")
        child.stdin.flush()
        while not select([child.stdout], [], [], 0.002)[0]:
            peak = max(peak, anonymous_bytes(child.pid))
        peak = max(peak, anonymous_bytes(child.pid))
        answer = child.stdout.readline()
        child.stdin.close()
    if not answer:
        raise SystemExit(f"the process that loads {path.name} failed")
    return float(answer), peak - before


def main() -> None:
    parser = parser_of(__doc__, json=True)
    parser.add_argument("models", nargs="*", metavar="model", help=f"of {', '.join(CASES)}")
    parser.add_argument("-n", "--rounds", type=int, default=9, metavar="N")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.models or CASES:
        if name not in CASES:
            parser.error(f"unknown model {name!r}, expected one of: {', '.join(CASES)}")
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(Path(folder), name, arguments.rounds))
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(
        f"{'model':14} {'file':>7} {'ONNX RT':>9} {'engine':>9} {'ratio':>6} {'best':>5} "
        f"{'A/A':>5} {'at most':>7}          anonymous: ONNX RT, engine"
    )
    for row in rows:
        print(
            f"{row.model:14} {row.file_mb:4.0f} MB {row.onnxruntime_ms:6.0f} ms "
            f"{row.engine_ms:6.0f} ms {row.ratio:6.2f} {row.best:5.2f} {row.control:5.2f} "
            f"{row.at_most:7.2f} {row.verdict:8} {row.onnxruntime_mb:10.1f} MB "
            f"{row.engine_mb:6.1f} MB"
        )


if __name__ == "__main__":
    main()
