"""Operators over whole tensors: reductions, norms, products; shapes, parts, places."""
# fmt: off


from math import ceil, prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from engine_jax.elementwise import is_float, rounded
from engine_jax.registry import add, family, operator

ZERO = np.zeros(1, np.float32)

# ------------------------------------------------------------------------- reductions and norms

def total(x, **over):
    return jnp.sum(x, dtype=x.dtype, **over)  # numpy would make int64 of smaller ones

def mean(x, **over):
    found = total(x, **over)
    return lax.div(found, jnp.full_like(found, x.size // max(found.size, 1)))

def log_sum_exp(x, axis, keepdims):
    x = rounded(x)
    most = jnp.max(x, axis, initial=-jnp.inf, keepdims=True)
    shift = jnp.where(jnp.isfinite(most), most, 0)
    found = jnp.log(total(jnp.exp(x - shift), axis=axis, keepdims=True)) + shift
    return found if keepdims else jnp.squeeze(found, axis)

def limits(x):
    """Return what the greatest and the least of no elements are."""
    if x.dtype == bool or is_float(x):
        return (False, True) if x.dtype == bool else (-jnp.inf, jnp.inf)
    return jnp.iinfo(x.dtype).min, jnp.iinfo(x.dtype).max

def reduced(run, x, given=None, /, *, axes=None, keepdims=1, noop_with_empty_axes=0):
    over = chosen(given, axes) or (() if noop_with_empty_axes else tuple(range(x.ndim)))
    return run(x, axis=over, keepdims=bool(keepdims)).astype(x.dtype)

def chosen(given, axes):
    """Return axes of an attribute, or of an input in later versions."""
    axes = axes if given is None else given.reshape(-1).tolist()
    return None if axes is None else tuple(axes)

family(reduced, {
    "ReduceSum": total, "ReduceMean": mean, "ReduceLogSumExp": log_sum_exp,
    "ReduceProd": lambda x, **over: jnp.prod(x, dtype=x.dtype, **over),
    "ReduceMax": lambda x, **over: jnp.max(x, initial=limits(x)[0], **over),
    "ReduceMin": lambda x, **over: jnp.min(x, initial=limits(x)[1], **over),
    "ReduceL2": lambda x, **over: jnp.sqrt(total(x * x, **over)),
    "ReduceSumSquare": lambda x, **over: total(x * x, **over),
}, known=[1])

family(lambda run, x, /, *, axis=0, keepdims=1, select_last_index=0:
       run(x, axis, keepdims=bool(keepdims)).astype("int64"),
       {"ArgMax": jnp.argmax, "ArgMin": jnp.argmin}, select_last_index={0})

@operator("TopK", since=10, known=[1], outputs=2)
def top(x, k, /, *, axis=-1, largest=1, sorted=1):
    turn = jnp.negative if is_float(x) else jnp.invert  # ~ turns the order without an overflow
    moved = jnp.moveaxis(x, axis, -1)
    values, at = lax.top_k(moved if largest else turn(moved), int(k.item()))
    found = values if largest else turn(values), at.astype("int64")
    return tuple(jnp.moveaxis(each, -1, axis) for each in found)

def normal(run, x, /, *, axis=None, since):
    """Normalize along an axis; before version 13 along all from one on, as if they were one."""
    x = rounded(x)
    if since >= 13 or not x.size:
        return run(x, axis=-1 if axis is None else axis)
    rows = x.reshape((*x.shape[:(1 if axis is None else axis) % x.ndim], -1))
    return run(rows, axis=-1).reshape(x.shape)

family(normal, {
    "Softmax": jax.nn.softmax, "LogSoftmax": jax.nn.log_softmax
})

def slices(values, x):
    """Return one value for each channel in a shape that goes with x."""
    return values.reshape((-1, *[1] * (x.ndim - 2)))

@operator("BatchNormalization", since=7, training_mode={0})
def batch_norm(x, scale, bias, mean, var, /, *, epsilon=1e-5, momentum=0.9, training_mode=0):
    factor = slices(scale, x) / jnp.sqrt(slices(var, x) + epsilon)
    return ((x - slices(mean, x)) * factor + slices(bias, x)).astype(x.dtype)

def wide(x):
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))

