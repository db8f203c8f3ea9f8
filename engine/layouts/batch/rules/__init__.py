"""The rule of each operator by which the proof follows a batch, a file a family."""

from __future__ import annotations

from collections.abc import Callable

from engine.layouts.batch.node import Node
from engine.layouts.batch.rules import (
    along,
    attention,
    control,
    elementwise,
    indexing,
    joining,
    matmul,
    ml,
    quantized,
    recurrent,
    shapes,
    spatial,
)
from engine.layouts.batch.values import Value
from engine.layouts.rules.elementwise import NAMES

Rule = Callable[[Node], list[Value]]

_ONNX: dict[str, Rule] = {
    **dict.fromkeys(NAMES, elementwise.elementwise),
    **dict.fromkeys(("RegexFullMatch", "StringConcat"), elementwise.elementwise),
    "QuantizeLinear": quantized.linear,
    "DequantizeLinear": quantized.linear,
    "DynamicQuantizeLinear": quantized.dynamic,
    "Dropout": along.dropout,
    "MatMul": matmul.matmul,
    "MatMulInteger": matmul.matmul_integer,
    "QLinearMatMul": matmul.qlinear_matmul,
    "Gemm": matmul.gemm,
    "Einsum": matmul.einsum,
    **dict.fromkeys(
        ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"),
        along.layer_norm,
    ),
    **dict.fromkeys(
        ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization"),
        along.along_axis,
    ),
    **dict.fromkeys(("ArgMax", "ArgMin"), along.arg),
    **dict.fromkeys(("CumSum", "CumProd"), along.cumulated),
    "BatchNormalization": along.batch_norm,
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization", "LRN"), along.samples),
    "MeanVarianceNormalization": along.mean_variance,
    **dict.fromkeys(
        ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
         "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
        along.reduction,
    ),
    "Det": along.determinant,
    "DFT": along.fourier,
    "STFT": along.short_fourier,
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv"), spatial.conv),
    "ConvTranspose": spatial.conv_transpose,
    "DeformConv": spatial.deform_conv,
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), spatial.pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), spatial.global_pool),
    **dict.fromkeys(("Resize", "Upsample"), spatial.resize),
    "GridSample": spatial.grid_sample,
    "AffineGrid": spatial.affine_grid,
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), spatial.space),
    "CenterCropPad": spatial.region,
    "Col2Im": spatial.columns,
    "Gather": indexing.gather,
    "GatherElements": indexing.gather_elements,
    "GatherND": indexing.gather_nd,
    **dict.fromkeys(("ScatterElements", "Scatter"), indexing.scatter_elements),
    "ScatterND": indexing.scatter_nd,
    "TensorScatter": indexing.tensor_scatter,
    "OneHot": indexing.one_hot,
    "TopK": indexing.top_k,
    "ReverseSequence": indexing.reverse_sequence,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent.recurrent),
    "Attention": attention.attention,
    "RotaryEmbedding": attention.rotary,
    "If": control.if_,
    "Loop": control.loop,
    "Scan": control.scan,
    "Transpose": shapes.transpose,
    "Reshape": shapes.reshape,
    "Flatten": shapes.flatten,
    "Squeeze": shapes.squeeze,
    "Unsqueeze": shapes.unsqueeze,
    "Concat": joining.concat,
    "Split": joining.split,
    "Slice": joining.slice_,
    "Expand": shapes.expand,
    "Tile": shapes.tile,
    "Pad": shapes.pad,
    "Shape": shapes.shape_of,
    "Size": shapes.size_of,
    "ConstantOfShape": shapes.constant_of_shape,
    "Range": shapes.range_,
    "Trilu": shapes.trilu,
}  # fmt: skip

_MICROSOFT: dict[str, Rule] = {
    **dict.fromkeys(("BiasGelu", "FastGelu", "Gelu", "QuickGelu"), elementwise.elementwise),
    **dict.fromkeys(
        ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), along.skip_layer_norm
    ),
    "MultiHeadAttention": attention.multi_head,
    "Attention": attention.fused,
    "RotaryEmbedding": attention.rotary,
    "EmbedLayerNormalization": attention.embedding_norm,
    "FusedConv": spatial.fused_conv,
    "FusedMatMul": matmul.fused_matmul,
    "FusedGemm": matmul.gemm,
    "MatMulNBits": matmul.packed_matmul,
    "MatMulIntegerToFloat": quantized.dynamic,
    "QuantizeLinear": quantized.linear,
    "DequantizeLinear": quantized.linear,
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), quantized.binary),
    **dict.fromkeys(("QLinearSigmoid", "QLinearLeakyRelu"), quantized.unary),
    "QLinearSoftmax": quantized.softmax,
    "QLinearGlobalAveragePool": quantized.global_pool,
    **dict.fromkeys(("DynamicQuantizeMatMul", "DynamicQuantizeLSTM"), quantized.dynamic),
    "Inverse": along.determinant,
}

_ML: dict[str, Rule] = {
    **dict.fromkeys(("Scaler", "Imputer", "Binarizer", "Normalizer", "LabelEncoder"), ml.elements),
    **dict.fromkeys(
        ("LinearClassifier", "LinearRegressor", "SVMClassifier", "SVMRegressor",
         "TreeEnsembleClassifier", "TreeEnsembleRegressor", "TreeEnsemble"),
        ml.rows,
    ),
    "ArrayFeatureExtractor": ml.chosen,
    "FeatureVectorizer": ml.joined,
    "OneHotEncoder": ml.one_hot,
}  # fmt: skip

RULES: dict[str, dict[str, Rule]] = {"": _ONNX, "com.microsoft": _MICROSOFT, "ai.onnx.ml": _ML}
"""By domain and operator."""

OF_ANY_KIND = frozenset(
    (*NAMES, "Shape", "Size", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Concat",
     "Split", "Slice", "Expand", "Tile", "ConstantOfShape", "Range", "Gather", "GatherND",
     "ScatterND", "Resize", "AffineGrid", "Upsample")
)  # fmt: skip
"""Operators whose rules also take sizes and numbers of samples; others get data alone."""
