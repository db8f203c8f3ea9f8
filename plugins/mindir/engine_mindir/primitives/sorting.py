"""Sorting and selection: TopK, Sort, ArgMax, Unique, Median."""

from __future__ import annotations

from typing import Any

from engine_mindir.emit import Emitter
from engine_mindir.primitives import primitive
from engine_mindir.primitives.axes import as_int, as_static
from engine_mindir.primitives.casts import type_of
from engine_mindir.values import FLOATS, DType, Value


def _arg_reduce(g: Emitter, op_type: str, x: Value, axis: Any, keep: bool) -> Value:
    axis = as_static(axis)
    if axis is None:
        flat = g.reshape(x, (-1,))
        return g.node(op_type, flat, axis=0, keepdims=0, dtype=DType.INT64, shape=())
    return g.node(op_type, x, axis=as_int(axis), keepdims=int(keep), dtype=DType.INT64)


def _argument(op_type: str, *names: str) -> None:
    @primitive(*names)
    def lower(g: Emitter, x: Value, axis: Any = -1, output_type: Any = 34) -> Value:
        return g.cast(_arg_reduce(g, op_type, x, axis, False), type_of(g, output_type))


_argument("ArgMax", "Argmax", "ArgMaxV2")
_argument("ArgMin", "Argmin")


def _argument_ext(op_type: str, *names: str) -> None:
    @primitive(*names)
    def lower(g: Emitter, x: Value, axis: Any = None, keep_dims: Any = False) -> Value:
        return _arg_reduce(g, op_type, x, axis, bool(keep_dims))


_argument_ext("ArgMax", "ArgMaxExt")
_argument_ext("ArgMin", "ArgMinExt")


def _with_value(op_type: str, reduce: str, index_first: bool, *names: str) -> None:
    @primitive(*names)
    def lower(g: Emitter, x: Value, axis: Any = 0, keep_dims: Any = False) -> tuple[Value, Value]:
        if x.rank == 0:
            zero = g.constant(0, DType.INT32)
            return (zero, x) if index_first else (x, zero)
        index = g.cast(_arg_reduce(g, op_type, x, axis, bool(keep_dims)), DType.INT32)
        value = g.node(reduce, x, g.ints(as_int(axis)), keepdims=int(bool(keep_dims)))
        return (index, value) if index_first else (value, index)


_with_value("ArgMax", "ReduceMax", True, "ArgMaxWithValue")
_with_value("ArgMin", "ReduceMin", True, "ArgMinWithValue")
_with_value("ArgMax", "ReduceMax", False, "MaxDim")
_with_value("ArgMin", "ReduceMin", False, "MinDim")


@primitive("TopK", "topk")
def top_k(g: Emitter, x: Value, k: Any, *, sorted: Any = True) -> tuple[Value, Value]:
    return _top(g, x, k, -1, True, sorted)


@primitive("TopkExt")
def topk_ext(
    g: Emitter, x: Value, k: Any, axis: Any = -1, largest: Any = True, sorted: Any = True
) -> tuple[Value, Value]:
    return _top(g, x, k, as_int(axis), bool(largest), sorted)


def _top(
    g: Emitter, x: Value, k: Any, axis: int, largest: bool, ordered: Any
) -> tuple[Value, Value]:
    values, indices = g.nodes(
        "TopK", x, g.ints(k), types=[(None, None), (DType.INT64, None)], axis=axis,
        largest=int(largest), sorted=1,
    )  # fmt: skip
    return values, g.cast(indices, _second(g, DType.INT32))


def _second(g: Emitter, default: DType) -> DType:
    if isinstance(g.result, tuple) and len(g.result) > 1 and g.result[1] is not None:
        dtype: DType = g.result[1].dtype
        return dtype
    return default


@primitive("Sort")
def sort(g: Emitter, x: Value, *, axis: Any = -1, descending: Any = False) -> tuple[Value, Value]:
    return sort_ext(g, x, axis, descending)


