"""Convolutions. The layout is NCHW; sizes may come with the batch and channel axes."""

from __future__ import annotations

from typing import Any

from engine_mindir.emit import Emitter, Unsupported
from engine_mindir.primitives import primitive
from engine_mindir.primitives.axes import axes_of
from engine_mindir.values import Value

_MODES = {0: "pad", 1: "same", 2: "valid", "SAME": "same", "VALID": "valid", "PAD": "pad",
          "CALCULATED": "pad"}  # fmt: skip


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
    return batched(
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
    return batched(
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


def batched(g: Emitter, x: Value, count: int, lower: Any) -> Value:
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
