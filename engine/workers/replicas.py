"""One model on many workers, as one model: requests are cut, run and joined."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.errors import DeadlineExceeded
from engine.host.fair_semaphore import FairSemaphore
from engine.runtime import fitting
from engine.runtime.descriptions import description_for
from engine.runtime.inputs import ThreadInputs
from engine.runtime.signature import Signature
from engine.runtime.values import as_tensors
from engine.serving.runner import CLOSED
from engine.tensor import Tensor
from engine.tensor.values import as_expected, tensors_of
from engine.types import CancelToken, Device
from engine.workers.slicing import Slicing
from engine.workers.thread_pool import ThreadPool
from engine.workers.watchdog import GRACE_S, check

if TYPE_CHECKING:
    from engine.host.tasks import Task
    from engine.report.observing.observation import Observation
    from engine.report.observing.request import ObservedRequest
    from engine.types import TensorSpec, Value
    from engine.workers.protocol import Cuts
    from engine.workers.supervisor import Supervisor

_LOOK_S = 0.05


class _Seen(NamedTuple):
    """A request: dtype and shape of each input, and how many workers it was not cut for, or 0."""

    arrays: list[tuple[Any, Any]]
    uncut_by: int


class Replicas:
    """The model that each worker of a supervisor has built. Any thread may call any method.

    batch_axes, cuts, is_forced: see Slicing. Raises InputError where those do not fit.
    """

    can_stop = True
    batcher = None  # requests share no runs
    takes_options = wants_options = False
    devices: Sequence[Device] = ()  # each request notes its own
    observation: Observation | None = None

    def __init__(
        self,
        supervisor: Supervisor,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        batch_axes: Mapping[str, int | None] | None,
        cuts: Cuts | None,
        *,
        is_forced: bool = False,
    ) -> None:
        self.supervisor = supervisor
        self._slicing = Slicing(inputs, outputs, batch_axes, cuts, is_forced=is_forced)
        self._inputs = tuple(inputs)
        axes = self._slicing.axes.inputs
        # The worker's model checks what a worker gets; a request may be larger.
        self._signature = Signature(tuple(map(_of_any_size, inputs, axes)), outputs)
        self._descriptions = [description_for(spec) for spec in outputs]
        self._last = _Seen([(None, None)], 0)  # fits nothing; replaced as one, by any thread
        # One request more than there are workers is under way, so that none is idle while another
        # request is wrapped up.
        self.semaphore = FairSemaphore(len(supervisor.slots) + 1)
        self._pool = ThreadPool(len(supervisor.slots))
        self._threads = threading.local()
        self.run_s = math.inf

    def run(
        self,
        request: object,
        inputs: Any,
        outputs: list[Tensor] | None,
        deadline_s: float | None,
        cancel: CancelToken | None,
        options: object = None,
        observed: ObservedRequest | None = None,
    ) -> list[Tensor]:
        """Run one request, in as many parts as there are workers; see Runnable."""
        assert not outputs, "the runner takes none"
        begin_s = time.perf_counter()
        parts = self._parts(inputs)
        if len(parts) == 1:
            results = self.supervisor.run(parts[0], deadline_s, cancel, observed)
        else:
            results = self._slicing.join(self._results(parts, deadline_s, cancel, observed))
        if self._signature.is_plain:
            tensors = tensors_of(results, self._descriptions)
        else:
            tensors = list(map(as_tensors, results, self._descriptions))
        self.run_s = time.perf_counter() - begin_s
        return tensors

    @property
    def batching(self) -> str:
        """The way in which requests are cut, or the reason why they are not."""
        return self._slicing.description

    def get_inputs(self) -> list[Tensor]:
        """Return new tensors for the inputs; see Model.get_inputs."""
        threads = self._threads
        if not hasattr(threads, "given"):
            threads.given = ThreadInputs()
        return threads.given.give(self._inputs, self)  # type: ignore[no-any-return]

    def extra(self, inputs: Any) -> int:
        """See Runnable: none."""
        return 0

    def checked(self, inputs: Any) -> list[Any]:
        """See Runnable."""
        return fitting.values(self._signature, inputs, ())

    def abort(self) -> None:
        """See Runnable: by ending all workers."""
        self.supervisor.abort(CLOSED)

    def close(self) -> None:
        """End all workers; nothing may run any more."""
        self.supervisor.close(CLOSED)
        self._pool.close()

    def _parts(self, inputs: Any) -> list[list[Any]]:
        """Return the checked inputs of each part of a request."""
        last, workers = self._last, self.supervisor.count
        values = as_expected(inputs, last.arrays) if type(inputs) is list else None
        if values is not None and last.uncut_by == workers:
            return [values]
        if values is None:
            values = self.checked(inputs)
        arrays = [
            (dtype, None if dtype is None else value.shape)
            for dtype, value in zip(self._signature.quick_dtypes, values)
        ]
        parts = [values]
        if self._signature.is_plain:
            parts = self._slicing.cut(values, workers)
        self._last = _Seen(arrays, workers if len(parts) == 1 else 0)
        return parts

    # ------------------------------------------------------------------------------------- parts

    def _results(
        self,
        parts: Sequence[Sequence[Value]],
        deadline_s: float | None,
        cancel: CancelToken | None,
        observed: ObservedRequest | None,
    ) -> list[Sequence[Value]]:
        """Run parts at once, the first of them in this thread; return their results in order.

        The first error, in their order, is the request's; parts that run go on to their end, and
        nobody asks for their results.
        """
        run = self.supervisor.run
        further = deadline_s, cancel, observed
        tasks = self._pool.start([partial(run, part, *further) for part in parts[1:]])
        try:
            results: list[Sequence[Value]] = [run(parts[0], *further)]
            for task in tasks:
                _wait(task, deadline_s, cancel)
                results.append(task.result())
        except BaseException:
            for task in tasks:
                task.is_unwanted = True
            raise
        return results


def _wait(task: Task, deadline_s: float | None, cancel: CancelToken | None) -> None:
    """Wait for a part, which sees to its own deadline and cancel once it has begun."""
    until = None if deadline_s is None else deadline_s + 2 * GRACE_S
    while not task.wait(_LOOK_S if cancel is not None or until is not None else -1):
        if not task.has_begun:
            check(deadline_s, cancel)
        elif until is not None and time.monotonic() >= until:
            raise DeadlineExceeded("it took longer than it was given, waiting included")


def _of_any_size(spec: TensorSpec, axis: int | None) -> TensorSpec:
    """Return an input whose batch may be any."""
    if axis is None or spec.shape is None:
        return spec
    shape, bounds = list(spec.shape), list(spec.bounds)
    if isinstance(shape[axis], int):
        shape[axis] = None
    if bounds:
        bounds[axis] = None
    return replace(spec, shape=tuple(shape), bounds=tuple(bounds))
