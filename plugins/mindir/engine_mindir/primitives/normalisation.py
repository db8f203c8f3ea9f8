"""Normalisation layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine_mindir.emit import Emitter
from engine_mindir.primitives import primitive
from engine_mindir.primitives.axes import as_int, axes_of
from engine_mindir.primitives.convolution import check_layout
from engine_mindir.values import DType, Value


@primitive(
    "BatchNorm", "BatchNormExt", "FusedBatchNorm", "FusedBatchNormEx", "BatchNormWithActivation"
)
def batch_norm(
    g: Emitter, x: Value, scale: Value, bias: Value, mean: Value, variance: Value,
    is_training: Any = False, epsilon: float = 1e-5, momentum: float = 0.1, format: Any = "NCHW",
) -> tuple[Any, ...]:  # fmt: skip
    check_layout(format)
    axes = [axis for axis in range(g.rank(x)) if axis != 1]
    if is_training:
        mean = g.node("ReduceMean", x, g.ints(tuple(axes)), keepdims=0)
        wide = g.reshape(mean, (-1, *[1] * (g.rank(x) - 2)))
        apart = g.node("Sub", x, wide)
        variance = g.node(
            "ReduceMean", g.node("Mul", apart, apart), g.ints(tuple(axes)), keepdims=0
        )
    y = g.node("BatchNormalization", x, scale, bias, mean, variance, epsilon=float(epsilon))
    return y, scale, bias, mean, variance


@primitive("Scale", "ScaleFusion")
def scale(g: Emitter, x: Value, factor: Value, bias: Any = None, *, axis: Any = 1) -> Value:
    rank, factor_rank = g.rank(x), g.rank(factor)
    first = as_int(axis) % rank
    shape = (*[1] * first, *(factor.shape or ()), *[1] * (rank - first - factor_rank))
    y = g.node("Mul", x, g.reshape(factor, tuple(d if d is not None else -1 for d in shape)))
    return g.node("Add", y, g.reshape(bias, shape)) if bias is not None else y


def _layer(g: Emitter, x: Value, gamma: Any, beta: Any, first: int, epsilon: float) -> list[Value]:
    """Emit LayerNormalization over the axes from `first`; return result, mean and 1/std."""
    rank = g.rank(x)
    first %= rank
    if gamma is None:
        dims = x.shape[first:] if x.shape is not None else (None,)
        if None in dims:
            gamma = g.node("Expand", g.constant(1, x.dtype), g.ints(g.dims(x)[first:]))
        else:
            sizes = [d or 0 for d in dims]
            g.bounded(*sizes)
            gamma = g.constant(np.ones(sizes), x.dtype)
    return g.nodes(
        "LayerNormalization", x, g.cast(gamma, x.dtype),
        g.cast(beta, x.dtype) if beta is not None else None,
        types=[(None, x.shape), (DType.FLOAT32, None), (DType.FLOAT32, None)],
        axis=first, epsilon=float(epsilon),
    )  # fmt: skip


@primitive("LayerNorm", "LayerNormV3", "LayerNormFusion")
def layer_norm(
    g: Emitter, x: Value, gamma: Value, beta: Value, begin_norm_axis: Any = 1,
    begin_params_axis: Any = 1, epsilon: float = 1e-7,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the result, the mean and the variance."""
    first = as_int(begin_norm_axis) % g.rank(x)
    params = as_int(begin_params_axis) % g.rank(x)
    if first == params:
        y, mean, deviation = _layer(g, x, gamma, beta, first, epsilon)
        variance = g.node("Sub", g.node("Reciprocal", g.node("Mul", deviation, deviation)), epsilon)
        return y, mean, variance
    axes = g.ints(tuple(range(first, g.rank(x))))
    mean = g.node("ReduceMean", x, axes, keepdims=1)
    apart = g.node("Sub", x, mean)
    variance = g.node("ReduceMean", g.node("Mul", apart, apart), axes, keepdims=1)
    y = g.node("Div", apart, g.node("Sqrt", g.node("Add", variance, epsilon)))
    return g.node("Add", g.node("Mul", y, gamma), beta), mean, variance


