"""Families of operators, which have one colour each in a drawing."""

from __future__ import annotations

FAMILIES = (
    "sums of products", "element by element", "activations", "normalisation", "shape and layout",
    "reduction and pooling", "attention and recurrent", "control and others", "quantization",
)  # fmt: skip

_MEMBERS = (
    ("Conv", "MatMul", "Gemm", "Einsum"),
    (),
    (
        "Relu", "Sigmoid", "Tanh", "Gelu", "Clip", "Elu", "Selu", "Celu", "Softplus", "Softsign",
        "Mish", "Swish", "Erf", "HardSwish", "Softmax", "Hardmax", "Shrink",
    ),
    ("Normalization", "LRN"),
    (
        "Reshape", "Transpose", "Concat", "Split", "Slice", "Gather", "Scatter", "Squeeze",
        "Flatten", "Shape", "Expand", "Tile", "Pad", "Cast", "Constant", "Identity", "Range",
        "DepthTo", "SpaceTo", "Resize", "Upsample", "Trilu", "Dropout", "Size", "OneHot",
        "GridSample",
    ),
    ("Reduce", "Pool", "Arg", "TopK", "CumSum", "NonZero"),
    ("Attention", "LSTM", "GRU", "RNN", "RotaryEmbedding"),
    (
        "If", "Loop", "Scan", "Sequence", "Optional", "Tree", "Linear", "NonMaxSuppression",
        "Unique", "SVM", "Label", "ZipMap", "Normalizer", "Scaler", "Imputer",
    ),
    ("Quantize", "QLinear", "Integer", "NBits"),
)  # fmt: skip
_ORDER = (8, 3, 6, 0, 2, 5, 4, 7)
_WORDS = frozenset(("If", "Loop", "Scan", "Size", "Shape", "Arg", "Erf", "Elu"))


def family(op_type: str) -> int:
    """Return the place of an operator's family in FAMILIES."""
    for place in _ORDER:
        for word in _MEMBERS[place]:
            if op_type == word or (word not in _WORDS and word in op_type):
                return place
            if word == "Arg" and op_type in ("ArgMax", "ArgMin"):
                return place
    return 1
