"""The bodies of a node: the graphs of an If, a Loop or a Scan, and a function of the model.

A body is a graph of its own here: its inputs are all that it takes from outside, with the types and
sizes that these have there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

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

from engine.formats.onnx.graphs import constants, is_small, reads, subgraphs
from engine.formats.onnx.infer import types_of
from engine.report.explanation.computed import value_of
from engine.report.explanation.results import Body, common, results, says_more
from engine.report.explanation.tensors import Tensors, opsets_of
from engine.tensor.description import Array

_COUNT = helper.make_tensor_type_proto(TensorProto.INT64, ())
_CONDITION = helper.make_tensor_type_proto(TensorProto.BOOL, ())


class Bodies:
    """Looks into the nodes of a model."""

    def __init__(self, main: Tensors) -> None:
        self._functions = {(_domain(one), one.name, one.overload): one for one in main.functions}
        self._called_with: dict[tuple[object, ...], Tensors] = {}
        self._known: dict[tuple[Tensors, int], list[Body]] = {}

    def of(self, outside: Tensors, index: int) -> list[Body]:
        """Return the bodies of a node."""
        if (outside, index) not in self._known:
            self._known[outside, index] = self._of(outside, index)
        return self._known[outside, index]

    def _of(self, outside: Tensors, index: int) -> list[Body]:
        node = outside.nodes[index]
        graphs = {one.name: one.g for one in node.attribute if one.type == AttributeProto.GRAPH}
        function = None if graphs else self._functions.get(_call(node))
        if function is not None:
            return [self._called(function, node, outside)]
        rule = None if _domain(node) else node.op_type
        if rule == "If":
            return list(self._branches(node, graphs, outside))
        if rule == "Loop":
            return [self._loop(node, graphs["body"], outside)]
        if rule == "Scan" and outside.opsets.get("", 1) > 8:
            return [self._scan(node, graphs["body"], outside)]
        return [
            _body(
                name, None, graph, self._inside(graph, outside, [one.type for one in graph.input])
            )
            for name, graph in graphs.items()
        ]

    # --------------------------------------------------------------------------- by operator

    def _branches(
        self, node: NodeProto, graphs: Mapping[str, GraphProto], outside: Tensors
    ) -> Iterator[Body]:
        condition = value_of(node.input[0], outside)
        taken = None if condition is None or condition.size != 1 else bool(condition)
        for name, is_then in (("then_branch", True), ("else_branch", False)):
            times = None if taken is None else int(taken is is_then)
            inside = self._inside(graphs[name], outside, [])
            yield _body(name.removesuffix("_branch"), times, graphs[name], inside)

    def _loop(self, node: NodeProto, graph: GraphProto, outside: Tensors) -> Body:
        kinds = [_COUNT, _CONDITION, *map(outside.kind, node.input[2:])]
        inside = self._settled(graph, outside, kinds, range(2, len(kinds)), -1)
        return _body("body", _iterations(node, graph, outside, inside), graph, inside)

    def _scan(self, node: NodeProto, graph: GraphProto, outside: Tensors) -> Body:
        said = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        count = len(node.input) - int(said["num_scan_inputs"])
        axes = said.get("scan_input_axes") or [0] * len(node.input)
        kinds, times = [*map(outside.kind, node.input[:count])], None
        for name, axis in zip(node.input[count:], axes, strict=False):
            spec = outside.specs.get(name)
            sizes = [*spec.shape] if spec is not None and spec.shape is not None else []
            if spec is None or not -len(sizes) <= axis < len(sizes):
                kinds.append(None)
                continue
            along = sizes.pop(axis)
            times = along if isinstance(along, int) else times
            kinds.append(helper.make_tensor_type_proto(spec.dtype.onnx, sizes))
        inside = self._settled(graph, outside, kinds, range(count), 0)
        return _body("body", times, graph, inside)

    def _called(self, function: FunctionProto, node: NodeProto, outside: Tensors) -> Body:
        given = [pair for pair in zip(function.input, node.input, strict=False) if pair[1]]
        kinds = {formal: outside.kind(name) for formal, name in given}
        values = {formal: value_of(name, outside) for formal, name in given}
        key = (
            _call(node),
            *(one.SerializeToString() for one in node.attribute),
            *((formal, kind and kind.SerializeToString()) for formal, kind in kinds.items()),
            *(None if value is None else value.tobytes() for value in values.values()),
        )
        inside = self._called_with.get(key)
        if inside is None:
            attributes = {one.name: one for one in (*function.attribute_proto, *node.attribute)}
            nodes = [_with_attributes(inner, attributes) for inner in function.node]
            opsets = opsets_of(function.opset_import) or outside.opsets
            inside = self._called_with[key] = self._tensors(nodes, kinds, values, (), opsets)
        return Body("function", 1, inside, tuple(function.output))

    # ------------------------------------------------------------------------------- tensors

    def _settled(
        self,
        graph: GraphProto,
        outside: Tensors,
        kinds: list[TypeProto | None],
        state: Sequence[int],
        shift: int,
    ) -> Tensors:
        """Return a body's tensors, with the sizes that hold in every iteration.

        state: places of inputs that an output, `shift` places on, gives in the next iteration.
        """
        while True:
            inside = self._inside(graph, outside, kinds)
            held = [*kinds]
            for place in state:
                held[place] = common(kinds[place], inside.kind(graph.output[place + shift].name))
            if held == kinds:
                return inside
            kinds = held

    def _inside(
        self, graph: GraphProto, outside: Tensors, kinds: Sequence[TypeProto | None]
    ) -> Tensors:
        own = {info.name for info in graph.input} | constants(graph)
        own.update(name for node in graph.node for name in node.output)
        taken = {info.name for info in graph.output}.union(*map(reads, graph.node)) - own
        given = {name: outside.kind(name) for name in taken}
        given |= zip((info.name for info in graph.input), kinds, strict=False)
        values = {name: value_of(name, outside) for name in taken}
        return self._tensors(graph.node, given, values, graph.initializer, outside.opsets)

    def _tensors(
        self,
        nodes: Iterable[NodeProto],
        given: Mapping[str, TypeProto | None],
        values: Mapping[str, Array | None],
        initializers: Iterable[TensorProto],
        opsets: Mapping[str, int],
    ) -> Tensors:
        """Infer the tensors of a body. given: the types of what it takes; values: where known."""
        model = ModelProto(ir_version=10)
        graph = model.graph
        graph.name = "body"
        graph.node.extend(nodes)
        model.opset_import.extend(helper.make_opsetid(*one) for one in opsets.items())
        model.functions.extend(self._needed(graph.node))
        own = {
            name: numpy_helper.from_array(value, name)
            for name, value in values.items()
            if value is not None
        }
        kinds = {name: kind for name, kind in given.items() if name not in own}
        for tensor in initializers:
            if is_small(tensor):
                own[tensor.name] = tensor
            else:
                kinds[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        graph.initializer.extend(own.values())
        for name, kind in kinds.items():
            if kind is not None:
                graph.input.add(name=name).type.CopyFrom(kind)
        return self._inferred(model, {*given, *own, *kinds})

    def _inferred(self, model: ModelProto, given: set[str]) -> Tensors:
        """Infer the tensors of a graph, and go on where onnx's inference ends.

        It ends at sizes that its data propagation does not follow, which `value_of` computes, and
        behind a node whose bodies disagree, though it is known which of them runs.
        """
        names = given.union(*map(reads, model.graph.node))
        names.update(name for node in model.graph.node for name in node.output if name)
        folded, known = ModelProto(), dict[str, TypeProto]()
        folded.CopyFrom(model)
        bodies = dict[int, list[Body]]()
        while True:
            kinds = types_of(folded, names, guess=True, known=known)
            found = Tensors.of(model, kinds, {}, ())
            stale = set[str]()
            for index, node in enumerate(model.graph.node):
                made = [name for name in node.output if name]
                is_settled = stale.isdisjoint(found.reads[index])
                if is_settled and all(found.sizes(name) is not None for name in made):
                    continue
                if (
                    not is_settled
                    or _folds(folded, index, found)
                    or self._grow(known, index, found, bodies)
                ):
                    stale.update(made)
            if not stale:
                self._known.update({(found, index): ones for index, ones in bodies.items()})
                return found

    def _grow(
        self,
        known: dict[str, TypeProto],
        index: int,
        found: Tensors,
        bodies: dict[int, list[Body]],
    ) -> bool:
        """Add what the bodies of a node tell of its outputs; return whether that is more."""
        if index in bodies:
            return False
        bodies[index] = self._of(found, index)
        further = {
            name: kind
            for name, kind in results(found, index, bodies[index]).items()
            if says_more(kind, found.kind(name))
        }
        known.update(further)
        return bool(further)

    def _needed(self, nodes: Iterable[NodeProto]) -> list[FunctionProto]:
        """Return the functions that nodes call, and those that these call."""
        found: dict[tuple[str, str, str], FunctionProto] = {}
        pending = [*nodes]
        while pending:
            node = pending.pop()
            call = _call(node)
            if call in self._functions and call not in found:
                found[call] = self._functions[call]
                pending += found[call].node
            pending += [inner for graph in subgraphs(node) for inner in graph.node]
        return list(found.values())


def _body(name: str, times: int | None, graph: GraphProto, inside: Tensors) -> Body:
    return Body(name, times, inside, tuple(info.name for info in graph.output))


def _folds(model: ModelProto, index: int, found: Tensors) -> bool:
    """Make constants of the small values that a node reads; return whether there are any."""
    nodes, has_folded = model.graph.node, False
    if any(subgraphs(nodes[index])):
        return False  # its bodies get the values
    for name in nodes[index].input:
        maker = found.makers.get(name)
        if maker is None or nodes[maker].op_type == "Constant" or len(nodes[maker].output) > 1:
            continue
        value = value_of(name, found)
        if value is not None:
            tensor = numpy_helper.from_array(value, name)
            nodes[maker].CopyFrom(helper.make_node("Constant", [], [name], value=tensor))
            has_folded = True
    return has_folded


def _iterations(
    node: NodeProto, graph: GraphProto, outside: Tensors, inside: Tensors
) -> int | None:
    """Return how often a Loop runs its body; None where data say it."""
    for name in node.output[max(len(node.input) - 2, 0) :]:  # each iteration adds an entry
        spec = outside.specs.get(name)
        if spec is not None and spec.shape and isinstance(spec.shape[0], int):
            return spec.shape[0]
    most, begins = [*node.input, "", ""][:2]
    count, condition = (value_of(name, outside) if name else None for name in (most, begins))
    if condition is not None and not condition:
        return 0
    goes_on = _goes_on(graph, inside)
    if count is None or goes_on is None or (begins and condition is None):
        return None
    return max(int(count), 0) if goes_on else min(max(int(count), 0), 1)


def _goes_on(graph: GraphProto, inside: Tensors) -> bool | None:
    """Return whether the condition that a Loop's body gives is that which it got; None for unknown.

    A constant is taken for what it says.
    """
    name = graph.output[0].name
    value = value_of(name, inside)
    if value is not None:
        return bool(value)
    while name != graph.input[1].name:
        place = inside.makers.get(name)
        if place is None or inside.nodes[place].op_type != "Identity":
            return None
        name = inside.nodes[place].input[0]
    return True


def _with_attributes(node: NodeProto, given: Mapping[str, AttributeProto]) -> NodeProto:
    """Return a node of a function with the attributes of a call, to which it may refer."""
    made = NodeProto()
    made.CopyFrom(node)
    del made.attribute[:]
    for one in node.attribute:
        if not one.ref_attr_name:
            made.attribute.append(one)
        elif one.ref_attr_name in given:
            own = made.attribute.add()
            own.CopyFrom(given[one.ref_attr_name])
            own.name = one.name
    for graph in subgraphs(made):
        nodes = [_with_attributes(inner, given) for inner in graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
    return made


def _call(node: NodeProto) -> tuple[str, str, str]:
    return _domain(node), node.op_type, node.overload


def _domain(one: NodeProto | FunctionProto) -> str:
    return "" if one.domain == "ai.onnx" else one.domain
