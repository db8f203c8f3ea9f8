"""Lower an index like x[a:b, ids, ...] where sizes are known only at run time.

The index comes with a kind for each of its places, up to eight, 0 behind the last. How many axes
a tensor has is known when the model is read; so are the lengths of all tuples here, and which
axis a place means. Only the numbers in the tuples may be computed.
"""

from __future__ import annotations

from typing import Any

from engine.formats.mindir.emit import Emitter, Unsupported
from engine.formats.mindir.primitives import primitive
from engine.formats.mindir.primitives.shapes import axes_of, number
from engine.formats.mindir.values import DType, Value

_NONE, _ELLIPSIS, _SLICE, _TENSOR = 7, 9, 15, 17  # the kinds of a place


def _kinds(types: Any) -> list[int]:
    return [kind for kind in axes_of(types) if kind]


def _axis(kinds: list[int], place: int, rank: int, expanded: int) -> int:
    """The axis that a place of the index means. expanded: a bit for each place that is new."""
    if expanded:
        raise Unsupported("an index with a new axis, of a tensor whose sizes are open")
    if _ELLIPSIS in kinds and place > kinds.index(_ELLIPSIS):
        place += rank - len(kinds)
    if not 0 <= place < rank:
        raise Unsupported("an index of more places than the tensor has axes")
    return place


def _steps(g: Emitter, start: Any, stop: Any, step: Any = 1) -> Value:
    ends = (g.scalar(item, DType.INT64) for item in (start, stop, step))
    return g.node("Range", *ends, dtype=DType.INT64, shape=(None,))


def _wrapped(g: Emitter, item: Any, size: Any) -> Any:
    """An index that may count from the end."""
    if type(item) is int:
        return item if item >= 0 else _sum(g, item, size)
    item = g.cast(item, DType.INT64)
    below = g.node("Less", item, 0, dtype=DType.BOOL, shape=item.shape)
    behind = g.node("Add", item, g.scalar(size, DType.INT64), shape=item.shape)
    return g.node("Where", below, behind, item, like=item, shape=item.shape)


def _sum(g: Emitter, one: int, size: Any) -> Any:
    if type(size) is int:
        return one + size
    return g.node("Add", g.scalar(size, DType.INT64), one, shape=())


def _limited(g: Emitter, item: Any, size: Any) -> Any:
    """An end of a slice, within the axis."""
    item = _wrapped(g, item, size)
    if type(item) is int and (item == 0 or type(size) is int):
        return min(max(item, 0), size) if item else 0
    high = g.node("Min", g.scalar(item, DType.INT64), g.scalar(size, DType.INT64), shape=())
    return g.node("Max", high, 0, shape=())


@primitive("SliceToIndices")
def slice_to_indices(
    g: Emitter, x: Value, start: Any, stop: Any, step: Any, *, tuple_index_axis: int = 0,
    tuple_index_types: Any = (), expand_dims_mask: int = 0, init_by_none: Any = (0, 0, 0),
) -> tuple[Any, ...]:  # fmt: skip
    """The places that a slice takes, the shape of what it takes, its ends and step; 1 if none."""
    kinds, dims = _kinds(tuple_index_types), g.dims(x)
    size = dims[_axis(kinds, tuple_index_axis, len(dims), expand_dims_mask) if kinds else 0]
    no_start, no_stop, no_step = axes_of(init_by_none)
    step = 1 if no_step else number(step)
    first = 0 if no_start else _limited(g, start, size)
    last = size if no_stop else _limited(g, stop, size)
    places = _steps(g, first, last, step)
    if type(first) is int and type(last) is int:
        count: Any = len(range(first, last, step))
        empty: Any = int(not count)
        places.shape = (count,)
    else:
        count = g.dim(places, 0)
        none = g.node("Equal", count, g.constant(0), dtype=DType.BOOL, shape=())
        empty = g.cast(none, DType.INT64)
    if not kinds:
        places = g.unsqueeze(places, (-1,))
    return places, (count, *dims[1:]), first, last, step, empty


@primitive("NormalizeTupleIndex")
def normalize_tuple_index(
    g: Emitter, x: Value, index: Any, *, origin_index_type: str, tuple_index_axis: int = 0,
    tuple_index_types: Any = (), expand_dims_mask: int = 0,
) -> Value:  # fmt: skip
    """One place of an index as a tensor of numbers that are not below zero."""
    kinds, rank = _kinds(tuple_index_types), g.rank(x)
    if origin_index_type == "ellipsis_index":  # the place counts the axes that "..." stands for
        axis = kinds.index(_ELLIPSIS) + tuple_index_axis
        if tuple_index_axis > rank - len(kinds):
            return g.constant((1,))
        return _steps(g, 0, g.dim(x, axis))
    size = g.dim(x, _axis(kinds, tuple_index_axis, rank, expand_dims_mask))
    if origin_index_type == "none_index":
        return _steps(g, 0, size)
    if "bool" in origin_index_type:
        return g.ints(tuple(at for at, item in enumerate(axes_of(index)) if item))
    if isinstance(index, tuple):
        return g.ints(tuple(_wrapped(g, item, size) for item in index))
    wrapped = _wrapped(g, index, size)
    return wrapped if isinstance(wrapped, Value) else g.constant(wrapped)


