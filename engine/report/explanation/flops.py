"""Arithmetic operations of a node, by operator, from the shapes of its inputs and outputs.

They are counted as ONNX defines each operator (https://onnx.ai/onnx/operators/), and those of
com.microsoft as its documentation does (onnxruntime, docs/ContribOperators.md): one for each sum,
product, quotient, comparison or function, as exp, of a pair of elements, floats and integers alike;
a product that is added to a sum is two. A Sigmoid, 1 / (1 + exp(-x)), is four. Positions in the
padding of a convolution count. What only moves values is 0. An operator without a formula, as a
tree, whose work depends on the data, is None: unknown. Of a Loop or a function, see inner.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.report.explanation import formulas as of
from engine.report.explanation.formulas import Formula
from engine.report.explanation.work import Unknown, Work


def flops(work: Work) -> int | None:
    """Return the operations of a node; None where its operator or a shape is not known."""
    rule = FORMULAS.get("" if work.domain == "ai.onnx" else work.domain, {}).get(work.op_type)
    if rule is None:
        return None
    try:
        count = int(rule(work))
    except (Unknown, ArithmeticError, LookupError, TypeError, ValueError):
        return None  # a node that is not as its operator has it
    return count if count >= 0 else None


# --------------------------------------------------------------------------------------- the table

_ONE = (
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift",
    "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Ceil", "Cos", "Cosh", "CumSum", "Div",
    "Equal", "Erf", "Exp", "Floor", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less",
    "LessOrEqual", "Log", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round",
    "Sign", "Sin", "Sinh", "Sqrt", "Sub", "Tan", "Tanh", "ThresholdedRelu", "Xor",
)  # fmt: skip
_RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
_NONE = (
    "BlackmanWindow", "Cast", "CastLike", "CenterCropPad", "Col2Im", "Compress", "Concat",
    "ConcatFromSequence", "Constant", "ConstantOfShape", "DepthToSpace", "Dropout", "Expand",
    "EyeLike", "Flatten", "Gather", "GatherElements", "GatherND", "HammingWindow", "HannWindow",
    "Identity", "OneHot", "Optional", "OptionalGetElement", "OptionalHasElement", "Pad", "Reshape",
    "ReverseSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase",
    "SequenceInsert", "SequenceLength", "Shape", "Size", "Slice", "SpaceToDepth", "Split",
    "SplitToSequence", "Squeeze", "TensorScatter", "Tile", "Transpose", "Trilu", "Unsqueeze",
    "Where",
)  # fmt: skip

_ONNX: dict[str, Formula] = {
    **dict.fromkeys(_ONE, of.each(1)),
    **dict.fromkeys(_NONE, of.none),
    # Functions of each element, written out; to draw a number is one.
    "Sigmoid": of.each(4),  # 1 / (1 + exp(-x))
    "LeakyRelu": of.each(2),
    "PRelu": of.each(2),
    "Clip": of.each(2),
    "Shrink": of.each(3),
    "HardSigmoid": of.each(4),  # max(0, min(1, alpha x + beta))
    "HardSwish": of.each(5),
    "Elu": of.each(4),
    "Selu": of.each(5),
    "Celu": of.each(7),  # max(0, x) + min(0, alpha (exp(x / alpha) - 1))
    "Softplus": of.each(3),
    "Softsign": of.each(3),
    "Mish": of.each(5),  # x tanh(ln(1 + exp(x)))
    "Swish": of.each(6),
    "Gelu": of.gelu,  # x (1 + erf(x / sqrt(2))) / 2, or by tanh
    **dict.fromkeys(_RANDOM, of.each(1)),
    "Bernoulli": of.each(2),  # drawn, and compared
    "Range": of.each(2),
    "NonZero": of.each_input(1),
    "Sum": of.joined(0),
    "Max": of.joined(0),
    "Min": of.joined(0),
    "Mean": of.joined(1),
    "Det": of.determinant,
    # Quantization: (x - zero point) scale; round(x / scale) + zero point between two limits.
    "DequantizeLinear": of.each(2),
    "QuantizeLinear": of.each(5),
    "DynamicQuantizeLinear": of.each(7),
    # Reductions.
    "ArgMax": of.reduced(1, -1),
    "ArgMin": of.reduced(1, -1),
    "ReduceSum": of.reduced(1, -1),
    "ReduceMax": of.reduced(1, -1),
    "ReduceMin": of.reduced(1, -1),
    "ReduceProd": of.reduced(1, -1),
    "ReduceMean": of.each_input(1),
    "ReduceL1": of.reduced(2, -1),
    "ReduceL2": of.each_input(2),
    "ReduceSumSquare": of.reduced(2, -1),
    "ReduceLogSum": of.each_input(1),
    "ReduceLogSumExp": of.each_input(2),
    # The greatest, x - it, exp, their sum, quotient.
    "Softmax": of.softmax(5, -2),
    "LogSoftmax": of.softmax(5, -1),
    "Hardmax": of.softmax(1, -1),
    # Normalisations.
    "BatchNormalization": of.batch_norm,
    "GroupNormalization": of.group_norm,
    "InstanceNormalization": of.norm(7, 2, 2),
    "LayerNormalization": of.layer_norm,
    "LpNormalization": of.lp_norm,
    "LRN": of.local_response,
    "MeanVarianceNormalization": of.mean_variance,
    "RMSNormalization": of.norm(4, 2),
    # Sums of products.
    "Attention": of.attention,
    "Conv": of.conv(),
    "ConvInteger": of.conv(1, 99),
    "ConvTranspose": of.conv_transpose,
    "Einsum": of.einsum,
    "Gemm": of.gemm,
    "MatMul": of.matmul(),
    "MatMulInteger": of.matmul(),
    "QLinearConv": of.conv(3, 8),
    "QLinearMatMul": of.matmul(),
    # Gates, activations and the state: sigmoid is 4, tanh 1.
    "LSTM": of.recurrent(4, 18, 6),
    "GRU": of.recurrent(3, 14),
    "RNN": of.recurrent(1, 1),
    # Windows and neighbours.
    "AveragePool": of.pool(1, 0),
    "GlobalAveragePool": of.each_input(1),
    "GlobalLpPool": of.each_input(2),
    "GlobalMaxPool": of.reduced(1, -1),
    "GridSample": of.grid_sample,
    "LpPool": of.pool(2, 0),
    "MaxPool": of.pool(1, -1),
    "Resize": of.resize,
    "Upsample": of.resize,
    "RotaryEmbedding": of.rotary,
    "Scatter": of.scatter,
    "ScatterElements": of.scatter,
    "ScatterND": of.scatter,
    "DFT": of.fourier,
}
_MICROSOFT: dict[str, Formula] = {
    # What ranks exchange; the sums are divided among them.
    **dict.fromkeys(("AllReduce", "ReduceScatter"), of.each(1)),
    **dict.fromkeys(("AllGather", "AllToAll", "Barrier", "Broadcast", "Receive", "Send"), of.none),
    "Attention": of.projected_attention,
    "BiasGelu": of.each(6),
    "DynamicQuantizeLSTM": of.quantized_lstm,
    "EmbedLayerNormalization": of.embed_layer_norm,
    "FastGelu": of.fast_gelu,
    "FusedConv": of.conv(),
    "FusedGemm": of.gemm,
    "FusedMatMul": of.fused_matmul,
    "Gelu": of.gelu,
    "GroupQueryAttention": of.grouped_attention,
    "MatMulNBits": of.matmul_nbits,
    "MultiHeadAttention": of.multi_head_attention,
    "QuickGelu": of.each(6),  # x sigmoid(alpha x)
    "RotaryEmbedding": of.rotary,
    "SimplifiedLayerNormalization": of.norm(4, 2),
    "SkipLayerNormalization": of.skip_layer_norm,
    "SkipSimplifiedLayerNormalization": of.skip_rms_norm,
}
FORMULAS: Mapping[str, Mapping[str, Formula]] = {
    "": {**_ONNX, "SimplifiedLayerNormalization": of.norm(4, 2)},
    "com.microsoft": _MICROSOFT,
    "ai.onnx.ml": {"Scaler": of.each(2), "Binarizer": of.each(1), "Imputer": of.each(1)},
}