def centred(x, axes, epsilon):
    """Return x less its mean and over its deviation, the mean, and one over the deviation."""
    x = rounded(wide(x))
    mean = jnp.mean(x, axes, keepdims=True)
    inverse = 1 / jnp.sqrt(jnp.mean(jnp.square(x - mean), axes, keepdims=True) + epsilon)
    return (x - mean) * inverse, mean.astype("float32"), inverse.astype("float32")

@operator("InstanceNormalization", since=6)
def instance_norm(x, scale, bias, /, *, epsilon=1e-5):
    y = centred(x, tuple(range(2, x.ndim)), epsilon)[0]
    return (y * slices(scale, x) + slices(bias, x)).astype(x.dtype)

@operator("GroupNormalization", since=21)
def group_norm(x, scale, bias, /, *, num_groups, epsilon=1e-5, stash_type=1):
    y = centred(x.reshape((x.shape[0], num_groups, -1)), (2,), epsilon)[0]
    return y.reshape(x.shape).astype(x.dtype) * slices(scale, x) + slices(bias, x)

@operator("LayerNormalization", outputs=3, stash_type={1})
def layer_norm(x, scale, bias=None, /, *, axis=-1, epsilon=1e-5, stash_type=1):
    y, *found = centred(x, tuple(range(axis % x.ndim, x.ndim)), epsilon)
    y = y.astype(x.dtype) * scale
    return y if bias is None else y + bias, *found

# ------------------------------------------------------------------------------------- products

add("MatMul", lambda x, y, /: jnp.matmul(x, y))
add("Einsum", lambda *xs, equation: jnp.einsum(equation, *xs))

@operator("Gemm", since=7)
def gemm(x, y, c=None, /, *, alpha=1.0, beta=1.0, transA=0, transB=0):
    product = jnp.matmul(x.T if transA else x, y.T if transB else y)
    product = product if alpha == 1 else (alpha * product).astype(x.dtype)
    return product if c is None else product + (c if beta == 1 else (beta * c).astype(x.dtype))

# ----------------------------------------------------------------------------- shapes and parts

add("Shape", lambda x, /, *, start=0, end=None: np.array(x.shape[start:end], np.int64))
add("Size", lambda x, /: np.array(x.size, np.int64))
add("Transpose", lambda x, /, *, perm=None: jnp.transpose(x, perm))
add("Concat", lambda *xs, axis: jnp.concatenate(xs, axis), since=4)
add("Tile", lambda x, repeats, /: jnp.tile(x, repeats.tolist()), since=6, known=[1])
add("Expand", lambda x, shape, /:
    jnp.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.tolist()))), known=[1])
add("Squeeze", lambda x, given=None, /, *, axes=None:
    jnp.squeeze(x, chosen(given, axes)), known=[1])
add("Unsqueeze", lambda x, given=None, /, *, axes=None:
    jnp.expand_dims(x, chosen(given, axes)), known=[1])
add("Flatten", lambda x, /, *, axis=1: x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:])))
add("Trilu", lambda x, k=None, /, *, upper=1:
    (jnp.triu if upper else jnp.tril)(x, 0 if k is None else int(k.item())), known=[1])
add("ConstantOfShape", lambda shape, /, *, value=ZERO:
    jnp.full(shape.tolist(), value.reshape(())), known=[0])
add("Range", lambda start, limit, delta, /: (start + delta * np.arange(
    max(ceil((limit - start) / delta), 0))).astype(start.dtype), known=[0, 1, 2])
add("Reshape", lambda x, shape, /, *, allowzero=0: x.reshape([
    x.shape[at] if dim == 0 and not allowzero else dim for at, dim in enumerate(shape.tolist())
]), since=5, known=[1])

