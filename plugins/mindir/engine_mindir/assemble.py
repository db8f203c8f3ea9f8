"""Assemble an ONNX model from a decoded .mindir: lower the graph, fold it, serialize it."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.errors import InputError
from engine.formats.onnx import writer
from engine.formats.onnx.graph_info import graph_info_of_written
from engine.formats.onnx.writer import Graph, Node, ValueInfo
from engine.formats.opened import Slot
from engine.types import CancelToken, GraphInfo
from engine_mindir import constants, decode, fold
from engine_mindir.emit import Unsupported
from engine_mindir.lower import Lowering, LoweringError
from engine_mindir.messages import DecodeError, GraphProto, ModelProto, ValueProto
from engine_mindir.names import local, unique
from engine_mindir.storage import Storage
from engine_mindir.values import MONAD, Abstract, Value, leaves

OPSET = 21


@dataclass(frozen=True, slots=True)
class Lowered:
    """The ONNX model, its state (parameters that it assigns to), and its variable weights.

    info: the model's description; None where the ONNX reader must parse it from `data`.
    """

    data: bytes
    info: GraphInfo | None
    state: tuple[Slot, ...]
    variables: tuple[Slot, ...]


def lower(
    model: ModelProto,
    storage: Storage,
    variables: Mapping[str, tuple[str, ...]] | None = None,
    name: str = "model",
    input_shapes: Mapping[str, Sequence[int | None]] | None = None,
    cancel: CancelToken | None = None,
) -> Lowered:
    """Lower a whole model. Raises DecodeError, LoweringError, InputError, Cancelled.

    variables: the parameters, as the file names them, that become inputs, each with the names by
    which it was declared. name: what errors call the model. input_shapes: those of inputs in place
    of the file's. All that follows is then known in the ONNX model too, as far as it does
    not depend on data.
    """
    main = model.graph
    assert main is not None
    names: dict[str, int] = {}
    inputs = [_input(value, names) for value in main.inputs]
    if input_shapes is not None:
        _set_shapes(model, inputs, input_shapes)
    parameters: dict[str, Value] = {}
    for proto in main.parameters:
        title = unique(proto.ref_key or local(proto.name), names)
        parameters[proto.name] = storage.parameter(proto, title)
    variable = {parameters[own].name: declared for own, declared in (variables or {}).items()}
    low, result, hidden = _run(model, parameters, inputs, variable, cancel)
    for title in variable:
        if title in low.state:
            raise InputError(
                f"{name}: variable weight {title!r} is state that the model itself assigns to; "
                "leave it out",
                title,
            )
    flat = [
        leaf if isinstance(leaf, Value) else low.g.constant(leaf)
        for leaf in map(low.current_value, leaves(result))
        if leaf is not MONAD and leaf is not None
    ]
    if not flat:
        raise DecodeError("the graph gives nothing")
    renamed: dict[str, str] = {}
    outputs = _outputs(low, model, inputs, flat, names, renamed, input_shapes is not None)
    for parameter, value in low.state.items():
        title = unique(f"{parameter}.next", names)
        low.g.add(Node("Identity", [renamed.get(value.name, value.name)], [title], {}, title))
        outputs.append(ValueInfo(title, value.dtype, value.shape))

    by_name = dict(low.g.constants)
    for value in parameters.values():
        value.data = hidden.get(value.name, value.data)
        by_name[value.name] = value
    graph = Graph(local(main.name) or "main", low.g.scope.nodes)
    for node in graph.nodes:
        _rename(node, renamed)
    passed = {*low.state, *variable}
    constant = {title: value for title, value in by_name.items() if title not in passed}
    nodes = fold.fold(graph.nodes, constant, {info.name for info in outputs}, storage.may_copy)
    graph.nodes = nodes
    graph.inputs = [
        ValueInfo(value.name, value.dtype, _symbolic(value))
        for tree in inputs
        for value in leaves(tree)
        if isinstance(value, Value)
    ]
    state = tuple(_slot(by_name[title], storage) for title in low.state)
    declared = tuple(
        _slot(by_name[title], storage)._replace(declared_as=names_given)
        for title, names_given in variable.items()
    )
    graph.inputs += [ValueInfo(slot.name, slot.dtype, slot.shape) for slot in (*state, *declared)]
    graph.outputs = outputs
    used = fold.names_used(nodes)
    graph.initializers = [storage.placed(constant[title]) for title in constant if title in used]
    opsets = {"": OPSET}
    if fold.uses_domain(nodes, "com.microsoft"):
        opsets["com.microsoft"] = 1
    producer = " ".join(part for part in (model.producer, model.version) if part)
    data = writer.model_bytes(graph, opsets, producer, model.user_info)
    info = graph_info_of_written(graph, opsets, producer, model.user_info, storage.files)
    return Lowered(data, info, state, declared)


def _slot(value: Value, storage: Storage) -> Slot:
    """Make the slot of a parameter, with an array of its own."""
    array = storage.read(value).array()
    assert array is not None
    initial = np.array(array, value.dtype.numpy)
    return Slot(value.name, value.dtype, initial.shape, initial)


def _run(
    model: ModelProto,
    parameters: Mapping[str, Value],
    inputs: list[Any],
    variable: Container[str],
    cancel: CancelToken | None,
) -> tuple[Lowering, Any, dict[str, Any]]:
    """Lower the main graph; parameters that it assigns to, or that vary, are no constants in it.

    A constant's value is folded into the nodes that read it, so the initial value of a parameter
    that changes must be hidden while lowering. Which parameters the model assigns to is known only
    after a first pass; the second one hides those. Where that makes more assignments reachable, a
    third pass hides all parameters.
    Returns the lowering, its result, and the hidden data by parameter.
    """
    assert model.graph is not None
    hidden: dict[str, Any] = {}
    for value in parameters.values():
        if value.name in variable:
            hidden[value.name] = value.data
            value.data = None
    for attempt in (1, 2, 3):
        low = Lowering(model, parameters, cancel)
        try:
            result = low.run(model.graph, inputs)
        except (DecodeError, LoweringError, Unsupported):
            if low.state.keys() <= hidden.keys():
                raise
        else:
            if low.state.keys() <= hidden.keys():
                return low, result, hidden
        for value in parameters.values():
            if (value.name in low.state or attempt == 2) and value.name not in hidden:
                hidden[value.name] = value.data
                value.data = None
        model.source.settings.clear()  # the values in it have names of this run
    raise AssertionError("whatever it assigns to is hidden in the third run")


def _outputs(
    low: Lowering,
    model: ModelProto,
    inputs: list[Any],
    flat: list[Value],
    names: dict[str, int],
    renamed: dict[str, str],
    is_reshaped: bool,
) -> list[ValueInfo]:
    """Return the ONNX model's outputs; `renamed` gets the names that nodes are to give instead.

    is_reshaped: the inputs have other shapes than in the file.
    """
    assert model.graph is not None
    # A network may give an input back as it is: then the two have one name, as in the file.
    given = {leaf.name for tree in inputs for leaf in leaves(tree) if isinstance(leaf, Value)}
    titles = []
    for title, value in zip(_titles_of(model.graph, len(flat)), flat, strict=True):
        is_input = title == value.name and value.name in given
        given.discard(value.name)
        titles.append(title if is_input else unique(title, names))
    infos = []
    produced = {name for node in low.g.scope.nodes for name in node.outputs}
    types = _declared(model.graph)
    for index, (value, title) in enumerate(zip(flat, titles, strict=True)):
        if value.name in produced and value.name not in renamed:
            renamed[value.name] = title
        elif title != value.name:
            source = renamed.get(value.name, value.name)
            low.g.add(Node("Identity", [source], [title], {}, title))
        shape = value.shape
        if len(types) == len(flat) and types[index] is not None and not is_reshaped:
            declared_type = types[index]
            shape = declared_type.shape if declared_type.shape is not None else shape
        infos.append(ValueInfo(title, value.dtype, shape))
    return infos


def _titles_of(main: GraphProto, count: int) -> list[str]:
    """Return the outputs' names: of the file's output, or of the nodes that a tuple is made of."""
    if count == 1 and len(main.outputs) == 1:
        return [local(main.outputs[0].name)]
    nodes = {node.output: node for node in main.nodes}
    titles: list[str] = []
    worklist = [output.name for output in reversed(main.outputs)]
    steps = 0
    while worklist and steps < 100_000:
        steps += 1
        name = worklist.pop()
        node = nodes.get(name)
        kind = node.op_type.removeprefix("REF::").partition(":")[0] if node is not None else ""
        if node is not None and kind in ("Depend", "Return") and node.inputs:
            worklist.append(node.inputs[0])
        elif node is not None and kind in ("MakeTuple", "make_tuple", "MakeList", "make_list"):
            worklist += reversed(node.inputs)
        else:
            titles.append(local(name))
    if len(titles) == count:
        return titles
    base = local(main.outputs[0].name) if main.outputs else "output"
    return [f"{base}_{index}" for index in range(count)]


def _declared(main: GraphProto) -> list[Any]:
    """Return the outputs' types as the file declares them, flat."""
    types: list[Any] = []
    for output in main.outputs:
        if output.tensors:
            types += [constants.tensor_type(tensor) for tensor in output.tensors]
        elif output.structure is not None:
            structure = decode.attribute(output.source, output.structure)
            types += leaves(constants.abstract(structure))
        else:
            types.append(None)
    return types


