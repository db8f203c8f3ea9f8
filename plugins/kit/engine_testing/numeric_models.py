"""Models of quantized and small numbers, and one whose nodes runtimes fuse; `models` offers them.

Their answers are in `numerics.py`, which computes them with integers and in double.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.types import DType
from engine_testing.making import floats, graph, text_name

QUANTIZED_WIDTH = 64
X_SCALE, W_SCALE = np.float32(0.05), np.float32(0.02)
X_ZERO, Y_ZERO = np.uint8(117), np.uint8(128)
STORED_SCALE = np.float32(1 / 64)
BLOCK_WIDTH = 16

# The operator set that has a type first.
_OPSETS = {"float8": 19, "int4": 21, "float4": 23, "float8_e8m0": 24, "int2": 25, "float6_": 28}


def int8_weight() -> npt.NDArray[np.int8]:
    """Return a weight, int8[QUANTIZED_WIDTH, 4]: large products of one sign beside each other."""
    numbers = np.random.default_rng(8).integers(-128, 128, (QUANTIZED_WIDTH, 4))
    numbers[:16, 0], numbers[16:32, 1] = 127, -128
    return numbers.astype(np.int8)


def stored_weight() -> npt.NDArray[np.int8]:
    """Return a weight of a layer, int8[256, 128]."""
    return np.random.default_rng(9).integers(-127, 128, (256, 128)).astype(np.int8)


def stored_as_int8(folder: Path, operator: str) -> Path:
    """y = x @ (float(weight) * STORED_SCALE), x float32[8, 256]: only the weight is in 8 bits.

    operator: that makes it float, "Cast" (and a Mul after it) or "DequantizeLinear".
    """
    text = {
        "Cast": "wide = Cast <to = 1> (weight) scaled = Mul (wide, scales)",
        "DequantizeLinear": "scaled = DequantizeLinear <axis = 1> (weight, scales)",
    }[operator]
    return graph(
        folder,
        f"stored_{operator}",
        f"(float[8, 256] x) => (float[8, 128] y) {{ {text} y = MatMul (x, scaled) }}",
        {"weight": stored_weight(), "scales": np.full(128, STORED_SCALE)},
    )


def integer_product(folder: Path) -> Path:
    """y = (x - X_ZERO) @ int8_weight() in int32, x uint8[4, QUANTIZED_WIDTH]."""
    text = f"""(uint8[4, {QUANTIZED_WIDTH}] x) => (int32[4, 4] y) {{
        y = MatMulInteger (x, weight, zero)
    }}"""
    constants: dict[str, npt.NDArray[Any]] = {
        "weight": int8_weight(), "zero": np.array(X_ZERO)
    }  # fmt: skip
    return graph(folder, "integer_product", text, constants)


def quantized_product(folder: Path, y_scale: float) -> Path:
    """y = (x @ weight) / y_scale + Y_ZERO, rounded; x uint8[4, QUANTIZED_WIDTH], y uint8[4, 4]."""
    text = f"""(uint8[4, {QUANTIZED_WIDTH}] x) => (uint8[4, 4] y) {{
        y = QLinearMatMul (x, xs, xz, weight, ws, wz, ys, yz)
    }}"""
    return graph(folder, "quantized_product", text, _quantization(y_scale))


def quantize_and_back(folder: Path, y_scale: float) -> Path:
    """As `quantized_product`, in float32[4, QUANTIZED_WIDTH] and out, between Q and DQ nodes."""
    text = f"""(float[4, {QUANTIZED_WIDTH}] x) => (float[4, 4] y) {{
        xq = QuantizeLinear (x, xs, xz)
        xd = DequantizeLinear (xq, xs, xz)
        wd = DequantizeLinear (weight, ws, wz)
        product = MatMul (xd, wd)
        yq = QuantizeLinear (product, ys, yz)
        y = DequantizeLinear (yq, ys, yz)
    }}"""
    return graph(folder, "quantize_and_back", text, _quantization(y_scale))


def _quantization(y_scale: float) -> dict[str, npt.NDArray[Any]]:
    return {
        "weight": int8_weight(),
        "xs": floats(X_SCALE), "xz": np.array(X_ZERO),
        "ws": floats(W_SCALE), "wz": np.array(0, np.int8),
        "ys": floats(y_scale), "yz": np.array(Y_ZERO),
    }  # fmt: skip


def cast_and_back(folder: Path, dtype: DType) -> Path:
    """y = float32(dtype(x)), x float32[n]."""
    opset = max(number for part, number in _OPSETS.items() if part in dtype)
    text = f"""(float[n] x) => (float[n] y) {{
        small = Cast <to = {dtype.onnx}> (x)
        y = Cast <to = 1> (small)
    }}"""
    ir_version = 14 if "float6_" in dtype else 13 if opset > 23 else 11
    name = f"cast_{text_name(dtype)}"
    return graph(folder, name, text, opset=opset, ir_version=ir_version)


def turned(folder: Path, dtype: DType) -> Path:
    """y = transpose(x) with x of any `dtype`, shape [2, n], in the operator set that has it."""
    opset = max((number for part, number in _OPSETS.items() if part in dtype), default=17)
    # Transpose takes types of fewer bits from a later operator set on than Cast does.
    opset = max(opset, 21) if dtype.bits and dtype.bits < 16 and opset > 17 else opset
    kind = text_name(dtype)
    ir_version = 14 if "float6_" in dtype else 13 if opset > 23 else 11 if opset > 17 else 8
    text = f"({kind}[2, n] x) => ({kind}[n, 2] y) {{ y = Transpose <perm = [1, 0]> (x) }}"
    return graph(folder, f"turned_{kind}", text, opset=opset, ir_version=ir_version)


def block(folder: Path) -> Path:
    """y = norm(x + attention(x)): patterns that runtimes fuse, x float32[4, BLOCK_WIDTH].

    A layer norm, an attention with scaled softmax and a gelu, each of plain nodes.
    """
    width = BLOCK_WIDTH
    text = f"""(float[4, {width}] x) => (float[4, {width}] y) {{
        mean = ReduceMean <axes = [-1]> (x)
        centred = Sub (x, mean)
        square = Mul (centred, centred)
        variance = ReduceMean <axes = [-1]> (square)
        shifted = Add (variance, epsilon)
        deviation = Sqrt (shifted)
        normed = Div (centred, deviation)
        gained = Mul (normed, gain)
        h = Add (gained, bias)
        q = MatMul (h, wq)
        k = MatMul (h, wk)
        turned = Transpose <perm = [1, 0]> (k)
        scores = MatMul (q, turned)
        scaled = Mul (scores, scale)
        weights = Softmax <axis = -1> (scaled)
        v = MatMul (h, wv)
        mixed = MatMul (weights, v)
        a = Add (mixed, x)
        part = Mul (a, half_root)
        error = Erf (part)
        raised = Add (error, one)
        gate = Mul (raised, half)
        y = Mul (a, gate)
    }}"""
    return graph(folder, "block", text, block_constants())


def block_constants() -> dict[str, npt.NDArray[np.float32]]:
    """Return the constants of `block`, by name."""
    random = np.random.default_rng(10)
    matrix = (BLOCK_WIDTH, BLOCK_WIDTH)
    return {
        **{name: floats(random.standard_normal(matrix) / 4) for name in ("wq", "wk", "wv")},
        "gain": floats(1 + random.standard_normal(BLOCK_WIDTH) / 8),
        "bias": floats(random.standard_normal(BLOCK_WIDTH) / 8),
        "epsilon": floats(1e-3), "scale": floats(0.25), "half_root": floats(0.5**0.5),
        "one": floats(1), "half": floats(0.5),
    }  # fmt: skip
