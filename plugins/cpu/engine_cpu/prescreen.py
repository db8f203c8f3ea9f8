"""Judge a model before ONNX Runtime sees it, from its bytes alone.

Every model that is not plain (risk.py) is looked at, so this needs neither onnx nor time: of
one without such operators, control flow and functions nothing is read. It refuses what ends the
process (node_rules.py), and says rather too often that a kernel of known_issues.py may be in it;
prepare/ then looks closely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engine.errors import ModelError
from engine.host.interrupts import pass_interrupt, raised_by_handler
from engine.model_bytes import Budget, fields, schema
from engine.types import GraphInfo, ModelSource, NodeInfo
from engine_cpu import node_rules, trees
from engine_cpu.element_types import is_float
from engine_cpu.known_issues import ENDS_PROCESS, IS_WRONG, ORDERS_TREES, version
from engine_cpu.lists import Lists
from engine_cpu.nodes import NOTHING, Body, Needles, as_written, bodies_of, held_still, view_of
from engine_cpu.risk import NESTS, Risk, holds
from engine_cpu.tensors import has_axes, integers_of, is_empty

_LOOKED_INTO = node_rules.SCALARS.keys() | trees.OPERATORS
_SPECIAL = node_rules.OPERATORS | ENDS_PROCESS | _LOOKED_INTO
_STANDARD = frozenset({"", "ai.onnx", "ai.onnx.ml"})
_FIELDS = 10_000_000  # the core has read the model within that


def prescreen(source: ModelSource, workarounds: bool = True) -> Risk:
    """Return the risk that a model is. Raises ModelError for one that must not be run.

    workarounds: whether kernels that are only wrong matter.
    """
    graph = source.graph
    assert graph is not None, "the core reads every ONNX file before a backend does"
    special = [
        node
        for node in graph.nodes
        if node.op_type in _SPECIAL or "" in node.inputs or "" in node.outputs
    ]
    has_inner = holds(graph, NESTS)
    may_be_wrong = workarounds and (
        has_inner or any(node.op_type in IS_WRONG for node in graph.nodes)
    )
    found = Risk.NONE
    if not (special or has_inner or may_be_wrong):
        return found
    try:
        with held_still(source):
            if special or has_inner:
                found = _special(source, graph, special, has_inner)
            if may_be_wrong:
                found = max(found, Risk(_look(view_of(source), graph)))
    except (OSError, ValueError) as error:  # it is no longer what the core has read
        if isinstance(error, ModelError) or raised_by_handler(error):
            raise
        return Risk.NONE
    return found


def _special(source: ModelSource, graph: GraphInfo, nodes: list[NodeInfo], has_inner: bool) -> Risk:
    """Refuse what node_rules.py does; return FATAL where a kernel may end the process."""
    for text in node_rules.breaches(nodes):
        raise ModelError(f"{source.name}: {text}", source.name)
    suspects = [n for n in nodes if _may_be_fatal(n) or n.op_type in _LOOKED_INTO]
    if not suspects and not has_inner:
        return Risk.NONE
    found = Risk.NONE
    for body in bodies_of(view_of(source), graph, _SPECIAL_NEEDLES if has_inner else NOTHING):
        inner = body.nodes is not graph.nodes
        if inner:
            for text in node_rules.breaches(body.nodes):
                raise ModelError(f"{source.name}: in a subgraph or function: {text}", source.name)
        for node in body.nodes if inner else suspects:
            _check_scalars(node, body, source.name)
            if node_rules.unread(node) and _hides_values(node, body, source.name):
                found = Risk.FATAL
            if node.op_type in trees.OPERATORS and node.domain == "ai.onnx.ml":
                _check_trees(node, body, source.name)
            if _may_be_fatal(node) and _is_fatal(node, body):
                found = Risk.FATAL
    return found


def _check_scalars(node: NodeInfo, body: Body, name: str) -> None:
    """Raise ModelError where a constant that is to be a number holds none."""
    for index in node_rules.SCALARS.get(node.op_type, ()) if not node.domain else ():
        given = node.inputs[index] if index < len(node.inputs) else ""
        tensor = body.constant(given) if given else None
        if tensor is not None and is_empty(tensor):
            text = node_rules.titled(node, f"input {index} is one number, but {given!r} is empty")
            raise ModelError(f"{name}: {text}", name)


def _check_trees(node: NodeInfo, body: Body, name: str) -> None:
    """Raise ModelError for a tree ensemble that leads nowhere or in a circle."""
    try:
        trees.check(node, body.parts[node.index])
    except ValueError as error:
        pass_interrupt(error)
        raise ModelError(f"{name}: {node_rules.titled(node, str(error))}", name) from None


def _hides_values(node: NodeInfo, body: Body, name: str) -> bool:
    """Return True where only a close look can tell the attributes that a rule is about.

    Raises ModelError for a vocabulary that is not what a TfIdfVectorizer needs.
    """
    if not node_rules.unread(node).issubset(node_rules.NGRAMS):
        return True
    *numbers, strings = node_rules.NGRAMS
    try:
        lists = Lists(body.parts[node.index])
        values = {key: tuple(lists.integers(key).tolist()) for key in numbers}
        values[strings] = ("",) * lists.texts(strings)
    except ValueError as error:  # they are written in no plain way
        pass_interrupt(error)
        return True
    for text in node_rules.breaches([replace(node, attributes={**node.attributes, **values})]):
        raise ModelError(f"{name}: {text}", name)
    return False


def _may_be_fatal(node: NodeInfo) -> bool:
    if _leaves_out(node) or node_rules.unread(node):
        return True
    return node.op_type in ENDS_PROCESS and node.domain in _STANDARD


def _leaves_out(node: NodeInfo) -> bool:
    """Return True where kernels do not take what is left out as ONNX writes it."""
    if "" in node.outputs and node.op_type in node_rules.NAMED_OUTPUTS:
        return True
    return "" in node.inputs[-1:] and node.op_type in node_rules.COUNTS_INPUTS


def _is_fatal(node: NodeInfo, body: Body) -> bool:
    if node.op_type not in ENDS_PROCESS:
        return _leaves_out(node)
    if node.op_type in _DIVISIONS:
        return _divides_integers(node, body)
    if node.op_type == "STFT":
        return _may_have_no_frame(node, body)
    if node.op_type == "TreeEnsemble":
        return version() < ORDERS_TREES
    if node.op_type == "Unique":
        return "axis" in node.attributes
    return node.op_type not in _RANDOM or node.attributes.get("scale", 1.0) == 0


_RISKS = (-1, 0)
_DIVISIONS = frozenset({"Div", "Mod"})
_RANDOM = frozenset({"RandomNormal", "RandomNormalLike"})


def _divides_integers(node: NodeInfo, body: Body) -> bool:
    """Return True where a divisor may be an integer that the processor cannot divide by."""
    if len(node.inputs) != 2:
        return False  # ONNX Runtime refuses it
    if any(is_float(name, body) for name in node.inputs):
        return False
    divisor = _constant(node.inputs[1], body)
    return divisor is None or any(value in _RISKS for value in divisor)


def _may_have_no_frame(node: NodeInfo, body: Body) -> bool:
    """Return True for an STFT whose frames are not of a constant length."""
    window, length = (*node.inputs, "", "", "", "")[2:4]
    if window:
        tensor = body.constant(window)
        return tensor is None or is_empty(tensor) or not has_axes(tensor)
    return 0 in (_constant(length, body) or [0])


def _constant(name: str, body: Body) -> list[int] | None:
    """Return the integers of a small constant; None for any other value."""
    node = body.producer(name)
    value = None
    if node is not None and node.op_type == "Constant":
        value = node.attributes.get("value_int", node.attributes.get("value_ints"))
    if value is not None:
        return [int(number) for number in (value if isinstance(value, tuple) else [value])]
    tensor = body.constant(name)
    return None if tensor is None else integers_of(tensor)


def _look(model: memoryview, graph: GraphInfo) -> bool:
    budget = Budget(_FIELDS)
    wanted = {schema.MODEL_GRAPH, schema.MODEL_FUNCTIONS}
    parts_of_model = list(fields(model, budget, wanted))
    if any(tag == schema.MODEL_FUNCTIONS and _NEEDLES.are_in(part) for tag, part in parts_of_model):
        return True
    bodies = [part for tag, part in parts_of_model if tag == schema.MODEL_GRAPH]
    parts = [part for body in bodies for _, part in fields(body, budget, {schema.GRAPH_NODE})]
    return any(
        node.op_type not in _CHECKS or _CHECKS[node.op_type](node, part, graph)
        if node.op_type in IS_WRONG
        else node.op_type in NESTS and _NEEDLES.are_in(part)
        for node, part in zip(graph.nodes, parts, strict=True)
    )


# Not of operators that only give an error that they need not; of Resize, only with that attribute.
_NEEDLES = Needles(IS_WRONG - {"ReduceMax", "ReduceMin", "Resize"} | {"align_corners"})

# Of whatever _special looks for; the last two are inputs and outputs without a name.
_SPECIAL_NEEDLES = Needles(_SPECIAL, [b"\x0a\x00", b"\x12\x00"])


def _conv_integer(node: NodeInfo, part: memoryview, graph: GraphInfo) -> bool:
    if len(node.inputs) < 4 or not node.inputs[3]:
        return False
    return all(
        parameter.name != node.inputs[3] or parameter.shape not in ((), (1,))
        for parameter in graph.parameters
    )


def _of_nothing(node: NodeInfo, part: memoryview, graph: GraphInfo) -> bool:
    return any(0 in (spec.shape or ()) for spec in graph.inputs) or any(
        0 in parameter.shape for parameter in graph.parameters
    )


# By operator: whether a node may be one that is wrong. All of the other operators may be.
_CHECKS: dict[str, Callable[[NodeInfo, memoryview, GraphInfo], bool]] = {
    "Attention": lambda node, part, graph: len(node.outputs) > 3 or len(node.inputs) > 3,
    "ConvInteger": _conv_integer,
    "ReduceMax": _of_nothing,
    "ReduceMin": _of_nothing,
    "Resize": lambda node, part, graph: as_written("align_corners") in bytes(part),
}
