"""The slicer's rule of each operator, a file a family; one without a rule runs whole on each rank.

A new rule is a function in its family's file, an entry in `RULES` and a row in
tests/slicing/test_operators.py. Look also at these tables of operators:

LOOKUPS, below                           inputs of indices or lengths: the check draws fitting ones
engine/sharding/slicing/check_inputs.py  _MOVES and _ARITHMETIC, to which any integers may be given
engine/sharding/slicing/shapes.py        operators that make sizes equal, beyond onnx's inference
engine/sharding/slicing/costs.py         PRODUCTS, whose work is more than the bytes they read
engine/layouts/batch/rules               the proof for batches; tests/layouts compares it with these
engine/sharding/split_axes.py            infer_predict_layout, which slices nothing
docs/coverage.md                         operators that run whole on each rank
"""

from __future__ import annotations

from typing import NamedTuple

from engine.layouts.rules import (
    attention,
    convolution,
    elementwise,
    gather,
    matmul,
    normalisation,
    recurrent,
    reduction,
    shape_ops,
)
from engine.layouts.rules.op import Op, Rule, Way

__all__ = ["LOOKUPS", "RULES", "Lookup", "Op", "Rule", "Way", "rule_of"]

_ONNX: dict[str, Rule] = {
    **dict.fromkeys(elementwise.NAMES, elementwise.elementwise),
    "QuantizeLinear": elementwise.quantized,
    "DequantizeLinear": elementwise.quantized,
    "Dropout": elementwise.dropout,
    "MatMul": matmul.matmul,
    "Gemm": matmul.gemm,
    "MatMulInteger": matmul.matmul_integer,
    "QLinearMatMul": matmul.qlinear_matmul,
    "Einsum": matmul.einsum,
    "LayerNormalization": normalisation.layer_norm,
    "RMSNormalization": normalisation.layer_norm,
    "SimplifiedLayerNormalization": normalisation.layer_norm,
    **dict.fromkeys(
        ("Softmax", "LogSoftmax", "Hardmax", "CumSum", "CumProd", "ArgMax", "ArgMin", "TopK"),
        normalisation.along_axis,
    ),
    "LpNormalization": normalisation.along_axis,
    "BatchNormalization": normalisation.batch_norm,
    "InstanceNormalization": normalisation.instance_norm,
    "GroupNormalization": normalisation.group_norm,
    "LRN": normalisation.samples,
    "Conv": convolution.conv,
    "ConvInteger": convolution.conv_integer,
    "QLinearConv": convolution.qlinear_conv,
    "ConvTranspose": convolution.conv_transpose,
    **dict.fromkeys(
        ("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"),
        convolution.pool,
    ),
    "Resize": convolution.resize,
    "Upsample": convolution.resize,
    **dict.fromkeys(
        ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
         "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
        reduction.reduction,
    ),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent.recurrent),
    "GridSample": convolution.grid_sample,
    "RoiAlign": convolution.roi_align,
    "DepthToSpace": normalisation.samples,
    "SpaceToDepth": normalisation.samples,
    "MeanVarianceNormalization": normalisation.mean_variance,
    "Gather": gather.gather,
    "OneHot": gather.one_hot,
    "GatherElements": gather.gather_elements,
    "Transpose": shape_ops.transpose,
    "Reshape": shape_ops.reshape,
    "Flatten": shape_ops.reshape,
    "Squeeze": shape_ops.squeeze,
    "Unsqueeze": shape_ops.unsqueeze,
    "Concat": shape_ops.concat,
    "Split": shape_ops.split,
    "Slice": shape_ops.slice_,
    "Expand": shape_ops.expand,
    "Tile": shape_ops.tile,
    "Pad": shape_ops.pad,
    "Shape": shape_ops.shape_of,
    "ConstantOfShape": shape_ops.constant_of_shape,
    **dict.fromkeys(("Trilu", "Det"), shape_ops.matrices),
    "ReverseSequence": shape_ops.reverse_sequence,
    "Attention": attention.attention,
    "RotaryEmbedding": attention.rotary,
}  # fmt: skip

_MICROSOFT: dict[str, Rule] = {
    **dict.fromkeys(("BiasGelu", "FastGelu", "Gelu", "QuickGelu"), elementwise.elementwise),
    "SkipLayerNormalization": normalisation.skip_layer_norm,
    "SkipSimplifiedLayerNormalization": normalisation.skip_layer_norm,
    "MultiHeadAttention": attention.multi_head,
    "GroupQueryAttention": attention.grouped_query,
    "Attention": attention.fused,
    "MatMulNBits": attention.packed_columns,
    "QuantizeLinear": elementwise.quantized,
    "DequantizeLinear": elementwise.quantized,
}

RULES: dict[str, dict[str, Rule]] = {"": _ONNX, "ai.onnx": _ONNX, "com.microsoft": _MICROSOFT}
"""By domain and operator."""


class Lookup(NamedTuple):
    """An input of places along an axis of another input: indices, or lengths if `first` is 1.

    table: the other input. attribute: names the axis; without it, it is `axis`.
    """

    table: int
    attribute: str = ""
    axis: int = 0
    first: int = 0


_LENGTHS_IN_TIME = Lookup(0, "layout", 0, first=1)  # layout 1 has time in axis 1
LOOKUPS: dict[tuple[str, int], Lookup] = {
    ("Gather", 1): Lookup(0, "axis"),
    ("GatherElements", 1): Lookup(0, "axis"),
    ("RoiAlign", 2): Lookup(0),
    ("RotaryEmbedding", 3): Lookup(1),
    ("ReverseSequence", 1): Lookup(0, "time_axis", first=1),
    **dict.fromkeys((("LSTM", 4), ("GRU", 4), ("RNN", 4)), _LENGTHS_IN_TIME),
    ("Attention", 6): Lookup(1, axis=-2, first=1),
}
"""By operator and place of the input. Other integers are masks to the check: 0 or 1."""


def rule_of(op_type: str, domain: str) -> Rule | None:
    """Return the rule of an operator; None for one that runs whole on each rank."""
    return RULES.get(domain, {}).get(op_type)
