"""Processes that take 30 s to exit, on a machine that is busy: nothing is damaged, nothing is left.

    python bench/slow_ends.py                         30 s, 20 busy processes, at most 3 minutes
    python bench/slow_ends.py --slow 3 --busy 0       a short try

Every worker process of this package sleeps when it exits, as runtimes do that free much:

    exporter   a model of torch is converted by `engine.Converter`; needs torch and onnxscript
    command    the same by `engine convert`, whose end may end the exporter
    isolated   a model with `isolate = true` is built, run and closed
    runner     a MultiDeviceRunner of two workers is built, run and closed
    backends   `engine.backends()` asks each backend in a process
    ranks      a script of two ranks under `engine launch` exits as slowly

All of them at once, beside the load. Ended: workers that came to their own end; killed: those that
did not. Left: processes, files in /dev/shm, and files in TMPDIR, after all of it.

Exits with status 1 where one fails, a worker was killed (but for `command` and `backends`, which
wait for none) or something is left. The load ends with this script and its limit, in any case.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from attacks_on_workers import product
from chaos import children, in_shm, is_open
from measure import parser_of

MOST_S = 180.0
PATIENCE_S = 10.0
MAY_BE_KILLED = ("command", "backends")

_BUSY = """
import sys, time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    pass
"""

# Python runs it as it starts, in each process that finds it.
_SITE = """
import atexit, os, sys

def end_slowly():
    import time
    mark = os.path.join({marks!r}, f"{{os.environ.get('PYTHON_OF', '')}} {{os.getpid()}}")
    open(mark, "w").close()
    time.sleep({seconds})
    os.rename(mark, mark + " ended")

def slow_exit(status, exit=os._exit):
    end_slowly()
    exit(status)

if {{"engine.host.serve", "engine.workers"}} & set(sys.orig_argv):
    atexit.register(end_slowly)
    os._exit = slow_exit  # how those end that have freed their model
"""

_RANK = """
import atexit, sys, time
from engine.distributed.job import this_job
atexit.register(time.sleep, float(sys.argv[1]))
print("rank", this_job().rank, flush=True)
"""

_EXPORT = """
import sys, torch
from torch import nn
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
torch.export.save(torch.export.export(net, (torch.ones(2, 8),)), sys.argv[1])
"""

# Each in a process of its own, so that what it says and leaves is its own.
_CONVERT = """
import sys, engine
engine.Converter().convert(engine.FmkType.PYTORCH, sys.argv[1], sys.argv[2])
assert engine.load(sys.argv[2] + ".mindir", target="cpu").inputs
print("done", flush=True)
sys.stdin.read()
"""
_ISOLATED = """
import sys, numpy as np, engine
with engine.load(sys.argv[1], "cpu", config={"common_context": {"isolate": "true"}}) as model:
    x = np.ones((2, 64), np.float32)
    assert (model(x)["y"] == x).all()
print("done", flush=True)
"""
_RUNNER = """
import sys, numpy as np, engine
with engine.MultiDeviceRunner(sys.argv[1], [0, 1]) as runner:
    x = np.ones((4, 64), np.float32)
    assert (runner.predict([x])[0].get_data_to_numpy() == x).all()
print("done", flush=True)
"""
_BACKENDS = """
import engine
[cpu] = [record for record in engine.backends() if record.name == "cpu"]
assert cpu.state == "ready", cpu
print("done", flush=True)
"""


@contextmanager
def load_of(count: int, nice: int) -> Iterator[None]:
    """Keep so many processes busy; they end by themselves after MOST_S, too."""
    busy: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            command = ["nice", "-n", str(nice), sys.executable, "-S", "-c", _BUSY, str(MOST_S)]
            busy.append(subprocess.Popen(command))
        yield
    finally:
        for process in busy:
            process.kill()
        for process in busy:
            process.wait()


class Case(threading.Thread):
    """A command that must end well; its workers leave marks under its name."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        super().__init__(name=name, daemon=True)
        self.problem = ""
        self.seconds = 0.0
        self._command = command
        self._environment = {**environment, "PYTHON_OF": name}

    def run(self) -> None:
        """Run it; for one that waits for its stdin, until no mark of a slow end is left."""
        begin = time.monotonic()
        process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=self._environment,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            self.seconds = time.monotonic() - begin
            if self.name == "exporter" and said:
                wait_for(lambda: ends(self._environment, self.name) != (0, 0), MOST_S)
                wait_for(lambda: not ends(self._environment, self.name)[1], MOST_S)
            rest, errors = process.communicate(timeout=MOST_S)
            if process.returncode:
                self.problem = f"status {process.returncode}: {errors.strip()[-300:]}"
            elif "damaged" in said + rest + errors:
                self.problem = (said + rest + errors).strip()[-300:]
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            self.problem = f"not done after {MOST_S:g} s"