@primitive("LayerNormExt")
def layer_norm_ext(
    g: Emitter, x: Value, normalized_shape: Any, gamma: Any = None, beta: Any = None,
    epsilon: float = 1e-5,
) -> tuple[Any, ...]:  # fmt: skip
    first = g.rank(x) - len(axes_of(normalized_shape))
    return tuple(_layer(g, x, gamma, beta, first, epsilon))


@primitive("RmsNorm", "RMSNorm")
def rms_norm(g: Emitter, x: Value, gamma: Value, epsilon: float = 1e-6) -> tuple[Any, ...]:
    rank = g.rank(x)
    axes = g.ints(tuple(range(rank - g.rank(gamma), rank)))
    work = g.cast(x, DType.FLOAT32) if x.dtype in (DType.FLOAT16, DType.BFLOAT16) else x
    squares = g.node("ReduceMean", g.node("Mul", work, work), axes, keepdims=1)
    rstd = g.node("Reciprocal", g.node("Sqrt", g.node("Add", squares, float(epsilon))))
    scaled = g.node("Mul", work, rstd)
    return g.cast(g.node("Mul", scaled, g.cast(gamma, work.dtype)), x.dtype), rstd


@primitive("AddLayerNorm")
def add_layer_norm(
    g: Emitter,
    x1: Value,
    x2: Value,
    gamma: Value,
    beta: Value,
    epsilon: float = 1e-5,
    additional_out: Any = False,
) -> tuple[Any, ...]:
    x = g.node("Add", x1, x2)
    y, mean, deviation = _layer(g, x, gamma, beta, -1, epsilon)
    return y, mean, deviation, x


@primitive("AddRmsNorm")
def add_rms_norm(
    g: Emitter, x1: Value, x2: Value, gamma: Value, epsilon: float = 1e-6
) -> tuple[Any, ...]:
    x = g.node("Add", x1, x2)
    y, rstd = rms_norm(g, x, gamma, epsilon)
    return y, rstd, x


@primitive("GroupNorm")
def group_norm(
    g: Emitter,
    x: Value,
    num_groups: Any,
    gamma: Any = None,
    beta: Any = None,
    epsilon: float = 1e-5,
) -> tuple[Any, ...]:
    """Lower GroupNorm as an InstanceNormalization of the groups, then scaled per channel."""
    dims = g.dims(x)
    groups = as_int(num_groups)
    g.bounded(groups)
    rank = g.rank(x)
    grouped = g.reshape(x, (dims[0], groups, -1))
    axes = g.ints((2,))
    mean = g.node("ReduceMean", grouped, axes, keepdims=1)
    ones = g.constant(np.ones(groups), x.dtype)
    zeros = g.constant(np.zeros(groups), x.dtype)
    y = g.node("InstanceNormalization", grouped, ones, zeros, epsilon=float(epsilon))
    y = g.reshape(y, dims)
    tail = (-1, *[1] * (rank - 2))
    if gamma is not None:
        y = g.node("Mul", y, g.reshape(gamma, tail))
    if beta is not None:
        y = g.node("Add", y, g.reshape(beta, tail))
    apart = g.node("Sub", grouped, mean)
    variance = g.node("ReduceMean", g.node("Mul", apart, apart), axes, keepdims=0)
    rstd = g.node("Reciprocal", g.node("Sqrt", g.node("Add", variance, float(epsilon))))
    return y, g.squeeze(mean, (2,)), rstd


@primitive("InstanceNorm")
def instance_norm(
    g: Emitter,
    x: Value,
    gamma: Value,
    beta: Value,
    mean: Any = None,
    variance: Any = None,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.1,
) -> tuple[Any, ...]:
    return g.node("InstanceNormalization", x, gamma, beta, epsilon=float(epsilon)), None, None


@primitive("LRN", "Lrn", "LocalResponseNormalization")
def lrn(
    g: Emitter,
    x: Value,
    *,
    depth_radius: Any = 5,
    bias: float = 1.0,
    alpha: float = 1.0,
    beta: float = 0.5,
    norm_region: Any = "ACROSS_CHANNELS",
) -> Value:
    size = 2 * int(depth_radius) + 1
    # ONNX divides alpha by the size; MindSpore takes it as it is.
    return g.node(
        "LRN", x, size=size, alpha=float(alpha) * size, beta=float(beta), bias=float(bias)
    )
