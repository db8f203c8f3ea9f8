"""A request as observers see it: from its coming to its end, of which they are told once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from engine.errors import Cancelled, DeadlineExceeded, QueueFull, one_line
from engine.report.observing.observers import Observer, begin
from engine.tensor.memory import to_host
from engine.tensor.values import arrays_in
from engine.types import DeviceBuffer, ModelDescription, RequestEvent, Status, Values

Checked = Callable[[Any], "list[Any]"]
"""Returns a caller's inputs in the model's order; raises where they do not fit."""

_numbers = count(1)


def status_of(error: BaseException | None) -> Status:
    """Return how what raised `error`, or nothing, has ended."""
    if error is None:
        return Status.COMPLETED
    for kind, status in (
        (Cancelled, Status.CANCELLED),
        (DeadlineExceeded, Status.EXPIRED),
        (QueueFull, Status.REFUSED),
    ):
        if isinstance(error, kind):
            return status
    return Status.FAILED


def error_of(error: BaseException | None) -> dict[str, str]:
    """Return what an event says of an exception, or of none."""
    if error is None:
        return {}
    return {"error": one_line(error), "error_type": type(error).__name__}


class ObservedRequest:
    """One request. Any thread may tell how it ended; the first does.

    checked: see Checked; asked for only where an observer wants values.
    """

    __slots__ = ("_begin_s", "_begun", "_came_s", "_checked", "_ending", "_model", "_watching")

    def __init__(
        self, watching: Sequence[Observer], model: ModelDescription, checked: Checked
    ) -> None:
        self._watching = watching
        self._model = model
        self._checked = checked
        self._ending = threading.Lock()  # held by who ends it
        self._begin_s, self._came_s = time.monotonic(), time.perf_counter()
        self._begun = begin(watching, model)

    def ended(
        self,
        error: BaseException | None,
        inputs: Any,
        results: Any = None,
        admitted_s: float = 0.0,
        batch_size: int = 1,
    ) -> None:
        """Tell the observers.

        error: None where there are results. inputs: as the caller gave them. admitted_s: when its
        run began, a moment of time.perf_counter(); 0 where it never ran. batch_size: of that run.
        """
        if not self._ending.acquire(blocking=False):
            return
        ended_s = time.perf_counter()
        ran = admitted_s > 0
        run_s = max(admitted_s, self._came_s) if ran else ended_s
        about: dict[str, Any] = {
            "model": self._model,
            "id": f"{os.getpid()}-{next(_numbers)}",
            "status": status_of(error),
            "begin_s": self._begin_s,
            "queue_s": run_s - self._came_s,
            "compute_s": max(0.0, ended_s - run_s),
            "batch_size": batch_size if ran else 0,
            **error_of(error),
        }
        given = taken = None
        if any(observer.wants_values for observer in self._watching):
            given = self._values(inputs)
            taken = None if error is not None else [arrays_in(each) for each in results]
        for observer, begun in zip(self._watching, self._begun, strict=True):
            if observer.wants_values:
                about |= {"inputs": given, "outputs": taken}
            observer.tell("on_request", RequestEvent(**about, begun=begun))

    def _values(self, inputs: Any) -> Values | None:
        with suppress(Exception):  # inputs that do not fit; or the model is closed
            return [_on_host(value) for value in self._checked(inputs)]
        return None


def _on_host(value: Any) -> Any:
    """Return a value with its arrays on the host."""
    if isinstance(value, list):
        return [_on_host(each) for each in value]
    return to_host(value) if isinstance(value, DeviceBuffer) else value
