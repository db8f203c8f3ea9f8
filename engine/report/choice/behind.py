"""Measuring behind a build: the model serves, and moves to the fastest setup when that is known.

One thread of this process sees to one model after the other. The contest is in a process of low
priority (`apart`). What it has chosen is built beside what serves, and takes its place as a live
update does: predicts that have begun end where they began.
"""

from __future__ import annotations

import atexit
import logging
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import ModelStateError, one_line
from engine.host.interrupts import pass_interrupt
from engine.model.update import restate, retarget
from engine.weights.afterwards import Afterwards

if TYPE_CHECKING:
    from engine.model.state import ModelState
    from engine.plan.targets import Measure


class _Unwanted(Exception):
    """Nobody waits for the result."""


class _Measuring(NamedTuple):
    measure: Measure
    model: weakref.ref[ModelState]

    def state(self) -> ModelState:
        """Return the model's state. Raises _Unwanted where it is closed or the process ends."""
        state = self.model()
        if _afterwards.is_ending or state is None or state.built is None:
            raise _Unwanted
        return state


def measure_afterwards(measure: Measure, state: ModelState) -> None:
    """Have targets measured, and the model moved to the best, in a thread."""
    try:
        _afterwards.add(_Measuring(measure, weakref.ref(state)))
    except RuntimeError as error:  # no thread can be started; the model is built all the same
        pass_interrupt(error)
        _note_failure(state, error)


def wait(timeout_s: float | None = None) -> bool:
    """Wait until all models of this process have been measured; return whether they have."""
    return _afterwards.wait(timeout_s)


def _finish(measuring: _Measuring) -> None:
    with suppress(_Unwanted, ModelStateError):  # it was closed meanwhile
        try:
            targets = measuring.measure(measuring.state)
            with _afterwards.turn:
                retarget(measuring.state(), targets)
        except (_Unwanted, ModelStateError):
            raise
        except BaseException as error:  # of an extension too; the model goes on as it is
            _note_failure(measuring.state(), error)


def _note_failure(state: ModelState, error: BaseException) -> None:
    why = f"target 'auto': others than the default could not be measured: {one_line(error)}"
    logging.getLogger("engine").warning("%s: %s", state.path, why)
    restate(state, why)


_afterwards = Afterwards("engine-auto", _finish)
atexit.register(_afterwards.end)  # no thread builds while the interpreter ends; a contest ends too
