"""Reductions, normalisations, and what else works along axes."""

from __future__ import annotations

from collections.abc import Collection

from engine.layouts.batch.node import Node, counted, require, require_known
from engine.layouts.batch.rules.elementwise import broadcast
from engine.layouts.batch.rules.shapes import moved
from engine.layouts.batch.sizes import Dim
from engine.layouts.batch.values import Value, divided, whole

_AXES_INPUT = {"ReduceSum": 13}
"""From which operator set on the axes are an input; 18 for those that are not here."""


def reduction(node: Node) -> list[Value]:
    """Reduce axes, the samples' not among them."""
    value = node.input(0)
    rank = value.rank
    keeps = bool(node.attributes.get("keepdims", 1))
    if node.version >= _AXES_INPUT.get(node.op_type, 18):
        axes = node.ints(1) if node.has(1) else []
        node.require_whole(1)
    else:
        axes = [int(axis) for axis in node.attributes.get("axes", ())]
    require(axes is not None or value.is_whole, "which axes it reduces is not known")
    if axes is None:
        return [whole()]
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        return [moved(value, value.dims, value.axis)]
    reduced = {counted(axis, rank) for axis in axes} or {*range(rank)}
    return [_without(value, reduced, keeps)]


def _without(value: Value, reduced: Collection[int], keeps: bool) -> Value:
    require(value.axis not in reduced, "it reduces the batch")
    shape: list[Dim] = []
    for axis, size in enumerate(value.dims):
        if axis not in reduced:
            shape.append(size)
        elif keeps:
            shape.append(1)
    lost = 0 if keeps else sum(axis < value.axis for axis in reduced)
    return moved(value, tuple(shape), value.axis - lost)


def arg(node: Node) -> list[Value]:
    """ArgMax and ArgMin."""
    value = node.input(0)
    axis = node.axis(0, value.rank)
    return [_without(value, {axis}, bool(node.attributes.get("keepdims", 1)))]


def along_axis(node: Node) -> list[Value]:
    """Softmax and the like: they join what lies along an axis."""
    value = node.input(0)
    rank = value.rank
    if node.op_type in ("Softmax", "LogSoftmax", "Hardmax") and node.version < 13:
        kept = set(range(node.axis(1, rank), rank))
    else:
        kept = {node.axis(-1, rank)}
    require(value.axis not in kept, f"it works along axis {value.axis}, which is the batch")
    return [moved(value, value.dims, value.axis)] * node.count


def cumulated(node: Node) -> list[Value]:
    """CumSum and CumProd."""
    value, axes = node.input(0), node.ints(1)
    node.require_whole(1)
    if axes is None:
        require(value.is_whole, "along which axis it works is not known")
        return [whole(value.shape)]
    axis = counted(axes[0], value.rank)
    require(axis != value.axis, f"it works along axis {axis}, which is the batch")
    return [moved(value, value.dims, value.axis)]


def layer_norm(node: Node) -> list[Value]:
    """Normalise the axes from `axis` on; scale and bias are the same for every sample."""
    value = node.input(0)
    rank = value.rank
    axis = node.axis(-1, rank)
    require(value.axis < axis, "it normalises the batch")
    for index in range(1, len(node.inputs)):
        node.require_whole(index)
        scale = node.maybe(index)
        if scale is not None and value.is_divided:
            place = value.axis - (rank - scale.rank)
            require(place < 0 or scale.dims[place] == 1, "its scale has the batch's axis")
    small = (*value.dims[:axis], *(1 for _ in range(axis, rank)))
    result = moved(value, value.dims, value.axis)
    return [result, *[moved(value, small, value.axis)] * (node.count - 1)]


def skip_layer_norm(node: Node) -> list[Value]:
    """Normalise the last axis of a sum of two, for com.microsoft."""
    value, skip = node.input(0), node.input(1)
    node.require_whole(*range(2, len(node.inputs)))
    total = broadcast([value, skip], node.symbols)
    require(value.is_divided or not skip.is_divided, "only what is skipped is divided")
    rank = total.rank
    require(total.axis < rank - 1, "it normalises the batch")
    small = moved(total, (*total.dims[:-1], 1), total.axis)
    return [total, small, small, total][: node.count]


def batch_norm(node: Node) -> list[Value]:
    """Statistics are those of training, one for each channel."""
    value = node.input(0)
    require(not node.attributes.get("training_mode", 0), "it is in training mode")
    require(
        node.version >= 7 or bool(node.attributes.get("is_test", 0)), "it may be in training mode"
    )
    require(all(not node.makes(index) for index in range(1, node.count)), "it is for training")
    node.require_whole(*range(1, len(node.inputs)))
    require(value.axis <= 0, "the batch is not its first axis")
    return [moved(value, value.dims, value.axis)]


def samples(node: Node) -> list[Value]:
    """Work on each entry of the first axis by itself; all other inputs are whole."""
    value = node.input(0)
    node.require_whole(*range(1, len(node.inputs)))
    require(value.axis <= 0, "the batch is not its first axis")
    return [moved(value, value.dims, value.axis)]


def mean_variance(node: Node) -> list[Value]:
    """MeanVarianceNormalization."""
    value = node.input(0)
    require(node.version >= 9 or value.is_whole, "its axes are others before operator set 9")
    axes = {counted(int(axis), value.rank) for axis in node.attributes.get("axes", (0, 2, 3))}
    require(value.axis not in axes, "it normalises the batch")
    return [moved(value, value.dims, value.axis)]


def dropout(node: Node) -> list[Value]:
    """Dropout as inference has it."""
    value = node.input(0)
    if node.version < 7:
        require(bool(node.attributes.get("is_test", 0)), "it may be in training mode")
    mode = node.maybe(2)
    if mode is not None:
        known = mode.elements is not None and not any(map(bool, mode.elements.flat))
        require(known and mode.is_whole, "it may be in training mode")
    return [moved(value, value.dims, value.axis)] * node.count


def determinant(node: Node) -> list[Value]:
    """Det and Inverse: the last two axes are the matrices."""
    value = node.input(0)
    require(value.axis < value.rank - 2, "the batch is an axis of its matrices")
    shape = value.dims if node.op_type == "Inverse" else value.dims[:-2]
    return [divided(value.axis, shape) if value.is_divided else whole(shape)]


def fourier(node: Node) -> list[Value]:
    """DFT along an axis that is not the samples'."""
    value = node.input(0)
    node.require_whole(1, 2)
    rank = value.rank
    if node.version >= 20:
        given = node.ints(2) if node.has(2) else [-2]
        axes = require_known(given, "along which axis it works is not known")
        axis = counted(axes[0], rank)
    else:
        axis = node.axis(1, rank)
    require(value.axis not in (axis, rank - 1), "it works along the batch")
    dims = list(value.dims)
    dims[axis], dims[-1] = node.symbols.new(), node.symbols.new()
    return [moved(value, tuple(dims), value.axis)]


def short_fourier(node: Node) -> list[Value]:
    """STFT of each sample's signal."""
    value = node.input(0)
    node.require_whole(1, 2, 3)
    require(value.axis <= 0, "the batch is not its first axis")
    first = value.dims[0]
    shape = (first, node.symbols.new(), node.symbols.new(), 2)
    return [divided(0, shape) if value.is_divided else whole(shape)]
