"""Models of operators whose meaning some runtimes change: old operator sets, integers, indices.

Their answers are in `meanings.py`; those of the old operator sets stand beside them here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.types import DType
from engine_testing.making import floats, graph, longs, text_name

Array: TypeAlias = npt.NDArray[Any]

CHANNELS, FILTERS, SIDE, KERNEL = 4, 8, 8, 3
FILTER_VALUE = 0.5


def compared(folder: Path, operator: str, dtype: DType) -> Path:
    """y = operator(a, b) as bool, a and b of `dtype`, [n]."""
    name = text_name(dtype)
    text = f"({name}[n] a, {name}[n] b) => (bool[n] y) {{ y = {operator} (a, b) }}"
    return graph(folder, f"compared_{operator}_{name}", text)


def mapped(folder: Path, operator: str) -> Path:
    """y = operator(x), float32[n]."""
    text = f"(float[n] x) => (float[n] y) {{ y = {operator} (x) }}"
    return graph(folder, f"mapped_{operator}", text)


def convolved_integers(folder: Path, weight: Array) -> Path:
    """y = the 1x1 convolution of x, uint8[1, c, 2, 2], with `weight`, [m, c, 1, 1], in int32."""
    filters, channels = weight.shape[:2]
    text = f"""(uint8[1, {channels}, 2, 2] x) => (int32[1, {filters}, 2, 2] y) {{
        y = ConvInteger (x, weight)
    }}"""
    return graph(folder, "convolved_integers", text, {"weight": weight})


def multiplied_integers(folder: Path, dtype: DType, weight: Array) -> Path:
    """y = x @ weight in int32; x [n, k] of `dtype`, weight [k, m]."""
    k, m = weight.shape
    name = text_name(dtype)
    text = f"""({name}[2, {k}] x) => (int32[2, {m}] y) {{ y = MatMulInteger (x, weight) }}"""
    return graph(folder, f"multiplied_{name}", text, {"weight": weight})


def combined(folder: Path, operator: str, dtype: DType) -> Path:
    """y = operator(a, b), all of `dtype`, [n]."""
    name = text_name(dtype)
    text = f"({name}[n] a, {name}[n] b) => ({name}[n] y) {{ y = {operator} (a, b) }}"
    return graph(folder, f"combined_{operator}_{name}", text)


_GATHERS = {
    "Gather": ("int64[2] at", "float[2, 4] y"),
    "GatherElements": ("int64[2, 4] at", "float[2, 4] y"),
    "GatherND": ("int64[2, 1] at", "float[2, 4] y"),
}


def gathered(folder: Path, operator: str) -> Path:
    """y = rows of x, float32[3, 4], that `at` names: two, float32[2, 4]."""
    at, y = _GATHERS[operator]
    text = f"(float[3, 4] x, {at}) => ({y}) {{ y = {operator} (x, at) }}"
    return graph(folder, f"gathered_{operator}", text)


_MOVES = {
    "Identity": "Identity (x)",
    "Transpose": "Transpose <perm = [1, 0]> (x)",
    "Concat": "Concat <axis = 0> (x, x)",
    "Gather": "Gather <axis = 0> (x, at)",
    "Reshape": "Reshape (x, shape)",
}
MOVES = tuple(_MOVES)


def carried(folder: Path, operator: str, dtype: DType) -> Path:
    """y = the elements of x, [2, 3], at other places; Gather takes the rows 1, 0, -1."""
    name = text_name(dtype)
    text = f"({name}[2, 3] x) => ({name}[p, q] y) {{ y = {_MOVES[operator]} }}"
    constants = {"Gather": {"at": longs([1, 0, -1])}, "Reshape": {"shape": longs([3, 2])}}
    return graph(folder, f"carried_{operator}_{name}", text, constants.get(operator))


def filled(folder: Path) -> Path:
    """y = the mean of each filter, total = their sum; x float32[1, CHANNELS, SIDE, SIDE].

    All weights are FILTER_VALUE, which ConstantOfShape writes: for x of one number c, each y is
    c * CHANNELS * KERNEL ** 2 * FILTER_VALUE, and total is FILTERS times that.
    """
    text = f"""(float[1, {CHANNELS}, {SIDE}, {SIDE}] x)
        => (float[1, {FILTERS}, 1, 1] y, float[1, 1, 1, 1] total) {{
        weight = ConstantOfShape <value = float[1] value {{{FILTER_VALUE}}}> (shape)
        convolved = Conv <kernel_shape = [{KERNEL}, {KERNEL}]> (x, weight)
        y = GlobalAveragePool (convolved)
        total = ReduceSum <keepdims = 1> (y, axes)
    }}"""
    shape = longs([FILTERS, CHANNELS, KERNEL, KERNEL])
    return graph(folder, "filled", text, {"shape": shape, "axes": longs([1])})


# ----------------------------------------------------------------------------- older operator sets


@dataclass(frozen=True, slots=True)
class Meaning:
    """A node as an older operator set has it, and its answer: y for the input x, both float32."""

    opset: int
    node: str
    x: Array
    y: Array
    constants: dict[str, Array] = field(default_factory=dict)


def _softmax(x: Array) -> Array:
    """Return softmax over all but the first axis, in double."""
    flat = np.exp(x.astype(np.float64)).reshape(len(x), -1)
    return floats((flat / flat.sum(1, keepdims=True)).reshape(x.shape))


_CUBE = floats((np.arange(24) % 7 / 4).reshape(2, 3, 4))
_ROW = floats([[[[1, 2, 3, 4]]]])
_SQUARE = floats([[[[1, 2], [3, 4]]]])
_TWICE = np.repeat(np.repeat(_SQUARE, 2, 2), 2, 3)
_NO_FLOATS = np.zeros(0, np.float32)
_BY_CHANNEL = {
    "scale": floats([2, 3, 1]), "bias": floats([1, 0, -1]),
    "mean": floats([0.5, 0.25, 0]), "variance": floats([4, 1, 0.25]),
}  # fmt: skip


def _normalised(x: Array) -> Array:
    """Return x less each channel's mean, over its deviation, scaled and shifted."""
    scale, bias, mean, variance = (value.reshape(-1, 1) for value in _BY_CHANNEL.values())
    return floats((x - mean) / np.sqrt(variance) * scale + bias)


