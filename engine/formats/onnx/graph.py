"""GraphProto: one graph with its nodes and the subgraphs inside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.formats.onnx import limits, schema
from engine.formats.onnx.expansion import SHAPE_INPUT, FunctionId, check_expanded, expanded_bytes
from engine.formats.onnx.external import ExternalFiles
from engine.formats.onnx.reading import Invalid, text
from engine.formats.onnx.scope import Scope, explain_unknown, running_order, title
from engine.formats.onnx.tensor import Tensor, read_sparse, read_tensor
from engine.formats.onnx.value import DEEP_BYTES, check_depth, read_name_and_type
from engine.formats.protobuf import Budget, fields
from engine.types import DType, NodeInfo

_INPUT, _OUTPUT, _NAME = schema.NODE_INPUT, schema.NODE_OUTPUT, schema.NODE_NAME
_OP_TYPE, _ATTRIBUTE = schema.NODE_OP_TYPE, schema.NODE_ATTRIBUTE
_DOMAIN, _OVERLOAD = schema.NODE_DOMAIN, schema.NODE_OVERLOAD

# The parts of an attribute that hold more than numbers and strings.
_NESTED = frozenset(
    {
        schema.ATTRIBUTE_T,
        schema.ATTRIBUTE_G,
        schema.ATTRIBUTE_TENSORS,
        schema.ATTRIBUTE_GRAPHS,
        schema.ATTRIBUTE_TP,
        schema.ATTRIBUTE_TYPE_PROTOS,
        schema.ATTRIBUTE_SPARSE_TENSOR,
        schema.ATTRIBUTE_SPARSE_TENSORS,
    }
)
# Of these an attribute has one; protobuf's readers would merge a second into the first.
_ONCE = frozenset(
    {
        schema.ATTRIBUTE_T,
        schema.ATTRIBUTE_G,
        schema.ATTRIBUTE_TP,
        schema.ATTRIBUTE_SPARSE_TENSOR,
    }
)


@dataclass(slots=True)
class State:
    """What reading one model keeps count of.

    functions: the model's own ones. calls: how often what is being read calls which of them.
    nodes: in all so far, of which `counted` belong to earlier functions.
    expanded: bytes of constants so far that are computed from constant shapes, or sparse.
    repairable: a rule that the model breaks although it says clearly what it means; "" for none.
    """

    files: ExternalFiles
    budget: Budget
    functions: frozenset[FunctionId] = frozenset()
    calls: Counter[FunctionId] = field(default_factory=Counter)
    nodes: int = 0
    counted: int = 0
    expanded: int = 0
    repairable: str = ""

    def add_expanded(self, nbytes: int) -> None:
        """Count a constant of which the file holds less than its size."""
        self.expanded += nbytes
        check_expanded(self.expanded)


@dataclass(slots=True)
class Graph:
    """A graph as read: names and undecoded types of inputs and outputs, in the file's order."""

    name: str = ""
    inputs: list[tuple[str, memoryview | None]] = field(default_factory=list)
    outputs: list[tuple[str, memoryview | None]] = field(default_factory=list)
    nodes: list[NodeInfo] = field(default_factory=list)
    initializers: dict[str, Tensor] = field(default_factory=dict)
    value_infos: list[memoryview] = field(default_factory=list)


def read_graph(
    view: memoryview, state: State, where: str, outer: Scope | None = None, depth: int = 0
) -> Graph:
    """Read and check a graph and everything inside it.

    where: what errors call it. outer: the scope around a subgraph, None for the main graph.
    """
    if depth > limits.SUBGRAPH_DEPTH:
        raise Invalid(f"subgraphs are nested more than {limits.SUBGRAPH_DEPTH} deep")
    graph = Graph()
    scope = Scope(outer)
    node_views: list[memoryview] = []
    initializers: list[Tensor] = []
    dense: dict[str, memoryview] = {}
    for tag, value in fields(view, state.budget):
        if tag == schema.GRAPH_NODE:
            node_views.append(value)
        elif tag == schema.GRAPH_INITIALIZER:
            tensor = read_tensor(value, state.files, state.budget, f"an initializer of the {where}")
            if dense.setdefault(tensor.name, value) is value:
                initializers.append(tensor)
            elif dense[tensor.name] == value:
                state.repairable = f"the {where} has the initializer {tensor.name!r} twice"
            else:
                raise Invalid(f"the {where} has two initializers {tensor.name!r} that differ")
        elif tag == schema.GRAPH_SPARSE_INITIALIZER:
            initializers.append(
                read_sparse(value, state.files, state.budget, f"an initializer of the {where}")
            )
            state.add_expanded(initializers[-1].nbytes)
        elif tag == schema.GRAPH_VALUE_INFO:
            graph.value_infos.append(value)
            if len(value) >= DEEP_BYTES:
                _check_depth(value, state.budget)
        elif tag == schema.GRAPH_INPUT:
            graph.inputs.append(read_name_and_type(value, state.budget))
        elif tag == schema.GRAPH_OUTPUT:
            graph.outputs.append(read_name_and_type(value, state.budget))
        elif tag == schema.GRAPH_NAME:
            graph.name = text(value)

    for tensor in initializers:
        if not tensor.name:
            raise Invalid(f"an initializer of the {where} has no name")
        if tensor.name in graph.initializers:
            raise Invalid(f"the {where} has two initializers {tensor.name!r}")
        graph.initializers[tensor.name] = tensor
        if tensor.dtype is DType.INT64 and len(tensor.shape) < 2 and tensor.nbytes <= 512:
            scope.constants[tensor.name] = tensor
    _define(scope, (name for name, _ in graph.inputs), "input", where)
    scope.names.update(graph.initializers)
    read_nodes(node_views, state, scope, where, depth, graph.nodes)
    _check_outputs(graph, scope, where)
    return graph


