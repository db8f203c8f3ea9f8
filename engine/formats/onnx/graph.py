"""GraphProto: one graph with its nodes and the subgraphs inside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.formats.onnx import limits, schema
from engine.formats.onnx.expansion import SHAPE_INPUT, FunctionId, check_expanded, expanded_bytes
from engine.formats.onnx.external import ExternalFiles
from engine.formats.onnx.node import NodeReader, RawAttribute
from engine.formats.onnx.reading import Invalid, text
from engine.formats.onnx.scope import Scope, explain_unknown, running_order, title
from engine.formats.onnx.tensor import Tensor, read_sparse, read_tensor
from engine.formats.onnx.value import DEEP_BYTES, check_depth, read_name_and_type
from engine.formats.protobuf import Budget, fields
from engine.types import DType, NodeInfo


@dataclass(slots=True)
class State:
    """Counts and limits of reading one model.

    functions: the model's own ones. calls: how often what is being read calls which of them.
    nodes: in all so far, of which `counted` belong to earlier functions.
    expanded: bytes of constants so far that are computed from constant shapes, or sparse.
    repairable: a rule that the model breaks although it says clearly what it means; "" for none.
    """

    files: ExternalFiles
    budget: Budget
    reader: NodeReader
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
    read = state.reader.read
    names, constants, functions = scope.names, scope.constants, state.functions
    for index, view in enumerate(views):
        node, overload, attributes = read(view, index)
        for name in node.inputs:
            if name not in names and name and not scope.sees(name):
                known = [read(other, position).info for position, other in enumerate(views)]
                order = running_order(known[index:], name)
                if order is None:
                    raise Invalid(explain_unknown(name, node, known, where))
                state.repairable = explain_unknown(name, node, known, where)
                state.nodes -= len(order)  # these are counted anew
                ordered = [views[position] for position in order]
                read_nodes(ordered, state, scope, where, depth, nodes)
                return
        value = None
        for attribute in attributes:
            if attribute.nested:
                value = _check_nested(attribute, state, scope, node, depth) or value
        for name in node.outputs:
            if name in names:
                raise Invalid(
                    f"{title(node)} of the {where} defines {name!r} again; "
                    f"expected each name to be defined once"
                )
            if name:
                names.add(name)
        op_type = node.op_type
        if op_type == "Constant":
            if value is not None and value.nbytes <= 512 and len(node.outputs) == 1:
                constants[node.outputs[0]] = value
        elif functions and (node.domain, op_type, overload) in functions:
            state.calls[node.domain, op_type, overload] += 1
        elif op_type in SHAPE_INPUT:
            state.add_expanded(expanded_bytes(node, value, scope, state.budget))
        nodes.append(node)


def read_attributes(
    views: Iterable[memoryview], state: State, scope: Scope, owner: NodeInfo
) -> None:
    """Check the tensors, graphs and types in attributes that stand outside a node."""
    for view in views:
        _check_nested(state.reader.attribute(view, owner), state, scope, owner, 0)


def _check_nested(
    attribute: RawAttribute, state: State, scope: Scope, node: NodeInfo, depth: int
) -> Tensor | None:
    """Check what is nested in an attribute; return its tensor if it is one."""
    result = None
    for tag, value in attribute.nested:
        if tag == schema.ATTRIBUTE_T or tag == schema.ATTRIBUTE_TENSORS:
            where = f"an attribute of {title(node)}"
            tensor = read_tensor(value, state.files, state.budget, where)
            result = tensor if tag == schema.ATTRIBUTE_T else result
        elif tag == schema.ATTRIBUTE_G or tag == schema.ATTRIBUTE_GRAPHS:
            where = f"subgraph {attribute.name!r} of {title(node)}"
            read_graph(value, state, where, scope, depth + 1)
        elif tag == schema.ATTRIBUTE_TP or tag == schema.ATTRIBUTE_TYPE_PROTOS:
            check_depth(value, state.budget)
        else:
            where = f"an attribute of {title(node)}"
            state.add_expanded(read_sparse(value, state.files, state.budget, where).nbytes)
    return result


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
