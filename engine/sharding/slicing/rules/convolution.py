"""Convolutions by output channels, and what treats channels alike: pooling, resizing."""

from __future__ import annotations

from collections.abc import Iterator

from engine.sharding.slicing.rules.op import Op, Way, divided
from engine.sharding.slicing.states import WHOLE, shard


def conv(op: Op) -> Iterator[Way]:
    """Conv: output channels; whole groups of channels; samples."""
    x, w = op.shape(op.inputs[0]), op.shape(op.inputs[1])
    if x is None or w is None or len(w) < 3:
        return
    groups = int(op.attribute("group", 1))
    for state in op.axis_states(op.outputs[0], 0):
        yield op.way({0: state}, {0: state})
    if groups == 1:
        for state in op.axis_states(op.outputs[0], 1):
            own = shard(0, state.blocks)
            yield op.way({1: own, 2: own}, {0: state})
        return
    yield from _groups(op, groups, x[1], w[0], 0)


def conv_transpose(op: Op) -> Iterator[Way]:
    """ConvTranspose: as Conv, but its weights have the output channels in their second axis."""
    x, w = op.shape(op.inputs[0]), op.shape(op.inputs[1])
    if x is None or w is None or len(w) < 3:
        return
    groups = int(op.attribute("group", 1))
    for state in op.axis_states(op.outputs[0], 0):
        yield op.way({0: state}, {0: state})
    if groups == 1:
        for state in op.axis_states(op.outputs[0], 1):
            yield op.way({1: shard(1, state.blocks), 2: shard(0, state.blocks)}, {0: state})
        return
    channels = op.shape(op.outputs[0])
    if channels is not None:
        yield from _groups(op, groups, x[1], channels[1], 1)


def _groups(op: Op, groups: int, inside: object, out: object, weights: int) -> Iterator[Way]:
    """Divide the groups; input, weights and output with them.

    weights: the axis of the weights, without groups, of the output's channels.
    """
    if not isinstance(inside, int) or not isinstance(out, int) or groups % op.ranks:
        return
    for state in op.axis_states(op.inputs[0], 1):
        each = inside // groups
        if any(block % (each * op.ranks) for block in state.blocks or (inside,)):
            continue
        result = shard(1, tuple(block * out // inside for block in state.blocks))
        of_weights = state if weights else result
        own = shard(0, of_weights.blocks)
        yield op.way(
            {0: state, 1: own, 2: shard(0, result.blocks)},
            {0: result},
            divided("group", groups),
        )


def pool(op: Op) -> Iterator[Way]:
    """Channels and samples may be divided: neither meets another.

    Not where MaxPool gives indices, too: they count through the whole tensor.
    """
    if any(op.outputs[1:]):
        return
    for state in op.states(op.inputs[0]):
        if state.axis < 2:
            yield op.way({0: state}, {0: state})


def resize(op: Op) -> Iterator[Way]:
    """Resize and Upsample by constant scales: axes that keep their size may be divided."""
    shape = op.shape(op.inputs[0])
    at = 1 if op.node.op_type == "Upsample" or op.version < 11 else 2
    scales = op.value(at)
    if shape is None or scales is None or scales.size != len(shape) or op.input(3):
        return
    for state in op.states(op.inputs[0]):
        if scales.reshape(-1)[state.axis] == 1:
            yield op.way({0: state, at: WHOLE}, {0: state})
