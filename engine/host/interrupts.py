"""Exceptions that signal handlers raise, told from those of the code that they interrupt.

A handler runs between any two steps of the main thread, so its exception comes out of whatever is
running: a backend's hook, a runtime's Python layer, a line of the core. Translators of exceptions
ask here first: nobody there is at fault, and the exception is for whom installed the handler.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
from _queue import Empty, SimpleQueue  # as queue has them, which takes heapq along
from collections.abc import Callable, Iterator
from contextvars import copy_context
from functools import partial
from itertools import pairwise
from types import FrameType, TracebackType
from typing import TypeVar

from engine.host.tasks import Task

T = TypeVar("T")


def raised_by_handler(error: BaseException) -> BaseException | None:
    """Return the exception of a signal handler that `error` is or was made of, None for no such.

    For who has just caught `error`. An exception that the user is handling while he calls us is the
    context of ours too, and not one of which ours was made.
    """
    return next(filter(_has_handler, _chain(error)), None)


def pass_interrupt(error: BaseException) -> None:
    """Raise `error`, which the caller is handling, again where it comes of a signal handler."""
    if raised_by_handler(error):
        raise  # what is being handled


def raise_interrupt(error: BaseException) -> None:
    """Raise the exception of a signal handler of which `error`, being handled, was made, if any."""
    if interrupt := raised_by_handler(error):
        raise interrupt from None


def undisturbed(work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises, in a thread where no handler runs.

    Handlers run in the main thread. One that raises ends the wait; the work goes on to its end, so
    that it removes the files that it makes. It runs in a copy of the caller's contextvars context.
    """
    if not in_main_thread() or sys.is_finalizing():
        return work()  # as the process ends no other thread runs
    task = Task(partial(copy_context().run, work))
    try:
        _tasks.put(task)
        if not _waiting:
            _thread.start_new_thread(_help, ())  # threading's own waits, with locks, for its start
        elif not task.wait(_RECHECK_S) and not task.has_begun:  # whoever waited had just given up
            _thread.start_new_thread(_help, ())
        while not task.is_over:
            task.wait()
    except BaseException:
        if not task.has_begun:
            task.is_unwanted = True  # not for whoever helps next
        raise
    try:
        return task.result()  # type: ignore[no-any-return]
    finally:
        del task  # the traceback of an error has this frame: no cycle


def in_main_thread() -> bool:
    """Return whether signal handlers run in the calling thread."""
    return threading.get_ident() == threading.main_thread().ident


_tasks: SimpleQueue[Task] = SimpleQueue()
_waiting: set[int] = set()  # threads that wait for a task: to start one takes 0.2 ms
_IDLE_S = 1.0  # so long, and then they end
_RECHECK_S = 0.05


def _help() -> None:
    """Work for the main thread until it has had nothing to do for some time."""
    thread = threading.get_ident()
    try:
        while True:
            task = _tasks.get(timeout=_IDLE_S)
            _waiting.discard(thread)
            task.attempt()
            _waiting.add(thread)  # first: the next task may follow at once
            task.end()
            del task
    except Empty:
        _waiting.discard(thread)


def _forget_threads() -> None:
    """In a forked child: there is none of these threads."""
    global _tasks
    _tasks = SimpleQueue()
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that it was made of, each once."""
    waiting = [error]
    seen: set[int] = set()
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        passed = set(_frames(found.__traceback__))
        waiting += [
            earlier
            for earlier in (found.__context__, found.__cause__)
            if earlier is not None
            and earlier.__traceback__ is not None
            # The frame that caught it is one that the later one has come through.
            and earlier.__traceback__.tb_frame in passed
        ]


def _has_handler(error: BaseException) -> bool:
    """Return whether an exception went through a signal handler."""
    # Python's own handler for SIGINT is no Python function and has no frame.
    if isinstance(error, KeyboardInterrupt):
        return True
    return any(map(_is_handler, _frames(error.__traceback__)))


def _is_handler(frame: FrameType) -> bool:
    """Return whether a frame is a handler's: it was called with a signal and its caller's frame."""
    code = frame.f_code
    takes_rest = bool(code.co_flags & _VARARGS)
    if frame.f_back is None or code.co_argcount + 2 * takes_rest < 2:
        return False
    values = frame.f_locals
    arguments = [values.get(name) for name in code.co_varnames[: code.co_argcount]]
    if takes_rest:  # the name stands behind those of keyword-only arguments
        arguments += values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ())
    if type(values) is dict:  # before Python 3.13: a copy, in which the frame would keep all alive
        values.clear()
    return any(
        interrupted is frame.f_back and isinstance(number, int)
        for number, interrupted in pairwise(arguments)
    )


_VARARGS = 0x04
"""inspect.CO_VARARGS: the function takes any number of arguments."""


def _frames(traceback: TracebackType | None) -> Iterator[FrameType]:
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next
