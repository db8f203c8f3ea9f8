"""Builds with the compile cache over ONNX Runtime's own InferenceSession(path): CPU time, memory.

    python bench/cold_start.py                    every model, 7 rounds
    python bench/cold_start.py bert_400 -n 15     one model, more rounds
    python bench/cold_start.py net.mindir         a file of one's own

Each build is a process of its own, which has imported everything, and built and run a tiny model
both ways before: imports are aside. They take turns:

    first    engine.load into an empty cache: it has the entry made
    written  the same process until the entry is written and the model opened from it, with the
             CPU time of the process that writes it
    wait     engine.load into an empty cache with compile_cache = wait: it makes the entry itself
    second   engine.load of the entry, which is hashed once more, since it is new
    warm     engine.load of the entry from then on
    plain    engine.load without a cache
    control  InferenceSession(path) once more (A/A)

Time is the CPU time of the process, all threads, from before the build until after it, and until
after the first predict; "wall" is by the clock until then. Ratios are of medians over those of
InferenceSession(path), for a .mindir over that of the same net as ONNX. The process that writes an
entry runs from the end of the first build on; only "written" counts its CPU time, and nothing its
memory. "anonymous" is the most anonymous memory beyond what there was before, "PSS" the process's
share of memory after the first predict, mapped files included, beyond that before.

Before each build a process takes and gives back WARM_BYTES of memory: a virtual machine's host
takes pages that were free for 2 seconds, and to have them back costs more than to fill them, up to
2 s a GB, which is 3 times a build. So the way would lose whose turn follows a pause; and a machine
that is not virtual has no such cost. `--cold` leaves that out.

Random weights; 4 GB of disk while this runs. One thread. Needs the cpu backend, the onnx package
and Linux. `--json` for programs.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from select import select

import mindir_models
import models
from measure import parser_of, pss_bytes
from mindir_memory import anonymous_bytes

WAYS = ("ONNX RT", "control", "plain", "wait", "first", "second", "warm")
WARM_BYTES = 3 << 30  # more than any build takes, pages of files included
SETTLED_S = 2.5  # a file that is younger is hashed each time

CASES: dict[str, Callable[[Path], Path]] = {
    "mobilenet_v2": models.mobilenet_v2,
    "bert_43": models.bert_like,
    "bert_400": lambda folder: models.bert_like(folder, layers=14, hidden=768),
    "mindir_43": mindir_models.small_bert,
    "mindir_340": mindir_models.bert_like,
}


Result = tuple[float, float, int, int, float]
"""Seconds of CPU until built and until run; anonymous bytes, PSS; seconds by the clock."""


@dataclass(frozen=True)
class Row:
    """One way to build one model. Ratios are over InferenceSession(path)."""

    model: str
    way: str
    cpu_ms: float
    cpu: float
    ran_ms: float
    ran: float
    wall: float
    anonymous_mb: float
    anonymous: float
    pss_mb: float
    pss: float


def measure(folder: Path, name: str, rounds: int, is_cold: bool = False) -> list[Row]:
    tiny, path = models.tiny(folder), CASES[name](folder) if name in CASES else Path(name)
    plain = _as_onnx(path, folder)
    tinies = {"ONNX RT": tiny}
    own = tiny if plain == path else mindir_models.tiny(folder)
    tinies.update(dict.fromkeys(("engine", *WAYS[2:5]), own))
    ways = (*WAYS[:5], "written", *WAYS[5:])
    results: dict[str, list[Result]] = {way: [] for way in ways}
    cache = folder / "cache"
    time.sleep(SETTLED_S)
    for count in range(rounds):
        for way in WAYS:
            if way in ("wait", "first"):
                shutil.rmtree(cache, ignore_errors=True)
            if way == "warm":
                time.sleep(SETTLED_S)
                _build("engine", path, tinies["engine"], cache)  # its digests are remembered now
            kind = way if way in WAYS[2:5] else "ONNX RT" if way in WAYS[:2] else "engine"
            given = plain if kind == "ONNX RT" else path
            row, written = _build(kind, given, tinies[kind], cache, is_cold)
            results[way].append(row)
            if way == "first":
                results["written"].append(written)
        print(f"{name}: round {count + 1} of {rounds}", end="\r", file=sys.stderr)
    typical = {
        way: [statistics.median(values) for values in zip(*rows, strict=True)]
        for way, rows in results.items()
    }
    base = typical["ONNX RT"]
    return [
        Row(
            name, way,
            1e3 * own[0], own[0] / base[0],
            1e3 * own[1], own[1] / base[1],
            own[4] / base[4],
            own[2] / 1e6, own[2] / base[2],
            own[3] / 1e6, own[3] / base[3],
        )
        for way, own in typical.items()
    ]  # fmt: skip


def _as_onnx(path: Path, folder: Path) -> Path:
    """Return the ONNX file of the same net, for ONNX Runtime."""
    if path.suffix != ".mindir":
        return path
    beside = path.with_suffix(".onnx")
    if not beside.exists():
        from engine.formats import open_source
        from engine.formats.onnx.inline import inlined

        beside = folder / beside.name
        beside.write_bytes(inlined(open_source(path)).data or b"")
    return beside


_CHILD = """
import resource
import sys
import tempfile
import time

