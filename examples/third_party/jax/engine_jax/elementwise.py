"""Operators that compute each element by itself, and conversions between element types."""
# fmt: off


from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from engine.types import DType
from engine_jax.registry import add, family, operator
from engine_jax.runtime import DTYPES

NUMBERS = frozenset(dtype.onnx for dtype in DTYPES)
UINT8 = DType.UINT8.onnx

family(lambda run, x, /: run(x), {
    "Abs": jnp.abs, "Acos": jnp.arccos, "Acosh": jnp.arccosh, "Asin": jnp.arcsin,
    "Asinh": jnp.arcsinh, "Atan": jnp.arctan, "Atanh": jnp.arctanh, "Ceil": jnp.ceil,
    "Cos": jnp.cos, "Cosh": jnp.cosh, "Erf": lax.erf, "Exp": jnp.exp,
    "Floor": jnp.floor, "Identity": lambda x: x, "IsNaN": jnp.isnan,
    "Log": jnp.log, "Neg": jnp.negative, "Not": jnp.logical_not, "Reciprocal": lambda x: 1 / x,
    "Relu": lambda x: jnp.maximum(x, 0), "Round": jnp.round, "Sigmoid": jax.nn.sigmoid,
    "Sign": jnp.sign, "Sin": jnp.sin, "Sinh": jnp.sinh, "Softplus": lambda x: jnp.logaddexp(x, 0),
    "Sqrt": jnp.sqrt, "Tan": jnp.tan, "Tanh": jnp.tanh,
})
family(lambda run, x, y, /: run(x, y), {
    "And": jnp.logical_and, "Equal": jnp.equal, "Greater": jnp.greater,
    "Less": jnp.less, "Mul": jnp.multiply, "Or": jnp.logical_or,
    "PRelu": lambda x, slope: jnp.where(x < 0, x * slope, x), "Xor": jnp.logical_xor,
}, since=7)
family(lambda run, x, y, /: run(rounded(x), rounded(y)), {"Add": jnp.add, "Sub": jnp.subtract},
       since=7)
family(lambda run, *xs: reduce(run, xs), {"Max": jnp.maximum, "Min": jnp.minimum})
add("Sum", lambda *xs: reduce(jnp.add, map(rounded, xs)))
add("Where", lambda condition, x, y, /: jnp.where(condition, x, y))
add("Elu", lambda x, /, *, alpha=1.0: jnp.where(x < 0, alpha * jnp.expm1(x), x))
add("Gelu", lambda x, /, *, approximate="none": jax.nn.gelu(x, approximate == "tanh"))
add("HardSigmoid", lambda x, /, *, alpha=0.2, beta=0.5: jnp.clip(alpha * x + beta, 0, 1))
add("LeakyRelu", lambda x, /, *, alpha=0.01: jnp.where(x < 0, alpha * x, x))
add("Pow", lambda x, y, /: jnp.power(
    x if is_float(x) or not is_float(y) else x.astype(y.dtype), y).astype(x.dtype), since=7)
add("Div", lambda x, y, /, *, check: quotient(x, divisor(y, check)), since=7)


def is_float(x):
    return jnp.issubdtype(x.dtype, jnp.floating)

def rounded(x):
    """Return x as its type holds it, for a sum or a difference.

    LLVM computes a product and the sum that uses it as one (fma), without the rounding between
    them. Where XLA computes that product twice, once for a maximum, the largest element less the
    maximum is then not 0, and a softmax of large numbers is infinity or NaN.
    """
    return jnp.where(x == x, x, jnp.nan) if is_float(x) else x

def divisor(y, check):
    """Return a divisor; of whole numbers zeros are reported and replaced."""
    if is_float(y):
        return y
    check(jnp.any(y == 0), "division of a whole number by 0")
    return jnp.where(y == 0, 1, y)

def quotient(x, y):
    """Return x / y, which XLA would compute as x * (1 / y) where it sees that all y are one."""
    x, y = jnp.broadcast_arrays(x, y)
    return lax.div(x, jnp.where(x == x, y, 1) if is_float(x) else y)  # NaN / 1 is NaN, too

@operator("Clip")
def clip(x, low=None, high=None, /, *, min=None, max=None):
    low, high = (min if low is None else low), (max if high is None else high)
    x = x if low is None else jnp.maximum(x, low)
    return x if high is None else jnp.minimum(x, high)

@operator("Dropout", since=7, known=[2], outputs=2)
def dropout(x, fraction=0, training=None, /, *, ratio=0.5, seed=0, since):
    if training is not None and training.any():
        raise ValueError("training_mode is not covered")
    return x, jnp.ones(x.shape, bool if since >= 10 else x.dtype)

def convert(x, dtype):
    return x != 0 if np.dtype(dtype).kind == "b" else x.astype(dtype)

add("Cast", lambda x, /, *, to, saturate=1, round_mode="up":
    convert(x, DType.from_onnx(to).numpy), since=6, to=NUMBERS)
add("CastLike", lambda x, like, /, *, saturate=1, round_mode="up": convert(x, like.dtype))

def along(values, x, axis):
    """Return scales, or zero points, in a shape that goes with x: one, or one for each slice."""
    shape = [-1 if at == axis % x.ndim else 1 for at in range(x.ndim)]
    return values.reshape(() if values.size == 1 else shape)

@operator("QuantizeLinear", block_size={0}, precision={0}, output_dtype={0, *NUMBERS})
def quantize(x, scale, zero=None, /, *, axis=1, saturate=1, block_size=0, output_dtype=0,
             precision=0):
    dtype = DType.from_onnx(output_dtype or UINT8).numpy if zero is None else zero.dtype
    levels = jnp.round(quotient(x.astype(scale.dtype), along(scale, x, axis))).astype("float32")
    levels = levels if zero is None else levels + along(zero, x, axis).astype("float32")
    return jnp.clip(levels, jnp.iinfo(dtype).min, jnp.iinfo(dtype).max).astype(dtype)

@operator("DequantizeLinear", block_size={0}, output_dtype={0, *NUMBERS})
def dequantize(x, scale, zero=None, /, *, axis=1, block_size=0, output_dtype=0):
    levels = x.astype("int32")
    levels = levels if zero is None else levels - along(zero, x, axis).astype("int32")
    y = levels.astype(scale.dtype) * along(scale, x, axis)
    return y.astype(DType.from_onnx(output_dtype).numpy) if output_dtype else y
