"""Tuple indices like x[a:b, ids, ...] of tensors whose sizes are known only at run time.

An index comes with a kind for each of its positions, up to eight, 0 behind the last. How many axes
a tensor has is known when the model is read; so are the lengths of all tuples here, and which
axis a position means. Only the numbers in the tuples may be computed.
"""

from __future__ import annotations

from typing import Any

from engine_mindir.emit import Emitter, Unsupported
from engine_mindir.primitives import primitive
from engine_mindir.primitives.axes import as_int, axes_of
from engine_mindir.values import DType, Value

_NONE, _ELLIPSIS, _SLICE, _TENSOR = 7, 9, 15, 17  # the kinds of a position

_NEW_AXIS = "an index with a new axis, of a tensor whose sizes are open"


def _kinds(types: Any) -> list[int]:
    return [kind for kind in axes_of(types) if kind]


def _axis(kinds: list[int], position: int, rank: int, expanded: int) -> int:
    """Return the axis that a position of the index means. expanded: bit mask of new axes."""
    if expanded:
        raise Unsupported(_NEW_AXIS)
    if _ELLIPSIS in kinds and position > kinds.index(_ELLIPSIS):
        position += rank - len(kinds)
    if not 0 <= position < rank:
        raise Unsupported("an index of more places than the tensor has axes")
    return position


def _range(g: Emitter, start: Any, stop: Any, step: Any = 1) -> Value:
    bounds = (g.scalar(bound, DType.INT64) for bound in (start, stop, step))
    return g.node("Range", *bounds, dtype=DType.INT64, shape=(None,))


def _wrap_index(g: Emitter, index: Any, size: Any) -> Any:
    """Make a possibly negative index count from the start."""
    if type(index) is int:
        return index if index >= 0 else _add(g, index, size)
    index = g.cast(index, DType.INT64)
    is_negative = g.node("Less", index, 0, dtype=DType.BOOL, shape=index.shape)
    wrapped = g.node("Add", index, g.scalar(size, DType.INT64), shape=index.shape)
    return g.node("Where", is_negative, wrapped, index, like=index, shape=index.shape)


def _add(g: Emitter, index: int, size: Any) -> Any:
    if type(size) is int:
        return index + size
    return g.node("Add", g.scalar(size, DType.INT64), index, shape=())


def _clamp_bound(g: Emitter, bound: Any, size: Any) -> Any:
    """Clamp a bound of a slice to the axis."""
    bound = _wrap_index(g, bound, size)
    if type(bound) is int and (bound == 0 or type(size) is int):
        return min(max(bound, 0), size) if bound else 0
    upper = g.node("Min", g.scalar(bound, DType.INT64), g.scalar(size, DType.INT64), shape=())
    return g.node("Max", upper, 0, shape=())


@primitive("SliceToIndices")
def slice_to_indices(
    g: Emitter, x: Value, start: Any, stop: Any, step: Any, *, tuple_index_axis: int = 0,
    tuple_index_types: Any = (), expand_dims_mask: int = 0, init_by_none: Any = (0, 0, 0),
) -> tuple[Any, ...]:  # fmt: skip
    """Return a slice's indices, result shape, start, stop, step, and 1 if it is empty, else 0."""
    kinds, dims = _kinds(tuple_index_types), g.dims(x)
    size = dims[_axis(kinds, tuple_index_axis, len(dims), expand_dims_mask) if kinds else 0]
    no_start, no_stop, no_step = axes_of(init_by_none)
    step = 1 if no_step else as_int(step)
    if step < 1:  # an open end would be the other one, and be clamped in another way
        raise Unsupported(f"a slice with step {step} of a tensor whose sizes are open")
    first = 0 if no_start else _clamp_bound(g, start, size)
    last = size if no_stop else _clamp_bound(g, stop, size)
    indices = _range(g, first, last, step)
    if type(first) is int and type(last) is int:
        count: Any = len(range(first, last, step))
        empty: Any = int(not count)
        indices.shape = (count,)
    else:
        count = g.dim(indices, 0)
        is_empty = g.node("Equal", count, g.constant(0), dtype=DType.BOOL, shape=())
        empty = g.cast(is_empty, DType.INT64)
    if not kinds:
        indices = g.unsqueeze(indices, (-1,))
    return indices, (count, *dims[1:]), first, last, step, empty


