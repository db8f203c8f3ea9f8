"""Slice primitives, and assignment to slices."""

from __future__ import annotations

from typing import Any

from engine_mindir.emit import Emitter, Unsupported
from engine_mindir.primitives import primitive
from engine_mindir.primitives.axes import as_int, as_static, axes_of
from engine_mindir.values import DType, Value

_FAR = 1 << 62  # a bound beyond any axis: "to the end" of an ONNX Slice


@primitive("Slice", "slice", "SliceFusion")
def slice_(g: Emitter, x: Value, begin: Any, size: Any, *, axes: Any = None) -> Value:
    begin, size = as_static(begin), as_static(size)
    if isinstance(begin, tuple) and isinstance(size, tuple):
        ends = tuple(
            _FAR if type(s) is int and s < 0
            else s + b if isinstance(s, int) and isinstance(b, int)
            else g.node("Add", g.scalar(b, DType.INT64), g.scalar(s, DType.INT64))
            for b, s in zip(begin, size, strict=True)
        )  # fmt: skip
        stop = g.ints(ends)
        count = len(begin)
    else:
        starts, sizes = g.ints(begin), g.ints(size)
        open_ = g.node("Less", sizes, 0, dtype=DType.BOOL)
        stop = g.node("Where", open_, g.constant(_FAR), g.node("Add", starts, sizes), like=starts)
        count = g.rank(x)
    slice_axes = axes_of(axes) if axes is not None else tuple(range(count))
    return g.node("Slice", x, g.ints(begin), stop, g.ints(slice_axes))


@primitive("SliceExt", "SliceExtView")
def slice_ext(g: Emitter, x: Value, dim: Any, start: Any, end: Any, step: Any = 1) -> Value:
    return g.node("Slice", x, *map(g.ints, (start, end, as_int(dim), step)))


def _bit(mask: Any, position: int) -> bool:
    return bool(as_int(mask) >> position & 1)


@primitive("StridedSlice", "strided_slice", "StridedSliceV2")
def strided_slice(
    g: Emitter, x: Value, begin: Any, end: Any, strides: Any = None, begin_mask: Any = 0,
    end_mask: Any = 0, ellipsis_mask: Any = 0, new_axis_mask: Any = 0, shrink_axis_mask: Any = 0,
) -> Value:  # fmt: skip
    """Lower Python's x[a:b:c, ..., None, i]; a bit mask for each kind that is no plain slice."""
    spec = _SliceSpec(
        g, x, as_static(begin), as_static(end), strides, begin_mask, end_mask, ellipsis_mask,
        new_axis_mask, shrink_axis_mask,
    )  # fmt: skip
    y = x
    if spec.axes:
        y = g.node(
            "Slice", x, *map(g.ints, map(tuple, (spec.starts, spec.stops, spec.axes, spec.steps)))
        )
    y = g.squeeze(y, spec.removed)
    y = g.unsqueeze(y, spec.new) if spec.new else y
    return g.node("Identity", y) if y is x else y


class _SliceSpec:
    """Effect of a strided slice on each axis: removed, cut, or new."""

    def __init__(
        self, g: Emitter, x: Value, begin: Any, end: Any, strides: Any, begin_mask: Any,
        end_mask: Any, ellipsis: Any, new_axis: Any, shrink: Any,
    ) -> None:  # fmt: skip
        first, last = _parts(g, begin), _parts(g, end)
        steps = axes_of(as_static(strides)) if strides is not None else (1,) * len(first)
        rank = g.rank(x)
        self.starts: list[Any] = []
        self.stops: list[Any] = []
        self.steps: list[int] = []
        self.axes: list[int] = []
        self.removed: list[int] = []
        self.new: list[int] = []
        axis = out = 0
        sliced = sum(
            not _bit(new_axis, position) and not _bit(ellipsis, position)
            for position in range(len(first))
        )
        for position, (start, stop) in enumerate(zip(first, last, strict=True)):
            if _bit(ellipsis, position):
                axis += rank - sliced
                out += rank - sliced
                continue
            if _bit(new_axis, position):
                self.new.append(out)
                out += 1
                continue
            if axis >= rank:
                raise Unsupported("a slice of more axes than the tensor has")
            step = steps[position] if position < len(steps) else 1
            if _bit(shrink, position):
                size = x.shape[axis] if x.shape is not None else None
                if isinstance(start, int) and start < 0 and size is not None:
                    start += size
                self.add(axis, start, _after(g, start), 1)
                self.removed.append(axis)
            else:
                low = -_FAR if step < 0 else _FAR
                start = (_FAR if step < 0 else 0) if _bit(begin_mask, position) else start
                stop = low if _bit(end_mask, position) else stop
                if not (start == 0 and stop == _FAR and step == 1):
                    self.add(axis, start, stop, step)
                out += 1
            axis += 1

    def add(self, axis: int, start: Any, stop: Any, step: int) -> None:
        """Slice an axis."""
        self.axes.append(axis)
        self.starts.append(start)
        self.stops.append(stop)
        self.steps.append(step)


