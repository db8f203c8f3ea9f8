"""Find models that may have a kernel of known_issues.py, from their bytes alone.

Every model that ONNX Runtime takes is looked at, so this needs neither onnx nor time: of a model
without such operators, control flow and functions nothing is read. It says yes rather too often;
prepare/ then looks closely.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

from engine.model_bytes import Budget, fields, schema
from engine.types import DType, GraphInfo, ModelSource, NodeInfo
from engine_cpu.known_issues import OPERATORS

# What holds nodes that the core does not list.
_NESTS = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_WATCHED = OPERATORS | _NESTS
_OFFICIAL = frozenset({"", "ai.onnx.ml", "com.microsoft"})
_FIELDS = 10_000_000  # the core has read the model within that


def may_have_known_issues(source: ModelSource) -> bool:
    """Return True where the model is to be looked at closely."""
    graph = source.graph
    assert graph is not None, "the core reads every ONNX file before a backend does"
    if all(node.op_type not in _WATCHED for node in graph.nodes) and (
        graph.opsets.keys() <= _OFFICIAL  # a function has a domain of its own
    ):
        return False
    try:
        return _look(_view(source), graph)
    except (OSError, ValueError):  # it is no longer what the core has read
        return False


def _view(source: ModelSource) -> memoryview:
    if source.data is not None:
        return memoryview(source.data)
    with open(str(source.path), "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _look(model: memoryview, graph: GraphInfo) -> bool:
    budget = Budget(_FIELDS)
    wanted = {schema.MODEL_GRAPH, schema.MODEL_FUNCTIONS}
    parts_of_model = list(fields(model, budget, wanted))
    if any(tag == schema.MODEL_FUNCTIONS and _hides(part) for tag, part in parts_of_model):
        return True
    bodies = [part for tag, part in parts_of_model if tag == schema.MODEL_GRAPH]
    parts = [part for body in bodies for _, part in fields(body, budget, {schema.GRAPH_NODE})]
    return any(
        _CHECKS.get(node.op_type, _always)(node, part, graph, parts)
        if node.op_type in OPERATORS
        else node.op_type in _NESTS and _hides(part)
        for node, part in zip(graph.nodes, parts, strict=True)
    )


def _hides(part: memoryview) -> bool:
    """Return True where an operator of the table may be in a function, or in a node's subgraphs."""
    text = bytes(part)
    return any(needle in text for needle in _NEEDLES)


def _field_4(text: str) -> bytes:
    """Encode NodeProto.op_type or AttributeProto.s as it stands in a file."""
    return bytes([schema.NODE_OP_TYPE, len(text)]) + text.encode()


# Not of operators that only give an error that they need not.
_NEEDLES = [_field_4(name) for name in OPERATORS - {"ReduceMax", "ReduceMin", "Resize"}]
_NEEDLES.append(_field_4("align_corners"))

_Check = Callable[[NodeInfo, memoryview, GraphInfo, list[memoryview]], bool]


def _always(node: NodeInfo, part: memoryview, graph: GraphInfo, parts: list[memoryview]) -> bool:
    return True


def _attention(node: NodeInfo, part: memoryview, graph: GraphInfo, parts: list[memoryview]) -> bool:
    if len(node.outputs) > 3 or len(node.inputs) > 6:
        return True
    known = {spec.dtype for spec in graph.inputs} | {
        parameter.dtype for parameter in graph.parameters
    }
    # float16 is 10: in AttributeProto.i of a Cast, in TensorProto.data_type of a Constant, which
    # stands before the data.
    return DType.FLOAT16 in known or any(
        b"\x18\x0a" in text or b"\x10\x0a" in text
        for text in (
            bytes(other[:4096])
            for neighbour, other in zip(graph.nodes, parts, strict=True)
            if neighbour.op_type in ("Cast", "Constant")
        )
    )


def _conv_integer(
    node: NodeInfo, part: memoryview, graph: GraphInfo, parts: list[memoryview]
) -> bool:
    if len(node.inputs) < 4 or not node.inputs[3]:
        return False
    return all(
        parameter.name != node.inputs[3] or parameter.shape not in ((), (1,))
        for parameter in graph.parameters
    )


def _of_nothing(
    node: NodeInfo, part: memoryview, graph: GraphInfo, parts: list[memoryview]
) -> bool:
    return any(0 in (spec.shape or ()) for spec in graph.inputs) or any(
        0 in parameter.shape for parameter in graph.parameters
    )


def _resize(node: NodeInfo, part: memoryview, graph: GraphInfo, parts: list[memoryview]) -> bool:
    return _field_4("align_corners") in bytes(part)


_CHECKS: dict[str, _Check] = {
    "Attention": _attention,
    "ConvInteger": _conv_integer,
    "ReduceMax": _of_nothing,
    "ReduceMin": _of_nothing,
    "Resize": _resize,
}
