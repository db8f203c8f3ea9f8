"""Convolutions by output channels, and what treats channels alike: pooling, resizing."""

from __future__ import annotations

from collections.abc import Iterator

from engine.layouts.rules.op import Change, Op, Way, divided, is_shape, sized
from engine.layouts.states import Array, State, lengths


def conv(op: Op) -> Iterator[Way]:
    """Conv: output channels; whole groups of channels; samples."""
    yield from _by_channels(op, beside=(2,))


def conv_transpose(op: Op) -> Iterator[Way]:
    """ConvTranspose: as Conv, but its weights have the output channels in their second axis."""
    yield from _by_channels(op, beside=(2,), axis=1)


def conv_integer(op: Op) -> Iterator[Way]:
    """ConvInteger: as Conv, with a zero point for all weights or for each output channel."""
    yield from _by_channels(op, beside=_of_channels(op, 3))


def qlinear_conv(op: Op) -> Iterator[Way]:
    """QLinearConv: as Conv, with scales and zero points."""
    yield from _by_channels(op, place=3, beside=_of_channels(op, 4, 5, 8))


def _of_channels(op: Op, *places: int) -> tuple[int, ...]:
    """Return those inputs that are not one number for all channels."""
    return tuple(place for place in places if op.shape(op.input(place)) not in ((), (1,)))


def _by_channels(op: Op, beside: tuple[int, ...], place: int = 1, axis: int = 0) -> Iterator[Way]:
    """Divide samples, output channels or groups.

    beside: inputs with an entry for each output channel. place: of the weights. axis: theirs of the
    output channels.
    """
    x, w = op.shape(op.inputs[0]), op.shape(op.input(place))
    if x is None or w is None or len(w) < 3:
        return
    groups = int(op.attribute("group", 1))
    for state in op.axis_states(op.outputs[0], 0):
        yield op.way({0: state}, {0: state})
    if groups == 1:
        for state in op.axis_states(op.outputs[0], 1):
            own = {place: state.on(axis)} | dict.fromkeys(beside, state.on(0))
            yield op.way(own, {0: state})
        return
    out = w[axis]
    if axis and isinstance(out, int):  # there the weights have those of one group
        out *= groups
    for state, result, change in _groups(op, groups, x[1], out):
        own = {0: state, place: (state if axis else result).on(0)}
        yield op.way(own | dict.fromkeys(beside, result.on(0)), {0: result}, change)


def _groups(
    op: Op, groups: int, inside: object, out: object
) -> Iterator[tuple[State, State, Change]]:
    """Yield how groups divide the channels of the input and of the output."""
    if not isinstance(inside, int) or not isinstance(out, int):
        return
    each, made = inside // groups, out // groups
    blocks = {state.blocks or (inside,) for state in op.axis_states(op.inputs[0], 1)}
    blocks |= {
        tuple(block * inside // out for block in state.blocks or (out,))
        for state in op.axis_states(op.outputs[0], 1)
    }
    for sizes in sorted(blocks):
        state = op.division(1, *sizes, unit=each)
        result = op.division(1, *(size // each * made for size in sizes), unit=made)
        if state is None or result is None or sum(sizes) != inside:
            continue
        numbers = [lengths(size // each, op.ranks) for size in sizes]
        yield state, result, divided("group", [sum(of_rank) for of_rank in zip(*numbers)])


def pool(op: Op) -> Iterator[Way]:
    """Channels and samples may be divided: neither meets another.

    Not where MaxPool gives indices, too: they count through the whole tensor.
    """
    if not any(op.outputs[1:]):
        yield from op.alike(lambda axis: axis < 2)


def resize(op: Op) -> Iterator[Way]:
    """Resize and Upsample, to scales or sizes: axes that keep their size may be divided."""
    shape, made = op.shape(op.inputs[0]), op.shape(op.outputs[0])
    at = 1 if op.node.op_type == "Upsample" or op.version < 11 else 2
    scales = op.value(at)
    axes = op.attribute("axes")
    if shape is None:
        return
    named = {axis % len(shape) for axis in axes} if axes is not None else {*range(len(shape))}
    is_sized = bool(op.input(3))
    if op.attribute("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        return  # crops along all axes that it names
    if is_sized and op.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        return  # one axis decides about another
    for state in op.states(op.inputs[0]):
        axis = state.axis
        if axis not in named:
            yield op.way({0: state}, {0: state})
        elif is_sized:
            size = shape[axis]
            keeps = made is not None and made[axis] == size
            if keeps and isinstance(size, int) and axes is None and is_shape(op, 3):
                yield op.way({0: state}, {0: state}, sized(op, 3, axis, size, state))
        elif axes is None and _keeps(scales, len(shape), axis):
            yield op.way({0: state}, {0: state})


def _keeps(scales: Array | None, rank: int, axis: int) -> bool:
    """Return whether scales, one for each axis, leave one as it is."""
    return scales is not None and scales.size == rank and bool(scales.reshape(-1)[axis] == 1)


def grid_sample(op: Op) -> Iterator[Way]:
    """Channels with the same places for all, or samples with their places."""
    yield from op.alike(lambda axis: axis == 1)
    for state in op.axis_states(op.inputs[0], 0):
        yield op.way({0: state, 1: state}, {0: state})


def roi_align(op: Op) -> Iterator[Way]:
    """Channels, or regions with the samples that they are of."""
    yield from op.alike(lambda axis: axis == 1)
    for state in op.axis_states(op.outputs[0], 0):
        yield op.way({1: state, 2: state}, {0: state})