@primitive("NormalizeTupleIndex")
def normalize_tuple_index(
    g: Emitter, x: Value, index: Any, *, origin_index_type: str, tuple_index_axis: int = 0,
    tuple_index_types: Any = (), expand_dims_mask: int = 0,
) -> Value:  # fmt: skip
    """Return one position of an index as a tensor of non-negative numbers."""
    kinds, rank = _kinds(tuple_index_types), g.rank(x)
    if origin_index_type == "ellipsis_index":  # the place counts the axes that "..." stands for
        if expand_dims_mask:
            raise Unsupported(_NEW_AXIS)
        axis = kinds.index(_ELLIPSIS) + tuple_index_axis
        if tuple_index_axis > rank - len(kinds):
            return g.constant((1,))
        return _range(g, 0, g.dim(x, axis))
    size = g.dim(x, _axis(kinds, tuple_index_axis, rank, expand_dims_mask))
    if origin_index_type == "none_index":
        return _range(g, 0, size)
    if "bool" in origin_index_type:
        return g.ints(tuple(position for position, part in enumerate(axes_of(index)) if part))
    if isinstance(index, tuple):
        return g.ints(tuple(_wrap_index(g, part, size) for part in index))
    wrapped = _wrap_index(g, index, size)
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
    ellipsis_rank = g.rank(x) + expand_dims_cnt - (len(kinds) - 1) if _ELLIPSIS in kinds else 0
    before = kinds.index(_ELLIPSIS) if ellipsis_rank else 0
    order = [kind for kind in kinds if kind != _ELLIPSIS]  # the axes of "..." come last
    expanded_kinds = (
        [*kinds[:before], *[_SLICE] * ellipsis_rank, *kinds[before + 1 :]]
        if ellipsis_rank
        else kinds
    )
    broadcast: tuple[Any, ...] = ()
    if tuple_index_info_type == "pre_setitem_by_tuple":  # the slices are not here yet
        for tensor in tensors[: kinds.count(_TENSOR)]:
            broadcast = _broadcast_shape(g, broadcast, g.dims(tensor))
        return (_tensor_axes_position(expanded_kinds), broadcast, *[()] * 10)
    shapes = [g.dims(tensor) for tensor in tensors[: len(order) + ellipsis_rank]]
    lengths = []
    for insert_at, shape in enumerate(shapes):
        if insert_at < len(order) and order[insert_at] == _TENSOR:
            broadcast = _broadcast_shape(g, broadcast, shape)
        else:
            lengths.append(shape[0])
    if tuple_index_info_type == "setitem_by_tuple_with_tensor" and len(broadcast) < 2:
        broadcast = (1, *broadcast)
    if not tuple_index_info_type.startswith("setitem"):
        position = _tensor_axes_position(expanded_kinds)
    insert_at = min(as_int(position), len(lengths))
    slices_before = kinds[:before].count(_SLICE) if ellipsis_rank else 0
    if ellipsis_rank:  # back to where "..." was written
        head = len(lengths) - ellipsis_rank
        lengths = [*lengths[:slices_before], *lengths[head:], *lengths[slices_before:head]]
    rows = []
    for axis, length in enumerate(lengths):
        row = [length if index == axis else 1 for index in range(len(lengths))]
        rows.append((*row[:insert_at], *[1] * len(broadcast), *row[insert_at:]))
    if ellipsis_rank:
        rows = [
            *rows[:slices_before],
            *rows[slices_before + ellipsis_rank :],
            *rows[slices_before : slices_before + ellipsis_rank],
        ]
    ones = [1] * len(lengths)
    ones_shape = (1,) * (len(lengths) + len(broadcast))
    return (
        insert_at,
        broadcast,
        (*ones[:insert_at], *broadcast, *ones[insert_at:]),
        (*lengths[:insert_at], *broadcast, *lengths[insert_at:]),
        *rows,
        *[ones_shape] * (8 - len(rows)),
    )


def _tensor_axes_position(kinds: list[int]) -> int:
    """Return where the tensors' axes go in the result: in front, unless they are adjacent."""
    positions = [position for position, kind in enumerate(kinds) if kind == _TENSOR]
    are_adjacent = positions and positions[-1] - positions[0] == len(positions) - 1
    return positions[0] if are_adjacent else 0


def _broadcast_shape(
    g: Emitter, longer: tuple[Any, ...], shorter: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Return the shape that both are broadcast to."""
    if len(longer) < len(shorter):
        longer, shorter = shorter, longer
    lead = len(longer) - len(shorter)
    return (
        *longer[:lead],
        *(_broadcast_size(g, *pair) for pair in zip(longer[lead:], shorter, strict=True)),
    )


def _broadcast_size(g: Emitter, left: Any, right: Any) -> Any:
    if left == 1 or left is right:
        return right
    if right == 1:
        return left
    for size in (left, right):
        if type(size) is int:
            return size
    # One of them is 1, or they are equal; the other may be 0.
    is_one = g.node("Equal", left, g.constant(1), dtype=DType.BOOL, shape=())
    return g.node("Where", is_one, right, left, like=left, shape=())


@primitive("RemoveExpandedDims")
def remove_expanded_dims(
    g: Emitter, x: Value, value: Any, is_empty: Any, together: tuple[Any, ...], position: Any, *,
    tuple_index_types: Any = (), empty_indices_out: bool = False, has_true: bool = False,
    has_sequence: bool = False, expand_dims_cnt: int = 0,
) -> tuple[Any, ...]:  # fmt: skip
    """Return how much an assignment writes, and the value's shape without new axes.

    Gives 0 for nothing, 1 for the whole tensor and -1 for what is in between; the shape; and where
    the axes of the index's tensors go.
    """
    kinds, rank = _kinds(tuple_index_types), g.rank(x) + expand_dims_cnt
    ellipsis_rank = rank - (len(kinds) - 1) if _ELLIPSIS in kinds else 0
    kept: list[bool] = []
    for kind in kinds:
        if kind == _NONE:
            kept.append(False)
        elif kind == _SLICE:
            kept.append(True)
        elif kind == _ELLIPSIS:
            kept += [True] * ellipsis_rank
    insert_at = as_int(position)
    if insert_at != -1:
        insert_at = min(insert_at, len(kept))
        kept[insert_at:insert_at] = (
            [False] if has_true and not has_sequence else [True] * len(together)
        )
    kept += [True] * (0 if _ELLIPSIS in kinds else rank - len(kinds))
    front = kept.index(True) if True in kept else len(kept)
    sizes = g.dims(g.constant(value))
    lead = len(kept) - len(sizes)
    if lead < 0:
        raise Unsupported("an assignment of a value of more axes than its place has")
    shape = tuple(size for size, keep in zip(sizes, kept[lead:], strict=True) if keep)
    full = 1 if empty_indices_out else -1
    if isinstance(is_empty, Value):
        empty = g.cast(is_empty, DType.BOOL)
        status: Any = g.node(
            "Where", empty, g.constant(0), g.constant(full), dtype=DType.INT64, shape=()
        )
    else:
        status = 0 if is_empty else full
    return status, shape, max(0, insert_at - front)
