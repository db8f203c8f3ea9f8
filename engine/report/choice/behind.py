"""Measuring behind a build: the model serves, and moves to the fastest setup when that is known.

One thread of this process sees to one model after the other. The contest is in a process of low
priority (`apart`). What it has chosen is built beside what serves, and takes its place as a live
update does: predicts that have begun end where they began.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import ModelStateError, one_line
from engine.host.interrupts import pass_interrupt
from engine.model.update import restate, retarget

if TYPE_CHECKING:
    from engine.model.state import ModelState
    from engine.plan.targets import Measure

_EXIT_WAIT_S = 30.0


class _Unwanted(Exception):
    """Nobody waits for the result."""


class _Measuring(NamedTuple):
    measure: Measure
    model: weakref.ref[ModelState]

    def state(self) -> ModelState:
        """Return the model's state. Raises _Unwanted where it is closed or the process ends."""
        state = self.model()
        if _is_ending or state is None or state.built is None:
            raise _Unwanted
        return state


_queue: deque[_Measuring] = deque()
_changing = threading.RLock()  # held to look at the queue; a signal handler may build too
_moving = threading.Lock()  # held while a model is built anew
_thread: threading.Thread | None = None
_is_ending = False


def measure_afterwards(measure: Measure, state: ModelState) -> None:
    """Have targets measured, and the model moved to the best, in a thread."""
    try:
        _enqueue(_Measuring(measure, weakref.ref(state)))
    except RuntimeError as error:  # no thread can be started; the model is built all the same
        pass_interrupt(error)
        _note_failure(state, error)


def _enqueue(measuring: _Measuring) -> None:
    global _thread
    with _changing:
        if _thread is None:
            thread = threading.Thread(target=_work, name="engine-auto", daemon=True)
            thread.start()  # it waits for this lock
            _thread = thread
        _queue.append(measuring)


def wait(timeout_s: float | None = None) -> bool:
    """Wait until all models of this process have been measured; return whether they have."""
    thread = _thread
    if thread is not None:
        thread.join(timeout_s)
    return not _queue and _thread is None


def _work() -> None:
    global _thread
    while True:
        with _changing:
            if not _queue:
                _thread = None
                return
            measuring = _queue[0]
        with suppress(_Unwanted, ModelStateError):  # it was closed meanwhile
            _finish(measuring)
        with _changing:
            _queue.popleft()
        del measuring


def _finish(measuring: _Measuring) -> None:
    try:
        targets = measuring.measure(measuring.state)
        with _moving:
            retarget(measuring.state(), targets)
    except (_Unwanted, ModelStateError):
        raise
    except BaseException as error:  # of an extension too; the model goes on as it is
        _note_failure(measuring.state(), error)


def _note_failure(state: ModelState, error: BaseException) -> None:
    why = f"target 'auto': others than the default could not be measured: {one_line(error)}"
    logging.getLogger("engine").warning("%s: %s", state.path, why)
    restate(state, why)


@atexit.register
def _end() -> None:
    """Let no thread build while the interpreter ends; a contest ends with this process."""
    global _is_ending
    _is_ending = True
    _moving.acquire(timeout=_EXIT_WAIT_S)


def _forget() -> None:
    """In a forked child: there is no thread, and the models are the parent's."""
    global _changing, _moving, _thread
    _queue.clear()
    _changing, _moving, _thread = threading.RLock(), threading.Lock(), None


os.register_at_fork(after_in_child=_forget)
