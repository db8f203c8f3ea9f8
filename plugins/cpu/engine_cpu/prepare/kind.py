"""A node by itself: what decides whether ONNX Runtime runs it, and nothing of where it stands."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import onnx
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    helper,
    numpy_helper,
)

from engine.host.interrupts import pass_interrupt
from engine.model_bytes import infer_shapes
from engine.types import Attribute, NodeInfo

if TYPE_CHECKING:
    from engine_cpu.issue import KnownIssue

# Constants of so many elements are part of a kind: kernels look at axes, scales and the like
# while they are made. Of a weight the type is enough.
SMALL = 16

Opsets = Mapping[str, int]


@dataclass
class Scope:
    """Facts about the values that a node can read: their types, and the small constants.

    constants: those that are initializers. written: those that Constant nodes make.
    """

    types: dict[str, TypeProto] = field(default_factory=dict)
    constants: dict[str, TensorProto] = field(default_factory=dict)
    written: dict[str, TensorProto] = field(default_factory=dict)

    def values(self, name: str) -> list[float] | None:
        """Return the values of a small constant, flat; None for any other."""
        tensor = self.constants.get(name, self.written.get(name))
        return None if tensor is None else numpy_helper.to_array(tensor).reshape(-1).tolist()

    def inner(self) -> Scope:
        """Return the scope of a subgraph that begins here."""
        return Scope(dict(self.types), dict(self.constants), dict(self.written))


@dataclass(frozen=True)
class Kind:
    """An operator with its attributes on inputs of known types.

    node: with inputs x0, x1, ... and outputs y0, y1, ...; unnamed, so that equal ones are equal.
    types: of the inputs. constants: those of the inputs that are small constants. opsets: what it
    is written for. guessed: inputs of unknown type, taken for float32. known_issue: why ONNX
    Runtime's kernel is not used though there may be one.
    """

    node: NodeProto
    types: Mapping[str, TypeProto]
    constants: Mapping[str, TensorProto]
    opsets: Opsets
    guessed: frozenset[str] = frozenset()
    known_issue: KnownIssue | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Return what is equal for equal kinds."""
        return (
            self.node.SerializeToString(deterministic=True),
            tuple(kind.SerializeToString(deterministic=True) for kind in self.types.values()),
            tuple((name, tensor.SerializeToString()) for name, tensor in self.constants.items()),
            tuple(sorted(self.opsets.items())),
            self.guessed,
            self.known_issue.reason if self.known_issue else "",
        )

    @property
    def domain(self) -> str:
        """Return its operator's; "" is ONNX's own."""
        return "" if self.node.domain == "ai.onnx" else self.node.domain

    @property
    def version(self) -> int:
        """Return the version of its operator set; 0 where none is imported."""
        return self.opsets.get(self.domain, 0)

    def model(self, node: NodeProto | None = None, opsets: Opsets | None = None) -> ModelProto:
        """Make a model of this node alone, or of `node` instead; its outputs have no types."""
        return model_of(
            [node or self.node], self.types, opsets or self.opsets, constants=self.constants
        )


def kind_of(
    node: NodeProto, scope: Scope, opsets: Opsets, known_issue: KnownIssue | None = None
) -> Kind:
    """Return the kind of a node. One with subgraphs keeps its names: they are used in there too."""
    copy = deepcopy(node)
    copy.name = copy.doc_string = ""
    del copy.metadata_props[:]
    names = {name: name for name in reads(node)}
    if not has_subgraphs(node):
        names = {name: f"x{i}" for i, name in enumerate(names)}
        copy.input[:] = [names.get(name, "") for name in node.input]
        copy.output[:] = [f"y{i}" if name else "" for i, name in enumerate(node.output)]
    attributes = sorted(copy.attribute, key=lambda attribute: attribute.name)
    refill(copy.attribute, attributes)
    for item in copy.attribute:
        item.doc_string = ""
    _lighten(copy)
    guess = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    return Kind(
        copy,
        {short: scope.types.get(name, guess) for name, short in names.items()},
        {
            short: _anonymous(scope.constants[name], short)
            for name, short in names.items()
            if name in scope.constants
        },
        opsets,
        frozenset(short for name, short in names.items() if name not in scope.types),
        known_issue,
    )


def model_of(
    nodes: list[NodeProto],
    inputs: Mapping[str, TypeProto],
    opsets: Opsets,
    constants: Mapping[str, TensorProto] | None = None,
    functions: list[FunctionProto] | None = None,
    outputs: Iterable[str] | None = None,
) -> ModelProto:
    """Make a model of these nodes; its outputs have no types.

    outputs: by default all that no node reads.
    """
    model = ModelProto(ir_version=onnx.IR_VERSION)
    model.opset_import.extend(helper.make_opsetid(*opset) for opset in opsets.items())
    model.functions.extend(functions or ())
    graph = model.graph
    graph.name = "kind"
    graph.node.extend(nodes)
    constants = constants or {}
    graph.initializer.extend(constants.values())
    for name, kind in inputs.items():
        if name not in constants:
            graph.input.add(name=name).type.CopyFrom(kind)
    if outputs is None:
        read = {name for node in nodes for name in reads(node)}
        outputs = [name for node in nodes for name in node.output if name not in read]
    for name in filter(None, outputs):
        graph.output.add(name=name)
    return model


def reads(node: NodeProto) -> dict[str, None]:
    """Return the names that a node needs, in its subgraphs too, in order."""
    names = dict.fromkeys(filter(None, node.input))
    for graph in subgraphs(node):
        own = {value.name for value in (*graph.input, *graph.initializer)}
        own |= {sparse.values.name for sparse in graph.sparse_initializer}
        own.update(name for inner in graph.node for name in inner.output)
        wanted = [name for inner in graph.node for name in reads(inner)]
        wanted += [value.name for value in graph.output]
        names.update(dict.fromkeys(name for name in wanted if name not in own))
    return names


