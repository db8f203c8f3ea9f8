"""Predicts of which more is asked: they may be cancelled, and have a priority or an id."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.backends.told import told
from engine.config.checks import require
from engine.errors import Cancelled
from engine.host.interrupts import raised_by_handler
from engine.types import CancelToken, Capability, PredictOptions

if TYPE_CHECKING:
    from engine.runtime.thread_state import ThreadState
    from engine.types import Predict, Values

MOST = 100


def options(priority: object, request_id: object) -> PredictOptions:
    """Return what a user asks of a predict. Raises TypeError, ValueError."""
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise TypeError(f"priority must be an int, but got {type(priority)}")
    if not isinstance(request_id, str):
        raise TypeError(f"request_id must be a str, but got {type(request_id)}")
    if not -MOST <= priority <= MOST:
        raise ValueError(f"priority must be -{MOST} to {MOST}, but got {priority}")
    return PredictOptions(id=request_id, priority=priority)


def asked(
    thread: ThreadState, cancel: CancelToken | None, priority: int = 0, request_id: str = ""
) -> Asked | Predict:
    """Return a thread's predict as one that a token stops, and whose backend is told of it.

    Raises TypeError, ValueError, Cancelled where the token is cancelled already,
    ModelStateError where a backend cannot stop.
    """
    wanted = options(priority, request_id)
    if cancel is not None:
        require("cancel", cancel, CancelToken)
        thread.require_stoppable(Capability.CANCEL_PREDICT, "cancel")
        if cancel.cancelled:
            raise Cancelled("predict failed! cancelled by its owner")
        wanted = replace(wanted, can_be_cancelled=True)
    if not thread.plan.takes_options:
        return thread.plain if cancel is None else Asked(thread.plain, cancel, None)
    run = thread.plan.told if thread.plain is thread.plan.predict else thread.plain
    return Asked(run, cancel, wanted)


class Asked:
    """A predict that a token's owner may stop. `is_cancelled`: the context was told to.

    token: None where nobody may. wanted: options for the backends; None where none takes them.
    """

    def __init__(
        self, predict: Predict, token: CancelToken | None, wanted: PredictOptions | None
    ) -> None:
        self.is_cancelled = False
        self._predict = predict
        self._token = token
        self._wanted = wanted
        self._context: Any = None
        # Reentrant: a signal handler that cancels may run in the thread that predicts.
        self._lock = threading.RLock()

    def __call__(
        self, context: Any, inputs: Values, outputs: Values | None, deadline_s: float | None
    ) -> Values:
        """See engine_predict."""
        run: Callable[..., Values] = self._predict
        if self._wanted is not None:
            run = partial(_telling, self._wanted, run)
        if self._token is None:
            return run(context, inputs, outputs, deadline_s)
        _ = context.cancel  # announced: where it is missing the backend is at fault
        self._context = context
        try:
            with self._token.watch(self._stop):
                return run(context, inputs, outputs, deadline_s)
        finally:
            # From here on nobody stops what runs in that context next. If a signal handler ends the
            # wait for one who is about to, that one has said so in `is_cancelled`.
            with self._lock:
                self._context = None

    def _stop(self) -> None:
        """Stop the predict if it runs; called by the thread that cancels."""
        with self._lock:
            if self._context is None or self.is_cancelled:
                return
            self.is_cancelled = True
            try:
                self._context.cancel()
            except Exception as error:
                if raised_by_handler(error):
                    raise
                logging.getLogger("engine").exception("a backend's cancel() failed")


def _telling(
    wanted: PredictOptions, predict: Callable[..., Any], context: object, *others: Any
) -> Any:
    """Return what `predict` returns, with these options for what it runs in this context."""
    key = id(context)
    try:
        told[key] = wanted
        return predict(context, *others)
    finally:
        told.pop(key, None)
