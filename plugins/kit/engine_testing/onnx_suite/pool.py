"""Worker processes that do one piece of work at a time: a crash or hang costs that piece alone."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from engine.host.child import environment
from engine.host.worker import Ended, Worker, ready

T = TypeVar("T")
R = TypeVar("R")

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
    Raises ValueError for a function of a script, which has no module that a worker could import,
    and ImportError where the first worker ends before it has imported the function.
    """
    _require_module(function)
    rest = deque(items)
    started: set[Worker] = set()  # those that have imported the function
    idle = [_start(function) for _ in range(workers)]
    busy: dict[Worker, tuple[T, float | None]] = {}
    try:
        while True:
            while idle and rest:
                worker, item = idle.pop(), rest.popleft()
                worker.send(item)
                busy[worker] = item, time.monotonic() + limit_s if worker in started else None
            if not busy:
                return
            ends = [end for _, end in busy.values() if end is not None]
            answering = ready(busy, min(ends, default=None))
            now = time.monotonic()
            for worker, (item, end) in list(busy.items()):
                answer: Any
                if worker in answering:
                    try:
                        answer = worker.receive()
                    except Ended as error:
                        if not started:  # the next ones would end as soon, one for each item
                            raise ImportError(
                                f"a worker process could not import {_name(function)}: {error}"
                            ) from error
                        answer = Died(str(error))
                    if answer is _READY:
                        started.add(worker)
                        busy[worker] = item, now + limit_s
                        continue
                elif end is not None and now >= end:
                    answer = Died(f"stopped after {limit_s:g} s")
                else:
                    continue
                del busy[worker]
                if isinstance(answer, Died):
                    worker.close()
                    worker = _start(function)
                idle.append(worker)
                yield item, answer
    finally:
        for worker in (*idle, *busy):
            worker.close()


def _require_module(function: Callable[..., Any]) -> None:
    while isinstance(function, partial):
        function = function.func
    if getattr(function, "__module__", "") in ("__main__", "__mp_main__"):
        raise ValueError(
            f"{_name(function)} is defined in the script that runs, where no other process finds "
            "it; put it into a module of its own, and import it from there"
        )


def _name(function: Callable[..., Any]) -> str:
    return f"function {getattr(function, '__qualname__', repr(function))!r}"


def _start(function: Callable[[Any], Any]) -> Worker:
    # The tested target is the one that was named.
    return Worker(f"{__name__}:serve", function, env=environment(without=["ENGINE_TARGET"]))


def serve(function: Callable[[Any], Any], items: Connection) -> None:
    """Answer items until nobody asks any more."""
    items.send(_READY)
    while True:
        try:
            item = items.recv()
        except EOFError:
            return
        items.send(function(item))
