"""Whether a model may have a kernel in it that distrust.py names, told from its bytes alone.

Every model that ONNX Runtime takes is looked at, so this needs neither onnx nor time: of a model
without such operators, control flow and functions nothing is read. It says yes rather too often;
prepare/ then looks closely.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

from engine.formats.onnx import schema
from engine.formats.wire import Budget, fields
from engine.types import DType, GraphInfo, ModelSource, NodeInfo
from engine_cpu.distrust import OPERATORS

# What holds nodes that the core does not list.
_NESTS = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_WATCHED = OPERATORS | _NESTS
_OFFICIAL = frozenset({"", "ai.onnx.ml", "com.microsoft"})
_FIELDS = 10_000_000  # the core has read the model within that


def is_suspect(source: ModelSource) -> bool:
    """Whether the model is to be looked at closely."""
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
    found = list(fields(model, budget, wanted))
    needles = [_NEEDLES.get(name, name.encode()) for name in OPERATORS]
    if any(tag == schema.MODEL_FUNCTIONS and _has(part, needles) for tag, part in found):
        return True
    body = next(part for tag, part in found if tag == schema.MODEL_GRAPH)
    nodes = [bytes(part) for _, part in fields(body, budget, {schema.GRAPH_NODE})]
    for node, part in zip(graph.nodes, nodes, strict=True):
        if node.op_type in OPERATORS:
            if _GLANCES.get(node.op_type, _always)(node, part, graph, nodes):
                return True
        elif node.op_type in _NESTS and _has(part, needles):
            return True
    return False


def _has(part: bytes | memoryview, needles: list[bytes]) -> bool:
    text = bytes(part)
    return any(needle and needle in text for needle in needles)


# What to find an operator by where the nodes are not listed; "" where it never gives a wrong
# result, but only an error that it need not.
_NEEDLES = {"ReduceMax": b"", "ReduceMin": b"", "Resize": b"align_corners"}


_Glance = Callable[[NodeInfo, bytes, GraphInfo, list[bytes]], bool]


def _always(node: NodeInfo, part: bytes, graph: GraphInfo, nodes: list[bytes]) -> bool:
    return True


def _attention(node: NodeInfo, part: bytes, graph: GraphInfo, nodes: list[bytes]) -> bool:
    if len(node.outputs) > 3 or len(node.inputs) > 6:
        return True
    known = {spec.dtype for spec in graph.inputs} | {each.dtype for each in graph.parameters}
    # float16 is 10: in AttributeProto.i of a Cast, in TensorProto.data_type of a Constant.
    return DType.FLOAT16 in known or any(
        each.op_type in ("Cast", "Constant") and (b"\x18\x0a" in text or b"\x10\x0a" in text)
        for each, text in zip(graph.nodes, nodes, strict=True)
    )


def _conv_integer(node: NodeInfo, part: bytes, graph: GraphInfo, nodes: list[bytes]) -> bool:
    if len(node.inputs) < 4 or not node.inputs[3]:
        return False
    return all(
        each.name != node.inputs[3] or each.shape not in ((), (1,)) for each in graph.parameters
    )


def _of_nothing(node: NodeInfo, part: bytes, graph: GraphInfo, nodes: list[bytes]) -> bool:
    return any(0 in (spec.shape or ()) for spec in graph.inputs) or any(
        0 in parameter.shape for parameter in graph.parameters
    )


def _resize(node: NodeInfo, part: bytes, graph: GraphInfo, nodes: list[bytes]) -> bool:
    return b"align_corners" in part


_GLANCES: dict[str, _Glance] = {
    "Attention": _attention,
    "ConvInteger": _conv_integer,
    "ReduceMax": _of_nothing,
    "ReduceMin": _of_nothing,
    "Resize": _resize,
}
