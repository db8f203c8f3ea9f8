"""Pooling into a given number of bins, whatever the size of what is pooled."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine_mindir.emit import Emitter, Unsupported
from engine_mindir.primitives import primitive
from engine_mindir.primitives.axes import as_static
from engine_mindir.values import DType, Value

# Places of an axis that is pooled bin by bin; each is written into the model.
_MAX_BINNED_SIZE = 1 << 20


@primitive("AdaptiveAvgPool2D", "AdaptiveAvgPool2DExt", "AdaptiveAvgPool1D", "AdaptiveAvgPool3D",
           "AdaptiveAvgPool3DExt")  # fmt: skip
def adaptive_avg_pool(g: Emitter, x: Value, output_size: Any) -> Value:
    return _adaptive(g, x, output_size, "ReduceMean")


@primitive("AdaptiveMaxPool2D", "AdaptiveMaxPool1D", "AdaptiveMaxPool3D")
def adaptive_max_pool(g: Emitter, x: Value, output_size: Any, *rest: Any) -> Any:
    output_size = as_static(output_size)
    y = _adaptive(g, x, output_size, "ReduceMax")
    if not isinstance(g.result, tuple):
        return y
    sizes = output_size if isinstance(output_size, tuple) else (output_size,)
    return y, _argmax_of_bins(g, x, y, sizes)


def _argmax_of_bins(g: Emitter, x: Value, y: Value, sizes: tuple[Any, ...]) -> Value | None:
    """Return the index of each bin's maximum in the flattened image; None where sizes are open."""
    if x.shape is None or None in x.shape[-len(sizes) :]:
        return None
    lengths = [dim or 0 for dim in x.shape[-len(sizes) :]]
    counts = [
        length if size in (None, -1) else int(size)
        for length, size in zip(lengths, sizes, strict=True)
    ]
    # A bin is at most two places wider than the length divided by their number.
    g.bounded(2, *(length + 2 * count for length, count in zip(lengths, counts, strict=True)))
    table = np.zeros((1, 1), np.int64)
    for length, count in zip(lengths, counts, strict=True):
        index = _bins(length, count)[0]
        # [bins so far, places in each] with one more axis
        table = (table[:, None, :, None] * length + index[None, :, None, :]).reshape(
            len(table) * count, -1
        )
    lead = g.dims(x)[: -len(sizes)]
    flat = g.reshape(x, (*lead, -1))
    wide = g.node("Gather", flat, g.constant(table), axis=-1)
    best = g.node("ReduceMax", wide, g.ints((-1,)), keepdims=1)
    is_best = g.node("Equal", wide, best, dtype=DType.BOOL)
    none = g.constant(np.iinfo(np.int64).max)
    positions = g.node("Where", is_best, g.constant(table), none, dtype=DType.INT64)
    first = g.node("ReduceMin", positions, g.ints((-1,)), keepdims=0)
    return g.node("Reshape", first, g.shape(y), shape=y.shape)


def _bins(length: int, size: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return each bin's indices [size, width], the last one repeated as padding, and its width."""
    numbers = np.arange(size)
    starts, stops = numbers * length // size, -(-(numbers + 1) * length // size)
    widths = stops - starts
    indices = starts[:, None] + np.arange(widths.max())
    return np.minimum(indices, stops[:, None] - 1), widths


def _mean_of_open_bins(g: Emitter, x: Value, axis: int, size: int) -> Value:
    """Average over bins of an axis whose length is known only at run time, by cumulative sums."""
    length = g.scalar(g.dim(x, axis), DType.INT64)
    g.bounded(size, 2)
    bins = np.arange(size)
    start = g.node(
        "Div", g.node("Mul", length, g.constant(bins), shape=(size,)), size, shape=(size,)
    )
    after = g.node("Mul", length, g.constant(bins + 1), shape=(size,))
    stop = g.node("Div", g.node("Add", after, size - 1), size, shape=(size,))
    rank = g.rank(x)
    pads = [0] * (2 * rank)
    pads[axis] = 1
    wide = g.node("Pad", g.cast(x, DType.FLOAT32), g.ints(tuple(pads)), 0.0, mode="constant")
    sums = g.node("CumSum", wide, g.constant(axis))
    total = g.node(
        "Sub", g.node("Gather", sums, stop, axis=axis), g.node("Gather", sums, start, axis=axis)
    )
    count = g.cast(g.node("Sub", stop, start), DType.FLOAT32)
    count = g.reshape(count, (-1, *[1] * (rank - axis - 1)))
    return g.cast(g.node("Div", total, count, shape=_with_size(x, axis, size)), x.dtype)


def _adaptive(g: Emitter, x: Value, output_size: Any, op_type: str) -> Value:
    """Pool into a fixed number of bins, one axis after another: mean and max are separable.

    ONNX has no adaptive pooling: bins are gathered by index and reduced.
    """
    rank = g.rank(x)
    sizes = output_size if isinstance(output_size, tuple) else (output_size,)
    declared = g.result.shape if hasattr(g.result, "shape") else None
    if isinstance(g.result, tuple) and g.result and hasattr(g.result[0], "shape"):
        declared = g.result[0].shape
    count = len(sizes)
    if count == 1 and declared is not None and len(declared) == rank and rank >= 4:
        count, sizes = 2, sizes * 2
    for position, size in enumerate(sizes):
        axis = rank - count + position
        length = x.shape[axis] if x.shape is not None else None
        if size in (None, -1) or size == length:
            continue
        size = int(size)
        if size == 1:
            x = g.node(op_type, x, g.ints((axis,)), keepdims=1, shape=_with_size(x, axis, 1))
            continue
        if length is None and op_type == "ReduceMean":
            x = _mean_of_open_bins(g, x, axis, size)
            continue
        if length is None:
            raise Unsupported("adaptive pooling of an axis of unknown size")
        if size < 1 or length < 1 or length + size > _MAX_BINNED_SIZE:
            raise Unsupported(f"adaptive pooling of {length:,} places into {size:,}")
        g.bounded(2, length + 2 * size)
        index, widths = _bins(length, size)
        width = index.shape[1]
        wide = g.node("Gather", x, g.constant(index), axis=axis)
        inner = axis + 1
        if op_type == "ReduceMax":
            x = g.node(
                "ReduceMax", wide, g.ints((inner,)), keepdims=0, shape=_with_size(x, axis, size)
            )
            continue
        weight = (np.arange(width) < widths[:, None]) / widths[:, None]
        weight = weight.reshape(size, width, *[1] * (rank - axis - 1))
        scaled = g.node("Mul", wide, g.constant(weight, x.dtype))
        x = g.node(
            "ReduceSum", scaled, g.ints((inner,)), keepdims=0, shape=_with_size(x, axis, size)
        )
    return g.node("Identity", x)


def _with_size(x: Value, axis: int, size: int) -> Any:
    if x.shape is None:
        return None
    return tuple(size if position == axis else dim for position, dim in enumerate(x.shape))
