"""Predicts of which more is asked: they may be cancelled, and have a priority or an id."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.backends.predict_options import running
from engine.config.checks import require
from engine.errors import Cancelled
from engine.host.interrupts import raised_by_handler
from engine.types import CancelToken, Capability, PredictOptions

if TYPE_CHECKING:
    from engine.runtime.thread_state import ThreadState
    from engine.types import Predict, Values

MOST = 100

USUAL = PredictOptions()
_CANCELLABLE = PredictOptions(can_be_cancelled=True)


def check(priority: object, request_id: object) -> None:
    """Refuse what cannot be a predict's priority or id. Raises TypeError, ValueError."""
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise TypeError(
            f"priority must be an int of -{MOST} to {MOST}, but got {type(priority)}; leave it out "
            "for 0"
        )
    if not isinstance(request_id, str):
        raise TypeError(
            f"request_id must be a str, but got {type(request_id)}; leave it out for none"
        )
    if not -MOST <= priority <= MOST:
        raise ValueError(f"priority must be -{MOST} to {MOST}, but got {priority}")


def asked(
    thread: ThreadState, cancel: CancelToken | None, priority: int = 0, request_id: str = ""
) -> Asked | Predict:
    """Return a thread's predict as one that a token stops, and whose backend gets its options.

    Raises TypeError, ValueError, Cancelled where the token is cancelled already,
    ModelStateError where a backend cannot stop.
    """
    check(priority, request_id)
    if cancel is not None:
        require("cancel", cancel, CancelToken)
        thread.require_stoppable(Capability.CANCEL_PREDICT, "cancel")
        if cancel.cancelled:
            raise Cancelled("predict failed! cancelled by its owner")
    run = thread.plain
    if thread.takes_options:
        run = _with_options(thread, options(priority, request_id, cancel is not None))
    return run if cancel is None else Asked(run, cancel)


def options(priority: int, request_id: str, can_be_cancelled: bool) -> PredictOptions:
    """Return the options of a predict."""
    if priority or request_id:
        return PredictOptions(id=request_id, priority=priority, can_be_cancelled=can_be_cancelled)
    return _CANCELLABLE if can_be_cancelled else USUAL


def _with_options(thread: ThreadState, wanted: PredictOptions) -> Predict:
    """Return a thread's predict with options for all backends that take them."""
    direct = thread.predict_with
    if direct is None:
        return partial(_noted, wanted, thread.plain)
    return lambda context, inputs, outputs, deadline_s: direct(
        context, inputs, outputs, deadline_s, wanted
    )


def _noted(
    wanted: PredictOptions, predict: Callable[..., Any], context: object, *others: Any
) -> Any:
    """Return what `predict` returns, with these options for what it runs in this context."""
    key = id(context)
    try:
        running[key] = wanted
        return predict(context, *others)
    finally:
        running.pop(key, None)


class Stoppable:
    """A predict that the owner of a token may stop.

    is_cancelled: its context was told to stop.
    """

    def __init__(self) -> None:
        self.is_cancelled = False
        # The context that runs, while it may be stopped. Any: a context has a `cancel` or not.
        self._context: Any = None
        # Reentrant: a signal handler that cancels may run in the thread that predicts, and a
        # backend may call `done` in its context's `cancel`.
        self._lock = threading.RLock()

    def _may_stop(self, context: Any) -> None:
        """Let `_stop` stop what is about to run in a context."""
        _ = context.cancel  # announced: where it is missing the backend is at fault
        self._context = context

    def _is_through(self) -> None:
        """Let nobody stop what runs in that context next.

        If a signal handler ends the wait for one who is about to, that one has said so in
        `is_cancelled`.
        """
        with self._lock:
            self._context = None

    def _stop(self) -> None:
        """Stop the predict if it runs; called by the thread that cancels."""
        with self._lock:
            if self._context is None or self.is_cancelled:
                return
            self.is_cancelled = True
            self._stopping()
            try:
                self._context.cancel()
            except Exception as error:
                if raised_by_handler(error):
                    raise
                logging.getLogger("engine").exception("a backend's cancel() failed")

    def _stopping(self) -> None:
        """Do what there is to do before the context is told to stop."""


class Asked(Stoppable):
    """A thread's predict that a token's owner may stop."""

    def __init__(self, predict: Predict, token: CancelToken) -> None:
        super().__init__()
        self._predict = predict
        self._token = token

    def __call__(
        self, context: Any, inputs: Values, outputs: Values | None, deadline_s: float | None
    ) -> Values:
        """See engine_predict."""
        self._may_stop(context)
        try:
            with self._token.watch(self._stop):
                return self._predict(context, inputs, outputs, deadline_s)
        finally:
            self._is_through()