import numpy
import onnxruntime as ort
import engine
way, path, tiny = sys.argv[1:]
options = ort.SessionOptions()
options.intra_op_num_threads = 1
types = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(int32)": "int32"}
def run(model):
    if isinstance(model, ort.InferenceSession):
        feed = {
            i.name: numpy.ones([d if isinstance(d, int) else 1 for d in i.shape], types[i.type])
            for i in model.get_inputs()
        }
        model.run(None, feed)
    else:
        feed = {
            i.name: numpy.ones([d if isinstance(d, int) else 1 for d in i.shape], str(i.dtype))
            for i in model.inputs
        }
        model.predict([*feed.values()])
def load(path):
    if way != "ONNX RT":
        return engine.load(path, threads=1)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
with tempfile.TemporaryDirectory() as folder:
    settings = {"model_cache_dir": folder, "compile_cache": "off" if way == "plain" else "wait"}
    for _ in range(2):
        with engine.load(tiny, config={"common_context": settings}) as model:
            run(model)
if tiny.endswith(".onnx"):
    run(ort.InferenceSession(tiny, options, providers=["CPUExecutionProvider"]))
print("ready", flush=True)
sys.stdin.readline()
begin, wall = time.process_time(), time.perf_counter()
model = load(path)
print(time.process_time() - begin, flush=True)
run(model)
print(time.process_time() - begin, time.perf_counter() - wall, flush=True)
sys.stdin.readline()
if way == "first":
    from engine.weights import writing
    writing.wait()
used = resource.getrusage(resource.RUSAGE_CHILDREN)
cpu = time.process_time() - begin + used.ru_utime + used.ru_stime
print(cpu, time.perf_counter() - wall, flush=True)
sys.stdin.readline()
"""


def _warm_memory() -> None:
    """Take pages from the host, for whoever asks for some within the next 2 seconds."""
    process = os.fork()
    if not process:
        with mmap.mmap(-1, WARM_BYTES) as memory:
            for begin in range(0, WARM_BYTES, mmap.PAGESIZE):
                memory[begin] = 1
        os._exit(0)
    os.waitpid(process, 0)


def _build(
    way: str, path: Path, tiny: Path, cache: Path, is_cold: bool = False
) -> tuple[Result, Result]:
    """Build in a new process.

    The second has the same for the time until the entry is written, where it is written afterwards.
    """
    environment = {**os.environ, "ENGINE_CACHE_DIR": str(cache)}
    modes = {"engine": "on", "first": "on", "wait": "wait"}
    environment["ENGINE_CACHE"] = modes.get(way, "off")
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD, way, str(path), str(tiny)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            raise SystemExit(f"the process that builds {path.name} failed")
        if not is_cold:
            _warm_memory()
        before = peak = anonymous_bytes(child.pid)
        pss_before = pss_bytes(child.pid)
        child.stdin.write("go\n")
        child.stdin.flush()
        while not select([child.stdout], [], [], 0.002)[0]:
            peak = max(peak, anonymous_bytes(child.pid))
        peak = max(peak, anonymous_bytes(child.pid))
        answer = child.stdout.readline()
        ran = child.stdout.readline()
        if not ran:
            raise SystemExit(f"the process that builds {path.name} failed")
        pss = pss_bytes(child.pid) - pss_before
        cpu, wall = map(float, ran.split())
        row = float(answer), cpu, peak - before, pss, wall
        child.stdin.write("go\n")
        child.stdin.flush()
        while not select([child.stdout], [], [], 0.002)[0]:
            peak = max(peak, anonymous_bytes(child.pid))
        cpu, wall = map(float, child.stdout.readline().split())
        pss = pss_bytes(child.pid) - pss_before
        child.stdin.close()
    return row, (cpu, cpu, peak - before, pss, wall)


def main() -> None:
    parser = parser_of(__doc__, json=True)
    parser.add_argument("models", nargs="*", metavar="model", help=f"of {', '.join(CASES)}")
    parser.add_argument("-n", "--rounds", type=int, default=7, metavar="N")
    parser.add_argument("--cold", action="store_true", help="take the host's pages as they come")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.models or CASES:
        if name not in CASES and not Path(name).is_file():
            parser.error(f"unknown model {name!r}, expected one of: {', '.join(CASES)}")
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(Path(folder), name, arguments.rounds, arguments.cold)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"{'model':14} {'build':8} {'CPU':>9} {'ratio':>6} {'to run':>9} {'ratio':>6} "
          f"{'wall':>6} "
          f"{'anonymous':>12} {'ratio':>6} {'PSS':>11} {'ratio':>6}")  # fmt: skip
    for row in rows:
        print(f"{Path(row.model).name:14.14} {row.way:8} {row.cpu_ms:6.0f} ms {row.cpu:6.2f} "
              f"{row.ran_ms:6.0f} ms {row.ran:6.2f} {row.wall:6.2f} "
              f"{row.anonymous_mb:9.1f} MB {row.anonymous:6.2f} {row.pss_mb:8.1f} MB "
              f"{row.pss:6.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
