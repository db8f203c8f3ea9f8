"""Operators of older operator sets, to which onnx 1.23's evaluator gives their present meaning.

And two of all sets: GatherElements, whose indices it takes modulo the axis's size, and
LpNormalization, which it sums without abs. A class is named after the operator and the set whose
attributes and defaults the evaluator is to take.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from onnx import NodeProto
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_resize import Resize


def implementation(node: NodeProto, opset: int) -> type[OpRun] | None:
    """Return what runs a node of ONNX's own domain in a model of this operator set.

    None where onnx's own is right.
    """
    if node.op_type in _OF_ALL_SETS:
        return _OF_ALL_SETS[node.op_type]
    if opset < 7 and any(attribute.name == "axis" for attribute in node.attribute):
        aligned = _ALIGNED.get(node.op_type)
        if aligned is not None:
            return aligned
    if node.op_type == "BatchNormalization" and not _is_inference(node, opset):
        return None
    until, found = _OLDER.get(node.op_type, (0, None))
    return found if opset < until else None


def _is_inference(node: NodeProto, opset: int) -> bool:
    """Return whether a BatchNormalization without `training_mode` uses the means it is given."""
    return opset >= 7 and sum(map(bool, node.output)) == 1


class _Flattening(OpRun):
    """Works on the rows of a matrix: of all axes before `axis` by all from there on."""

    def _run(self, x: Any, axis: int | None = None) -> tuple[Any]:
        at = 1 if axis is None else axis % max(x.ndim, 1)
        rows = x.reshape(prod(x.shape[:at]), prod(x.shape[at:]))
        return (self._of_rows(rows).reshape(x.shape).astype(x.dtype) if x.size else x,)

    def _of_rows(self, rows: Any) -> Any:
        raise NotImplementedError


class Softmax_11(_Flattening):
    """Softmax before operator set 13."""

    def _of_rows(self, rows: Any) -> Any:
        powers = np.exp(rows - rows.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)


class LogSoftmax_11(_Flattening):
    """LogSoftmax before operator set 13."""

    def _of_rows(self, rows: Any) -> Any:
        below = rows - rows.max(1, keepdims=True)
        return below - np.log(np.exp(below).sum(1, keepdims=True))


class Hardmax_11(_Flattening):
    """Hardmax before operator set 13: 1 for the first of the largest of each row."""

    def _of_rows(self, rows: Any) -> Any:
        return np.arange(rows.shape[1]) == rows.argmax(1)[:, None]


class BatchNormalization_7(OpRun):
    """BatchNormalization of operator sets 7 to 13 with one output: that of inference."""

    def _run(
        self,
        x: Any,
        scale: Any,
        bias: Any,
        mean: Any,
        variance: Any,
        epsilon: Any = None,
        momentum: Any = None,
        spatial: int | None = None,
    ) -> tuple[Any]:
        # Without `spatial` (7 and 8 have it) the statistics are those of each place in an image.
        shape = x.shape[1:] if spatial == 0 else (-1, *[1] * (x.ndim - 2))
        scale, bias, mean, variance = (
            value.reshape(shape) for value in (scale, bias, mean, variance)
        )
        y = scale * (x - mean) / np.sqrt(variance + epsilon) + bias
        return (y.astype(x.dtype),)


class Upsample_7(OpRun):
    """Upsample of operator sets 7 and 8, whose scales are an attribute."""

    def _run(self, x: Any, mode: Any = None, scales: Any = None) -> tuple[Any]:
        return _resized(self, x, np.asarray(scales, np.float32), mode)


class Resize_10(OpRun):
    """Resize of operator set 10: its scales are the second input."""

    def _run(self, x: Any, scales: Any, mode: Any = None) -> tuple[Any]:
        if mode != "nearest":
            return _resized(self, x, scales, mode)
        for axis, scale in enumerate(scales):
            at = np.arange(int(x.shape[axis] * scale), dtype=np.float32) / scale
            # An axis that shrinks rounds up, as ONNX's own test of the time expects.
            at = (np.ceil(at) if scale < 1 else np.floor(at)).astype(int)
            x = x.take(np.minimum(at, x.shape[axis] - 1), axis)
        return (x,)


def _resized(node: Any, x: Any, scales: Any, mode: Any) -> tuple[Any]:
    """Resize as both did: the place in x is the place in the result over the scale, cut off."""
    resized: tuple[Any] = Resize._run(
        node,
        x,
        None,
        scales,
        mode=mode,
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    return resized


class GatherElements(OpRun):
    """The element of each index along an axis; an index outside of it is an error."""

    def _run(self, data: Any, indices: Any, axis: int | None = None) -> tuple[Any]:
        axis = axis or 0
        size = data.shape[axis]
        outside = indices[(indices < -size) | (indices >= size)]
        if outside.size:
            raise IndexError(
                f"index {outside.flat[0]} is out of bounds for axis {axis} with size {size}"
            )
        at = [np.arange(count) for count in indices.shape]
        places = list(np.ix_(*at))
        places[axis] = indices
        return (data[tuple(places)],)


class LpNormalization(OpRun):
    """x over its norm along an axis, 0 where that is 0."""

    def _run(self, x: Any, axis: int | None = None, p: int | None = None) -> tuple[Any]:
        norm = np.sum(np.abs(x) ** p, axis=axis, keepdims=True) ** (1 / (p or 2))
        return (np.divide(x, norm, out=np.zeros_like(x), where=norm != 0).astype(x.dtype),)


def _quotient(a: Any, b: Any) -> Any:
    return a / b if a.dtype.kind == "f" else np.trunc(a / b)


def _aligned(operator: str, since: int, compute: Any) -> type[OpRun]:
    """Return a binary operator whose second input begins at the axis `axis` of the first."""

    def _run(
        self: Any, a: Any, b: Any, axis: int | None = None, broadcast: Any = None, **_: Any
    ) -> tuple[Any]:
        if axis is not None:
            b = b.reshape(b.shape + (1,) * (a.ndim - axis % a.ndim - b.ndim))
        y = compute(a, b)
        return (y if y.dtype == bool else y.astype(a.dtype),)

    return type(f"{operator}_{since}", (OpRun,), {"_run": _run})


_ALIGNED = {
    **{
        name: _aligned(name, 6, compute)
        for name, compute in (
            ("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply), ("Div", _quotient)
        )
    },
    **{
        name: _aligned(name, 1, compute)
        for name, compute in (
            ("Pow", np.power), ("And", np.logical_and), ("Or", np.logical_or),
            ("Xor", np.logical_xor), ("Equal", np.equal), ("Greater", np.greater),
            ("Less", np.less),
        )
    },
}  # fmt: skip
"""Binary operators before set 7, where `axis` says how the second input is broadcast."""

_OF_ALL_SETS: dict[str, type[OpRun]] = {
    "GatherElements": GatherElements,
    "LpNormalization": LpNormalization,
}

_OLDER: dict[str, tuple[int, type[OpRun] | None]] = {
    "Softmax": (13, Softmax_11),
    "LogSoftmax": (13, LogSoftmax_11),
    "Hardmax": (13, Hardmax_11),
    "BatchNormalization": (14, BatchNormalization_7),
    "Upsample": (9, Upsample_7),
    "Resize": (11, Resize_10),
}
"""By operator: from which set on onnx's own is right, and what is right before."""
