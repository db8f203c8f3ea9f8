"""The attacks of bench/attacks.py on workers, builds and the ranks' store."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from chaos import ANSWER_S, Clients, children, permutation, until_ready
from onnx import TensorProto, helper, numpy_helper
from tally import Tally

import engine

Done = Callable[[int], None]
ISOLATE = {"common_context": {"isolate": "true"}}
FAILED_STARTS = 8


def product(path: Path, op_type: str = "MatMul", factor: float = 1.0, width: int = 2048) -> Path:
    """Write a model that multiplies by a matrix of 16 MB, by default."""
    weight = numpy_helper.from_array(factor * np.eye(width, dtype=np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", width])],
        [weight],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


# ------------------------------------------------------------------------- builds that fail

_BUILD = """
import gc, os, random, resource, signal, sys, threading, time
from pathlib import Path
import engine

how, path, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
config = {"common_context": {"isolate": "true", "compile_cache": "on"}}
token = engine.CancelToken()

def children():
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except OSError:
            pass
    return found

def kill_the_worker():
    while not (found := children()):
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(found[0], signal.SIGKILL)

if how == "killed":
    threading.Thread(target=kill_the_worker, daemon=True).start()
elif how == "cancelled":
    threading.Timer(seconds, token.cancel).start()
elif how == "no thread":  # stacks that there is no room for
    threading.stack_size(1 << 30)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 29),) * 2)
kept = None
try:
    engine.load(path, target="cpu", config=config, cancel=token)
    print("built")
except (engine.EngineError, RuntimeError) as error:
    kept = error
    print("failed", type(error).__name__, str(error).replace(chr(10), " "))
kept = None
gc.collect()
print("alive", flush=True)
"""
_HOW = ("killed", "refused", "cancelled", "no thread")


def fail_builds(folder: Path, times: int, done: Done) -> Tally:
    """Fail isolated builds in processes of their own."""
    tally, chance = Tally(), random.Random(0)
    right = product(folder / "right.onnx")
    # Its shapes fit no product: the runtime sees that, and not the core.
    wrong = product(folder / "wrong.onnx", "NoSuchOperator")
    failed = dict.fromkeys(_HOW, 0)
    longest_s = 0.3
    while tally.runs < times:
        how = _HOW[tally.runs % len(_HOW)]
        cache = folder / f"cache {tally.runs}"
        process = subprocess.run(
            [sys.executable, "-c", _BUILD, how, str(wrong if how == "refused" else right),
             str(chance.uniform(0, longest_s))],
            env={**os.environ, "ENGINE_CACHE": "on", "ENGINE_CACHE_DIR": str(cache)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if process.stdout.startswith("built\nalive") and not process.returncode:
            longest_s /= 2  # it came too late, and was no attack
            continue
        tally.runs += 1
        lines = process.stdout.splitlines()
        if process.returncode or lines[-1:] != ["alive"]:
            tally.crashes += 1
            tally.errors[f"{how}: status {process.returncode}: {process.stderr[-300:]}"] += 1
        elif not lines[0].startswith("failed"):
            tally.lose(f"{how}: {lines[0]}")
        else:
            failed[how] += 1
        done(tally.runs)
    tally.note = ", ".join(f"{count} {how}" for how, count in failed.items())
    return tally


# ------------------------------------------------------------- a store that has no thread left

_STORE = """
import os, resource, sys, threading, time
from pathlib import Path
from engine.distributed.store import StoreServer

with StoreServer() as server:
    print(server.address, server.key.hex(), flush=True)
    threading.stack_size(1 << 30)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    for _ in sys.stdin:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 29), hard))
        is_over = threading.Event()
        try:  # the C library keeps stacks of threads that have ended: until none is left
            while True:
                threading.Thread(target=is_over.wait).start()
        except RuntimeError:
            print("none", flush=True)
        time.sleep(0.3)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        is_over.set()
        print("again", flush=True)
"""


def take_the_threads_of_a_store(folder: Path, times: int, done: Done) -> Tally:
    """Have ranks come while the store's process can start no thread."""
    from engine.distributed.store import connect

    tally = Tally()
    with _told([sys.executable, "-c", _STORE]) as (tell, process):
        address, key = tell("").split()
        for turn in range(times):
            answered: list[float] = []

            def rank(turn: int = turn, answered: list[float] = answered) -> None:
                try:
                    store = connect(address, bytes.fromhex(key))
                    store.set(f"key {turn}", b"%d" % turn)
                    tally.answer(store.get(f"key {turn}", ANSWER_S) == b"%d" % turn)
                    store.close()
                except Exception as error:
                    tally.lose(error)
                answered.append(time.monotonic())

            if (said := tell("take\n")) != "none":
                raise SystemExit(f"the store's process was not without threads: {said!r}")
            thread = threading.Thread(target=rank)
            thread.start()
            tell("")  # "again"
            ended_s = time.monotonic()
            thread.join()
            tally.backs_s.append(max(0.0, answered[0] - ended_s))
            tally.runs += 1
            if process.poll() is not None:
                tally.crashes += 1
                break
            done(tally.runs)
    return tally