MEANINGS: dict[str, Meaning] = {
    # Flattened at its axis, 1 by default; from 13 on it is along one axis.
    "Softmax_11": Meaning(11, "Softmax (x)", _CUBE, _softmax(_CUBE)),
    "LogSoftmax_11": Meaning(
        11, "LogSoftmax <axis = 1> (x)", _CUBE, floats(np.log(_softmax(_CUBE).astype(np.float64)))
    ),
    # Scales are the second input; from 11 on that is the region.
    "Resize_10": Meaning(
        10, 'Resize <mode = "nearest"> (x, scales)', _SQUARE, _TWICE,
        {"scales": floats([1, 1, 2, 2])},
    ),
    "Resize_11_linear": Meaning(
        11, 'Resize <mode = "linear"> (x, region, scales)', _ROW,
        floats([[[[1, 1.25, 1.75, 2.25, 2.75, 3.25, 3.75, 4]]]]),  # at (i + 0.5) / 2 - 0.5
        {"region": _NO_FLOATS, "scales": floats([1, 1, 1, 2])},
    ),
    "Resize_11_asymmetric": Meaning(
        11,
        'Resize <mode = "linear", coordinate_transformation_mode = "asymmetric"> '
        "(x, region, scales)",
        _ROW, floats([[[[1, 1.5, 2, 2.5, 3, 3.5, 4, 4]]]]),  # at i / 2
        {"region": _NO_FLOATS, "scales": floats([1, 1, 1, 2])},
    ),
    "Upsample_7": Meaning(
        7, 'Upsample <mode = "nearest", scales = [1.0, 1.0, 2.0, 2.0]> (x)', _SQUARE, _TWICE
    ),
    "Upsample_9": Meaning(
        9, 'Upsample <mode = "nearest"> (x, scales)', _SQUARE, _TWICE,
        {"scales": floats([1, 1, 2, 2])},
    ),
    "BatchNormalization_9": Meaning(
        9, "BatchNormalization <epsilon = 0.0> (x, scale, bias, mean, variance)", _CUBE,
        _normalised(_CUBE),
        _BY_CHANNEL,
    ),
    # An attribute, where later there is an input.
    "Squeeze_11": Meaning(11, "Squeeze <axes = [0, -1]> (x)", floats([[[1], [2]]]), floats([1, 2])),
    "Unsqueeze_11": Meaning(
        11, "Unsqueeze <axes = [0, 2]> (x)", floats([1, 2]), floats([[[1], [2]]])
    ),
    "ReduceSum_11": Meaning(11, "ReduceSum <axes = [1]> (x)", _CUBE, _CUBE.sum(1, keepdims=True)),
    "ReduceL1_17": Meaning(
        17, "ReduceL1 <axes = [1], keepdims = 0> (x)", -_CUBE, _CUBE.sum(1)
    ),
    "ReduceMax_17": Meaning(
        17, "ReduceMax <axes = [2], keepdims = 0> (x)", _CUBE, _CUBE.max(2)
    ),
    "Clip_6": Meaning(
        7, "Clip <min = 0.0, max = 1.0> (x)", floats([-1, 0.5, 2]), floats([0, 0.5, 1])
    ),
    "Pad_10": Meaning(
        10, "Pad <pads = [0, 1, 1, 0], value = 5.0> (x)", floats([[1, 2]]),
        floats([[5, 1, 2], [5, 5, 5]]),
    ),
    "Slice_9": Meaning(
        9, "Slice <axes = [2], starts = [-2], ends = [4]> (x)", _CUBE, _CUBE[:, :, 2:]
    ),
    "TopK_9": Meaning(
        9, "TopK <k = 2> (x)", floats([[1, 3, 2], [6, 4, 5]]), floats([[3, 2], [6, 5]])
    ),
    # Nothing is dropped where nobody trains, whatever the ratio is.
    "Dropout_11": Meaning(11, "Dropout <ratio = 0.9> (x)", _CUBE, _CUBE),
}  # fmt: skip


def of_its_time(folder: Path, name: str) -> Path:
    """Write the model of one of MEANINGS."""
    meaning = MEANINGS[name]
    x, y = (f"float[{', '.join(map(str, array.shape))}]" for array in (meaning.x, meaning.y))
    outputs = "y, places" if meaning.node.startswith("TopK") else "y"
    text = f"({x} x) => ({y} y) {{ {outputs} = {meaning.node} }}"
    return graph(folder, name, text, meaning.constants, opset=meaning.opset)
