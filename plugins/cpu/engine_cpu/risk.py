"""Risk of a model. Most models have none, and load.py then does not import prescreen.py."""

from __future__ import annotations

import enum
from collections.abc import Container

from engine.types import GraphInfo


class Risk(enum.IntEnum):
    """Risk of running a model. FATAL: a kernel that could end the process, even while it loads."""

    NONE = 0
    WRONG = 1
    FATAL = 2


OPERATORS = frozenset({
    "Attention", "BlackmanWindow", "CausalConvWithState", "ConvInteger", "CumSum", "DFT", "Div",
    "HammingWindow", "HannWindow", "If", "Loop", "MaxUnpool", "MelWeightMatrix", "Mod", "OneHot",
    "RandomNormal", "RandomNormalLike", "Range", "ReduceMax", "ReduceMin", "Resize", "STFT", "Scan",
    "SequenceMap", "TopK", "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor",
    "Trilu", "Unique",
})  # fmt: skip
"""Those that prescreen.py looks at beyond what node_rules.py says of them."""

RULED = frozenset({
    "Attention", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "DepthToSpace", "GatherND",
    "LayerNormalization", "OneHot", "QLinearConv", "RandomNormal", "RandomNormalLike",
    "RandomUniform", "RandomUniformLike", "SpaceToDepth", "Split", "TfIdfVectorizer",
})  # fmt: skip
"""Those that node_rules.py has rules for. Names here, so that most models need neither module."""

NESTS = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Operators with graphs inside, whose nodes the core does not list."""

DEQUANTIZING = NESTS | {"DequantizeLinear"}
"""Operators that quantize back to floats, or may hold nodes that do."""

QUANTIZED = NESTS | {
    "ConvInteger", "DequantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul",
    "MatMulInteger", "MatMulIntegerToFloat", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul",
}  # fmt: skip
"""Operators by which a model has products of integers, or may hold nodes that do."""

_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft"})  # a function has one of its own


def holds(graph: GraphInfo, operators: Container[str]) -> bool:
    """Return True for a model with a node of `operators` in its main graph, or with functions."""
    return not graph.opsets.keys() <= _DOMAINS or any(
        node.op_type in operators for node in graph.nodes
    )


def may_quantize(graph: GraphInfo) -> bool:
    """Return True for a model that quantized.py looks at: DequantizeLinear, here or inside."""
    return holds(graph, DEQUANTIZING)


def may_saturate(graph: GraphInfo) -> bool:
    """Return True for a model that saturation.py looks at: products of integers, here or inside."""
    return holds(graph, QUANTIZED)


def is_plain(graph: GraphInfo) -> bool:
    """Return True for a model without anything that prescreen.py looks at closely."""
    if not graph.opsets.keys() <= _DOMAINS:
        return False
    ruled = []
    for node in graph.nodes:
        if node.op_type in OPERATORS or "" in node.inputs or "" in node.outputs:
            return False
        if node.op_type in RULED:
            if None in node.attributes.values():  # a value that is too large for the core's list
                return False
            ruled.append(node)
    if not ruled:
        return True
    from engine_cpu.node_rules import breaches

    return not any(breaches(ruled))
