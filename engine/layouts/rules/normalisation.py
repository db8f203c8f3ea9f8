"""Normalisations and the operators that work along one axis, which stays whole."""

from __future__ import annotations

from collections.abc import Iterator

from engine.layouts.rules.op import Op, Way, divided
from engine.layouts.states import WHOLE, lengths


def layer_norm(op: Op) -> Iterator[Way]:
    """Normalise the axes from `axis` on: any before them may be divided."""
    shape = op.shape(op.inputs[0])
    if shape is None:
        return
    axis = op.axis(-1, len(shape))
    for state in op.states(op.inputs[0]):
        if state.axis < axis:
            yield op.way({0: state}, dict.fromkeys(range(len(op.outputs)), state))


def skip_layer_norm(op: Op) -> Iterator[Way]:
    """Normalise the last axis of a sum of two."""
    shape = op.shape(op.inputs[0])
    if shape is None or op.shape(op.inputs[1]) != shape:
        return
    for state in op.states(op.inputs[0]):
        if state.axis < len(shape) - 1:
            yield op.way({0: state, 1: state}, {0: state, 3: state})


def along_axis(op: Op) -> Iterator[Way]:
    """Softmax, CumSum, TopK and the like: any axis but theirs may be divided."""
    shape = op.shape(op.inputs[0])
    if shape is None:
        return
    rank, kind = len(shape), op.node.op_type
    if kind in ("CumSum", "CumProd"):
        axes = op.ints(1)
        if axes is None:
            return
        kept = {axes[0] % max(rank, 1)}
    elif kind in ("Softmax", "LogSoftmax", "Hardmax") and op.version < 13:
        kept = set(range(op.axis(1, rank), rank))
    else:
        default = 0 if kind in ("ArgMax", "ArgMin") else -1
        kept = {op.axis(default, rank)}
    loses = kind in ("ArgMax", "ArgMin") and not op.attribute("keepdims", 1)
    for state in op.states(op.inputs[0]):
        if state.axis not in kept:
            shift = 1 if loses and state.axis > min(kept) else 0
            result = state.on(state.axis - shift)
            yield op.way({0: state}, dict.fromkeys(range(len(op.outputs)), result))


def batch_norm(op: Op) -> Iterator[Way]:
    """Statistics are each channel's own: channels may be divided with them, samples without."""
    for state in op.states(op.inputs[0]):
        own = state.on(0) if state.axis == 1 else WHOLE
        if len(op.outputs) == 1:
            yield op.way({0: state, 1: own, 2: own, 3: own, 4: own}, {0: state})


def instance_norm(op: Op) -> Iterator[Way]:
    """Each channel of each sample is normalised by itself."""
    for state in op.states(op.inputs[0]):
        if state.axis < 2:
            own = state.on(0) if state.axis == 1 else WHOLE
            yield op.way({0: state, 1: own, 2: own}, {0: state})


def group_norm(op: Op) -> Iterator[Way]:
    """Groups of channels may be divided, from operator set 21 on with their scales."""
    groups = int(op.attribute("num_groups", 1))
    yield from op.alike(lambda axis: axis == 0)
    shape = op.shape(op.inputs[0])
    if shape is None or len(shape) < 2 or not isinstance(shape[1], int) or op.version < 21:
        return
    own = op.division(1, shape[1], unit=max(shape[1] // groups, 1))
    if own is not None:
        yield op.way(
            {0: own, 1: own.on(0), 2: own.on(0)},
            {0: own},
            divided("num_groups", lengths(groups, op.ranks)),
        )


def mean_variance(op: Op) -> Iterator[Way]:
    """MeanVarianceNormalization: axes other than those that it joins, by default all but 1."""
    shape = op.shape(op.inputs[0])
    if shape is None:
        return
    joined = {int(axis) % len(shape) for axis in op.attribute("axes", (0, 2, 3))}
    yield from op.alike(lambda axis: axis not in joined)


def samples(op: Op) -> Iterator[Way]:
    """LRN and the like: only samples may be divided."""
    yield from op.alike(lambda axis: axis == 0)
