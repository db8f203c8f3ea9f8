"""Sliding windows as columns, and columns as images."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine_mindir.emit import Emitter, Unsupported
from engine_mindir.primitives import primitive
from engine_mindir.primitives.axes import as_static
from engine_mindir.primitives.convolution import spatial
from engine_mindir.values import Value


@primitive("Im2Col", "Unfold", "UnfoldExt", "Im2ColExt")
def im2col(
    g: Emitter, x: Value, ksizes: Any = 1, dilations: Any = 1, pads: Any = 0, strides: Any = 1, *,
    padding_mode: Any = "CALCULATED", kernel_size: Any = None, dilation: Any = None,
    padding: Any = None,
) -> Value:  # fmt: skip
    """Unfold windows into columns: a convolution with one-hot kernels, as ONNX has no Im2Col."""
    kernel = spatial(kernel_size if kernel_size is not None else ksizes, 2)
    stride = spatial(strides, 2)
    spacing = spatial(dilation if dilation is not None else dilations, 2)
    sides = spatial(padding if padding is not None else pads, 2, 0)
    if x.shape is None or x.shape[1] is None:
        raise Unsupported("windows over an unknown number of channels")
    channels, area = int(x.shape[1]), kernel[0] * kernel[1]
    g.bounded(channels, area, area)
    weight = np.tile(np.eye(area), (channels, 1)).reshape(channels * area, 1, *kernel)
    y = g.node(
        "Conv", x, g.constant(weight, x.dtype), kernel_shape=kernel, strides=stride,
        dilations=spacing, pads=sides + sides, group=channels,
    )  # fmt: skip
    declared = g.result.shape if hasattr(g.result, "shape") else None
    if declared is not None and len(declared) == 3:
        return g.reshape(y, (*g.dims(x)[:1], channels * area, -1))
    return g.reshape(y, (*g.dims(x)[:1], channels, area, -1))


@primitive("Col2ImExt", "FoldExt")
def col2im_ext(
    g: Emitter, x: Value, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0,
    stride: Any = 1,
) -> Value:  # fmt: skip
    """Fold columns [batch, channels * kernel area, windows] into an image; overlaps are summed."""
    kernel = spatial(kernel_size, 2)
    sides = spatial(padding, 2, 0)
    return g.node(
        "Col2Im", x, g.ints(as_static(output_size)), g.ints(tuple(kernel)),
        dilations=spatial(dilation, 2), pads=[*sides, *sides], strides=spatial(stride, 2),
    )  # fmt: skip


@primitive("Col2Im")
def col2im(
    g: Emitter, x: Value, output_size: Any, *, kernel_size: Any, dilation: Any = 1,
    padding: Any = 0, stride: Any = 1,
) -> Value:  # fmt: skip
    """Fold columns [batch, channels, kernel area, windows] into an image."""
    dims = g.dims(x)
    flat = g.reshape(x, (dims[0], -1, dims[3]))
    return col2im_ext(g, flat, output_size, kernel_size, dilation, padding, stride)
