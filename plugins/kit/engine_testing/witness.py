"""A fresh process that builds and runs one model, and tells what the backend did to it.

`python -m engine_testing.witness ORDER ANSWER FOLDER...`: started by `process.py`, which says what
is in the answer. ORDER is pickled by the parent.
"""

from __future__ import annotations

import ctypes
import json
import locale
import os
import pickle
import signal
import struct
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from engine.backends import Backend, open_backend
from engine.types import CompileOptions, ModelSource, Value

_IN_MODIFY, _IN_MOVED_TO, _IN_CREATE = 0x2, 0x80, 0x100
_IN_NONBLOCK = 0o4000
_PATIENCE = 10  # times the time that predicts are repeated for, where the machine is busy
# Devices, pipes and what is in memory are no disk.
_NO_DISK = ("/dev/", "/proc/", "/sys/", "/memfd:")


def settings() -> dict[str, object]:
    """Return what belongs to the whole process, and so to its owner, as JSON values."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT, signal.SIGCHLD)
    umask = os.umask(0o077)
    os.umask(umask)
    return {
        "environment": {**_c_environment(), **os.environ},
        "working folder": os.getcwd(),
        "signal handlers": {number.name: _handler(number) for number in signals},
        "module search path": list(sys.path),
        "numpy error handling": np.geterr(),
        "CPU affinity": sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else None,
        "locale": locale.setlocale(locale.LC_ALL),
        "umask": umask,
        "recursion limit": sys.getrecursionlimit(),
    }


def _handler(number: signal.Signals) -> str:
    """Describe a signal's handler: Python's, or the action that C code has set."""
    action = ctypes.create_string_buffer(256)  # struct sigaction; its first word is the handler
    libc = ctypes.CDLL(None)
    known = libc.sigaction(int(number), None, action) == 0
    word = struct.unpack_from("P", action)[0] if known else 0
    return f"{signal.getsignal(number)} {word:#x}"


def _c_environment() -> dict[str, str]:
    """Return the C library's environment, which `os.environ` does not follow."""
    with suppress(ValueError, AttributeError):
        table = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
        found: dict[str, str] = {}
        index = 0
        while table and (entry := table[index]) is not None:
            name, _, value = entry.decode(errors="replace").partition("=")
            found[f"C {name}"] = value
            index += 1
        return found
    return {}


class Writes:
    """Notes files that are opened for writing by Python, or appear in the process's folders."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._paths: list[str] = []
        self._is_looking = False
        self._inotify = -1
        sys.addaudithook(self._audit)
        libc = ctypes.CDLL(None, use_errno=True)
        self._folders: dict[int, str] = {}
        if hasattr(libc, "inotify_init1"):
            self._inotify = libc.inotify_init1(_IN_NONBLOCK)
        for folder in folders if self._inotify >= 0 else ():
            mask = _IN_MODIFY | _IN_MOVED_TO | _IN_CREATE
            self._folders[libc.inotify_add_watch(self._inotify, folder.encode(), mask)] = folder

    def __enter__(self) -> Writes:
        self._is_looking = True
        return self

    def __exit__(self, *error: object) -> None:
        self._is_looking = False

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_looking or event != "open":
            return
        path, _, flags = arguments
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str) or not (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        if not os.path.abspath(path).startswith(_NO_DISK):
            self._paths.append(path)

    def paths(self) -> list[str]:
        """Return the files that were written since the last call, each once."""
        if self._inotify >= 0:
            with suppress(BlockingIOError):
                events = os.read(self._inotify, 2**20)
                offset = 0
                while offset < len(events):
                    watch, _, _, length = struct.unpack_from("iIII", events, offset)
                    name = events[offset + 16 : offset + 16 + length].rstrip(b"\0").decode()
                    self._paths.append(os.path.join(self._folders.get(watch, "?"), name))
                    offset += 16 + length
        paths, self._paths = self._paths, []
        return sorted({*paths})


def _disk_bytes() -> int:
    """Return how many bytes this process has sent to files on a disk, by any means.

    The kernel counts the pages of files that were made dirty, mapped ones too, and none in memory.
    """
    with suppress(OSError):
        for line in Path("/proc/self/io").read_text().splitlines():
            name, _, value = line.partition(": ")
            if name == "write_bytes":
                return int(value)
    return 0


def _thread_s() -> dict[str, float]:
    """Return the CPU time of each thread of this process, by its number."""
    seconds = {}
    ticks = os.sysconf("SC_CLK_TCK")
    with suppress(OSError):
        for name in os.listdir("/proc/self/task"):
            with suppress(OSError):  # it has just ended
                fields = Path(f"/proc/self/task/{name}/stat").read_text().rpartition(")")[2].split()
                seconds[name] = (int(fields[11]) + int(fields[12])) / ticks
    return seconds


class Runnable:
    """Looks, while a block runs, how often several threads of this process are ready to run.

    A busy machine makes each of them wait, and changes nothing of that.
    """

    def __init__(self, others: set[str]) -> None:
        self._others = others
        self._seen: list[int] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)

    @property
    def several(self) -> float:
        """Return the part of the moments at which there were several."""
        return sum(count > 1 for count in self._seen) / max(len(self._seen), 1)

    def __enter__(self) -> Runnable:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        others = {*self._others, str(threading.get_native_id())}
        while not self._end.wait(0.003):
            states = []
            with suppress(OSError):
                for name in {*os.listdir("/proc/self/task")} - others:
                    with suppress(OSError):  # it has just ended
                        text = Path(f"/proc/self/task/{name}/stat").read_text()
                        states.append(text.rpartition(")")[2].split()[0])
            self._seen.append(states.count("R"))


def run(order: Path, folders: Sequence[str]) -> dict[str, Any]:
    """Do what the order says and return what was seen."""
    name, first, (source, options, x), repeat_s = pickle.loads(order.read_bytes())
    writes = Writes(folders)
    others = set(_thread_s()) - {str(os.getpid())}
    before = settings()
    backend = open_backend(name)
    _run_once(backend, *first)
    writes.paths()  # forgotten: they are not this model's
    disk_bytes = _disk_bytes()
    with writes:
        loaded = backend.load(source, options)
        executable = backend.compile(loaded, options)
        loaded.close()
        context = executable.open_context()
        backend.predict(context, [x], None, None)
        process_s, start, begin_s = time.process_time(), _thread_s(), time.monotonic()
        with Runnable(others) as runnable:
            # In processor time, of which a busy machine gives little; a device may take none.
            while (
                time.process_time() - process_s < repeat_s
                and time.monotonic() - begin_s < _PATIENCE * repeat_s
            ):
                backend.predict(context, [x], None, None)
        spent = {thread: end - start.get(thread, 0.0) for thread, end in _thread_s().items()}
        process_s = time.process_time() - process_s
        context.close()
        executable.close()
    return {
        "before": before,
        "after": settings(),
        "written": writes.paths(),
        "disk_bytes": _disk_bytes() - disk_bytes,
        "process_s": process_s - sum(spent.get(thread, 0.0) for thread in others),
        "several": runnable.several,
        "busiest_s": max(seconds for thread, seconds in spent.items() if thread not in others),
    }


def _run_once(backend: Backend, source: ModelSource, options: CompileOptions, x: Value) -> None:
    loaded = backend.load(source, options)
    executable = backend.compile(loaded, options)
    loaded.close()
    context = executable.open_context()
    backend.predict(context, [x], None, None)
    context.close()
    executable.close()


if __name__ == "__main__":
    seen = run(Path(sys.argv[1]), sys.argv[3:])
    Path(sys.argv[2]).write_text(json.dumps(seen))
