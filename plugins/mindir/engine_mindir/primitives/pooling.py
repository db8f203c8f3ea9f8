"""Pooling over windows, with and without the places of the maxima. The layout is NCHW."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine_mindir.emit import Emitter
from engine_mindir.primitives import primitive
from engine_mindir.primitives.axes import axes_of
from engine_mindir.primitives.convolution import batched, check_layout, mode_of, pads_of, spatial
from engine_mindir.values import DType, Value


def _pool(
    g: Emitter,
    op_type: str,
    x: Value,
    kernel: list[int],
    stride: list[int],
    pads: dict[str, Any],
    **attributes: Any,
) -> Value:
    return g.node(op_type, x, kernel_shape=kernel, strides=stride, **pads, **attributes)


@primitive("MaxPool", "MaxPoolFusion", "MaxPool3D")
def max_pool(
    g: Emitter, x: Value, *, kernel_size: Any = 1, strides: Any = 1, pad_mode: Any = "VALID",
    pad_list: Any = None, pad: Any = 0, format: Any = "NCHW", ceil_mode: Any = False,
    global_: Any = False,
) -> Value:  # fmt: skip
    check_layout(format)
    count = g.rank(x) - 2
    kernel, stride = spatial(kernel_size, count), spatial(strides, count)
    mode = mode_of(pad_mode)
    pads = pads_of(x, mode, kernel, stride, [1] * count, pad_list, pad)
    return _pool(
        g, "MaxPool", x, kernel, stride, pads, ceil_mode=int(bool(ceil_mode) and mode == "pad")
    )


@primitive("AvgPool", "AvgPoolFusion", "AvgPoolV1")
def avg_pool(
    g: Emitter, x: Value, kernel_size: Any = 1, strides: Any = 1, pad_mode: Any = "VALID",
    format: Any = "NCHW", *, pad: Any = 0,
) -> Value:  # fmt: skip
    """Average over the elements of each window, padding not counted."""
    check_layout(format)
    count = g.rank(x) - 2
    kernel, stride = spatial(kernel_size, count), spatial(strides, count)
    pads = pads_of(x, mode_of(pad_mode), kernel, stride, [1] * count, pad)
    return _pool(g, "AveragePool", x, kernel, stride, pads, count_include_pad=0)


@primitive("AvgPool3D")
def avg_pool_3d(
    g: Emitter, x: Value, *, kernel_size: Any = 1, strides: Any = 1, pad_mode: Any = "VALID",
    pad_list: Any = None, pad: Any = 0, ceil_mode: Any = False, count_include_pad: Any = True,
    divisor_override: Any = 0, format: Any = "NCDHW",
) -> Value:  # fmt: skip
    check_layout(format)
    kernel, stride = spatial(kernel_size, 3), spatial(strides, 3)
    mode = mode_of(pad_mode)
    pads = pads_of(x, mode, kernel, stride, [1] * 3, pad_list, pad)
    y = _pool(
        g, "AveragePool", x, kernel, stride, pads, ceil_mode=int(bool(ceil_mode)),
        count_include_pad=int(bool(count_include_pad) or bool(divisor_override)),
    )  # fmt: skip
    if divisor_override:
        y = g.node("Mul", y, float(np.prod(kernel)) / divisor_override)
    return y


@primitive("AvgPool2D", "AvgPool1D")
def avg_pool_ext(
    g: Emitter, x: Value, kernel_size: Any, stride: Any = None, padding: Any = 0,
    ceil_mode: Any = False, count_include_pad: Any = True, divisor_override: Any = None,
) -> Value:  # fmt: skip
    count = 2 if len(axes_of(kernel_size)) == 2 or g.rank(x) == 4 else 1
    kernel = spatial(kernel_size, count)
    strides = spatial(stride, count) if stride not in (None, ()) else kernel
    sides = spatial(padding, count, 0)

    def lower(y: Value) -> Value:
        z = _pool(
            g, "AveragePool", y, kernel, strides, {"pads": sides + sides},
            ceil_mode=int(bool(ceil_mode)),
            count_include_pad=int(bool(count_include_pad) or bool(divisor_override)),
        )  # fmt: skip
        if divisor_override:
            z = g.node("Mul", z, float(np.prod(kernel)) / divisor_override)
        return z

    return batched(g, x, count, lower)


def _max_with_indices(
    g: Emitter,
    x: Value,
    kernel: Any,
    stride: Any,
    pads: Any,
    dilation: Any,
    ceil_mode: Any,
    count: int,
) -> tuple[Value, Value]:
    """Max-pool; return maxima and their indices in the flattened plane of each channel."""
    sizes = spatial(kernel, count)
    strides = spatial(stride, count) if stride not in (None, ()) else sizes
    sides = spatial(pads, count, 0)
    y, indices = g.nodes(
        "MaxPool", x, types=[(None, None), (DType.INT64, None)], kernel_shape=sizes,
        strides=strides, pads=sides + sides, dilations=spatial(dilation, count),
        ceil_mode=int(bool(ceil_mode)),
    )  # fmt: skip
    plane: Any = 1
    for axis in range(g.rank(x) - count, g.rank(x)):
        size = g.dim(x, axis)
        if isinstance(size, int) and isinstance(plane, int):
            plane *= size
        else:
            plane = g.node("Mul", g.scalar(plane, DType.INT64), g.scalar(size, DType.INT64))
    # ONNX's indices run through the whole tensor, MindSpore's through one plane.
    return y, g.node("Mod", indices, g.scalar(plane, DType.INT64))


@primitive("MaxPoolWithArgmaxV2", "MaxPoolWithIndices", "MaxPoolWithMask")
def max_pool_with_indices(
    g: Emitter, x: Value, kernel_size: Any = 1, strides: Any = None, pads: Any = 0,
    dilation: Any = 1, ceil_mode: Any = False, argmax_type: Any = None,
) -> tuple[Value, Value]:  # fmt: skip
    return _max_with_indices(g, x, kernel_size, strides, pads, dilation, ceil_mode, 2)


@primitive("MaxPool3DWithArgmax")
def max_pool_3d_with_indices(
    g: Emitter, x: Value, *, kernel_size: Any = 1, strides: Any = None, pads: Any = 0,
    dilation: Any = 1, ceil_mode: Any = False,
) -> tuple[Value, Value]:  # fmt: skip
    return _max_with_indices(g, x, kernel_size, strides, pads, dilation, ceil_mode, 3)


@primitive("MaxPoolWithArgmax")
def max_pool_argmax(
    g: Emitter, x: Value, *, kernel_size: Any = 1, strides: Any = 1, pad_mode: Any = "VALID",
    format: Any = "NCHW",
) -> tuple[Value, Any]:  # fmt: skip
    return max_pool(
        g, x, kernel_size=kernel_size, strides=strides, pad_mode=pad_mode, format=format
    ), None
