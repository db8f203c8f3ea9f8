"""A request as observers see it: from its coming to its end, of which they are told once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar

from engine.errors import Cancelled, DeadlineExceeded, QueueFull, one_line
from engine.host.interrupts import raised_by_handler
from engine.report.observing.observers import Observer
from engine.tensor.memory import to_host
from engine.tensor.values import arrays_in
from engine.types import Device, DeviceBuffer, ModelDescription, RequestEvent, Status

Checked = Callable[[Any], "list[Any]"]
"""Returns a caller's inputs in the model's order; raises where they do not fit."""

T = TypeVar("T")

_numbers = count(1)
_noting = threading.RLock()  # reentrant: a signal handler may predict


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
    """One request. `begin` comes first; any thread may tell how it ended, and the first does.

    checked: see Checked; asked for only where an observer wants values. after: called with the
    request once all observers were told of its end. id: "" for one that is made up. devices: those
    that have a part in it, noted until it ends.
    """

    __slots__ = (
        "__weakref__",
        "_after",
        "_begin_s",
        "_begun",
        "_came_s",
        "_checked",
        "_ending",
        "_made_up",
        "_model",
        "_untold",
        "_watching",
        "devices",
        "id",
    )

    def __init__(
        self,
        watching: Sequence[Observer],
        model: ModelDescription,
        checked: Checked,
        after: Callable[[ObservedRequest], None],
        request_id: str = "",
    ) -> None:
        self._watching = watching
        self._model = model
        self._checked = checked
        self._after = after
        self._ending = threading.Lock()  # held by who ends it
        self._begin_s, self._came_s = time.monotonic(), time.perf_counter()
        self._begun: dict[Observer, object] = {}
        self._untold = watching
        self._made_up = f"{os.getpid()}-{next(_numbers)}"
        self.id = request_id or self._made_up
        self.devices: list[Device] = []

    def ran_on(self, devices: Sequence[Device]) -> None:
        """Note those that have run a part of it; any thread may call."""
        with _noting:
            self.devices.extend(device for device in devices if device not in self.devices)

    def begin(self) -> None:
        """Tell the observers that it has come."""
        for observer in self._watching:
            self._begun[observer] = observer.tell("on_begin", self._model)

    def ended(
        self,
        error: BaseException | None,
        inputs: Any,
        results: Any = None,
        admitted_s: float = 0.0,
        batch_size: int = 1,
        run_id: str = "",
    ) -> None:
        """Tell the observers.

        error: None where there are results. inputs: as the caller gave them. admitted_s: when its
        run began, a moment of time.perf_counter(); 0 where it never ran. batch_size, run_id: of
        that run; "" for its own, whose id is never the user's.
        """
        if not self._ending.acquire(blocking=False):
            return
        arguments = error, inputs, results, admitted_s, batch_size, run_id
        try:
            self._tell(*arguments)
        except BaseException:  # a signal handler's: those who are left are told all the same
            self._tell(*arguments)
            raise
        finally:
            self._after(self)

    def _tell(
        self,
        error: BaseException | None,
        inputs: Any,
        results: Any,
        admitted_s: float,
        batch_size: int,
        run_id: str,
    ) -> None:
        ended_s = time.perf_counter()
        ran = admitted_s > 0
        run_s = max(admitted_s, self._came_s) if ran else ended_s
        about: dict[str, Any] = {
            "model": self._model,
            "id": self.id,
            "status": status_of(error),
            "begin_s": self._begin_s,
            "queue_s": run_s - self._came_s,
            "compute_s": max(0.0, ended_s - run_s),
            "batch_size": batch_size if ran else 0,
            "devices": tuple(self.devices) if ran else (),
            "run_id": (run_id or self._made_up) if ran else "",
            **error_of(error),
        }
        given = taken = None
        if any(observer.wants_values for observer in self._watching):
            given = _got(lambda: [_on_host(value) for value in self._checked(inputs)])
            if error is None:
                taken = _got(lambda: [arrays_in(result) for result in results])
        for observer in self._untold:
            begun = self._begun.get(observer)
            values: dict[str, Any] = (
                {"inputs": given, "outputs": taken} if observer.wants_values else {}
            )
            event = RequestEvent(**about, **values, begun=begun)
            self._untold = self._untold[1:]
            observer.tell("on_request", event)


def _got(values: Callable[[], T]) -> T | None:
    """Return values; None where they cannot be had, which changes nothing for the request.

    So it is with inputs that do not fit, a model that is closed, memory that cannot be copied.
    """
    try:
        return values()
    except Exception as error:
        if raised_by_handler(error):
            raise
        return None


def _on_host(value: Any) -> Any:
    """Return a value with its arrays on the host."""
    if isinstance(value, list):
        return [_on_host(each) for each in value]
    return to_host(value) if isinstance(value, DeviceBuffer) else value
