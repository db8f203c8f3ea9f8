"""A thread's state: how one thread predicts, what it checked and bound last.

The checks that every predict pays for are here, in the order of what is likely: the same arrays
as last time, arrays of the same shapes, anything else.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from engine.config.checks import require_seconds
from engine.config.wording import prefixed
from engine.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineError,
    ExtensionError,
    InputError,
    ModelError,
    ModelStateError,
    one_line,
)
from engine.host.imports import ready
from engine.host.interrupts import raised_by_handler
from engine.runtime.descriptions import description_for
from engine.tensor import Tensor
from engine.tensor.description import Array, canonical
from engine.tensor.values import are_unchanged, as_expected, description_of, store, value_of
from engine.types import Capability, Device, DeviceBuffer
from engine.wings import wing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from engine.plan import Plan
    from engine.plan.contexts import Lease
    from engine.runtime.signature import Signature
    from engine.types import CancelToken, Predict

Bindings = tuple[
    list[Any], list[tuple[int, Any, Any, Any]], list[Any], list[tuple[int, Any]], list[Array]
]
"""Inputs and output buffers that were checked, and what tells that they are still the same.

The inputs; each with its place, dtype and shape at that time; the buffers; each with its place; and
those of them that the host writes into. The backend gets these very lists again while nothing in
them has changed. One tuple, replaced as one: a signal handler may predict between any two lines of
a predict.
"""

NOTHING_BOUND: Bindings = ([], [], [], [], [])


class ThreadState:
    """One thread's way through a model, nearly always of tensors alone: `is_plain`.

    plain: plan.predict, or what extensions made of it. run: the same, or what gives the usual
    options to backends that want some. predict_with: plan.predict_with, where nothing stands around
    it. lease: of the context that this thread used last. path: the model's file.
    """

    __slots__ = (
        "bindings",
        "descriptions",
        "devices",
        "expected",
        "idle",
        "is_limited",
        "is_open_ended",
        "is_plain",
        "last",
        "lease",
        "output_count",
        "packs",
        "path",
        "plain",
        "plan",
        "pool",
        "predict_with",
        "run",
        "signature",
        "stops",
        "stops_by",
        "takes_options",
    )

    def __init__(
        self,
        plan: Plan,
        signature: Signature,
        run: Predict,
        path: str = "",
    ) -> None:
        self.plan = plan
        self.signature = signature
        self.is_open_ended = signature.is_open_ended
        self.is_plain = signature.is_plain and not signature.is_open_ended  # else `give`
        self.run = run
        self.plain = run
        self.predict_with = plan.predict_with if run is plan.predict else None
        self.takes_options = plan.takes_options
        self.pool = plan.pool
        self.idle = plan.pool.idle
        # With a semaphore no lease is taken without `borrow`: under this name it finds none.
        self.lease: Lease | None = None
        self.last: Lease | None = None
        self.is_limited = plan.pool.semaphore is not None
        self.output_count = len(signature.outputs)
        self.devices = plan.devices
        self.packs = bool(plan.devices) and not plan.takes_strides
        self.expected: list[tuple[Any, Any]] = list(zip(signature.quick_dtypes, signature.shapes))
        self.descriptions = [description_for(spec) for spec in signature.outputs]
        self.bindings = NOTHING_BOUND
        self.stops_by: set[str] = set()  # of what may stop a predict, what was asked and is had
        self.stops: set[Capability] = set()  # the same, of all threads of the model
        self.path = path
        if plan.wants_options:
            self.run = self.asked(None)

    def __del__(self) -> None:
        # The context stays for other threads, without this one's arrays.
        pool = getattr(self, "pool", None)
        if pool is not None:
            pool.retire(self.lease)

    # ---------------------------------------------------------------------------------- running

    def borrow(
        self, deadline_s: float | None, cancel: CancelToken | None, priority: int = 0
    ) -> Lease:
        """Take another context than the last one, or wait for one."""
        if self.is_limited:
            # Only the predict holds it: where that is lost, its slot becomes free.
            last, self.last = self.last, None
            lease = self.pool.borrow(last, deadline_s, cancel, priority)
        else:
            lease = self.lease = self.pool.borrow(None, deadline_s, cancel)
        return lease

    def give_back(self, lease: Lease) -> None:
        """Give a context back, with its slot of the semaphore."""
        self.last = lease
        self.pool.give_back(lease)

    def again(
        self,
        predict: Callable[..., list[Any]],
        inputs: Any,
        outputs: Any,
        timeout_s: float | None,
        **further: Any,
    ) -> list[Any]:
        """Predict once more, with the state of what the model has become meanwhile."""
        return predict(inputs, outputs, timeout_s=timeout_s, **further)

    def give(self, results: Sequence[Any], outputs: Any) -> list[Any]:
        """Return the caller's tensors with results that are not all in the memory given."""
        self.bindings = NOTHING_BOUND
        for tensor, result in zip(outputs, results, strict=True):
            store(tensor, result)
        return outputs  # type: ignore[no-any-return]

    def bind(self, inputs: Any, outputs: Any) -> tuple[list[Any], list[Any]]:
        """Return checked inputs and the buffers for the outputs: those of last time if unchanged.

        A caller who gives output buffers binds both: they stay alive until the next.
        """
        values, bound, buffers, filled, writeable = self.bindings
        if (
            type(inputs) is not list
            or type(outputs) is not list
            or len(inputs) != len(bound)
            or len(outputs) != len(filled)
            or not are_unchanged(inputs, bound, outputs, filled)
        ):
            return self._rebind(inputs, outputs)
        for array in writeable:
            if not array.flags.writeable:  # since the last call
                return self._rebind(inputs, outputs)
        return values, buffers

    def _rebind(self, inputs: Any, outputs: Any) -> tuple[list[Any], list[Any]]:
        """Check inputs and output buffers, and hold them for the next call."""
        values = self.take(inputs)
        memory = memory_of(outputs)
        ready("engine.runtime.fitting")
        from engine.runtime import fitting  # rare

        fitting.check_buffers(
            self.signature, memory, values, are_results(outputs, self.descriptions)
        )
        # Memory of other devices than the model's is copied to afterwards.
        buffers = [self._reachable(entry) for entry in memory]
        self.bindings = (
            values,
            [(place, value, value.dtype, value.shape) for place, value in enumerate(values)],
            buffers,
            # The caller's own arrays, which `bind` compares; a buffer may be a view of one.
            [(i, e if isinstance(e, np.ndarray) else buffers[i]) for i, e in enumerate(memory)],
            [buffer for buffer in buffers if isinstance(buffer, np.ndarray)],
        )
        return values, buffers

    def _reachable(self, entry: Any) -> Any:
        """Return what the plan can fill: host arrays, and what is on its own devices."""
        if entry is None or isinstance(entry, np.ndarray):
            return entry if entry is None else canonical(entry)
        device = entry if isinstance(entry, Device) else entry.device
        is_filled = device in self.plan.devices and getattr(entry, "is_packed", True)
        return entry if is_filled else None

    def fail(
        self, error: BaseException, timeout_s: float | None, lease: Lease | None = None
    ) -> NoReturn:
        """Raise what a user sees when a predict raised `error`; forget what was bound for it."""
        self.bindings = NOTHING_BOUND
        self.refuse(error)  # or told already: it has run
        if lease is not None:
            self.pool.recover(lease)
        failed = self._failure(error, timeout_s)
        try:
            raise failed
        finally:
            del error, failed  # their tracebacks have this frame: no cycle

    def _failure(self, error: BaseException, timeout_s: float | None) -> BaseException:
        """Return what a user sees when a predict raised `error`."""
        interrupt = raised_by_handler(error)
        if interrupt is not None:
            return interrupt
        if not isinstance(error, Exception):
            return error
        if isinstance(error, ModelError):
            failed: EngineError = ModelError(str(error), self.path, error.at_fault)
        elif isinstance(error, DeadlineExceeded) and timeout_s is not None:
            failed = DeadlineExceeded(
                f"it took longer than timeout_s, {timeout_s:g} s: {error}; give it more time, or "
                "leave timeout_s out",
                float(timeout_s),
            )
        elif isinstance(error, Cancelled):
            failed = Cancelled(str(error))
        elif isinstance(error, ExtensionError):
            failed = ExtensionError(str(error), error.name)
        elif isinstance(error, EngineError):
            return error
        else:
            backend = self.plan.backend.name
            text = f"backend {backend!r} raised {one_line(error)}"
            failed = ModelError(text, self.path, at_fault=backend)
        failed.__cause__ = error
        return prefixed(failed, "predict failed! ")

    def refuse(self, error: BaseException, request_id: str = "") -> None:
        """Tell the other ranks of a sliced model, if it is one, that a predict does not begin."""
        if self.plan.refuse is not None:
            self.plan.refuse(one_line(error))

    # --------------------------------------------------------------------------------- checking

    def take(self, inputs: Any) -> list[Any]:
        """Return the inputs of one call as checked values."""
        if type(inputs) is dict and tuple(inputs) == self.signature.names:
            inputs = [*inputs.values()]  # as `ordered` gives it, without its call
        elif type(inputs) is not list:
            inputs = self.signature.ordered(inputs)
        arrays = as_expected(inputs, self.expected)
        if arrays is not None:
            return arrays
        # Not what came last time, or not fit at all: the whole check, with its errors.
        ready("engine.runtime.fitting")
        from engine.runtime import fitting  # what is quick has been taken

        values = fitting.values(self.signature, inputs, self.devices)
        if self.packs:
            ready("engine.tensor.memory")
            from engine.tensor.memory import packed

            values = list(map(packed, values))
        self.expected = [
            (dtype, None if dtype is None else value.shape)
            for dtype, value in zip(self.signature.quick_dtypes, values)
        ]
        return values

    def deadline(self, timeout_s: float) -> float | None:
        """Return the moment of time.monotonic() in `timeout_s` seconds; None for never."""
        seconds = require_seconds("timeout_s", timeout_s)
        self.require_stoppable(Capability.DEADLINES, "timeout_s")
        return None if math.isinf(seconds) else time.monotonic() + seconds

    def asked(self, *wanted: Any) -> Any:
        """Return the plan's predict for what is asked of it; see `engine.runtime.asked`."""
        return wing("asked")(self, *wanted)

    def require_stoppable(self, capability: Capability, argument: str) -> None:
        """Raise ModelStateError where a backend cannot stop. argument: that asks for it."""
        if argument in self.stops_by:
            return
        backend, reason = self.plan.lacks(capability)
        if backend:
            why = f" ({reason})" if reason else ""
            raise ModelStateError(
                f"{argument}: backend {backend!r} cannot stop a running model{why}; leave "
                f"{argument} out"
            )
        self.stops_by.add(argument)
        self.stops.add(capability)


def are_results(outputs: Sequence[Any], descriptions: Sequence[Any]) -> list[bool]:
    """Return for each of a caller's tensors whether a predict made it, as it is described."""
    return [
        not about.wraps
        and (about.name, about.dtype, about.shape) == (own.name, own.dtype, own.shape)
        for about, own in zip(map(description_of, outputs), descriptions)
    ]


def memory_of(outputs: Any) -> list[Array | DeviceBuffer | Device | None]:
    """Return what a caller's tensors for the outputs have: memory, or a device for it, or None."""
    if not isinstance(outputs, list):
        raise TypeError(f"outputs must be list, but got {type(outputs)}.")
    for index, tensor in enumerate(outputs):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"outputs element must be Tensor, but got {type(tensor)} at index {index}."
                + (" model(inputs, outputs=[...]) chooses by name" * isinstance(tensor, str))
            )
    if len(set(map(id, outputs))) != len(outputs):
        raise InputError("one tensor was given for two outputs; give each its own")
    return [
        description_of(tensor).device if (value := value_of(tensor)) is None else value
        for tensor in outputs
    ]
