"""Convolutions and pooling. The layout is NCHW; sizes may come with the batch and channel axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.formats.mindir.emit import Emitter, Unsupported, bounded
from engine.formats.mindir.primitives import primitive
from engine.formats.mindir.primitives.shapes import as_static, axes_of
from engine.formats.mindir.values import DType, Value

_MODES = {0: "pad", 1: "same", 2: "valid", "SAME": "same", "VALID": "valid", "PAD": "pad",
          "CALCULATED": "pad"}  # fmt: skip
_MAX_BINNED_SIZE = (
    1 << 20
)  # places of an axis that is pooled bin by bin; each is written into the model


def spatial(value: Any, count: int, default: int = 1) -> list[int]:
    """Return the last `count` sizes of a tuple; a number stands for all of them."""
    if value is None:
        return [default] * count
    sizes = list(axes_of(value))
    return sizes * count if len(sizes) == 1 else sizes[-count:]


def mode_of(pad_mode: Any) -> str:
    """Return "same", "valid" or "pad" for any spelling of the pad mode."""
    text = pad_mode.upper() if isinstance(pad_mode, str) else pad_mode
    mode = _MODES.get(text)
    if mode is None:
        raise Unsupported(f"the padding mode {pad_mode!r}")
    return mode


def check_layout(layout: Any) -> None:
    """Raise Unsupported for a layout other than channels first (NCHW)."""
    # 0 and 14 are MindSpore's numbers for NCHW and NCDHW.
    if layout not in (None, 0, 14, "NCHW", "NCDHW", "DefaultFormat", ""):
        raise Unsupported(f"the layout {layout!r}; export the model in NCHW")


def _pads_from(pad: Any, count: int) -> tuple[list[int], list[int]] | None:
    """Return begin and end pads from a list: a pair an axis, a number an axis, or one for all."""
    if pad is None:
        return None
    sizes = list(axes_of(pad))
    if not sizes or min(sizes) < 0:
        return None
    if len(sizes) == 2 * count:
        return sizes[::2], sizes[1::2]
    if len(sizes) == count:
        return sizes, sizes
    return [sizes[0]] * count, [sizes[0]] * count


def pads_of(
    x: Value, mode: str, kernel: list[int], stride: list[int], dilation: list[int], *given: Any
) -> dict[str, Any]:
    """Return the ONNX attributes for the padding."""
    count = len(kernel)
    if mode == "valid":
        return {"pads": [0] * 2 * count}
    sizes = x.shape[-count:] if x.shape is not None else (None,) * count
    if mode == "same":
        if None in sizes:
            return {"auto_pad": "SAME_UPPER"}
        begins, ends = [], []
        for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True):
            assert size is not None
            total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
            begins.append(total // 2)
            ends.append(total - total // 2)
        return {"pads": begins + ends}
    for pad in given:
        explicit = _pads_from(pad, count)
        if explicit is not None:
            return {"pads": explicit[0] + explicit[1]}
    return {"pads": [0] * 2 * count}


def _conv(
    g: Emitter,
    x: Value,
    weight: Value,
    bias: Any,
    stride: Any,
    dilation: Any,
    group: Any,
    mode: str,
    *pads: Any,
) -> Value:
    count = g.rank(weight) - 2
    if weight.shape is None or None in weight.shape[2:]:
        raise Unsupported("a convolution with a kernel of unknown size")
    kernel = [int(k or 0) for k in weight.shape[2:]]
    stride, dilation = spatial(stride, count), spatial(dilation, count)
    return g.node(
        "Conv", x, weight, bias,
        kernel_shape=kernel, strides=stride, dilations=dilation, group=int(group),
        **pads_of(x, mode, kernel, stride, dilation, *pads),
    )  # fmt: skip


@primitive("Conv2D", "Conv2DFusion", "Conv3D", "Conv1D")
def conv(
    g: Emitter, x: Value, weight: Value, bias: Any = None, *, pad_mode: Any = "valid",
    pad_list: Any = None, pad: Any = 0, stride: Any = 1, dilation: Any = None,
    dilations: Any = None, group: Any = 1, format: Any = "NCHW",
) -> Value:  # fmt: skip
    check_layout(format)
    return _conv(
        g, x, weight, bias, stride, dilation if dilation is not None else dilations, group,
        mode_of(pad_mode), pad_list, pad,
    )  # fmt: skip


@primitive("DepthwiseConv2dNative", "DepthwiseConv2D")
def depthwise(
    g: Emitter, x: Value, weight: Value, bias: Any = None, *, pad_mode: Any = "valid",
    pad_list: Any = None, pad: Any = 0, stride: Any = 1, dilation: Any = 1,
    format: Any = "NCHW",
) -> Value:  # fmt: skip
    """Lower to a Conv with a group for each channel; the weight is [multiplier, channels, h, w]."""
    check_layout(format)
    if weight.shape is None or None in weight.shape:
        raise Unsupported("a convolution with a weight of unknown size")
    multiplier, channels, *kernel = (int(size or 0) for size in weight.shape)
    weight = g.transpose(weight, [1, 0, *range(2, 2 + len(kernel))]) if multiplier > 1 else weight
    weight = g.reshape(weight, (channels * multiplier, 1, *kernel))
    weight.shape = (channels * multiplier, 1, *kernel)
    return _conv(g, x, weight, bias, stride, dilation, channels, mode_of(pad_mode), pad_list, pad)


@primitive("Conv2DExt", "Conv1DExt", "Conv3DExt")
def conv_ext(
    g: Emitter,
    x: Value,
    weight: Value,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Any = 1,
) -> Value:
    count = g.rank(weight) - 2
    sides = spatial(padding, count, 0) if padding is not None else [0] * count
    return _batched(
        g, x, count,
        lambda y: _conv(
            g, y, weight, bias, stride, dilation, groups, "pad",
            tuple(side for size in sides for side in (size, size)),
        ),
    )  # fmt: skip


@primitive("Conv2DPadding", "Conv1DPadding", "Conv3DPadding")
def conv_padding(
    g: Emitter,
    x: Value,
    weight: Value,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = "valid",
    dilation: Any = 1,
    groups: Any = 1,
) -> Value:
    mode = {1: "same", 2: "valid"}.get(padding, padding)
    count = g.rank(weight) - 2
    return _batched(
        g, x, count, lambda y: _conv(g, y, weight, bias, stride, dilation, groups, mode_of(mode))
    )


@primitive("Convolution", "ConvolutionStr")
def convolution(
    g: Emitter,
    x: Value,
    weight: Value,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    transposed: Any = False,
    output_padding: Any = 0,
    groups: Any = 1,
) -> Value:
    if isinstance(padding, str):
        return conv_padding(g, x, weight, bias, stride, padding, dilation, groups)
    if not transposed:
        return conv_ext(g, x, weight, bias, stride, padding, dilation, groups)
    count = g.rank(weight) - 2
    sides = spatial(padding, count, 0)
    return g.node(
        "ConvTranspose", x, weight, bias, strides=spatial(stride, count),
        dilations=spatial(dilation, count), group=int(groups), pads=sides + sides,
        output_padding=spatial(output_padding, count, 0),
    )  # fmt: skip


@primitive("ConvTranspose2D")
def conv_transpose_2d(
    g: Emitter, x: Value, weight: Value, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: Any = 1, dilation: Any = 1,
) -> Value:  # fmt: skip
    return convolution(g, x, weight, bias, stride, padding, dilation, True, output_padding, groups)


def _batched(g: Emitter, x: Value, count: int, lower: Any) -> Value:
    """Lower a primitive that takes a batch, for an input that may lack the batch axis."""
    if x.rank == count + 1:
        return g.squeeze(lower(g.unsqueeze(x, (0,))), (0,))
    result: Value = lower(x)
    return result


@primitive("Conv2DTranspose", "Conv2DBackpropInput", "Conv3DTranspose", "Deconvolution")
def conv_transpose(
    g: Emitter, x: Value, weight: Value, input_sizes: Any = None, bias: Any = None, *,
    pad_mode: Any = "valid", pad_list: Any = None, pad: Any = 0, stride: Any = 1,
    dilation: Any = None, dilations: Any = None, group: Any = 1, format: Any = "NCHW",
    output_padding: Any = 0,
) -> Value:  # fmt: skip
    """Lower a transposed convolution. input_sizes: the shape of its result."""
    check_layout(format)
    count = g.rank(weight) - 2
    if weight.shape is None or None in weight.shape:
        raise Unsupported("a convolution with a weight of unknown size")
    kernel = [int(k or 0) for k in weight.shape[2:]]
    stride = spatial(stride, count)
    dilation = spatial(dilation if dilation is not None else dilations, count)
    mode = mode_of(pad_mode)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    declared = g.result.shape if hasattr(g.result, "shape") else None
    if isinstance(input_sizes, tuple) and all(type(size) is int for size in input_sizes):
        declared = input_sizes
    sizes = list(declared[-count:]) if declared is not None else [None] * count
    source = list(x.shape[-count:]) if x.shape is not None else [None] * count
    begins, ends, extra = [0] * count, [0] * count, [0] * count
    given = next(filter(None, (_pads_from(pad_list, count), _pads_from(pad, count))), None)
    for axis in range(count):
        size, before = sizes[axis], source[axis]
        if mode == "same":
            # As the convolution that it undoes: its input has this size, its output that.
            total = (
                max((before - 1) * stride[axis] + reach[axis] - size, 0)
                if size is not None and before is not None
                else max(reach[axis] - stride[axis], 0)
            )
            begins[axis], ends[axis] = total // 2, total - total // 2
        elif mode == "pad" and given is not None:
            begins[axis], ends[axis] = given[0][axis], given[1][axis]
        if size is not None and before is not None:
            natural = (before - 1) * stride[axis] + reach[axis] - begins[axis] - ends[axis]
            extra[axis] = size - natural
        elif mode == "same":
            extra[axis] = max(stride[axis] - reach[axis], 0)
        else:
            extra[axis] = spatial(output_padding, count, 0)[axis]
    for axis in range(count):
        if extra[axis] < 0:
            ends[axis], extra[axis] = ends[axis] - extra[axis], 0
    # More room than one stride is not ONNX's output_padding: zeros are added behind instead.
    trailing = [
        extra_size if extra_size >= max(s, d) else 0
        for extra_size, s, d in zip(extra, stride, dilation)
    ]
    extra = [a - b for a, b in zip(extra, trailing, strict=True)]
    y = g.node(
        "ConvTranspose", x, weight, bias, kernel_shape=kernel, strides=stride,
        dilations=dilation, group=int(group), pads=begins + ends, output_padding=extra,
    )  # fmt: skip
    if any(trailing):
        zeros = [0] * (count + 2)
        y = g.node("Pad", y, g.ints((*zeros, 0, 0, *trailing)), mode="constant")
    return y


# ----------------------------------------------------------------------------------------- pooling


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

    return _batched(g, x, count, lower)


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


@primitive("AdaptiveAvgPool2D", "AdaptiveAvgPool2DExt", "AdaptiveAvgPool1D", "AdaptiveAvgPool3D",
           "AdaptiveAvgPool3DExt")  # fmt: skip
def adaptive_avg_pool(g: Emitter, x: Value, output_size: Any) -> Value:
    return _adaptive(g, x, output_size, "ReduceMean")


@primitive("AdaptiveMaxPool2D", "AdaptiveMaxPool1D", "AdaptiveMaxPool3D")
def adaptive_max_pool(g: Emitter, x: Value, output_size: Any, *rest: Any) -> Any:
    output_size = as_static(output_size)
    y = _adaptive(g, x, output_size, "ReduceMax")
    if not isinstance(g.result, tuple):
        return y
    sizes = output_size if isinstance(output_size, tuple) else (output_size,)
    return y, _argmax_of_bins(g, x, y, sizes)


def _argmax_of_bins(g: Emitter, x: Value, y: Value, sizes: tuple[Any, ...]) -> Value | None:
    """Return the index of each bin's maximum in the flattened image; None where sizes are open."""
    if x.shape is None or None in x.shape[-len(sizes) :]:
        return None
    lengths = [dim or 0 for dim in x.shape[-len(sizes) :]]
    table = np.zeros((1, 1), np.int64)
    for length, size in zip(lengths, sizes, strict=True):
        count = length if size in (None, -1) else int(size)
        index = _bins(length, count)[0]
        # [bins so far, places in each] with one more axis
        table = (table[:, None, :, None] * length + index[None, :, None, :]).reshape(
            len(table) * count, -1
        )
    lead = g.dims(x)[: -len(sizes)]
    flat = g.reshape(x, (*lead, -1))
    bounded(table.size)
    wide = g.node("Gather", flat, g.constant(table), axis=-1)
    best = g.node("ReduceMax", wide, g.ints((-1,)), keepdims=1)
    is_best = g.node("Equal", wide, best, dtype=DType.BOOL)
    none = g.constant(np.iinfo(np.int64).max)
    positions = g.node("Where", is_best, g.constant(table), none, dtype=DType.INT64)
    first = g.node("ReduceMin", positions, g.ints((-1,)), keepdims=0)
    return g.node("Reshape", first, g.shape(y), shape=y.shape)


