"""One model on many workers, as one model: requests are cut, run and joined."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.cancel import CancelToken
from engine.errors import DeadlineExceeded, ModelStateError
from engine.plan.fair_semaphore import FairSemaphore
from engine.runtime import fitting
from engine.runtime.descriptions import description_for
from engine.runtime.inputs import ThreadInputs
from engine.runtime.signature import Signature
from engine.runtime.values import as_tensors
from engine.tensor import Tensor
from engine.workers.guard import GRACE_S, check
from engine.workers.hands import Hands
from engine.workers.slicing import Slicing

if TYPE_CHECKING:
    from engine.types import TensorSpec, Value
    from engine.workers.hands import Task
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
        # What a worker gets is for the worker's model to check; a request may be larger.
        self._signature = Signature(tuple(map(_of_any_size, inputs, axes)), outputs)
        self._descriptions = [description_for(spec) for spec in outputs]
        self._last = _Seen([], 0)  # replaced as one, by any thread
        # One request more than there are workers is under way, so that none is idle while another
        # request is wrapped up.
        self.semaphore = FairSemaphore(len(supervisor.seats) + 1)
        self._hands = Hands(len(supervisor.seats))
        self._threads = threading.local()
        self._why_not = ""

    def predict(
        self,
        inputs: Any,
        outputs: list[Tensor] | None = None,
        *,
        timeout_s: float | None = None,
        cancel: CancelToken | None = None,
    ) -> list[Tensor]:
        """Run one request, in as many parts as there are workers; see Model.predict."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        assert not outputs, "the runner takes none"
        parts = self._parts(inputs)
        if len(parts) == 1:
            results = self.supervisor.run(parts[0], deadline_s, cancel)
        else:
            results = self._slicing.join(self._results(parts, deadline_s, cancel))
        return list(map(as_tensors, results, self._descriptions))

    @property
    def batching(self) -> str:
        """How requests are cut, or why they are not."""
        return self._slicing.description

    def get_inputs(self) -> list[Tensor]:
        """Return new tensors for the inputs; see Model.get_inputs."""
        threads = self._threads
        if not hasattr(threads, "given"):
            threads.given = ThreadInputs()
        return threads.given.give(self._inputs, self)  # type: ignore[no-any-return]

    def close(self) -> None:
        """End all workers; nothing may run any more."""
        self._why_not = "the runner is closed; build a new one"
        self.supervisor.close(self._why_not)
        self._hands.close()

    def _parts(self, inputs: Any) -> list[list[Any]]:
        """Return the checked inputs of each part of a request."""
        last, workers = self._last, self.supervisor.count
        values = _alike(inputs, last.arrays)
        if values is not None and last.uncut_by == workers:
            return [values]
        if values is None:
            values = self.values(inputs)
        arrays = [
            (dtype, None if dtype is None else value.shape)
            for dtype, value in zip(self._signature.quick_dtypes, values)
        ]
        parts = [values]
        if self._signature.is_plain:
            parts = self._slicing.cut(values, workers)
        self._last = _Seen(arrays, workers if len(parts) == 1 else 0)
        return parts

    def require_open(self) -> None:
        """See Runnable."""
        if self._why_not:
            raise ModelStateError(f"predict failed! {self._why_not}")

    def values(self, inputs: Any) -> list[Any]:
        """See Runnable."""
        return fitting.values(self._signature, inputs, ())

    # ------------------------------------------------------------------------------------- parts

    def _results(
        self,
        parts: Sequence[Sequence[Value]],
        deadline_s: float | None,
        cancel: CancelToken | None,
    ) -> list[Sequence[Value]]:
        """Run parts at once, the first of them in this thread; return their results in order.

        The first error, in their order, is the request's; parts that run go on to their end, and
        nobody asks for their results.
        """
        run = self.supervisor.run
        tasks = self._hands.start([partial(run, part, deadline_s, cancel) for part in parts[1:]])
        try:
            results: list[Sequence[Value]] = [run(parts[0], deadline_s, cancel)]
            for task in tasks:
                _wait(task, deadline_s, cancel)
                results.append(task.result())
        except BaseException:
            for task in tasks:
                task.is_unwanted = True
            raise
        return results


def _alike(inputs: Any, expected: list[tuple[Any, Any]]) -> list[Any] | None:
    """Return inputs as values where they need no other check than this; else None."""
    if type(inputs) is not list or not expected or len(inputs) != len(expected):
        return None
    arrays = []
    for item, (dtype, shape) in zip(inputs, expected):
        array: Any = item._value if type(item) is Tensor else item
        if (
            type(array) is not np.ndarray
            or array.dtype is not dtype
            or array.shape != shape
            or not array.flags.carray
        ):
            return None
        arrays.append(array)
    return arrays


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
