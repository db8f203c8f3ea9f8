"""The elements of small constants: sizes, axes, limits of a range, and what is computed of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from engine.formats.onnx import limits
from engine.formats.onnx.tensor import Tensor, read_ints
from engine.formats.protobuf import Budget
from engine.types import DType, NodeInfo

Array: TypeAlias = np.ndarray[Any, Any]

_NUMBERS = {DType.FLOAT32: "<f4", DType.FLOAT64: "<f8", DType.INT32: "<i4", DType.INT64: "<i8"}


def small_value(tensor: Tensor, budget: Budget) -> Array | None:
    """Return the elements of a small tensor; None where they are not in the model file."""
    if tensor.location or tensor.dtype not in _NUMBERS:
        return None
    if tensor.dtype is DType.INT64:
        numbers = read_ints(tensor, budget)
        return None if numbers is None else np.array(numbers, np.int64).reshape(tensor.shape)
    data = tensor.raw
    if data is None and tensor.dtype is not DType.INT32 and len(tensor.packed) == 1:
        data = tensor.packed[0]
    if data is None or len(data) != tensor.nbytes:
        return None
    return np.frombuffer(data, _NUMBERS[tensor.dtype]).reshape(tensor.shape)


def computed(node: NodeInfo, inputs: Sequence[Array | None]) -> Array | None:
    """Return what a node makes of small constants; None where that is not known, or is large."""
    compute = _COMPUTE.get(node.op_type)
    given = [value for value in inputs if value is not None]
    if compute is None or not given or len(given) != len(inputs):
        return None
    try:
        with np.errstate(all="ignore"):
            if sum(value.size for value in given) > 2 * limits.KNOWN_ELEMENTS:
                return None
            result = np.asarray(compute(node, given))
    except (ValueError, IndexError, TypeError, ArithmeticError):  # the runtime will refuse it
        return None
    return result if result.size <= limits.KNOWN_ELEMENTS else None


def _plain(function: Callable[..., Any]) -> Callable[[NodeInfo, Sequence[Array]], Any]:
    return lambda node, given: function(*given)


def _divided(node: NodeInfo, given: Sequence[Array]) -> Any:
    top, bottom = given
    return top // bottom if top.dtype.kind in "iu" else top / bottom


def _gathered(node: NodeInfo, given: Sequence[Array]) -> Any:
    data, indices = given
    return np.take(data, indices, axis=_axis(node)) if data.ndim else data


def _cast(node: NodeInfo, given: Sequence[Array]) -> Any:
    number = node.attributes.get("to")
    if not isinstance(number, int) or number not in _CASTS:
        raise ValueError("to a type whose values are not followed")
    return given[0].astype(_CASTS[number])


def _sliced(node: NodeInfo, given: Sequence[Array]) -> Any:
    data, starts, ends, *rest = given
    axes = rest[0].ravel().tolist() if rest else [0]
    step = int(rest[1].ravel()[0]) if len(rest) > 1 else 1
    if data.ndim != 1 or axes not in ([0], [-1]):
        raise ValueError("not of one dim")
    return data[int(starts.ravel()[0]) : int(ends.ravel()[0]) : step]


def _axis(node: NodeInfo) -> int:
    axis = node.attributes.get("axis", 0)
    return axis if isinstance(axis, int) else 0


_CASTS = {dtype.onnx: np.dtype(name) for dtype, name in _NUMBERS.items()}
_COMPUTE: Mapping[str, Callable[[NodeInfo, Sequence[Array]], Any]] = {
    "Add": _plain(np.add),
    "Sub": _plain(np.subtract),
    "Mul": _plain(np.multiply),
    "Pow": _plain(np.power),
    "Max": lambda node, given: np.maximum.reduce(np.broadcast_arrays(*given)),
    "Min": lambda node, given: np.minimum.reduce(np.broadcast_arrays(*given)),
    "Neg": _plain(np.negative),
    "Abs": _plain(np.abs),
    "Floor": _plain(np.floor),
    "Ceil": _plain(np.ceil),
    "Identity": _plain(np.asarray),
    "Div": _divided,
    "Gather": _gathered,
    "Cast": _cast,
    "Slice": _sliced,
    "Concat": lambda node, given: np.concatenate(given, _axis(node)),
    "Unsqueeze": lambda node, given: given[0].ravel(),
    "Squeeze": lambda node, given: given[0].ravel() if given[0].size > 1 else given[0].reshape(()),
    "Reshape": lambda node, given: given[0].reshape(given[1].tolist()),
    "ReduceProd": lambda node, given: np.prod(given[0]).reshape(-1),
    "ReduceSum": lambda node, given: np.sum(given[0]).reshape(-1),
    "ReduceMax": lambda node, given: np.max(given[0]).reshape(-1),
}
