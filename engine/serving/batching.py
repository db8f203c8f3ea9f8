"""Several requests in one run.

A thread that has a slot takes along the requests of others that wait and have inputs of the same
shapes. Those whom the last run served come back within moments, if they come: for them it waits so
long. The thread runs them as one and gives each its part. Where the run fails, each is run alone,
so that only the bad one fails.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeAlias

import numpy as np

from engine.errors import Cancelled, DeadlineExceeded
from engine.host.fair_semaphore import FairSemaphore, Shareable, Waiter
from engine.serving.batchable import Batching
from engine.serving.in_service import SharingInService
from engine.serving.shared_cpus import lent
from engine.serving.statistics import Recorder
from engine.tensor import Tensor
from engine.tensor.values import as_expected
from engine.types import CancelToken, PredictOptions

Array = np.ndarray[Any, Any]

_numbers = count(1)


Kind: TypeAlias = tuple[int, object, bool]
"""The size, key and is_alone of a request."""


def kind_of(inputs: Sequence[Array], batching: Batching) -> Kind:
    """Return the kind of a request of these inputs."""
    size = inputs[0].shape[0]
    # Of one model, inputs of different sizes are its own affair.
    is_alone = (
        not size
        or any(array.shape[0] != size for array in inputs)
        or any(
            len({inputs[place].shape[axis] for place, axis in axes}) > 1 for axes in batching.same
        )
    )
    return size, tuple((array.dtype, array.shape[1:]) for array in inputs), is_alone


class Request:
    """One client's inputs, checked, in the model's order; and what became of them.

    key: requests of one key may share a run. size: samples. is_alone: not to be batched (again).
    came_s, began_s: when it, and its run, did, of time.perf_counter(). shared_by: how many requests
    were in that run. run: that run's id and highest priority; None of its own. is_done: it has
    `results`.
    """

    __slots__ = (
        "began_s",
        "came_s",
        "inputs",
        "is_alone",
        "is_done",
        "key",
        "priority",
        "results",
        "run",
        "shared_by",
        "size",
    )

    def __init__(self, inputs: Sequence[Array], kind: Kind, priority: int = 0) -> None:
        self.inputs = inputs
        self.priority = priority
        self.size, self.key, self.is_alone = kind
        self.came_s = time.perf_counter()
        self.began_s = 0.0
        self.shared_by = 1
        self.run: PredictOptions | None = None
        self.is_done = False
        self.results: list[Tensor] | None = None


class Batcher:
    """Runs requests for one model together.

    checked: returns a request's inputs in its order. names: of the inputs. sharing: whether they
    do so now.
    """

    def __init__(
        self,
        semaphore: FairSemaphore,
        batching: Batching,
        recorder: Recorder,
        checked: Callable[[Any], list[Any]],
        names: tuple[str, ...],
        sharing: SharingInService,
    ) -> None:
        self._checked = checked
        self._names = names
        self._semaphore = semaphore
        self.batching = batching
        self._recorder = recorder
        self.sharing = sharing
        # The dtypes and shapes of the last request that was checked, and its kind.
        self._expected: tuple[list[tuple[Any, Any]], Kind] = [(None, ())], (0, None, True)
        self._last = (0, 0.0)  # the requests that the last run served, and when it ended

    @property
    def is_waiting(self) -> bool:
        """True where a run may wait for requests that have not come yet."""
        return self._last[0] > 1 or not (self.batching.only_recent or self.batching.delay_s == 0)

    def request(self, inputs: Any, priority: int = 0) -> Request | None:
        """Return a request of checked inputs; None for one that is to be run alone."""
        if not self.sharing.is_on:
            return None
        if type(inputs) is dict and tuple(inputs) == self._names:
            inputs = [*inputs.values()]
        expected, kind = self._expected
        values = as_expected(inputs, expected) if type(inputs) is list else None
        if values is None:
            values = self._checked(inputs)
            if not all(isinstance(value, np.ndarray) for value in values):
                return None
            kind = kind_of(values, self.batching)
            if not any(value.dtype.hasobject for value in values):
                self._expected = [(value.dtype, value.shape) for value in values], kind
        return Request(values, kind, priority)

    def run(
        self,
        request: Request,
        inputs: Any,
        predict: Callable[[Any], list[Tensor]],
        deadline_s: float | None,
        cancel: CancelToken | None,
    ) -> list[Tensor]:
        """Run a request, whose thread has a slot, with others that wait, or else alone.

        inputs: as given, for a run alone. predict: see `_run_with_others`.
        """
        shared = self._run_with_others(request, predict, deadline_s, cancel)
        if shared is not None:
            return shared
        with self._semaphore.keeping_slot():
            request.began_s = time.perf_counter()
            results = predict(inputs)
            self._note_end(1)
        self.note_run_of(request)
        return results

    def note_run_of(self, request: Request) -> None:
        """Count the run of a request alone."""
        self._recorder.ran(request.size)

    def _note_end(self, requests: int) -> None:
        """Note the end of a run before the next begins: in the thread that has its slot still."""
        self._last = (requests, time.perf_counter())

    def _run_with_others(
        self,
        request: Request,
        predict: Callable[[Any], list[Tensor]],
        deadline_s: float | None,
        cancel: CancelToken | None,
    ) -> list[Tensor] | None:
        """Run a request, whose thread has a slot, along with others that wait.

        predict: the model on arrays in its order; it acquires a slot, releases it, and stops where
            this request is late or cancelled. The others wait again then.
        Returns None where it is to be run alone: there is nobody, or the run failed. The thread is
        without its slot once there are results, else it has it still.
        """
        waiters = self._collected(request, deadline_s, cancel)
        if not waiters:
            return None
        others = [waiter.request for waiter in waiters if isinstance(waiter.request, Request)]
        batch = [request, *others]
        began_s = time.perf_counter()
        self.sharing.has_shared = True  # also where the run fails, and each runs once more
        try:
            priority = max(each.priority for each in batch)
            run = PredictOptions(id=f"{os.getpid()}-run-{next(_numbers)}", priority=priority)
            for each in batch:
                each.began_s, each.shared_by, each.run = began_s, len(batch), run
            with self._semaphore.keeping_slot():
                results = predict([np.concatenate(parts) for parts in _columns(batch)])
                parts = _divided(results, [each.size for each in batch])
                for each, part in zip(batch, parts, strict=True):
                    each.results, each.is_done = part, True
                for waiter in waiters:
                    waiter.wake()
                self._note_end(len(batch))
        except BaseException as error:
            is_own = isinstance(error, Cancelled | DeadlineExceeded)
            fails_all = isinstance(error, Exception) and not is_own
            for each in batch:
                each.began_s, each.shared_by, each.run = 0.0, 1, None
                each.is_alone = each.is_alone or fails_all
            # With the slot still held: who closes sees all the time that they wait.
            self._semaphore.requeue(waiters)
            if fails_all:
                return None
            raise
        self._semaphore.release()
        self._recorder.ran(sum(each.size for each in batch))
        return request.results

    def _collected(
        self, request: Request, deadline_s: float | None, cancel: CancelToken | None
    ) -> list[Waiter]:
        """Return the waiters whose requests may share the run, as many as fit."""
        room = self.batching.most - request.size
        if request.is_alone or room < 1:
            return []

        def fits(other: Shareable) -> bool:
            nonlocal room
            if (
                not isinstance(other, Request)
                or other.is_alone
                or other.key != request.key
                or other.size > room
            ):
                return False
            room -= other.size
            return True

        waiters = self._semaphore.dequeue(fits)
        if self.batching.only_recent:
            count, ended_s = self._last
            end_s = ended_s + self.batching.delay_s
            back = sum(waiter.came_s >= ended_s for waiter in waiters) + (request.came_s >= ended_s)
            if room < 1 or back >= count or time.perf_counter() >= end_s:
                return waiters
            self._semaphore.pause_admission()
            try:
                while room > 0 and back < count and (left_s := end_s - time.perf_counter()) > 0:
                    self._semaphore.wait_for_arrival(left_s)
                    came = self._semaphore.dequeue(fits)
                    waiters += came
                    back += len(came)
            finally:
                self._semaphore.resume_admission()
        elif self.batching.delay_s:
            end_s = time.monotonic() + self.batching.delay_s
            if deadline_s is not None:  # the run takes time too
                end_s = min(end_s, (time.monotonic() + deadline_s) / 2)
            cancel = cancel or CancelToken()
            with lent(), cancel.watch(self._semaphore.notify_arrival):
                while room > 0 and not cancel.cancelled:
                    if (left_s := end_s - time.monotonic()) <= 0:
                        break
                    self._semaphore.wait_for_arrival(left_s)
                    waiters += self._semaphore.dequeue(fits)
        return [waiter for waiter in waiters if not waiter.is_left]


def _columns(batch: Sequence[Request]) -> list[list[Array]]:
    return [[request.inputs[i] for request in batch] for i in range(len(batch[0].inputs))]


def _divided(results: Sequence[Tensor], sizes: Sequence[int]) -> list[list[Tensor]]:
    """Return each request's part of the results, in memory of its own."""
    parts: list[list[Tensor]] = [[] for _ in sizes]
    for tensor in results:
        array = tensor.get_data_to_numpy()
        if array.shape[:1] != (sum(sizes),):
            raise ValueError(f"output {tensor.name!r} has the shape {array.shape}")
        begin = 0
        for part, size in zip(parts, sizes, strict=True):
            own = Tensor(array[begin : begin + size].copy())
            own.name = tensor.name
            part.append(own)
            begin += size
    return parts
