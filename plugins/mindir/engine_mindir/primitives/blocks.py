"""Blocks of an image as channels or as images of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine_mindir.emit import Emitter
from engine_mindir.primitives import primitive
from engine_mindir.primitives.axes import axes_of
from engine_mindir.primitives.padding import pad_with, pairs_of
from engine_mindir.primitives.shapes import slice_axis
from engine_mindir.values import Value


@primitive("DepthToSpace")
def depth_to_space(g: Emitter, x: Value, *, block_size: int, format: Any = "NCHW") -> Value:
    """Lower to DepthToSpace in ONNX's DCR order."""
    return g.node("DepthToSpace", x, blocksize=int(block_size), mode="DCR")


@primitive("SpaceToDepth")
def space_to_depth(g: Emitter, x: Value, *, block_size: int, format: Any = "NCHW") -> Value:
    return g.node("SpaceToDepth", x, blocksize=int(block_size))


@primitive("PixelShuffle")
def pixel_shuffle(g: Emitter, x: Value, upscale_factor: int) -> Value:
    return g.node("DepthToSpace", x, blocksize=int(upscale_factor), mode="CRD")


@primitive("BatchToSpaceND", "BatchToSpace")
def batch_to_space(
    g: Emitter, x: Value, block_shape: Any = None, crops: Any = (), *, block_size: Any = None
) -> Value:
    block = _block(block_shape, block_size, crops)
    dims = g.dims(x)
    count = int(np.prod(block))
    spatial = dims[len(dims) - len(block) :]
    lead = dims[1 : len(dims) - len(block)]
    y = g.reshape(x, (*block, -1, *lead, *spatial))
    first = len(block) + 1 + len(lead)
    perm = [len(block), *range(len(block) + 1, first)]
    for position in range(len(block)):
        perm += [first + position, position]
    y = g.transpose(y, perm)
    sizes = tuple(
        size * b if isinstance(size, int) else g.node("Mul", size, b)
        for size, b in zip(spatial, block, strict=True)
    )
    y = g.reshape(y, (dims[0] // count if isinstance(dims[0], int) else -1, *lead, *sizes))
    for position, (before, after) in enumerate(pairs_of(crops)):
        if before or after:
            y = slice_axis(g, y, before, -after if after else 1 << 62, 1 + len(lead) + position)
    return y


@primitive("SpaceToBatchND", "SpaceToBatch")
def space_to_batch(
    g: Emitter, x: Value, block_shape: Any = None, paddings: Any = (), *, block_size: Any = None
) -> Value:
    block = _block(block_shape, block_size, paddings)
    pairs = pairs_of(paddings)
    rank = g.rank(x)
    lead_count = rank - len(block)
    x = pad_with(g, x, [(0, 0)] * lead_count + pairs, "constant", 0)
    dims = (
        list(g.dims(x)) if x.shape is not None else [g.dim(x, position) for position in range(rank)]
    )
    lead = dims[1:lead_count]
    split_sizes: list[Any] = [dims[0], *lead]
    for position, b in enumerate(block):
        size = dims[lead_count + position]
        split_sizes += [size // b if isinstance(size, int) else g.node("Div", size, b), b]
    y = g.reshape(x, tuple(split_sizes))
    first = lead_count
    perm = [first + 2 * position + 1 for position in range(len(block))] + list(range(first))
    perm += [first + 2 * position for position in range(len(block))]
    y = g.transpose(y, perm)
    sizes = tuple(split_sizes[first + 2 * position] for position in range(len(block)))
    return g.reshape(y, (-1, *lead, *sizes))


def _block(block_shape: Any, block_size: Any, pairs: Any) -> tuple[int, ...]:
    if block_shape is None:
        return (int(block_size),) * len(pairs_of(pairs))
    return axes_of(block_shape)
