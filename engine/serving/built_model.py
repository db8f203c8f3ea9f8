"""A built model as what a request queue runs, for requests that may share runs."""

from __future__ import annotations

import math
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from engine.host.cpus import usable_cpus
from engine.host.fair_semaphore import FairSemaphore
from engine.host.interrupts import in_main_thread
from engine.model.model import Model, model_state
from engine.runtime import fitting
from engine.runtime.extensions import as_served
from engine.serving.batching import Batcher
from engine.serving.begun import BegunFuture, can_begin
from engine.serving.request_future import RequestFuture
from engine.serving.request_queue import RequestQueue
from engine.serving.shared_cpus import SharedSemaphore
from engine.serving.short_runs import Direct, ShortRuns
from engine.serving.statistics import Recorder
from engine.types import Capability, Device

if TYPE_CHECKING:
    from engine.model.state import ModelState
    from engine.report.observing.observation import Observation
    from engine.report.observing.request import ObservedRequest
    from engine.serving.batchable import Batching
    from engine.serving.batching import Request
    from engine.serving.in_service import SharingInService
    from engine.tensor import Tensor
    from engine.types import CancelToken, PredictOptions


class BuiltModel:
    """A model with as many slots as its pool of contexts has, or else `slots`.

    slots: 0 for as many as this machine has CPUs; for any number where the backend runs predicts
    without a thread that waits. extra: how many more may run at once while they are short. predict:
    the model's, where that is not to be held. shared_cpus: how many of the CPUs that the models of
    this process share a run takes; 0 where it shares none. futures: see RequestQueue.
    """

    def __init__(
        self,
        model: Model,
        predict: Callable[..., list[Tensor]] | None = None,
        slots: int = 0,
        extra: int = 0,
        shared_cpus: int = 0,
    ) -> None:
        self.model = model
        self.predict = predict or model.predict
        self.observation: Observation | None = None
        self._state = model_state(model)
        built = self._state.require_built()
        plan = built.plan
        self.futures: Callable[..., RequestFuture] = RequestFuture
        if can_begin(built):
            slots, self.futures = slots or sys.maxsize, partial(BegunFuture, self._state)
        self._takes_slots = plan.pool.semaphore is not None
        if plan.pool.semaphore is not None:
            self.semaphore = plan.pool.semaphore
        elif shared_cpus:
            self.semaphore = SharedSemaphore(slots, shared_cpus)
        else:
            self.semaphore = FairSemaphore(slots or usable_cpus())
        self._short_runs = ShortRuns(extra, built.signature.names)
        self.can_stop = not any(
            plan.lacks(capability)[0]
            for capability in (Capability.DEADLINES, Capability.CANCEL_PREDICT)
        )
        self.takes_options, self.wants_options = plan.takes_options, plan.wants_options
        self.devices: Sequence[Device] = plan.run_on
        self.run_s = math.inf
        self.batcher: Batcher | None = None

    def batch(self, batching: Batching, recorder: Recorder, sharing: SharingInService) -> None:
        """Have requests share runs from now on, while `sharing` says so."""
        if batching.most > 1:
            checked = partial(_checked, self._state)  # not self: no cycle
            names = self._state.require_built().signature.names
            self.batcher = Batcher(self.semaphore, batching, recorder, checked, names, sharing)

    def direct(self, recorder: Recorder) -> Direct | None:
        """Return what runs a request at once; see ShortRuns.runner. recorder: of the requests.

        None where requests are observed, or where predicts take slots themselves.
        """
        if self.observation is not None or self._takes_slots:
            return None
        return self._short_runs.runner(self.predict, self.semaphore, recorder, self.batcher)

    def extra(self, inputs: Any) -> int:
        """See Runnable."""
        if self.batcher is not None and self.batcher.sharing.is_on:
            return 0
        return self._short_runs.extra(inputs)

    def checked(self, inputs: Any) -> list[Any]:
        """See Runnable."""
        return _checked(self._state, inputs)

    def run(
        self,
        request: Request | None,
        inputs: Any,
        outputs: list[Tensor] | None,
        deadline_s: float | None,
        cancel: CancelToken | None,
        options: PredictOptions | None,
        observed: ObservedRequest | None,
    ) -> list[Tensor]:
        """See Runnable."""

        def predict(inputs: Any, outputs: list[Tensor] | None = None) -> list[Tensor]:
            left_s = None if deadline_s is None else max(1e-6, deadline_s - time.monotonic())
            run = options
            if request is not None and request.shared_by > 1 and self.takes_options:
                run = request.run
            asked: Any = {} if run is None else {"priority": run.priority, "request_id": run.id}
            begin_s = time.perf_counter()
            results = self.predict(inputs, outputs, timeout_s=left_s, cancel=cancel, **asked)
            self.run_s = time.perf_counter() - begin_s
            self._short_runs.note(inputs, self.run_s)
            return results

        if self.batcher is None or request is None:
            return predict(inputs, outputs)
        # A signal handler's exception in the main thread must not meet others' requests.
        if in_main_thread():
            results = predict(inputs)
            self.batcher.note_run_of(request)
            return results
        return self.batcher.run(request, inputs, predict, deadline_s, cancel)

    @property
    def is_isolated(self) -> bool:
        """True where the model, or a part of it, is in a process of its own."""
        from engine.backends.isolation.backend import is_isolated  # rare

        return any(is_isolated(part) for part, _ in self._state.require_built().plan.parts)

    def why_lost(self) -> str:
        """Say how a process of an isolated model was lost, "" if none; it is started again."""
        from engine.backends.isolation.backend import why_lost  # rare

        parts = self._state.require_built().plan.parts
        return "; ".join(filter(None, (why_lost(part) for part, _ in parts)))

    def abort(self) -> None:
        """See Runnable: what runs goes on to its end."""

    def close(self) -> None:
        """See Runnable."""
        self.model.close()


def _checked(state: ModelState, inputs: Any) -> list[Any]:
    return fitting.values(state.require_built().signature, inputs, ())


def queue_of(model: Model) -> RequestQueue[BuiltModel]:
    """Return the queue of a model's own requests: see Model.predict_async."""
    # A proxy: a model that nobody has any more is freed at once, not by a collector.
    proxy = cast("Model", weakref.proxy(model))

    def predict(*arguments: Any, **options: Any) -> list[Tensor]:
        return proxy.predict(*arguments, **options)

    observation = cast("Observation | None", model_state(model).observation)
    if observation is not None:
        unobserved = predict

        def predict(*arguments: Any, **options: Any) -> list[Tensor]:
            return as_served(lambda: unobserved(*arguments, **options))

    runnable = BuiltModel(proxy, predict)
    runnable.observation = observation
    return RequestQueue(runnable, Recorder(), 0, futures=runnable.futures)
