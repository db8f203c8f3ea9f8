"""Convolutions, pooling, resizing: each sample by itself where the batch is the first axis."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

import numpy as np

from engine.layouts.batch.node import Node, counted, require, require_beside, require_known
from engine.layouts.batch.rules.elementwise import broadcast
from engine.layouts.batch.rules.shapes import moved
from engine.layouts.batch.sizes import BATCH, Dim
from engine.layouts.batch.values import Shape, Value, divided, whole

_FIRST = "the batch is not its first axis"


def _of_samples(value: Value, shape: Shape) -> Value:
    require(value.axis <= 0, _FIRST)
    return divided(0, shape) if value.is_divided else whole(shape)


def conv(node: Node) -> list[Value]:
    """Conv, also of integers: the weights are the same for every sample."""
    node.require_whole(*range(1, len(node.inputs)))
    made = _convolved(node, 3 if node.op_type == "QLinearConv" else 1)
    scales = {"ConvInteger": (2,), "QLinearConv": (1, 2, 6, 7)}.get(node.op_type, ())
    for index in scales if made.is_divided else ():
        scale = node.maybe(index)
        require(scale is None or all(size == 1 for size in scale.dims), "its scales are many")
    return [made]


def _convolved(node: Node, weights: int = 1) -> Value:
    """Return a convolution's result. weights: the place of its weights."""
    x, w = node.input(0), node.input(weights)
    sizes = _windows(node, x.dims[2:], node.attributes.get("kernel_shape") or w.dims[2:])
    return _of_samples(x, (x.dims[0], w.dims[0], *sizes))


def conv_transpose(node: Node) -> list[Value]:
    """ConvTranspose."""
    x, w = node.input(0), node.input(1)
    node.require_whole(*range(1, len(node.inputs)))
    channels = w.dims[1] * int(node.attributes.get("group", 1))
    sizes = _enlarged(node, x.dims[2:], node.attributes.get("kernel_shape") or w.dims[2:])
    return [_of_samples(x, (x.dims[0], channels, *sizes))]


def _enlarged(node: Node, sizes: Sequence[Dim], kernel: Sequence[Dim]) -> list[Dim]:
    given = node.attributes
    count = len(sizes)
    if "output_shape" in given:
        return [int(size) for size in given["output_shape"][-count:]]
    if given.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return [node.symbols.new() for _ in sizes]
    strides, dilations = given.get("strides", [1] * count), given.get("dilations", [1] * count)
    pads, more = given.get("pads", [0] * 2 * count), given.get("output_padding", [0] * count)
    return [
        (size - 1) * stride + extra + (each - 1) * dilation + 1 - pads[i] - pads[i + count]
        for i, (size, each, stride, dilation, extra) in enumerate(
            zip(sizes, kernel, strides, dilations, more)
        )
    ]


def deform_conv(node: Node) -> list[Value]:
    """DeformConv: offsets and masks are each sample's."""
    x, offsets, mask = node.input(0), node.input(2), node.maybe(4)
    node.require_whole(1, 3)
    require_beside([x, offsets, *([mask] if mask is not None else [])])
    return [_convolved(node)]


def pool(node: Node) -> list[Value]:
    """Pooling by windows; places in the whole tensor would count through all samples."""
    x = node.input(0)
    node.require_whole(*range(1, len(node.inputs)))
    require(not node.makes(1), "the places it gives count through the whole batch")
    sizes = _windows(node, x.dims[2:], node.attributes["kernel_shape"])
    return [_of_samples(x, (*x.dims[:2], *sizes))]


def global_pool(node: Node) -> list[Value]:
    """Pooling of all but samples and channels."""
    x = node.input(0)
    return [_of_samples(x, (*x.dims[:2], *(1 for _ in x.dims[2:])))]