def _bins(length: int, size: int) -> tuple[np.ndarray[Any, Any], list[tuple[int, int]]]:
    """Return each bin's indices [size, width], the last one repeated as padding; and the bins."""
    bins = [(index * length // size, -(-(index + 1) * length // size)) for index in range(size)]
    width = max(stop - start for start, stop in bins)
    return np.array(
        [[min(start + k, stop - 1) for k in range(width)] for start, stop in bins]
    ), bins


def _mean_of_open_bins(g: Emitter, x: Value, axis: int, size: int) -> Value:
    """Average over bins of an axis whose length is known only at run time, by cumulative sums."""
    length = g.scalar(g.dim(x, axis), DType.INT64)
    bins = np.arange(size)
    start = g.node(
        "Div", g.node("Mul", length, g.constant(bins), shape=(size,)), size, shape=(size,)
    )
    after = g.node("Mul", length, g.constant(bins + 1), shape=(size,))
    stop = g.node("Div", g.node("Add", after, size - 1), size, shape=(size,))
    rank = g.rank(x)
    pads = [0] * (2 * rank)
    pads[axis] = 1
    wide = g.node("Pad", g.cast(x, DType.FLOAT32), g.ints(tuple(pads)), 0.0, mode="constant")
    sums = g.node("CumSum", wide, g.constant(axis))
    total = g.node(
        "Sub", g.node("Gather", sums, stop, axis=axis), g.node("Gather", sums, start, axis=axis)
    )
    count = g.cast(g.node("Sub", stop, start), DType.FLOAT32)
    count = g.reshape(count, (-1, *[1] * (rank - axis - 1)))
    return g.cast(g.node("Div", total, count, shape=_with_size(x, axis, size)), x.dtype)


def _adaptive(g: Emitter, x: Value, output_size: Any, op_type: str) -> Value:
    """Pool into a fixed number of bins, one axis after another: mean and max are separable.

    ONNX has no adaptive pooling: bins are gathered by index and reduced.
    """
    rank = g.rank(x)
    sizes = output_size if isinstance(output_size, tuple) else (output_size,)
    declared = g.result.shape if hasattr(g.result, "shape") else None
    if isinstance(g.result, tuple) and g.result and hasattr(g.result[0], "shape"):
        declared = g.result[0].shape
    count = len(sizes)
    if count == 1 and declared is not None and len(declared) == rank and rank >= 4:
        count, sizes = 2, sizes * 2
    for position, size in enumerate(sizes):
        axis = rank - count + position
        length = x.shape[axis] if x.shape is not None else None
        if size in (None, -1) or size == length:
            continue
        size = int(size)
        if size == 1:
            x = g.node(op_type, x, g.ints((axis,)), keepdims=1, shape=_with_size(x, axis, 1))
            continue
        if length is None and op_type == "ReduceMean":
            x = _mean_of_open_bins(g, x, axis, size)
            continue
        if length is None:
            raise Unsupported("adaptive pooling of an axis of unknown size")
        if size < 1 or length + size > _MAX_BINNED_SIZE:
            raise Unsupported(f"adaptive pooling of {length:,} places into {size:,}")
        index, bins = _bins(length, size)
        width = index.shape[1]
        wide = g.node("Gather", x, g.constant(index), axis=axis)
        inner = axis + 1
        if op_type == "ReduceMax":
            x = g.node(
                "ReduceMax", wide, g.ints((inner,)), keepdims=0, shape=_with_size(x, axis, size)
            )
            continue
        weight = np.array([[(start + k < stop) / (stop - start) for k in range(width)]
                           for start, stop in bins])  # fmt: skip
        weight = weight.reshape(size, width, *[1] * (rank - axis - 1))
        scaled = g.node("Mul", wide, g.constant(weight, x.dtype))
        x = g.node(
            "ReduceSum", scaled, g.ints((inner,)), keepdims=0, shape=_with_size(x, axis, size)
        )
    return g.node("Identity", x)


def _with_size(x: Value, axis: int, size: int) -> Any:
    if x.shape is None:
        return None
    return tuple(size if position == axis else dim for position, dim in enumerate(x.shape))


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
    bounded(channels, area, area)
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