def read_nodes(
    views: list[memoryview],
    state: State,
    scope: Scope,
    where: str,
    depth: int,
    nodes: list[NodeInfo],
) -> None:
    """Read nodes in order into `nodes`, adding what they define to `scope`."""
    state.nodes += len(views)
    if state.nodes > limits.NODES:
        raise Invalid(f"more than {limits.NODES:,} nodes")
    names = scope.names
    for index, view in enumerate(views):
        node, overload, attributes = _read_node(view, index, state.budget)
        for name in node.inputs:
            if name and name not in names and not scope.sees(name):
                known = [_read_node(other, i, state.budget)[0] for i, other in enumerate(views)]
                order = running_order(known[index:], name)
                if order is None:
                    raise Invalid(explain_unknown(name, node, known, where))
                state.repairable = explain_unknown(name, node, known, where)
                state.nodes -= len(order)  # these are counted anew
                read_nodes([views[each] for each in order], state, scope, where, depth, nodes)
                return
        value = None
        for attribute in attributes:
            value = _read_attribute(attribute, state, scope, node, depth) or value
        for name in filter(None, node.outputs):
            if name in names:
                raise Invalid(
                    f"{title(node)} of the {where} defines {name!r} again; "
                    f"expected each name to be defined once"
                )
            names.add(name)
        if node.op_type == "Constant":
            if value is not None and value.nbytes <= 512 and len(node.outputs) == 1:
                scope.constants[node.outputs[0]] = value
        elif state.functions and (node.domain, node.op_type, overload) in state.functions:
            state.calls[node.domain, node.op_type, overload] += 1
        elif node.op_type in SHAPE_INPUT:
            state.add_expanded(expanded_bytes(node, value, scope, state.budget))
        nodes.append(node)


def read_attributes(
    views: Iterable[memoryview], state: State, scope: Scope, owner: NodeInfo
) -> None:
    """Check the tensors, graphs and types in attributes that stand outside a node."""
    for view in views:
        _read_attribute(view, state, scope, owner, 0)


def _read_node(
    view: memoryview, index: int, budget: Budget
) -> tuple[NodeInfo, str, list[memoryview]]:
    """Read a NodeProto: the node, which overload of a function it calls, its attributes."""
    inputs: list[str] = []
    outputs: list[str] = []
    attributes: list[memoryview] = []
    name = op_type = domain = overload = ""
    for tag, value in fields(view, budget):
        if tag == _INPUT:
            inputs.append(text(value))
        elif tag == _OUTPUT:
            outputs.append(text(value))
        elif tag == _ATTRIBUTE:
            attributes.append(value)
        elif tag == _OP_TYPE:
            op_type = text(value)
        elif tag == _NAME:
            name = text(value)
        elif tag == _DOMAIN:
            domain = text(value)
        elif tag == _OVERLOAD:
            overload = text(value)
    node = NodeInfo(index, name, op_type, domain, tuple(inputs), tuple(outputs))
    if not op_type:
        raise Invalid(f"{title(node)} has no operator; expected op_type")
    return node, overload, attributes


def _read_attribute(
    view: memoryview, state: State, scope: Scope, node: NodeInfo, depth: int
) -> Tensor | None:
    """Check an attribute; return its tensor if it is one."""
    tensor = None
    seen: tuple[int, ...] = ()
    for tag, value in fields(view, state.budget, _NESTED):
        if tag in _ONCE:
            if tag in seen:
                raise Invalid(f"an attribute of {title(node)} has two values")
            seen += (tag,)
        if tag == schema.ATTRIBUTE_T or tag == schema.ATTRIBUTE_TENSORS:
            where = f"an attribute of {title(node)}"
            found = read_tensor(value, state.files, state.budget, where)
            tensor = found if tag == schema.ATTRIBUTE_T else tensor
        elif tag == schema.ATTRIBUTE_G or tag == schema.ATTRIBUTE_GRAPHS:
            name = "".join(
                text(part) for _, part in fields(view, state.budget, (schema.ATTRIBUTE_NAME,))
            )
            where = f"subgraph {name!r} of {title(node)}"
            read_graph(value, state, where, scope, depth + 1)
        elif tag == schema.ATTRIBUTE_TP or tag == schema.ATTRIBUTE_TYPE_PROTOS:
            check_depth(value, state.budget)
        else:
            where = f"an attribute of {title(node)}"
            state.add_expanded(read_sparse(value, state.files, state.budget, where).nbytes)
    return tensor


def _check_depth(value_info: memoryview, budget: Budget) -> None:
    for _, kind in fields(value_info, budget, (schema.VALUE_INFO_TYPE,)):
        check_depth(kind, budget)


def _define(scope: Scope, names: Iterable[str], what: str, where: str) -> None:
    for name in names:
        if not name:
            raise Invalid(f"an {what} of the {where} has no name")
        if name in scope.names:
            raise Invalid(f"the {where} has two {what}s {name!r}")
        scope.names.add(name)


def _check_outputs(graph: Graph, scope: Scope, where: str) -> None:
    for name, _ in graph.outputs:
        if not name:
            raise Invalid(f"an output of the {where} has no name")
        if not scope.sees(name):
            raise Invalid(
                f"the {where} promises the output {name!r}, which no node, input or "
                f"initializer defines"
            )