def _windows(node: Node, sizes: Sequence[Dim], kernel: Sequence[Dim]) -> list[Dim]:
    """Return how many windows there are along each axis."""
    given = node.attributes
    count = len(sizes)
    padding = given.get("auto_pad", "NOTSET")
    strides, dilations = given.get("strides", [1] * count), given.get("dilations", [1] * count)
    pads = given.get("pads", [0] * 2 * count) if padding == "NOTSET" else [0] * 2 * count
    made: list[Dim] = []
    for i, (size, each, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations)):
        if padding.startswith("SAME"):
            # Runtimes do not agree on the sizes of windows with gaps.
            is_known = isinstance(size, int) and dilation == 1
            made.append(-(-size // stride) if is_known else node.symbols.new())
            continue
        room = size + (pads[i] + pads[i + count]) - (each - 1) * dilation - 1
        if stride == 1:
            made.append(room + 1)
        elif isinstance(room, int):
            is_known = not given.get("ceil_mode", 0) or not room % stride
            made.append(room // stride + 1 if is_known else node.symbols.new())
        else:
            made.append(
                node.symbols.of("windows", room, stride, given.get("ceil_mode", 0), pads[i])
            )
    return made


def resize(node: Node) -> list[Value]:
    """Resize and Upsample: the axis of the batch keeps its size."""
    x = node.input(0)
    given, rank = node.attributes, x.rank
    node.require_whole(*range(1, len(node.inputs)) if x.is_whole else (1, 2))
    is_nearest = given.get("mode", "nearest") == "nearest"
    # Entries beside have weight 0 along other axes, which shows them where they are no numbers.
    require(
        x.is_whole or is_nearest or (x.axis == 0 and rank > 3), "it weighs entries along the batch"
    )
    by_region = given.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    require(not by_region or x.is_whole, "it may cut a part of the batch")
    at = 1 if node.op_type == "Upsample" or node.version < 11 else 2
    axes = [counted(int(axis), rank) for axis in given.get("axes", range(rank))]
    policy = given.get("keep_aspect_ratio_policy", "stretch")
    sizes: list[Dim] | None = None
    scales: Sequence[object] | None = given.get("scales")
    if node.has(3):
        require(not depends_on_data(node, 3), "its sizes are each sample's own")
        sizes = node.dims(3)
        require(sizes is not None, "its sizes depend on the batch")
        require(policy == "stretch" or x.axis not in axes or x.is_whole, "it keeps proportions")
    elif scales is None:
        node.require_whole(at)
        elements = node.input(at).elements
        scales = list(elements.flat) if elements is not None else None
    dims = list(x.dims)
    if x.is_divided and x.axis in axes:
        place = axes.index(x.axis)
        if sizes is not None:
            require(sizes[place] == x.size, "it may change the size of the batch")
        else:
            require(
                scales is not None and scales[place] in (1, 1.0), "it may change the batch's size"
            )
    for place, axis in enumerate(axes):
        if axis == x.axis and x.is_divided:
            continue
        scale = scales[place] if scales is not None else None
        size = dims[axis]
        if sizes is not None and policy == "stretch":
            dims[axis] = sizes[place]
        elif sizes is None and isinstance(scale, int | float) and isinstance(size, int):
            exact = floor(size * float(scale))
            # Backends multiply with either precision.
            is_same = exact == int(np.float32(size) * np.float32(scale))
            dims[axis] = exact if is_same else node.symbols.new()
        elif not (sizes is None and scale in (1, 1.0)):
            dims[axis] = node.symbols.new()
    return [moved(x, tuple(dims), x.axis)]


def depends_on_data(node: Node, index: int) -> bool:
    """Return whether an input holds other than what is whole, or computed from sizes."""
    value = node.input(index)
    return not value.is_whole and value.elements is None


def grid_sample(node: Node) -> list[Value]:
    """GridSample: each sample by its own grid."""
    x, grid = node.input(0), node.input(1)
    require_beside([x, grid])
    return [_of_samples(x, (x.dims[0], x.dims[1], *grid.dims[1:-1]))]


def affine_grid(node: Node) -> list[Value]:
    """AffineGrid: a grid for each sample's own matrix."""
    theta, sizes = node.input(0), require_known(node.dims(1), "its sizes are not known")
    if theta.is_divided:
        require(theta.axis == 0 and sizes[0] == theta.size == BATCH, "its sizes are of others")
    return [_of_samples(theta, (sizes[0], *sizes[2:], len(sizes) - 2))]


def space(node: Node) -> list[Value]:
    """DepthToSpace and SpaceToDepth."""
    x = node.input(0)
    block = int(node.attributes["blocksize"])
    samples, channels, *sizes = x.dims
    if node.op_type == "DepthToSpace":
        shape = (samples, _shared(node, channels, block * block), *(s * block for s in sizes))
    else:
        shape = (samples, channels * (block * block), *(_shared(node, s, block) for s in sizes))
    return [_of_samples(x, shape)]


def _shared(node: Node, size: Dim, by: int) -> Dim:
    return size // by if isinstance(size, int) else node.symbols.of("quotient", size, by)


def region(node: Node) -> list[Value]:
    """CenterCropPad: axes that are named, the samples' not among them."""
    x = node.input(0)
    node.require_whole(1)
    axes = [counted(int(axis), x.rank) for axis in node.attributes.get("axes", range(x.rank))]
    require(x.axis not in axes or not x.is_divided, "it may change the size of the batch")
    sizes = require_known(node.dims(1), "its sizes are not known")
    dims = list(x.dims)
    for axis, size in zip(axes, sizes):
        dims[axis] = size
    return [moved(x, tuple(dims), x.axis)]


def columns(node: Node) -> list[Value]:
    """Col2Im of each sample."""
    x = node.input(0)
    node.require_whole(1, 2)
    sizes = require_known(node.dims(1), "its sizes are not known")
    return [_of_samples(x, (x.dims[0], node.symbols.new(), *sizes))]


def fused_conv(node: Node) -> list[Value]:
    """FusedConv of com.microsoft, which may add a second tensor."""
    node.require_whole(1, 2)
    made, rest = _convolved(node), node.maybe(3)
    return [made if rest is None else broadcast([made, rest], node.symbols)]
