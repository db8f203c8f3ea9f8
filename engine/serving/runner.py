"""The common part of the runners: they serve any number of clients from queues of requests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.errors import ModelStateError
from engine.host import fork
from engine.host.imports import ready
from engine.host.interrupts import undisturbed
from engine.model.handle import FORKED, Handle
from engine.runtime.descriptions import Specs
from engine.runtime.extensions import unseen
from engine.serving.statistics import Recorder, RunnerStatistics

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    from engine.report.observing.observation import Observation
    from engine.serving.request_future import RequestFuture
    from engine.serving.request_queue import RequestQueue
    from engine.tensor import Tensor
    from engine.types import CancelToken, Placement
    from engine.typing import Inputs

CLOSED = "the runner is closed; build a new one"


class Runner(Handle):
    """Base of what serves the requests of any number of threads and tasks.

    A subclass makes the queues; a request goes to the one with the least to do. It has `predict`,
    because not every runner takes outputs.
    """

    model_path_ = ""
    _observation: Observation | None = None

    def __init__(self, why_not: str) -> None:
        """why_not: why nothing can run yet; "" once it can."""
        self._queues: list[RequestQueue[Any]] = []
        self._why_not = why_not
        self._recorder = Recorder()
        self._lock = threading.RLock()

    # ---------------------------------------------------------------------------------- requests

    def submit(
        self,
        inputs: Inputs,
        *,
        timeout_s: float | None = None,
        cancel: CancelToken | None = None,
        priority: int = 0,
        request_id: str = "",
    ) -> Future[list[Tensor]]:
        """Queue a request and return the future of its outputs.

        Its `cancel()` ends it at once, also where it runs already, and has the run stopped;
        `result()` then raises Cancelled, which is a concurrent.futures.CancelledError too. The
        inputs must not change until it is done. Done callbacks run in a thread of their own, one
        after the other, and may call the runner, wait for other requests and close it.
        priority: -100 to 100. Of the requests that wait, the highest is served first, and first
        come, first served within one; one of a low priority may wait for long. request_id: see
        Model.predict.
        Raises QueueFull where `when_full` says so; otherwise it waits for room, no longer than
        the request may take.
        """
        # A signal handler's exception in the main thread must not come between the steps of this.
        return undisturbed(
            lambda: self._free_queue().submit(
                inputs, timeout_s, cancel, priority=priority, request_id=request_id
            )
        )

    async def predict_async(
        self,
        inputs: Inputs,
        *,
        timeout_s: float | None = None,
        cancel: CancelToken | None = None,
        priority: int = 0,
        request_id: str = "",
    ) -> list[Tensor]:
        """Await the outputs of one request. A task that is cancelled cancels its request."""
        return await self._free_queue().predict_async(
            inputs, timeout_s, cancel, priority, request_id
        )

    def map(self, requests: Iterable[Inputs]) -> Iterator[list[Tensor]]:
        """Yield the outputs of many requests in their order, with as many at work as pay."""
        ahead: deque[Future[list[Tensor]]] = deque()
        try:
            for inputs in requests:
                ahead.append(undisturbed(partial(self._take, inputs)))  # see `submit`
                if len(ahead) > self._most_ahead():
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()

    async def stream(
        self, requests: Iterable[Inputs] | AsyncIterable[Inputs]
    ) -> AsyncIterator[list[Tensor]]:
        """Yield the outputs of many requests in their order, as `map` does, for `async for`."""
        ready("asyncio", "engine.serving.request_future")
        import asyncio  # a process without it starts sooner

        from engine.serving.request_future import awaited

        ahead: deque[asyncio.Task[list[Tensor]]] = deque()
        try:
            async for inputs in _each(requests):
                ahead.append(asyncio.ensure_future(awaited(self._take(inputs))))
                if len(ahead) > self._most_ahead():
                    yield await ahead.popleft()
            while ahead:
                yield await ahead.popleft()
        finally:
            for task in ahead:
                task.cancel()

    def _take(self, inputs: Inputs) -> RequestFuture:
        """Queue a request, however many wait: `map` and `stream` never let too many of theirs."""
        return self._free_queue().submit(inputs, None, None, "pass")

    def _most_ahead(self) -> int:
        """Return how many requests keep all workers busy."""
        return 2 * sum(queue.semaphore.slots for queue in self._queues)

    def _free_queue(self) -> RequestQueue[Any]:
        """Return the queue with the least to do. Raises ModelStateError where there is none."""
        queues = self._queues
        if self._why_not or not queues:
            raise ModelStateError(f"predict failed! {self._why_not or CLOSED}")
        return queues[0] if len(queues) == 1 else min(queues, key=lambda queue: queue.load)

    def _counted(self, batching: str) -> RunnerStatistics:
        """Return counts and times of all requests. batching: why they share runs, or are cut."""
        queues = self._queues
        return self._recorder.report(
            sum(queue.semaphore.waiting for queue in queues),
            sum(queue.semaphore.running for queue in queues),
            batching,
        )

    # ------------------------------------------------------------------------------------- facts

    @property
    def inputs(self) -> Specs:
        """The inputs as the model declares them. Raises ModelStateError without a built model."""
        return Specs(self._built_model().inputs)

    @property
    def outputs(self) -> Specs:
        """The outputs, likewise."""
        return Specs(self._built_model().outputs)

    @property
    def placement(self) -> list[Placement]:
        """Return where each node of the model runs, on one of the runner's devices.

        See Model.placement. Raises ModelStateError where the runner is not built, or closed.
        """
        return [*self._built_model().placement]

    def _built_model(self) -> Any:
        """Return what has the model's inputs, outputs and placement. Raises ModelStateError."""
        raise NotImplementedError

    @property
    def shares_runs(self) -> bool:
        """True where requests may share a run; `statistics().batching` says why, or why not."""
        return False

    @property
    def is_in_process(self) -> bool:
        """True where requests run in this process, and so for as long as it lives."""
        return False

    @property
    def is_ready(self) -> bool:
        """True where a request would be run now: `why_not_ready` is empty. Does not wait."""
        return not self.why_not_ready

    @property
    def why_not_ready(self) -> str:
        """Return why no request would be run now; "" where one would. Does not wait.

        The runner is not built, or closed; or it has no process to run a request in: the last has
        ended, and another is being started.
        """
        if self._why_not or not self._queues:
            return self._why_not or CLOSED
        try:
            return self._lost()
        except ModelStateError as error:  # another thread has closed it meanwhile
            return str(error)

    def _lost(self) -> str:
        """Return how the processes were lost that run requests; "" where there are some."""
        raise NotImplementedError

    # ----------------------------------------------------------------------------------- the end

    def close(self, *, finish: bool = True) -> None:
        """End: take no more requests, and free what runs them after the last.

        finish: requests that wait are done first; False fails them with ModelStateError. Done
            callbacks have returned, but in one of these.
        Twice does nothing. Raises ModelStateError in an observer's method, whose request has not
        ended: it would wait for itself.
        """
        if unseen.telling:
            raise ModelStateError(
                "close failed! an observer is told of a request of this thread, which close would "
                "wait for; close the runner in another thread"
            )
        with self._lock:
            if not self._queues:
                return
            self._why_not = CLOSED
            # Not under the lock: what is waited for, a done callback, may close too.
            queues, self._queues = self._queues, []
        try:
            end(queues, finish)
        except BaseException:
            self._queues = queues  # a signal handler's: the next call goes on
            raise
        if self._observation is not None:
            self._observation.close()

    def _leave(self, finish: bool) -> None:
        self.close(finish=finish)

    def __repr__(self) -> str:
        about = self._why_not or f"{self.model_path_!r}, {self._capacity()}"
        separator = ":" * bool(self._why_not)
        return f"<engine.{type(self).__name__}{separator} {about}>"

    def _capacity(self) -> str:
        """Say how much runs at once."""
        raise NotImplementedError

    def _abandon(self) -> None:
        """In a forked child: forget what runs, and never free what belongs to the parent."""
        fork.never_free(self._queues, self._recorder)
        if self._queues:
            self._why_not = FORKED
        self._queues, self._recorder, self._lock = [], Recorder(), threading.RLock()


def end(queues: list[RequestQueue[Any]], finish: bool) -> None:
    """Close queues, and wait until all requests but one of the calling thread have ended."""
    for queue in queues:
        queue.close(f"predict failed! {CLOSED}", finish)
    for queue in queues:
        queue.join()


async def _each(requests: Iterable[Inputs] | AsyncIterable[Inputs]) -> AsyncIterator[Inputs]:
    if isinstance(requests, AsyncIterable):
        async for inputs in requests:
            yield inputs
        return
    for inputs in requests:
        yield inputs