def _set_shapes(
    model: ModelProto, inputs: list[Any], shapes: Mapping[str, Sequence[int | None]]
) -> None:
    """Give inputs other shapes; note where one contradicts the file."""
    for leaf in leaves(tuple(inputs)):
        if isinstance(leaf, Value) and leaf.name in shapes:
            given, declared = tuple(shapes[leaf.name]), leaf.shape
            if declared is not None and (
                len(given) != len(declared)
                or any(dim not in (None, size) for size, dim in zip(given, declared, strict=True))
            ):
                model.source.has_other_shapes = True
            leaf.shape = given


def _input(proto: ValueProto, names: dict[str, int]) -> Any:
    """Return the value that a graph's input stands for: a tensor, or a tuple of them."""
    name = local(proto.name)

    def value(abstract: Any, title: str) -> Any:
        if isinstance(abstract, tuple):
            return tuple(value(part, f"{title}_{index}") for index, part in enumerate(abstract))
        if not isinstance(abstract, Abstract):
            raise DecodeError(f"the input {name!r} has no type that is known here")
        return Value(unique(title, names), abstract.dtype, abstract.shape)

    abstract: Any = None
    if proto.tensors:
        abstract = constants.tensor_type(proto.tensors[0])
    elif proto.structure is not None:
        structure = decode.attribute(proto.source, proto.structure)
        if structure.type in (decode.UMONAD, decode.IOMONAD):
            return MONAD
        abstract = constants.abstract(structure)
    return value(abstract, name)


def _symbolic(value: Value) -> Any:
    if value.shape is None:
        return None
    return tuple(
        f"{value.name}_{axis}" if dim is None else dim for axis, dim in enumerate(value.shape)
    )


def _rename(node: Node, renamed: Mapping[str, str]) -> None:
    if not renamed.keys().isdisjoint(node.inputs):
        node.inputs = [renamed.get(name, name) for name in node.inputs]
    if not renamed.keys().isdisjoint(node.outputs):
        node.outputs = [renamed.get(name, name) for name in node.outputs]
    for body in fold.bodies(node):
        for inner in body.nodes:
            _rename(inner, renamed)
        for info in body.outputs:
            info.name = renamed.get(info.name, info.name)
