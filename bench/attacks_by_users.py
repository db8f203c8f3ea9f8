"""The attacks of bench/attacks.py that another user of the machine makes."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from attacks_on_workers import product
from tally import Tally

import engine

Done = Callable[[int], None]
NEED_USERS = ("cache", "strangers")
NOBODY = 65534


def missing() -> str:
    """Return why there can be no other user here; "" where there can."""
    if os.geteuid():
        return "only root can become another user"
    return "" if shutil.which("setpriv") else "needs setpriv"


@contextmanager
def as_nobody(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a script as another user; it is there when it has said a line, and ends with stdin."""
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    identity = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    process = subprocess.Popen(
        ["setpriv", *identity, python, "-c", script, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/",
    )  # fmt: skip
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "there\n":
            raise SystemExit("the other user's process did not start")
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def count_of(process: subprocess.Popen[str]) -> int:
    """End another user's process well; return the number that it says."""
    said, _ = process.communicate("end\n")
    return int(said)


# ------------------------------------------------------------------ a cache that is exchanged

_EXCHANGE = """
import os, select, sys
os.chdir(sys.argv[1])
print("there", flush=True)
count = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    try:
        os.rename("v1", "theirs")
        os.rename("evil", "v1")
        count += 1
        os.rename("v1", "evil")
        os.rename("theirs", "v1")
    except OSError:
        for name, place in (("evil", "v1"), ("theirs", "v1")):
            if not os.path.lexists("v1") and os.path.lexists(name):
                os.rename(name, place)
print(count, flush=True)
"""


class _Reasons(logging.Handler):
    """Notes whether a warning says that the cache is not safe; it is said once a process."""

    is_said = False

    def emit(self, record: logging.LogRecord) -> None:
        self.is_said |= "not safe from other users" in record.getMessage()


def exchange_the_cache(folder: Path, times: int, done: Done) -> Tally:
    """Build while another user exchanges the cache for one with weights of his."""
    tally, reasons = Tally(), _Reasons()
    log = logging.getLogger("engine")
    level = log.level
    log.addHandler(reasons)
    log.setLevel(logging.WARNING)
    log.propagate = False
    os.environ["ENGINE_CACHE"] = "on"
    try:
        # Not below the script's own folder, which is root's alone.
        with tempfile.TemporaryDirectory() as open_name:
            open_folder = Path(open_name)
            right = product(folder / "right.onnx")
            _forge(right, product(folder / "other.onnx", factor=3), open_folder)
            open_folder.chmod(0o777)
            with as_nobody(_EXCHANGE, open_name) as attacker:
                while tally.runs < times:
                    tally.answer(_times(right, open_folder) == 1)
                    tally.runs += 1
                    done(tally.runs)
                said = "said why" if reasons.is_said else "not said why"
                tally.note = f"{count_of(attacker)} exchanges; refused, {said}"
    finally:
        os.environ["ENGINE_CACHE"] = "off"
        log.removeHandler(reasons)
        log.setLevel(level)
        log.propagate = True
    return tally


def _forge(right: Path, other: Path, folder: Path) -> None:
    """Make v1, empty, and evil, another user's, in a folder: with weights of another model.

    SystemExit where evil would not be believed in a safe place: the attack would say nothing.
    """
    caches = [folder / name for name in ("of right", "of other")]
    for path, cache, factor in zip((right, other), caches, (1, 3), strict=True):
        assert _times(path, cache) == factor
    [entry], [others] = ([*(cache / "v1" / "entries").iterdir()] for cache in caches)
    shutil.rmtree(entry / "form")
    (others / "form").rename(entry / "form")
    record = json.loads((entry / "entry.json").read_text())
    record["files"] = json.loads((others / "entry.json").read_text())["files"]
    (entry / "entry.json").write_text(json.dumps(record))
    if _times(right, caches[0]) != 3:
        raise SystemExit("a forged entry of the compile cache is not believed even by its user")
    (caches[0] / "v1").rename(folder / "evil")
    (folder / "v1").mkdir(mode=0o700)
    for cache in caches:
        shutil.rmtree(cache)
    for place, _, names in os.walk(folder / "evil"):
        for name in (place, *(os.path.join(place, name) for name in names)):
            os.chown(name, NOBODY, NOBODY)


def _times(path: Path, cache: Path) -> float:
    """Build with a cache; return what the model multiplies by."""
    os.environ["ENGINE_CACHE_DIR"] = str(cache)
    with engine.load(path, target="cpu") as model:
        return float(model(np.ones((1, 2048), np.float32))["y"][0, 0])


# ----------------------------------------------------------------- strangers at ranks' sockets

_STRANGER = """
import select, socket, sys, time
fills = sys.argv[1] == "fills"
print("there", flush=True)
kept, names = [], set()
while not select.select([sys.stdin], [], [], 0)[0]:
    with open("/proc/net/unix") as file:
        found = {line.split()[-1][1:] for line in file if " @engine-rank-" in line}
    for name in found:
        for _ in range(200 if fills else name not in names):
            wire = socket.socket(socket.AF_UNIX)
            wire.setblocking(False)
            try:
                wire.connect(chr(0) + name)
                kept.append(wire)
                names.add(name)
            except OSError:
                wire.close()
    del kept[:-500]
    time.sleep(0.002 if fills and found else 0.01)
print(len(names), flush=True)
"""

_RANK = """
import sys, time
import numpy as np
from engine.distributed.job import this_job
from engine.distributed.local import LocalCommunicator
from engine.distributed.store import connect
from engine.types import CommunicatorOptions, ReduceOp

job = this_job()
store = connect(job.address, job.key)
if job.rank == 0:
    time.sleep(0.3)  # the other one's socket is there, and whoever wants to is at it
begin_s = time.monotonic()
comm = LocalCommunicator(CommunicatorOptions(rank=job.rank, world_size=2, store=store))
joined_s = time.monotonic() - begin_s
found = np.empty(4, np.float32)
comm.allreduce(np.full(4, 1 + job.rank, np.float32), found, ReduceOp.SUM, None)
print(job.rank, joined_s, bool((found == 3).all()), flush=True)
comm.close()
"""


def disturb_ranks(folder: Path, times: int, done: Done) -> Tally:
    """Join two ranks while another user is at their sockets, silent or filling the backlog."""
    tally = Tally()
    script = folder / "rank.py"
    script.write_text(_RANK)
    undisturbed = Tally()
    for _ in range(max(3, times // 10)):
        _join(script, undisturbed)
    tally.lost, tally.wrong = undisturbed.lost, undisturbed.wrong
    sockets = []
    for kind, runs in (("is silent", times // 2), ("fills", times - times // 2)):
        with as_nobody(_STRANGER, kind) as stranger:
            for _ in range(runs):
                _join(script, tally)
                tally.runs += 1
                done(tally.runs)
            sockets.append(count_of(stranger))
    usual = f"{undisturbed.median_s:.3f} s, at most {undisturbed.longest_s:.3f} s"
    tally.note = f"without strangers {usual}; they reached {sum(sockets)} sockets"
    if sum(sockets) < times:
        raise SystemExit(f"strangers reached {sum(sockets)} of {times} ranks: no attack")
    return tally


def _join(script: Path, tally: Tally) -> None:
    """Run a job of two ranks, and note how long the one that comes last took to join."""
    process = subprocess.run(
        [sys.executable, "-m", "engine.cli", "launch", "-n", "2", str(script)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [line.split()[-3:] for line in process.stdout.splitlines()]
    if process.returncode or len(lines) != 2:
        tally.lose(process.stderr.strip()[-300:] or process.stdout)
        return
    [joined_s] = [float(seconds) for rank, seconds, _ in lines if rank == "0"]
    tally.backs_s.append(joined_s)
    tally.answer(all(is_right == "True" for _, _, is_right in lines))