def _after(g: Emitter, start: Any) -> Any:
    if isinstance(start, int):
        return start + 1 if start != -1 else _FAR
    # The exclusive stop after -1 is not 0 but the end.
    is_last = g.node("Equal", start, g.constant(-1, start.dtype), dtype=DType.BOOL)
    following = g.node("Add", start, 1)
    return g.node("Where", is_last, g.constant(_FAR, start.dtype), following, like=start)


def _parts(g: Emitter, value: Any) -> list[Any]:
    """Return the elements of a tuple, or of a computed vector."""
    if isinstance(value, tuple):
        return [g.cast(part, DType.INT64) if isinstance(part, Value) else part for part in value]
    if not isinstance(value, Value):
        return [value]
    if value.shape is None or len(value.shape) != 1 or value.shape[0] is None:
        raise Unsupported("a slice by a vector of unknown length")
    vector = g.cast(value, DType.INT64)
    return [
        g.node("Gather", vector, g.constant(position), axis=0, shape=())
        for position in range(value.shape[0])
    ]


@primitive("TensorCopySlices")
def copy_slices(
    g: Emitter, x: Value, value: Value, begin: Any, end: Any, strides: Any = None
) -> Value:
    """Assign to x[begin:end:strides], given for the first axes.

    ONNX has no slice assignment: a mask over each axis selects between x and the gathered value.
    """
    starts, stops = _parts(g, as_static(begin)), _parts(g, as_static(end))
    steps = axes_of(as_static(strides)) if strides is not None else (1,) * len(starts)
    dims = g.dims(x)
    value = g.cast(value, x.dtype)
    rank = len(dims)
    mask: Value | None = None
    for axis, (start, stop, step) in enumerate(zip(starts, stops, steps, strict=True)):
        size = dims[axis]
        if step < 1:
            raise Unsupported("an assignment to a slice that runs backwards")
        if (start, step) == (0, 1) and isinstance(size, int) and type(stop) is int and stop >= size:
            continue
        start, stop = (
            bound + size if type(bound) is int and bound < 0 and isinstance(size, int) else bound
            for bound in (start, stop)
        )
        positions = g.node(
            "Range", g.constant(0), g.scalar(size, DType.INT64), g.constant(1), dtype=DType.INT64
        )
        offset = g.node("Sub", positions, start)
        selected = g.node(
            "And",
            g.node("GreaterOrEqual", offset, g.constant(0), dtype=DType.BOOL),
            g.node("Less", positions, g.scalar(stop, DType.INT64), dtype=DType.BOOL),
        )
        if step > 1:
            on_step = g.node("Equal", g.node("Mod", offset, step), g.constant(0), dtype=DType.BOOL)
            selected = g.node("And", selected, on_step)
            offset = g.node("Div", offset, step)
        value_axis = axis - rank + g.rank(value)  # the axis of the value that lies along this one
        if value_axis >= 0 and (value.shape is None or value.shape[value_axis] != 1):
            last = g.node("Sub", g.scalar(g.dim(value, value_axis), DType.INT64), 1)
            source_index = g.node("Clip", offset, g.constant(0), last)
            value = g.node("Gather", value, source_index, axis=value_axis)
        wide = g.reshape(selected, tuple(-1 if dim == axis else 1 for dim in range(rank)))
        mask = wide if mask is None else g.node("And", mask, wide)
    if mask is None:
        return g.node("Expand", value, g.shape(x), shape=x.shape)
    return g.node("Where", mask, value, x, like=x, shape=x.shape)