def wait_for(is_so: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not is_so() and time.monotonic() < until:
        time.sleep(0.05)


def ends(environment: dict[str, str], name: str) -> tuple[int, int]:
    """Return how many workers of a case have ended by themselves, and how many have only begun."""
    marks = [mark.split() for mark in os.listdir(environment["MARKS"])]
    own = [mark for mark in marks if mark[0] == name]
    ended = sum(mark[-1] == "ended" for mark in own)
    return ended, len(own) - ended


def state_of(pid: int) -> str:
    """Return a process's number, command and state; "" for none."""
    try:
        return " ".join(Path(f"/proc/{pid}/stat").read_text().split()[:3])
    except OSError:
        return ""


def cases(folder: Path, seconds: float, environment: dict[str, str]) -> list[Case]:
    """Write the models and scripts; return the cases."""
    small = str(product(folder / "small.onnx", width=64))
    (folder / "rank.py").write_text(_RANK)
    python, engine_command = [sys.executable, "-c"], [sys.executable, "-m", "engine.cli"]
    commands = {
        "isolated": [*python, _ISOLATED, small],
        "runner": [*python, _RUNNER, small],
        "backends": [*python, _BACKENDS],
        "ranks": [*engine_command, "launch", "-n", "2", str(folder / "rank.py"), str(seconds)],
    }
    if find_spec("torch") and find_spec("onnxscript"):
        exported, net = str(folder / "net.pt2"), str(folder / "net")
        subprocess.run([*python, _EXPORT, exported], check=True)
        commands["exporter"] = [*python, _CONVERT, exported, net]
        commands["command"] = [*engine_command, "convert", exported, f"{net}2.onnx"]
    else:
        print("exporter and command are skipped: torch or onnxscript is missing", file=sys.stderr)
    return [Case(name, command, environment) for name, command in commands.items()]


def measure(folder: Path, seconds: float, busy: int, nice: int) -> dict[str, object]:
    """Run all cases beside the load; return what came of each, and what is left."""
    for name in ("site", "marks", "tmp"):
        (folder / name).mkdir()
    marks = folder / "marks"
    (folder / "site" / "sitecustomize.py").write_text(
        _SITE.format(marks=str(marks), seconds=seconds)
    )
    path = os.pathsep.join([str(folder / "site"), *filter(None, sys.path)])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "TMPDIR": str(folder / "tmp"),
        "MARKS": str(marks),
        "ENGINE_CACHE": "off",
    }
    shm, others = in_shm(), children()
    all_cases = cases(folder, seconds, environment)
    with load_of(busy, nice):
        for case in all_cases:
            case.start()
        for case in all_cases:
            case.join()
        load = os.getloadavg()[0]
    rows = {}
    for case in all_cases:
        ended, killed = ends(environment, case.name)
        rows[case.name] = {
            "seconds": case.seconds, "ended": ended, "killed": killed, "problem": case.problem,
        }  # fmt: skip
    pids = {int(mark.split()[1]) for mark in os.listdir(marks)}
    # One that was killed is gone when its turn comes, on a busy machine.
    wait_for(lambda: not any(map(state_of, pids | children() - others)), PATIENCE_S)
    left = {
        "processes": [*filter(None, map(state_of, pids | children() - others))],
        "shm": sum(not is_open(name) for name in in_shm() - shm),
        "files": sorted(os.listdir(folder / "tmp")),
    }
    return {"load": load, "cases": rows, "left": left}


def is_clean(found: dict[str, object]) -> bool:
    cases, left = found["cases"], found["left"]
    assert isinstance(cases, dict)
    assert isinstance(left, dict)
    return not any(left.values()) and not any(
        row["problem"] or (row["killed"] and name not in MAY_BE_KILLED)
        for name, row in cases.items()
    )


def main() -> int:
    parser = parser_of(__doc__, json=True)
    parser.add_argument("--slow", type=float, default=30.0, help="seconds that an exit takes")
    parser.add_argument("--busy", type=int, default=20, help="busy processes")
    parser.add_argument("--nice", type=int, default=5, help="of the busy processes")
    given = parser.parse_args()
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        found = measure(folder, given.slow, given.busy, given.nice)
    if given.json:
        print(json.dumps(found, indent=2))
        return not is_clean(found)
    print(f"{'what':10} {'done after':>10} {'ended':>6} {'killed':>6}")
    for name, row in found["cases"].items():  # type: ignore[attr-defined]
        counts = f"{row['seconds']:8.1f} s {row['ended']:6} {row['killed']:6}"
        print(f"{name:10} {counts}  {row['problem']}")
    print(f"load average {found['load']:.1f}; left: {found['left']}")
    return not is_clean(found)


if __name__ == "__main__":
    sys.exit(main())
