"""Element types of a body's values, as far as operators alone tell them: no shapes, no onnx.

Enough to tell the integer divisions of a model, which are few, from those of floats. The tables are
held against onnx's schemas by a test.
"""

from __future__ import annotations

from engine.types import DType, NodeInfo
from engine_cpu.nodes import Body
from engine_cpu.tensors import dtype_of

# Operators that only give floats.
FLOATS = frozenset({
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Attention", "AveragePool",
    "BatchNormalization", "Ceil", "Celu", "Conv", "ConvTranspose", "Cos", "Cosh",
    "DequantizeLinear", "Det", "Dropout", "Elu", "Exp", "Floor", "GRU", "Gelu",
    "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "GroupNormalization", "HardSigmoid",
    "HardSwish", "Hardmax", "InstanceNormalization", "LRN", "LSTM", "LayerNormalization",
    "LeakyRelu", "Log", "LogSoftmax", "LpNormalization", "LpPool", "Mean",
    "MeanVarianceNormalization", "Mish", "RMSNormalization", "RNN", "RandomNormal",
    "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Reciprocal", "RotaryEmbedding",
    "Round", "Selu", "Sigmoid", "Sin", "Sinh", "Softmax", "Softplus", "Softsign", "Sqrt", "Sum",
    "Swish", "Tan", "Tanh", "ThresholdedRelu",
})  # fmt: skip
INT64 = frozenset({"ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "Shape", "Size"})
# Operators whose first output is of the type of these inputs.
SAME: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Add", "Div", "MatMul", "Mod", "Mul", "PRelu", "Sub"), (0, 1)),
    "Gemm": (0, 1, 2),
    "Where": (1, 2),
    "Range": (0, 1, 2),
    **dict.fromkeys(("Concat", "Einsum", "Max", "Min"), (0, 1)),
    **dict.fromkeys(
        ("Abs", "Clip", "Compress", "CumSum", "DepthToSpace", "Erf", "Expand", "Flatten", "Gather",
         "GatherElements", "GatherND", "GridSample", "Identity", "MaxPool", "Neg", "Pad", "Pow",
         "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
         "ReduceSumSquare", "Relu", "Reshape", "Resize", "ReverseSequence", "ScatterElements",
         "ScatterND", "Sign", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose",
         "Trilu", "Unsqueeze", "Upsample"),
        (0,),
    ),
}  # fmt: skip
_LONGEST = 1_000_000  # nodes of a model; more is a circle


def is_float(name: str, body: Body) -> bool | None:
    """Return whether a value is of floats; None where that cannot be told so simply."""
    path: list[str] = []
    answer = None
    while name not in body.are_floats:
        path.append(name)
        if name in body.types:
            answer = body.types[name] in _FLOAT_TYPES
            break
        node = body.producer(name)
        if node is None:
            answer = is_float(name, body.outer) if body.outer is not None else None
            break
        answer = _given(node, name, body)
        if answer is not None:
            break
        inputs = [node.inputs[i] for i in SAME.get(node.op_type, ()) if i < len(node.inputs)]
        is_first = name == node.outputs[0] or node.op_type == "Split"
        if not inputs or not is_first or node.domain not in ("", "ai.onnx") or len(path) > _LONGEST:
            break
        known = [item for item in inputs if item in body.types]
        name = known[0] if known else inputs[0]
    else:
        answer = body.are_floats[name]
    body.are_floats.update(dict.fromkeys(path, answer))
    return answer


_FLOAT_TYPES = frozenset({
    DType.FLOAT32, DType.FLOAT16, DType.FLOAT64, DType.BFLOAT16,
})  # fmt: skip


def _given(node: NodeInfo, name: str, body: Body) -> bool | None:
    """Return whether a node gives floats, where the node alone says so."""
    if node.domain not in ("", "ai.onnx") or name != node.outputs[0]:
        return None
    if node.op_type in FLOATS:
        return True
    if node.op_type in INT64:
        return False
    if node.op_type == "Cast" and isinstance(to := node.attributes.get("to"), int):
        return 1 <= to <= len(DType) and DType.from_onnx(to) in _FLOAT_TYPES
    if node.op_type == "Constant":
        if "value_float" in node.attributes or "value_floats" in node.attributes:
            return True
        tensor = body.tensor(node)
        return None if tensor is None else dtype_of(tensor) in _FLOAT_TYPES
    return None
