"""Import, load and first predict in a fresh process: CPU time beyond ONNX Runtime's own.

    python bench/process.py                 a tiny model and MobileNetV2
    python bench/process.py tiny -n 100     one model, more rounds

Each process imports, loads the model and predicts once, with this package ("engine") or with ONNX
Runtime alone ("ONNX RT"), and once more with that as a control (A/A). They take turns, in an order
that changes from round to round. Time is the CPU time of the process, all threads. "added" is the
median over rounds of engine - ONNX RT, "control" that of control - ONNX RT: the noise.

"compiled" has byte code of everything. "uncompiled" has it of the standard library, numpy and
onnxruntime only, as where PYTHONDONTWRITEBYTECODE is set and the installer compiled nothing: what
this package and what it depends on cost to compile is then in "added".

Needs the cpu backend, the onnx package and Linux. `--json` for programs.
"""

from __future__ import annotations

import json
import os
import statistics
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import models
from fresh import cpu_s, in_turns
from measure import parser_of

PROGRAMS = {
    "ONNX RT": """
import sys
import numpy as np
import onnxruntime as ort
session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
session.run(None, {i.name: np.zeros(i.shape, np.float32) for i in session.get_inputs()})
""",
    "engine": """
import sys
import numpy as np
import engine
model = engine.load(sys.argv[1], target="cpu")
model.predict([np.zeros(i.shape, np.float32) for i in model.get_inputs()])
""",
}
PROGRAMS["control"] = PROGRAMS["ONNX RT"]
MODELS: dict[str, Callable[[Path], Path]] = {
    "tiny": models.tiny,
    "mobilenet_v2": models.mobilenet_v2,
}
AT_MOST_MS = {"compiled": 60.0, "uncompiled": 120.0}


@dataclass(frozen=True)
class Row:
    """One model, one state of byte code. Times in ms of CPU."""

    model: str
    byte_code: str
    onnxruntime_ms: float
    added_ms: float
    control_ms: float
    rounds: int
    at_most_ms: float
    verdict: str


def measure(path: Path, byte_code: str, cache: Path, rounds: int) -> Row:
    for way in ("ONNX RT", "engine"):
        _cpu_ms(way, path, cache, write=True)
    if byte_code == "uncompiled":
        _forget_own_byte_code(cache)
    times = in_turns({way: partial(_cpu_ms, way, path, cache) for way in PROGRAMS}, rounds)

    def beyond(way: str) -> float:
        pairs = zip(times[way], times["ONNX RT"], strict=True)
        return statistics.median(own - base for own, base in pairs)

    added, at_most = beyond("engine"), AT_MOST_MS[byte_code]
    return Row(
        model=path.stem,
        byte_code=byte_code,
        onnxruntime_ms=statistics.median(times["ONNX RT"]),
        added_ms=added,
        control_ms=beyond("control"),
        rounds=rounds,
        at_most_ms=at_most,
        verdict="reached" if added <= at_most else "missed",
    )


def _cpu_ms(way: str, path: Path, cache: Path, write: bool = False) -> float:
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if not write:
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return 1e3 * cpu_s(PROGRAMS[way], str(path), environment=environment)


def _forget_own_byte_code(cache: Path) -> None:
    """Remove from `cache` all but what belongs to the standard library, numpy and onnxruntime."""
    paths = sysconfig.get_paths()
    installed = Path(paths["purelib"]), Path(paths["platlib"])
    kept = {folder / name for folder in installed for name in ("numpy", "onnxruntime")}
    for file in cache.rglob("*.pyc"):
        source = Path("/", file.relative_to(cache))
        is_standard = source.is_relative_to(paths["stdlib"]) and not any(
            source.is_relative_to(folder) for folder in installed
        )
        if not is_standard and not kept & {*source.parents}:
            file.unlink()


def main() -> None:
    parser = parser_of(__doc__, json=True)
    parser.add_argument("models", nargs="*", metavar="model", help=f"of {', '.join(MODELS)}")
    parser.add_argument("-n", "--rounds", type=int, default=40)
    arguments = parser.parse_args()
    for name in arguments.models:
        if name not in MODELS:
            parser.error(f"unknown model {name!r}, expected one of: {', '.join(MODELS)}")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models or MODELS:
            path = MODELS[name](Path(folder))
            for byte_code in AT_MOST_MS:
                cache = Path(folder, byte_code)
                rows.append(measure(path, byte_code, cache, arguments.rounds))
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(
        f"{'model':14} {'byte code':11} {'ONNX RT':>10} {'added':>9} {'control':>9} {'at most':>9}"
    )
    for row in rows:
        print(
            f"{row.model:14} {row.byte_code:11} {row.onnxruntime_ms:7.1f} ms "
            f"{row.added_ms:6.1f} ms "
            f"{row.control_ms:6.1f} ms {row.at_most_ms:6.1f} ms {row.verdict}"
        )


if __name__ == "__main__":
    main()