@operator("Constant")
def constant(*, value=None, value_float=None, value_floats=None, value_int=None, value_ints=None):
    for number, dtype in ((value_float, np.float32), (value_floats, np.float32),
                          (value_int, np.int64), (value_ints, np.int64)):
        value = value if number is None else np.array(number, dtype)
    return value

@operator("Split", since=2, known=[1], outputs=1 << 30)
def parts(x, given=None, /, *, axis=0, split=None, num_outputs=0, count):
    sizes, length = chosen(given, split), x.shape[axis]
    if not sizes:  # equal parts, of which the last may be smaller
        size = -(-length // count)
        sizes = [*[size] * (count - 1), length - size * (count - 1)]
    if sum(sizes) != length or min(sizes) < 0:
        raise ValueError(f"an axis of {length} cannot be split into {[*sizes]}")
    return tuple(jnp.split(x, np.cumsum(sizes)[:-1].tolist(), axis))

@operator("Slice", known=[1, 2, 3, 4])
def part(x, first=None, last=None, which=None, step=None, /, *, starts=None, ends=None, axes=None):
    begin, end = chosen(first, starts), chosen(last, ends)
    steps, cut = chosen(step, [1] * len(begin)), [slice(None)] * x.ndim
    over = chosen(which, axes) or range(len(begin))
    for axis, start, stop, stride in zip(over, begin, end, steps, strict=True):
        # Backwards, an end before the first element does not count from behind.
        reaches = stride < 0 and stop < -x.shape[axis]
        cut[axis] = slice(start, None if reaches else stop, stride)
    return x[tuple(cut)]

@operator("Pad", since=2, known=[1, 3])
def pad(x, given=None, fill=None, which=None, /, *, pads=None, value=0.0, mode="constant"):
    around, widths = chosen(given, pads), [(0, 0)] * x.ndim
    for at, axis in enumerate(chosen(which, range(x.ndim))):
        widths[axis] = (around[at], around[at + len(around) // 2])
    x = x[tuple(slice(max(-low, 0), min(high, 0) or None) for low, high in widths)]
    filling = {"constant_values": value if fill is None else fill.reshape(())}
    widths = [(max(low, 0), max(high, 0)) for low, high in widths]
    return jnp.pad(x, widths, mode, **(filling if mode == "constant" else {}))

@operator("DepthToSpace")
def depth_to_space(x, /, *, blocksize, mode="DCR"):
    (n, c, h, w), b = x.shape, blocksize
    split, order = ((b, b, c // b**2), (0, 3, 4, 1, 5, 2))
    if mode == "CRD":
        split, order = ((c // b**2, b, b), (0, 1, 4, 2, 5, 3))
    return x.reshape(n, *split, h, w).transpose(order).reshape(n, c // b**2, h * b, w * b)

# ------------------------------------------------------------------------------ by their places

def inside(at, size, check):
    """Return places counted from the front; one that is outside is reported."""
    check(jnp.any((at < -size) | (at >= size)), f"an index is outside an axis of {size}")
    return jnp.where(at < 0, at + size, at)

def grid(x, at, axis, check):
    """Return each place's own coordinates, with those along one axis replaced."""
    found = list(jnp.indices(at.shape, sparse=True))
    found[axis] = inside(at, x.shape[axis], check)
    return tuple(found)

add("Gather", lambda x, at, /, *, axis=0, check:
    jnp.take(x, inside(at, x.shape[axis], check), axis, mode="clip"))
add("GatherElements", lambda x, at, /, *, axis=0, check: x[grid(x, at, axis, check)])

def updated(x, index, reduction, updates):
    names = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}
    return getattr(x.at[index], names[reduction])(updates)

add("ScatterElements", lambda x, at, updates, /, *, axis=0, reduction="none", check:
    updated(x, grid(x, at, axis, check), reduction, updates))