def has_subgraphs(node: NodeProto) -> bool:
    """Return True where there are graphs in a node's attributes."""
    return any(True for _ in subgraphs(node))


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Return the graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def scope_of(graph: GraphProto, outer: Scope | None = None) -> Scope:
    """Return the types and small constants of a graph, after shape inference."""
    scope = outer.inner() if outer else Scope()
    for name in names_in(graph):  # a name of its own hides one of the graph around it
        scope.types.pop(name, None)
        scope.constants.pop(name, None)
        scope.written.pop(name, None)
    for value in (*graph.input, *graph.value_info, *graph.output):
        if is_known(value.type):
            scope.types[value.name] = value.type
    for tensor in graph.initializer:
        scope.types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        if _is_small(tensor):
            scope.constants[tensor.name] = tensor
    for node in graph.node:
        made = attribute(node, "value") if node.op_type == "Constant" else None
        if isinstance(made, TensorProto) and _is_small(made):
            scope.written[node.output[0]] = made
    for sparse in graph.sparse_initializer:
        scope.types[sparse.values.name] = helper.make_tensor_type_proto(
            sparse.values.data_type, sparse.dims
        )
    return scope


def refill(field: Any, items: Iterable[Any]) -> None:
    """Replace the items of a repeated field."""
    del field[:]
    field.extend(items)


def nodes_of(model: ModelProto) -> Iterator[NodeProto]:
    """Yield all nodes, those of functions and subgraphs too."""
    pending = [*model.graph.node, *(node for f in model.functions for node in f.node)]
    while pending:
        node = pending.pop()
        yield node
        pending += [inner for graph in subgraphs(node) for inner in graph.node]


def free_names(model: ModelProto, stem: str) -> Iterator[str]:
    """Yield names that begin with `stem` and that no value of a model has."""
    taken = set(names_in(model.graph))
    taken.update(name for node in nodes_of(model) for name in (*node.input, *node.output))
    return (name for i in itertools.count() if (name := f"{stem}.{i}") not in taken)


def names_in(graph: GraphProto) -> Iterator[str]:
    """Return the names that a graph itself defines."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    yield from (name for node in graph.node for name in node.output if name)


def attribute(node: NodeProto, name: str) -> Any:
    """Return the value of an attribute; None where it is not given."""
    given = (item for item in node.attribute if item.name == name)
    return next((helper.get_attribute_value(item) for item in given), None)


def info_of(node: NodeProto) -> NodeInfo:
    """Return a node as node_rules.py reads it: with all numbers and texts, however many."""
    values = {item.name: _VALUES.get(item.type, _nothing)(item) for item in node.attribute}
    inputs, outputs = (*node.input,), (*node.output,)
    name = node.name or next(filter(None, outputs), "")
    return NodeInfo(0, name, node.op_type, node.domain, inputs, outputs, values)


def _nothing(item: AttributeProto) -> None:
    return None


_VALUES: Mapping[int, Callable[[AttributeProto], Attribute]] = {
    AttributeProto.FLOAT: lambda item: item.f,
    AttributeProto.INT: lambda item: item.i,
    AttributeProto.STRING: lambda item: item.s.decode(errors="replace"),
    AttributeProto.FLOATS: lambda item: (*item.floats,),
    AttributeProto.INTS: lambda item: (*item.ints,),
    AttributeProto.STRINGS: lambda item: tuple(s.decode(errors="replace") for s in item.strings),
}


def is_known(kind: TypeProto) -> bool:
    """Return True where a type says of which elements it is."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        return bool(getattr(kind, which).elem_type)
    if which in ("sequence_type", "optional_type"):
        return is_known(getattr(kind, which).elem_type)
    return which == "map_type" and is_known(kind.map_type.value_type)


def element(kind: TypeProto) -> int:
    """Return the element type of a tensor, or of the tensors inside; 0 where there are none."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        return int(getattr(kind, which).elem_type)
    if which in ("sequence_type", "optional_type"):
        return element(getattr(kind, which).elem_type)
    return element(kind.map_type.value_type) if which == "map_type" else 0


def type_named(text: str) -> TypeProto | None:
    """Return the type that ONNX Runtime calls so: "tensor(float)"; None for all but tensors."""
    name = text.removeprefix("tensor(").removesuffix(")")
    number = _NUMBERS.get(name.upper(), 0) if text == f"tensor({name})" else 0
    return helper.make_tensor_type_proto(number, None) if number else None


_NUMBERS = dict(TensorProto.DataType.items())


def inferred(model: ModelProto) -> ModelProto:
    """Return the model with what onnx can tell of its types; as it is where onnx fails.

    Without data propagation: a shape of a billion axes would be written out.
    """
    try:
        return infer_shapes(model)
    except Exception as error:  # onnx's own, and ONNX Runtime will say what is wrong
        pass_interrupt(error)
        return model


def elements(tensor: TensorProto) -> int:
    """Return the number of a tensor's elements."""
    count = 1
    for dim in tensor.dims:
        count *= dim
    return count


def _is_small(tensor: TensorProto) -> bool:
    return elements(tensor) <= SMALL and tensor.data_location != TensorProto.EXTERNAL


def _lighten(node: NodeProto) -> None:
    """Leave out the content of a large Constant: only its type can be beyond a runtime."""
    if node.op_type != "Constant":
        return
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR and elements(attribute.t) > SMALL:
            attribute.t.CopyFrom(TensorProto(data_type=attribute.t.data_type, dims=[0]))


def _anonymous(tensor: TensorProto, name: str) -> TensorProto:
    copy = deepcopy(tensor)
    copy.name = name
    copy.doc_string = ""
    return copy
