"""A thread's state: what it needs to run a model, and what it checked and bound last.

The checks that every predict pays for are here, in the order of what is likely: the same arrays
as last time, arrays of the same shapes, anything else.
"""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import InputError, ModelStateError
from engine.host import fork
from engine.tensor import Array, DataType, Description, Format, Tensor, TensorMeta

if TYPE_CHECKING:
    from engine.plan import Plan
    from engine.runtime.signature import Signature
    from engine.types import ExecutionContext, TensorSpec


class ThreadState:
    """One thread's way through a model: its context, and what it saw last."""

    __slots__ = (
        "arrays",
        "bound",
        "buffers",
        "busy",
        "context",
        "count",
        "descriptions",
        "expected",
        "pid",
        "plan",
        "run",
        "signature",
        "unstoppable",
    )

    def __init__(self, plan: Plan, signature: Signature) -> None:
        self.pid = os.getpid()
        self.busy = False  # a predict is under way; see Model.predict
        self.plan = plan
        self.run = plan.predict
        self.unstoppable = plan.lacks("deadlines")  # a backend's name, or ""
        self.signature = signature
        self.count = len(signature.names)
        self.expected: list[tuple[Any, Any]] = list(zip(signature.quick_dtypes, signature.shapes))
        self.descriptions = [_description(spec) for spec in signature.outputs]
        self.bind([], [])
        self.context: ExecutionContext = plan.pool.take()

    def take(self, inputs: Any) -> list[Array]:
        """The inputs of one call as checked arrays."""
        if type(inputs) is not list:
            inputs = self.signature.ordered(inputs)
        arrays: list[Array] = []
        for item, (dtype, shape) in zip(inputs, self.expected):
            array: Any = item._array if type(item) is Tensor else item
            if (
                type(array) is not np.ndarray
                or array.dtype is not dtype
                or array.shape != shape
                or not array.flags.carray
            ):
                break
            arrays.append(array)
        else:
            if len(inputs) == self.count:
                return arrays
        # Not what came last time, or not fit at all: the whole check, with its errors.
        arrays = self.signature.arrays(inputs)
        shapes = [array.shape for array in arrays]
        self.expected = list(zip(self.signature.quick_dtypes, shapes))
        return arrays

    def bind(self, arrays: list[Array], buffers: list[Array | None]) -> None:
        """Note what a caller who gave output buffers had bound; it stays alive until the next.

        The backend gets these very lists again while nothing in them has changed.
        """
        self.buffers: list[Array | None] = []  # if what follows is interrupted, nothing is bound
        self.arrays = arrays
        self.bound = [(array, array.dtype, array.shape) for array in arrays]
        self.buffers = buffers

    def still_bound(self, inputs: Any) -> bool:
        """Whether these inputs are the arrays that were bound last, in the same shapes."""
        if type(inputs) is not list or len(inputs) != len(self.bound) or not self.buffers:
            return False
        for item, (held, dtype, shape) in zip(inputs, self.bound):
            array = item._array if type(item) is Tensor else item
            if array is not held or array.shape != shape or array.dtype is not dtype:
                return False
        return True

    def deadline(self, timeout_s: float) -> float | None:
        """The moment of time.monotonic() that is `timeout_s` seconds from now; None for never."""
        number = isinstance(timeout_s, int | float | np.integer | np.floating)
        if not number or isinstance(timeout_s, bool):
            raise TypeError(f"timeout_s must be a number of seconds, but got {type(timeout_s)}")
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be above 0 s, but got {timeout_s}")
        if self.unstoppable:
            raise ModelStateError(
                f"timeout_s: backend {self.unstoppable!r} cannot stop a running model; "
                "leave timeout_s out"
            )
        try:
            seconds = float(timeout_s)
        except OverflowError:
            seconds = math.inf
        return None if math.isinf(seconds) else time.monotonic() + seconds

    def __del__(self) -> None:
        context = getattr(self, "context", None)
        if context is None:
            return
        if self.pid != os.getpid():  # a forked child: nothing of the parent's may be freed here
            fork.never_free(self.plan, context)
        else:
            self.plan.pool.give_back(context)


def same_buffers(outputs: Any, buffers: list[Array | None]) -> bool:
    """Whether these tensors hold just the memory that was bound last."""
    if type(outputs) is not list or len(outputs) != len(buffers):
        return False
    for tensor, held in zip(outputs, buffers):
        if type(tensor) is not Tensor or tensor._array is not held:
            return False
    return True


def buffers_of(outputs: Any) -> list[Array | None]:
    """The memory in the tensors that a caller gave for the outputs."""
    if not isinstance(outputs, list):
        raise TypeError(f"outputs must be list, but got {type(outputs)}.")
    for index, tensor in enumerate(outputs):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"outputs element must be Tensor, but got {type(tensor)} at index {index}."
            )
    if len(set(map(id, outputs))) != len(outputs):
        raise InputError("one tensor was given for two outputs; give each its own")
    return [tensor._array for tensor in outputs]


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else -1 for dim in spec.shape or ())


def _data_type(spec: TensorSpec) -> DataType:
    return DataType.__members__.get(spec.dtype.name, DataType.UNKNOWN)


def _description(spec: TensorSpec) -> Description:
    return Description(spec.name, _data_type(spec), _shape(spec), Format.NCHW)


def tensor_for(spec: TensorSpec) -> Tensor:
    """A tensor without data that an input or output's value would fit; open axes are -1."""
    tensor = Tensor()
    tensor._description = _description(spec)
    return tensor


def meta_for(spec: TensorSpec) -> TensorMeta:
    """What Model.get_outputs says of an output."""
    tensor = tensor_for(spec)
    meta = TensorMeta()
    meta.name, meta.dtype, meta.shape = tensor.name, tensor.dtype, tensor.shape
    meta.format = tensor.format
    meta.element_num, meta.data_size = tensor.element_num, tensor.data_size
    return meta
