"""GraphProto: one graph with its nodes and the subgraphs inside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from engine.formats.onnx import limits, schema
from engine.formats.onnx.expansion import SHAPE_INPUT, FunctionId, check_expanded, expanded_bytes
from engine.formats.onnx.external import ExternalFiles
from engine.formats.onnx.node import NodeReader, RawAttribute
from engine.formats.onnx.reading import Invalid, ReadingBudget, text
from engine.formats.onnx.scope import Scope, title
from engine.formats.onnx.tensor import Tensor, read_tensor
from engine.formats.onnx.value import DEEP_BYTES, check_depth, read_name_and_type, read_spec
from engine.formats.onnx.work import Constant, Folded, Work
from engine.formats.protobuf import Budget, fields
from engine.types import NodeInfo

if TYPE_CHECKING:
    from engine.formats.onnx.folding import Values
    from engine.formats.onnx.growth import Growth
    from engine.formats.onnx.small_values import Array


@dataclass(slots=True, eq=False, repr=False)
class State:
    """Counts and limits of reading one model.

    functions: the model's own ones. calls: how often what is being read calls which of them.
    nodes: in all so far, of which `counted` belong to earlier functions.
    expanded: bytes of constants so far that are computed from constant shapes, or sparse.
    constants: what can be computed from the file alone, by name; work: of that so far; values: of
    small ones that were computed. growth: sizes of what depends on inputs, where any may grow.
    captured: names that subgraphs read of the graphs around them. inputs: undecoded types of the
    main graph's.
    repairable: a rule that the model breaks although it says clearly what it means; "" for none.
    """

    files: ExternalFiles
    budget: ReadingBudget
    reader: NodeReader
    functions: frozenset[FunctionId] = frozenset()
    calls: Counter[FunctionId] = field(default_factory=Counter)
    nodes: int = 0
    counted: int = 0
    expanded: int = 0
    constants: dict[str, Constant] = field(default_factory=dict)
    work: Work = field(default_factory=Work)
    values: dict[str, Array] = field(default_factory=dict)
    growth: Growth | None = None
    captured: set[str] = field(default_factory=set)
    inputs: dict[str, memoryview | None] = field(default_factory=dict)
    repairable: str = ""

    def add_expanded(self, nbytes: int) -> None:
        """Count a constant of which the file holds less than its size."""
        self.expanded += nbytes
        check_expanded(self.expanded)


@dataclass(slots=True, eq=False, repr=False)
class Graph:
    """A graph as read: names and undecoded types of inputs and outputs, in the file's order.

    constants: the tensors of small Constant nodes, and those of small initializers, by name.
    """

    name: str = ""
    inputs: list[tuple[str, memoryview | None]] = field(default_factory=list)
    outputs: list[tuple[str, memoryview | None]] = field(default_factory=list)
    nodes: list[NodeInfo] = field(default_factory=list)
    initializers: dict[str, Tensor] = field(default_factory=dict)
    value_infos: list[memoryview] = field(default_factory=list)
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    _types: dict[str, memoryview] | None = None

    def known_types(self, budget: Budget) -> Mapping[str, memoryview]:
        """Return the undecoded types of inputs and inner values; the first where there are two."""
        if self._types is None:
            others = (read_name_and_type(view, budget) for view in self.value_infos)
            self._types = {}
            for name, kind in (*self.inputs, *others):
                if kind is not None:
                    self._types.setdefault(name, kind)
        return self._types


def read_graph(
    view: memoryview, state: State, where: str, outer: Scope | None = None, depth: int = 0
) -> Graph:
    """Read and check a graph and everything inside it.

    where: what errors call it. outer: the scope around a subgraph, None for the main graph.
    """
    if depth > limits.SUBGRAPH_DEPTH:
        raise Invalid(f"subgraphs are nested more than {limits.SUBGRAPH_DEPTH} deep")
    scope = Scope(outer)
    graph = Graph(constants=scope.constants)
    node_views: list[memoryview] = []
    initializers: list[Tensor] = []
    dense: dict[str, memoryview] = {}
    take = state.budget.take
    for tag, value in fields(view, state.budget):
        if tag == schema.GRAPH_NODE:
            take()
            node_views.append(value)
        elif tag == schema.GRAPH_INITIALIZER:
            take(limits.TENSOR_PARTS)
            tensor = read_tensor(value, state.files, state.budget, f"an initializer of the {where}")
            if dense.setdefault(tensor.name, value) is value:
                initializers.append(tensor)
            elif dense[tensor.name] == value:
                state.repairable = f"the {where} has the initializer {tensor.name!r} twice"
            else:
                raise Invalid(f"the {where} has two initializers {tensor.name!r} that differ")
        elif tag == schema.GRAPH_SPARSE_INITIALIZER:
            from engine.formats.onnx.sparse import read_sparse  # rare

            take(3 * limits.TENSOR_PARTS)
            initializers.append(
                read_sparse(value, state.files, state.budget, f"an initializer of the {where}")
            )
            state.add_expanded(initializers[-1].nbytes)
            made = NodeInfo(0, initializers[-1].name, "", "", (), (initializers[-1].name,))
            state.work.add(made, Folded(((), 8), 0, initializers[-1].nbytes))
        elif tag == schema.GRAPH_VALUE_INFO:
            take()
            graph.value_infos.append(value)
            if len(value) >= DEEP_BYTES:
                _check_depth(value, state.budget)
        elif tag == schema.GRAPH_INPUT:
            take(limits.VALUE_PARTS)
            graph.inputs.append(read_name_and_type(value, state.budget))
        elif tag == schema.GRAPH_OUTPUT:
            take(limits.VALUE_PARTS)
            graph.outputs.append(read_name_and_type(value, state.budget))
        elif tag == schema.GRAPH_NAME:
            graph.name = text(value)

    for tensor in initializers:
        if not tensor.name:
            raise Invalid(f"an initializer of the {where} has no name")
        if tensor.name in graph.initializers:
            raise Invalid(f"the {where} has two initializers {tensor.name!r}")
        graph.initializers[tensor.name] = tensor
        state.constants[tensor.name] = tensor.shape, tensor.dtype.bits
        if len(tensor.shape) < 2 and tensor.nbytes <= 512:
            scope.constants[tensor.name] = tensor
    _define(scope, (name for name, _ in graph.inputs), "input", where)
    if outer is None:
        state.inputs = dict(graph.inputs)
    scope.names.update(graph.initializers)
    begin = len(state.growth.large) if state.growth is not None else 0
    read_nodes(node_views, state, scope, where, depth, graph.nodes)
    _check_outputs(graph, scope, where)
    if outer is not None and state.growth is not None and len(state.growth.large) > begin:
        outputs = (name for name, _ in graph.outputs)
        state.growth.drop_used(graph.nodes, outputs, state.captured, begin)
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
    read = state.reader.read
    names, constants, functions = scope.names, scope.constants, state.functions
    constant = state.constants
    for index, view in enumerate(views):
        node, overload, attributes = read(view, index)
        for name in node.inputs:
            if name not in names and name and not scope.sees(name):
                known = [read(other, position).info for position, other in enumerate(views)]
                from engine.formats.onnx.order import explain_unknown, running_order  # rare

                order = running_order(known[index:], name)
                if order is None:
                    raise Invalid(explain_unknown(name, node, known, where))
                state.repairable = explain_unknown(name, node, known, where)
                state.nodes -= len(order)  # these are counted anew
                ordered = [views[position] for position in order]
                read_nodes(ordered, state, scope, where, depth, nodes)
                return
            if name not in names and name:
                state.captured.add(name)
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
            if value is not None and len(node.outputs) == 1:
                constant[node.outputs[0]] = value.shape, value.dtype.bits
                if value.nbytes <= 512:
                    constants[node.outputs[0]] = value
        elif functions and (node.domain, op_type, overload) in functions:
            state.calls[node.domain, op_type, overload] += 1
        elif op_type in SHAPE_INPUT:
            state.add_expanded(expanded_bytes(node, value, scope, state.budget))
        if (
            node.inputs
            and node.inputs[0] in constant
            and (not attributes or value is not None)
            and _fold(node, state, scope, value)
        ):
            pass
        elif node.inputs and (
            op_type in _GROWING or (state.growth is not None and op_type in state.growth.followed)
        ):
            _follow(node, state, scope)
        elif op_type in _FROM_NOTHING:
            from engine.formats.onnx.folding import folded  # rare

            state.work.add(node, folded(node, [], _values(state, scope)))
        nodes.append(node)


_GROWING = frozenset(("Shape", "Size", "Concat", "Expand", "Tile"))
_FROM_NOTHING = ("RandomNormal", "RandomUniform")  # by their attributes


def _fold(node: NodeInfo, state: State, scope: Scope, fill: Tensor | None) -> bool:
    """Count what a node costs that reads nothing but constants; False for one that reads others.

    fill: what a ConstantOfShape fills with; None for zeros of float32.
    """
    inputs = [state.constants.get(name) for name in node.inputs if name]
    known = [constant for constant in inputs if constant is not None]
    if len(known) != len(inputs):
        return False
    from engine.formats.onnx.folding import folded  # rare
    from engine.formats.onnx.small_values import computed

    values = _values(state, scope)
    if state.growth and not state.growth.lengths.keys().isdisjoint(
        node.inputs
    ):  # of inputs of fixed sizes
        state.growth.follow(node, state.constants, values)
    result = folded(node, known, values, 32 if fill is None else fill.dtype.bits)
    state.work.add(node, result)
    for name in node.outputs:
        state.constants[name] = result.constant
    if prod(result.constant[0]) <= limits.KNOWN_ELEMENTS and len(node.outputs) == 1:
        value = computed(node, [values(name) for name in node.inputs if name])
        if value is not None:
            state.values[node.outputs[0]] = value
            state.constants[node.outputs[0]] = value.shape, result.constant[1]
    return True


def _follow(node: NodeInfo, state: State, scope: Scope) -> None:
    """Note what is known of the size of what a node makes of inputs."""
    if state.growth is None:
        from engine.formats.onnx.growth import Growth

        state.growth = Growth()
    name = node.inputs[0]
    if node.op_type == "Shape" and not node.attributes and name in state.inputs:
        kind = state.inputs[name]
        spec = read_spec(name, kind, name, state.budget) if kind is not None else None
        shape = spec.shape if spec is not None else None
        if shape is not None and all(isinstance(dim, int) for dim in shape):
            import numpy as np

            state.values[node.outputs[0]] = np.array(shape, np.int64)  # folded like a constant
            state.constants[node.outputs[0]] = (len(shape),), 64
            state.growth.lengths[node.outputs[0]] = len(shape)
            return
    state.growth.follow(node, state.constants, _values(state, scope))


def _values(state: State, scope: Scope) -> Values:
    from engine.formats.onnx.small_values import small_value

    def value(name: str) -> Array | None:
        if name in state.values:
            return state.values[name]
        tensor = scope.constant(name)
        return None if tensor is None else small_value(tensor, state.budget)

    return value


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
            state.budget.take(limits.TENSOR_PARTS)
            where = f"an attribute of {title(node)}"
            tensor = read_tensor(value, state.files, state.budget, where)
            result = tensor if tag == schema.ATTRIBUTE_T else result
        elif tag == schema.ATTRIBUTE_G or tag == schema.ATTRIBUTE_GRAPHS:
            state.budget.take(limits.GRAPH_PARTS)
            where = f"subgraph {attribute.name!r} of {title(node)}"
            read_graph(value, state, where, scope, depth + 1)
        elif tag == schema.ATTRIBUTE_TP or tag == schema.ATTRIBUTE_TYPE_PROTOS:
            check_depth(value, state.budget)
        else:
            from engine.formats.onnx.sparse import read_sparse  # rare

            state.budget.take(3 * limits.TENSOR_PARTS)
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
