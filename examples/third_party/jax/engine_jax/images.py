"""Operators of images: convolutions, pooling, resizing."""
# fmt: off


import jax.numpy as jnp
import numpy as np
from jax import lax

from engine_jax.registry import family, operator
from engine_jax.tensors import limits, slices, wide


def padding(sizes, kernel, strides, dilations, pads, auto_pad):
    """Return the padding before and after each spatial axis."""
    rank, found = len(sizes), []
    if auto_pad in ("NOTSET", "VALID"):
        flat = pads if pads and auto_pad == "NOTSET" else [0] * 2 * rank
        return list(zip(flat[:rank], flat[rank:], strict=True))
    for size, width, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size, 0)
        low, high = total // 2, total - total // 2
        found.append((low, high) if auto_pad == "SAME_UPPER" else (high, low))
    return found

def geometry(x, kernel, strides, dilations, pads, auto_pad):
    """Return strides and dilations of each spatial axis, and the padding before and after it."""
    ones = [1] * (x.ndim - 2)
    strides, dilations = strides or ones, dilations or ones
    return strides, dilations, padding(x.shape[2:], kernel, strides, dilations, pads, auto_pad)

def convolved(x, weight, bias, group, strides, pads, **more):
    axes = tuple(range(x.ndim))
    y = lax.conv_general_dilated(
        x, weight, strides, pads, dimension_numbers=lax.ConvDimensionNumbers(axes, axes, axes),
        feature_group_count=group, **more)
    return y if bias is None else y + slices(bias, y)

@operator("Conv")
def conv(x, weight, bias=None, /, *, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None,
         pads=None, strides=None):
    kernel = weight.shape[2:]
    strides, dilations, pads = geometry(x, kernel, strides, dilations, pads, auto_pad)
    if group == x.shape[1] == weight.shape[0] and weight[0, 0].size < 50:
        return depthwise(x, weight, bias, strides, dilations, pads)
    return convolved(x, weight, bias, group, strides, pads, rhs_dilation=dilations)

def depthwise(x, weight, bias, strides, dilations, pads):
    """Convolve each channel by itself: XLA fuses these sums, and has no fast kernel for it."""
    dtype, x = x.dtype, jnp.pad(wide(x), [(0, 0), (0, 0), *pads])
    reach = [(width - 1) * dilation for width, dilation in zip(weight.shape[2:], dilations)]
    y = 0 if bias is None else slices(bias, x)
    for at in np.ndindex(weight.shape[2:]):
        first = [place * dilation for place, dilation in zip(at, dilations)]
        cut = [slice(begin, size - all_ + begin, stride) for begin, size, all_, stride
               in zip(first, x.shape[2:], reach, strides)]
        y += x[:, :, *cut] * slices(weight[(slice(None), 0, *at)], x)
    return y.astype(dtype)

@operator("ConvTranspose", auto_pad={"NOTSET", "VALID"})
def conv_transpose(x, weight, bias=None, /, *, auto_pad="NOTSET", dilations=None, group=1,
                   kernel_shape=None, output_padding=None, pads=None, strides=None):
    """Convolve the widened image with the mirrored kernel, from out to in channels."""
    kernel, ones = weight.shape[2:], [1] * (x.ndim - 2)
    strides, dilations, pads = geometry(x, kernel, strides, dilations, pads, auto_pad)
    extra = output_padding or [0] * len(ones)
    split = weight.reshape((group, -1, *weight.shape[1:])).swapaxes(1, 2)
    mirrored = jnp.flip(split.reshape((-1, split.shape[2], *kernel)), range(2, x.ndim))
    reach = [(width - 1) * dilation for width, dilation in zip(kernel, dilations, strict=True)]
    around = [(each - low, each - high + more)
              for each, (low, high), more in zip(reach, pads, extra, strict=True)]
    return convolved(
        x, mirrored, bias, group, ones, around, lhs_dilation=strides, rhs_dilation=dilations)

# ---------------------------------------------------------------------------------------- pooling