@primitive("SortExt", "SortV2")
def sort_ext(
    g: Emitter, x: Value, axis: Any = -1, descending: Any = False, stable: Any = False
) -> tuple[Value, Value]:
    axis = as_int(axis)
    return _top(g, x, g.ints(g.dim(x, axis)), axis, bool(descending), True)


@primitive("ArgSort")
def arg_sort(
    g: Emitter, x: Value, axis: Any = -1, descending: Any = False, stable: Any = False
) -> Value:
    return sort_ext(g, x, axis, descending)[1]


@primitive("Unique")
def unique(g: Emitter, x: Value) -> tuple[Value, Value]:
    """Return the distinct values in order of first occurrence, and each element's index in them."""
    kind = _second(g, DType.INT32)
    values, inverse, _ = _unique(g, x, is_sorted=False)
    return values, g.cast(inverse, kind)


def _unique(g: Emitter, x: Value, *, is_sorted: bool) -> tuple[Value, Value, Value]:
    """Return the distinct values, each element's index in them, and their counts."""
    numbers = (DType.INT64, None)
    values, _, inverse, counts = g.nodes(
        "Unique", g.reshape(_sortable(g, x), (-1,)),
        types=[(None, None), numbers, numbers, numbers], sorted=int(is_sorted),
    )  # fmt: skip
    return g.cast(values, x.dtype), inverse, counts


def _sortable(g: Emitter, x: Value) -> Value:
    if x.dtype in (DType.FLOAT32, DType.FLOAT64, DType.INT64, DType.INT8, DType.STRING):
        return x
    return g.cast(x, DType.FLOAT32 if x.dtype in FLOATS else DType.INT64)


@primitive("Unique2")
def unique2(
    g: Emitter,
    x: Value,
    sorted: Any = True,
    return_inverse: Any = False,
    return_counts: Any = False,
) -> tuple[Value, Value, Value]:
    values, inverse, counts = _unique(g, x, is_sorted=True)
    return values, g.reshape(inverse, g.dims(x)), counts


@primitive("SearchSorted", "searchsorted")
def search_sorted(
    g: Emitter,
    sequence: Value,
    values: Value,
    sorter: Any = None,
    dtype: Any = None,
    right: Any = False,
) -> Value:
    """Count the elements of the sequence below each value (or not above it)."""
    wide = g.unsqueeze(sequence, (-2,))
    expanded = g.unsqueeze(values, (-1,))
    below = g.node("LessOrEqual" if right else "Less", wide, expanded, dtype=DType.BOOL)
    return g.node("ReduceSum", g.cast(below, DType.INT64), g.ints((-1,)), keepdims=0)


@primitive("Median", "MedianDim")
def median(
    g: Emitter, x: Value, axis: Any = -1, keep_dims: Any = False, *, global_median: Any = False,
    ignore_nan: Any = False,
) -> tuple[Value, Value]:  # fmt: skip
    """Return the lower of the middle elements, and where it is."""
    if global_median:
        x, axis = g.reshape(x, (-1,)), 0
    return kth_value(g, x, None, axis, keep_dims)


@primitive("MedianExt")
def whole_median(g: Emitter, x: Value) -> Value:
    return kth_value(g, g.reshape(x, (-1,)), None, 0)[0]


@primitive("Kthvalue", "KthValue")
def kth_value(
    g: Emitter, x: Value, k: Any, axis: Any = -1, keep_dims: Any = False
) -> tuple[Value, Value]:
    """Return the k-th smallest (from 1) along an axis, the middle one for None; and where it is."""
    axis = as_int(axis)
    size = g.dim(x, axis)
    if k is not None:
        position: Any = as_int(k) - 1
    elif isinstance(size, int):
        position = (size - 1) // 2
    else:
        position = g.node("Div", g.node("Sub", size, 1), 2, shape=())
    values, indices = _top(g, x, g.ints(size), axis, False, True)
    index = g.ints(position)
    results = [g.node("Gather", value, index, axis=axis) for value in (values, indices)]
    if not keep_dims:
        results = [g.squeeze(result, (axis,)) for result in results]
    return results[0], results[1]
