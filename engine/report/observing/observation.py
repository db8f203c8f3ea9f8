"""Tell observers of one model or runner: its build, requests, updates and close."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from engine.errors import BackendUnavailable
from engine.report.observing.observers import Observer, observers
from engine.report.observing.request import Checked, ObservedRequest, error_of, status_of
from engine.report.observing.thread import ObservedThread
from engine.runtime.extensions import description, unseen
from engine.types import (
    BuildEvent,
    CloseEvent,
    Device,
    DeviceMemory,
    ModelDescription,
    Span,
    UpdateEvent,
)

if TYPE_CHECKING:
    from engine.backends import Backend
    from engine.model.recipe import Built, Recipe
    from engine.runtime.thread_state import ThreadState
    from engine.types import CancelToken, Progress

T = TypeVar("T")

Parts: TypeAlias = "Sequence[tuple[Backend, Device]]"

_numbers = count(1)


def observation(chosen: Mapping[str, Mapping[str, str]], path: str) -> Observation | None:
    """Return what tells of a model or runner that is to be built; None where no observer is on.

    path: the model's file, "" for one in memory. Raises ExtensionError, SettingError.
    """
    watching = observers(chosen)
    return Observation(watching, path) if watching else None


class Observation:
    """Tells of one model or runner. Any thread may call any method, once it is built."""

    def __init__(self, watching: Sequence[Observer], path: str) -> None:
        self._watching = watching
        self._of_requests = [observer for observer in watching if observer.sees_requests]
        self._model = ModelDescription(
            name=Path(path).stem,
            path=path,
            backends=(),
            inputs=(),
            outputs=(),
            id=f"{os.getpid()}-{next(_numbers)}",
        )
        # The requests under way, by their id(): CloseEvent comes after the last of them. By weak
        # references, because a signal handler's exception may end a predict anywhere.
        self._running: dict[int, weakref.ref[ObservedRequest]] = {}
        self._is_closed = self._has_told_close = False
        self._lock = threading.RLock()  # reentrant: a signal handler may predict

    # --------------------------------------------------------------------------------- building

    def build(self, recipe: Recipe, progress: Progress | None, cancel: CancelToken | None) -> Built:
        """Build a model by its recipe, and tell of it."""

        def work(progress: Progress) -> tuple[Built, ModelDescription, Parts]:
            built = recipe.build(progress, cancel)
            plan = built.plan
            return built, description(plan, built.signature, recipe.path), plan.parts

        return self.built(work, progress)

    def built(
        self,
        work: Callable[[Progress], tuple[T, ModelDescription, Parts]],
        progress: Progress | None,
    ) -> T:
        """Build what `work` builds, and tell of it.

        work: takes what notes the phases; returns what it has built, its description, and the
        backends of this process with their devices.
        """
        phases = _Phases(progress)
        begin_s = time.monotonic()
        failed: BaseException | None = None
        memory = None
        try:
            built, model, parts = work(phases)
            memory = partial(device_memory, parts) if parts else None
            self._model = replace(model, id=self._model.id)
        except BaseException as error:
            failed = error
            raise
        finally:
            self._tell(
                "on_build",
                BuildEvent(
                    model=self._model,
                    spans=phases.spans(),
                    device_memory=memory,
                    **_ended(begin_s, failed),
                ),
            )
        return built

    # ---------------------------------------------------------------------------------- running

    def begin(self, checked: Checked, request_id: str = "") -> ObservedRequest | None:
        """Return a request that has just come. checked: see Checked. request_id: the user's own.

        None where no observer sees requests, for one that an observer makes while it is told
        something, and for one that finds the model closed: nobody is told of these.
        """
        if not self._of_requests or unseen.telling:
            return None
        request = ObservedRequest(self._of_requests, self._model, checked, self._ended, request_id)
        with self._lock:
            if self._has_told_close:
                return None
            self._running[id(request)] = weakref.ref(request)
        try:
            request.begin()
        except BaseException as error:  # a signal handler's
            request.ended(error, None)
            raise
        return request

    def thread(self, own: ThreadState) -> ThreadState:
        """Return a thread's state for one predict of a model by itself."""
        request = self.begin(own.take)
        if request is None:
            return own
        request.devices.extend(self._model.devices)
        return cast("ThreadState", ObservedThread(own, request))

    def _ended(self, request: ObservedRequest) -> None:
        with self._lock:
            self._running.pop(id(request), None)
        if self._is_closed:
            self._tell_close()

    # ------------------------------------------------------------------------- updates and close

    def update(self, work: Callable[[], Sequence[str]]) -> None:
        """Exchange weights, and tell of it. work: does it, and returns their names."""
        begin_s = time.monotonic()
        failed: BaseException | None = None
        names: Sequence[str] = ()
        try:
            names = work()
        except BaseException as error:
            failed = error
            raise
        finally:
            event = UpdateEvent(model=self._model, weights=tuple(names), **_ended(begin_s, failed))
            self._tell("on_update", event)

    def close(self) -> None:
        """Tell that it was closed, after the last request that is under way; only once."""
        self._is_closed = True
        self._tell_close()

    def _tell_close(self) -> None:
        with self._lock:
            if self._has_told_close or any(request() for request in self._running.values()):
                return
            self._has_told_close = True
        self._tell("on_close", CloseEvent(model=self._model))

    def _tell(self, method: str, event: object) -> None:
        for observer in self._watching:
            observer.tell(method, event)


def device_memory(parts: Parts) -> dict[Device, DeviceMemory]:
    """See BuildEvent.device_memory."""
    found = {}
    for backend, device in dict.fromkeys(parts):
        with suppress(BackendUnavailable):  # the device is gone, or its backend is at fault
            if (memory := backend.memory(device)) is not None:
                found[device] = memory
    return found


def _ended(begin_s: float, error: BaseException | None) -> dict[str, Any]:
    """Return the fields that builds and updates have in common."""
    return {
        "status": status_of(error),
        "begin_s": begin_s,
        "duration_s": time.monotonic() - begin_s,
        **error_of(error),
    }


class _Phases:
    """A Progress that notes when each phase began and was last heard of, and passes it on."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._noted: dict[str, tuple[float, float]] = {}

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        begin_s, _ = self._noted.get(phase, (now, now))
        self._noted[phase] = begin_s, now
        if self._progress is not None:
            self._progress(phase, done, total)

    def spans(self) -> tuple[Span, ...]:
        return tuple(
            Span(name=name, begin_s=begin_s, duration_s=end_s - begin_s)
            for name, (begin_s, end_s) in self._noted.items()
        )