def windowed(x, start, combine, kernel, strides, dilations, pads):
    return lax.reduce_window(
        x, jnp.asarray(start, x.dtype), combine, (1, 1, *kernel), (1, 1, *strides),
        [(0, 0), (0, 0), *pads], window_dilation=(1, 1, *dilations))

@operator("MaxPool", ceil_mode={0})
def max_pool(x, /, *, kernel_shape, auto_pad="NOTSET", ceil_mode=0, dilations=None, pads=None,
             storage_order=0, strides=None):
    place = geometry(x, kernel_shape, strides, dilations, pads, auto_pad)
    return windowed(x, limits(x)[0], lax.max, kernel_shape, *place)

@operator("AveragePool", ceil_mode={0})
def average_pool(x, /, *, kernel_shape, auto_pad="NOTSET", ceil_mode=0, count_include_pad=0,
                 dilations=None, pads=None, strides=None):
    *steps, pads = geometry(x, kernel_shape, strides, dilations, pads, auto_pad)
    counted = np.pad(np.ones(x.shape[2:]), pads, constant_values=float(count_include_pad))
    none = [(0, 0)] * len(pads)
    counts = windowed(
        jnp.asarray(counted, x.dtype)[None, None], 0, lax.add, kernel_shape, *steps, none)
    return windowed(x, 0, lax.add, kernel_shape, *steps, pads) / counts

family(lambda run, x, /: run(x, tuple(range(2, x.ndim)), keepdims=True),
       {"GlobalAveragePool": jnp.mean, "GlobalMaxPool": jnp.max})

# --------------------------------------------------------------------------------------- resizing

CENTRES = {  # where in an axis of `size` the element `at` of `out` lies
    "half_pixel": lambda at, size, out, scale: (at + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda at, size, out, scale: ((at + 0.5) / scale - 0.5) * (out > 1),
    "asymmetric": lambda at, size, out, scale: at / scale,
    "align_corners": lambda at, size, out, scale: at * (size - 1) / max(out - 1, 1),
}
ROUNDED = {"round_prefer_floor": lambda at: np.ceil(at - 0.5), "floor": np.floor}

def resized(x, axis, at, nearest):
    """Take the elements of an axis that are nearest to the places `at`, or between two of them."""
    def take(places):
        return jnp.take(x, np.clip(places, 0, x.shape[axis] - 1).astype(int), axis)

    if nearest:
        return take(ROUNDED[nearest](at))
    low, shape = np.floor(at), [-1 if each == axis else 1 for each in range(x.ndim)]
    share = jnp.asarray((at - low).reshape(shape), x.dtype)
    return take(low) * (1 - share) + take(low + 1) * share

@operator("Resize", since=11, known=[1, 2, 3], coordinate_transformation_mode=CENTRES,
          mode={"nearest", "linear"}, nearest_mode=ROUNDED, antialias={0},
          keep_aspect_ratio_policy={"stretch"})
def resize(x, roi=None, scales=None, sizes=None, /, *, antialias=0, axes=None,
           coordinate_transformation_mode="half_pixel", cubic_coeff_a=-0.75, exclude_outside=0,
           extrapolation_value=0.0, keep_aspect_ratio_policy="stretch", mode="nearest",
           nearest_mode="round_prefer_floor"):
    over = range(x.ndim) if axes is None else [axis % x.ndim for axis in axes]
    if sizes is not None and sizes.size:
        outs = sizes.tolist()
        factors = [out / x.shape[axis] for axis, out in zip(over, outs, strict=True)]
    else:
        factors = scales.astype(float).tolist()
        outs = [int(x.shape[axis] * factor) for axis, factor in zip(over, factors, strict=True)]
    y = x if mode == "nearest" else wide(x)
    for axis, out, factor in zip(over, outs, factors, strict=True):
        if out != x.shape[axis] or factor != 1:
            centres = CENTRES[coordinate_transformation_mode]
            at = centres(np.arange(out), x.shape[axis], out, factor)
            y = resized(y, axis, at, nearest_mode if mode == "nearest" else "")
    return y.astype(x.dtype)