@primitive("GetTupleIndexInfo")
def get_tuple_index_info(
    g: Emitter, x: Value, position: Any, *tensors: Value, tuple_index_types: Any = (),
    tuple_index_info_type: str = "", expand_dims_cnt: int = 0,
) -> tuple[Any, ...]:  # fmt: skip
    """Broadcast the positions of an index against each other.

    Gives where the axes of the tensors among them go, the shape that those have together, that
    shape with 1 for each slice, with the slices' lengths, and then the shape for each slice.
    """
    kinds = _kinds(tuple_index_types)
    spread = g.rank(x) + expand_dims_cnt - (len(kinds) - 1) if _ELLIPSIS in kinds else 0
    before = kinds.index(_ELLIPSIS) if spread else 0
    order = [kind for kind in kinds if kind != _ELLIPSIS]  # the axes of "..." come last
    whole = [*kinds[:before], *[_SLICE] * spread, *kinds[before + 1 :]] if spread else kinds
    together: tuple[Any, ...] = ()
    if tuple_index_info_type == "pre_setitem_by_tuple":  # the slices are not here yet
        for one_tensor in tensors[: kinds.count(_TENSOR)]:
            together = _joined(g, together, g.dims(one_tensor))
        return (_together(whole), together, *[()] * 10)
    shapes = [g.dims(tensor) for tensor in tensors[: len(order) + spread]]
    lengths = []
    for at, shape in enumerate(shapes):
        if at < len(order) and order[at] == _TENSOR:
            together = _joined(g, together, shape)
        else:
            lengths.append(shape[0])
    if tuple_index_info_type == "setitem_by_tuple_with_tensor" and len(together) < 2:
        together = (1, *together)
    if not tuple_index_info_type.startswith("setitem"):
        position = _together(whole)
    at = min(number(position), len(lengths))
    early = kinds[:before].count(_SLICE) if spread else 0
    if spread:  # back to where "..." was written
        head = len(lengths) - spread
        lengths = [*lengths[:early], *lengths[head:], *lengths[early:head]]
    rows = []
    for own, length in enumerate(lengths):
        row = [length if index == own else 1 for index in range(len(lengths))]
        rows.append((*row[:at], *[1] * len(together), *row[at:]))
    if spread:
        rows = [*rows[:early], *rows[early + spread :], *rows[early : early + spread]]
    ones = [1] * len(lengths)
    plain = (1,) * (len(lengths) + len(together))
    return (
        at,
        together,
        (*ones[:at], *together, *ones[at:]),
        (*lengths[:at], *together, *lengths[at:]),
        *rows,
        *[plain] * (8 - len(rows)),
    )


def _together(kinds: list[int]) -> int:
    """Position of the axes of an index's tensors: in front, unless the tensors are adjacent."""
    places = [at for at, kind in enumerate(kinds) if kind == _TENSOR]
    in_a_row = places and places[-1] - places[0] == len(places) - 1
    return places[0] if in_a_row else 0


def _joined(g: Emitter, one: tuple[Any, ...], two: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shape that both are broadcast to."""
    if len(one) < len(two):
        one, two = two, one
    lead = len(one) - len(two)
    return (*one[:lead], *(_size(g, *pair) for pair in zip(one[lead:], two, strict=True)))


def _size(g: Emitter, one: Any, two: Any) -> Any:
    if one == 1 or one is two:
        return two
    if two == 1:
        return one
    for item in (one, two):
        if type(item) is int:
            return item
    # One of them is 1, or they are equal; the other may be 0.
    is_one = g.node("Equal", one, g.constant(1), dtype=DType.BOOL, shape=())
    return g.node("Where", is_one, two, one, like=one, shape=())


@primitive("RemoveExpandedDims")
def remove_expanded_dims(
    g: Emitter, x: Value, value: Any, is_empty: Any, together: tuple[Any, ...], position: Any, *,
    tuple_index_types: Any = (), empty_indices_out: bool = False, has_true: bool = False,
    has_sequence: bool = False, expand_dims_cnt: int = 0,
) -> tuple[Any, ...]:  # fmt: skip
    """Return whether an assignment writes anything, and the value's shape without new axes.

    Gives 0 for nothing, 1 for the whole tensor and -1 for what is in between; the shape; and where
    the axes of the index's tensors go.
    """
    kinds, rank = _kinds(tuple_index_types), g.rank(x) + expand_dims_cnt
    spread = rank - (len(kinds) - 1) if _ELLIPSIS in kinds else 0
    kept: list[bool] = []
    for kind in kinds:
        if kind == _NONE:
            kept.append(False)
        elif kind == _SLICE:
            kept.append(True)
        elif kind == _ELLIPSIS:
            kept += [True] * spread
    place = number(position)
    if place != -1:
        place = min(place, len(kept))
        kept[place:place] = [False] if has_true and not has_sequence else [True] * len(together)
    kept += [True] * (0 if _ELLIPSIS in kinds else rank - len(kinds))
    front = kept.index(True) if True in kept else len(kept)
    sizes = g.dims(g.constant(value))
    lead = len(kept) - len(sizes)
    if lead < 0:
        raise Unsupported("an assignment of a value of more axes than its place has")
    shape = tuple(size for size, keep in zip(sizes, kept[lead:], strict=True) if keep)
    full = 1 if empty_indices_out else -1
    if isinstance(is_empty, Value):
        nothing = g.cast(is_empty, DType.BOOL)
        what: Any = g.node(
            "Where", nothing, g.constant(0), g.constant(full), dtype=DType.INT64, shape=()
        )
    else:
        what = 0 if is_empty else full
    return what, shape, max(0, place - front)