@contextmanager
def _told(command: list[str]) -> Iterator[tuple[Callable[[str], str], subprocess.Popen[str]]]:
    """Start a process; yields what gives it a line, if any, and returns its next one."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None

    def tell(line: str) -> str:
        stdin.write(line)
        return stdout.readline().strip()

    try:
        yield tell, process
    finally:
        process.kill()
        process.communicate()


# --------------------------------------------------------------- workers of a MultiDeviceRunner


class Attacked(Clients):
    """Clients of a runner of two workers, with the errors of those that are lost."""

    def into(self, tally: Tally) -> None:
        """End them, and add what they have seen."""
        self.end()
        tally.lost += sum(self.errors.values())
        tally.errors += self.errors
        tally.wrong += self.wrong + sum(count > 1 for count in self.answers.values())
        tally.note += f"; {len(self.latencies)} requests"


@contextmanager
def _loaded(folder: Path, tally: Tally) -> Iterator[engine.MultiDeviceRunner]:
    """Yield a runner of two workers with four clients."""
    path = folder / "permutation.onnx"
    place = permutation(path)
    begin_s = time.monotonic()
    with engine.MultiDeviceRunner(str(path), [0, 1]) as runner:
        tally.note += f"; a start takes {time.monotonic() - begin_s:.1f} s"
        clients = Attacked(runner, place, 4)
        yield runner
        clients.into(tally)


def fail_starts(folder: Path, times: int, done: Done) -> Tally:
    """Kill every worker as it starts; a run is a device whose starts failed often in a row."""
    tally = Tally(note=f"{FAILED_STARTS} failed starts in a row, or more")
    with _loaded(folder, tally) as runner, _at_once():
        while tally.runs < times:
            _kill(children())  # those that are ready
            _fail_starts_in_a_row(runner)
            tally.backs_s.append(until_ready(runner))
            tally.lost += any(worker.state == "given up" for worker in runner.statistics().workers)
            tally.runs += 2
            done(tally.runs)
    return tally


def _fail_starts_in_a_row(runner: engine.MultiDeviceRunner) -> None:
    """Kill what starts, until this has failed so often in a row for both devices."""
    before = [worker.restarts for worker in runner.statistics().workers]
    while True:
        workers = runner.statistics().workers
        served = {worker.pid for worker in workers if worker.state in ("ready", "busy")}
        _kill(children() - served)
        if served & children():  # it came through: another row
            _kill(served)
            before = [worker.restarts for worker in workers]
        failed = [worker.restarts - old for worker, old in zip(workers, before, strict=True)]
        if min(failed) > FAILED_STARTS:
            return
        time.sleep(0.002)


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def _at_once() -> Iterator[None]:
    """Let this thread kill workers before they are through, on a busy machine, where it may."""
    thread = threading.get_native_id()
    before = os.getpriority(os.PRIO_PROCESS, thread)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, thread, -15)
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, thread, before)


def interrupt_workers(folder: Path, times: int, done: Done) -> Tally:
    """Send SIGINT to a worker that runs, waits or builds."""
    tally, chance = Tally(note="SIGINT"), random.Random(0)
    with _loaded(folder, tally) as runner:
        while tally.runs < times:
            time.sleep(chance.uniform(0, 0.05))
            pids = sorted(children() & {worker.pid for worker in runner.statistics().workers})
            if not pids:
                continue
            pid = chance.choice(pids)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
                tally.runs += 1
            if tally.runs % 3:  # else while another one starts, too
                tally.backs_s.append(until_ready(runner, pid))
                _let_pass(runner)
            done(tally.runs)
        until_ready(runner)
        tally.note += f", {runner.statistics().restarts} restarts"
    return tally


def _let_pass(runner: engine.MultiDeviceRunner, requests: int = 40) -> None:
    """Wait for results: a request whose workers end three times is refused, whoever ends them."""
    until = time.monotonic() + ANSWER_S
    before = runner.statistics().completed
    while runner.statistics().completed < before + requests and time.monotonic() < until:
        time.sleep(0.001)


# ----------------------------------------------------------- a handler that raises in a predict


class Interrupted(Exception):
    """A signal handler raises it."""


def raise_in_predicts(folder: Path, times: int, done: Done) -> Tally:
    """Interrupt the main thread's predicts of an isolated model, while two threads predict."""
    from engine.model.model import model_state

    tally = Tally()
    path = product(folder / "small.onnx", factor=2, width=64)
    model = engine.load(path, target="cpu", config=ISOLATE)
    executable: Any = model_state(model).plan.executable
    first, is_over = executable.process().worker.pid, threading.Event()
    answers = [0, 0]

    def predict_on(number: int) -> None:
        while not is_over.is_set():
            x = np.full((1 + answers[number] % 3, 64), answers[number] % 1000, np.float32)
            try:
                tally.answer(bool((model(x)["y"] == 2 * x).all()))
            except Exception as error:
                tally.lose(error)
            answers[number] += 1

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    threads = [threading.Thread(target=predict_on, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    x = np.ones((1, 64), np.float32)
    while tally.runs < times:
        try:
            # Again after a while: what is raised in a `__del__` is lost.
            signal.setitimer(signal.ITIMER_REAL, 2e-4 * (1 + tally.runs % 20), 0.005)
            while True:
                model(x)
        except Interrupted:
            tally.runs += 1
        finally:
            with suppress(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, 0)
        begin_s = time.monotonic()
        tally.answer(bool((model(x)["y"] == 2 * x).all()))
        tally.backs_s.append(time.monotonic() - begin_s)
        done(tally.runs)
    is_over.set()
    for thread in threads:
        thread.join()
    signal.signal(signal.SIGALRM, before)
    tally.crashes += executable.process().worker.pid != first
    model.close()
    tally.note = f"{sum(answers)} requests of other threads"
    return tally
