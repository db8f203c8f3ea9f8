"""Worker processes that do one piece of work at a time: a crash or hang costs that piece alone."""

from __future__ import annotations

import math
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, TypeVar

from engine.host.child import ending, environment, kill, last_words, start

T = TypeVar("T")
R = TypeVar("R")

_CHILD = "import sys; from engine.testing.onnx_suite.pool import serve; serve(int(sys.argv[1]))"
_READY = ...  # what a worker says first


class Died(Exception):
    """A worker gave no answer: it crashed, or took longer than it was allowed to."""


def each(
    function: Callable[[T], R], items: Iterable[T], *, workers: int, limit_s: float
) -> Iterator[tuple[T, R | Died]]:
    """Apply `function` to every item in processes of their own; yields as answers come.

    function, items and answers must be picklable; the function by its module's name.
    workers: processes at once, each used for many items until it dies.
    limit_s: seconds for one item; the start of a process does not count.
    """
    rest = deque(items)
    idle = [_Worker(function) for _ in range(workers)]
    busy: dict[Connection, tuple[_Worker, T, float]] = {}
    try:
        while True:
            while idle and rest:
                worker, item = idle.pop(), rest.popleft()
                worker.send(item)
                end = time.monotonic() + limit_s if worker.is_ready else math.inf
                busy[worker.connection] = worker, item, end
            if not busy:
                return
            first = min(end for _, _, end in busy.values())
            ready = wait([*busy], None if first == math.inf else max(0, first - time.monotonic()))
            now = time.monotonic()
            for connection, (worker, item, end) in list(busy.items()):
                if connection in ready:
                    answer = worker.receive()
                    if answer is _READY:
                        worker.is_ready = True
                        busy[connection] = worker, item, now + limit_s
                        continue
                elif now >= end:
                    answer = Died(f"stopped after {limit_s:g} s")
                else:
                    continue
                del busy[connection]
                if isinstance(answer, Died):
                    worker.close()
                    worker = _Worker(function)
                idle.append(worker)
                yield item, answer
    finally:
        for worker in [*idle, *(worker for worker, _, _ in busy.values())]:
            worker.close()


class _Worker:
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.connection, theirs = Pipe()
        self.is_ready = False  # it has imported the function
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        self._process = start(
            ["-c", _CHILD, str(theirs.fileno())],
            self._errors,
            env=environment(without=["ENGINE_TARGET"]),  # what is tested is what was named
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        self.send(function)

    def send(self, item: object) -> None:
        with suppress(BrokenPipeError):  # it has died; `receive` says of what
            self.connection.send(item)

    def receive(self) -> Any:
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            end = ending(self._process.wait()) or "ended with status 0"
            said = last_words(self._errors)
            return Died(f"{end} ({said})" if said else end)

    def close(self) -> None:
        if self._process.poll() is None:
            kill(self._process)  # with whatever a backend has started
        self.connection.close()
        self._errors.close()


def serve(fd: int) -> None:
    """Run a worker: receive a function, then answer items until the other end is gone."""
    connection = Connection(fd)
    try:
        function = connection.recv()
        connection.send(_READY)
        while True:
            connection.send(function(connection.recv()))
    except EOFError:
        return
