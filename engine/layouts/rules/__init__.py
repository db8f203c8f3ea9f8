"""The rule of each operator, a file a family; one without a rule runs whole on each rank."""

from __future__ import annotations

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
from engine.layouts.rules.op import Op, Rule, ShardingChoice

__all__ = ["RULES", "Op", "Rule", "ShardingChoice", "rule_of"]

_ONNX: dict[str, Rule] = {
    **dict.fromkeys(elementwise.NAMES, elementwise.elementwise),
    "QuantizeLinear": elementwise.quantized,
    "DequantizeLinear": elementwise.quantized,
    "Dropout": elementwise.dropout,
    "MatMul": matmul.matmul,
    "Gemm": matmul.gemm,
    "MatMulInteger": matmul.matmul_integer,
    "Einsum": matmul.einsum,
    "LayerNormalization": normalisation.layer_norm,
    "RMSNormalization": normalisation.layer_norm,
    "SimplifiedLayerNormalization": normalisation.layer_norm,
    **dict.fromkeys(
        ("Softmax", "LogSoftmax", "Hardmax", "CumSum", "ArgMax", "ArgMin", "TopK"),
        normalisation.along_axis,
    ),
    "LpNormalization": normalisation.along_axis,
    "BatchNormalization": normalisation.batch_norm,
    "InstanceNormalization": normalisation.instance_norm,
    "GroupNormalization": normalisation.group_norm,
    "LRN": normalisation.samples,
    "Conv": convolution.conv,
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
    "Trilu": shape_ops.trilu,
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


def rule_of(op_type: str, domain: str) -> Rule | None:
    """Return the rule of an operator; None for one that runs whole on each rank."""
    return RULES.get(domain, {}).get(op_type)
