"""From a decoded .mindir to the bytes of an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.formats import onnx_write
from engine.formats.files import SMALL_BYTES
from engine.formats.mindir import constants, fold
from engine.formats.mindir.decode import Damaged, GraphProto, ModelProto, TensorProto, ValueProto
from engine.formats.mindir.lower import Lowering, local
from engine.formats.mindir.primitives import known
from engine.formats.mindir.values import MONAD, Abstract, Value, leaves
from engine.formats.onnx.written import plain_info
from engine.formats.onnx_write import Buffer, External, Graph, Node, ValueInfo
from engine.types import GraphInfo

OPSET = 21
EXTERNAL_BYTES = 1 << 16  # smaller tensors are not looked for in the file again
HELD_BYTES = 1 << 10  # smaller tensors are written into the model


@dataclass(frozen=True, slots=True)
class StateSlot:
    """A parameter that the model assigns to: an input and an output of the ONNX model.

    initial: what the input is in the first run; afterwards it is what the output was.
    """

    input: str
    output: str
    initial: Value


@dataclass(frozen=True, slots=True)
class Lowered:
    """The ONNX model, and the parameters that live from run to run.

    files: its larger weights, see ModelSource. info: what it says of itself; None where it is for
    the reader to say.
    """

    data: bytes
    files: Mapping[str, Buffer]
    info: GraphInfo | None
    state: tuple[StateSlot, ...]


class Storage:
    """Where tensors' bytes are.

    view: the file's content. path: the file, if tensors may be read out of it later. folder: where
    the names of data files start.
    """

    def __init__(self, view: memoryview, path: Path | None, folder: Path | None) -> None:
        self.view = view
        self.path = path
        self.folder = folder
        self.data_files: dict[str, memoryview] = {}
        self.files: dict[str, Buffer] = {}

    @property
    def may_copy(self) -> bool:
        """Whether weights are so small that it does not matter how often they are copied."""
        return len(self.view) <= SMALL_BYTES

    def parameter(self, proto: TensorProto, name: str) -> Value:
        """A parameter as a value; its data stays where it is."""
        if not proto.location:
            found = constants.tensor_value(proto, name)
        else:
            shape = tuple(proto.dims)
            dtype = constants.dtype_of(proto)
            count = 1
            for dim in shape:
                if dim < 0:
                    raise Damaged(f"the tensor {proto.name!r} has a negative dim: {list(shape)}")
                count *= dim
            wanted = (count * dtype.bits + 7) // 8
            length = wanted if proto.length is None else proto.length
            if length != wanted or proto.offset < 0:
                raise Damaged(
                    f"the parameter {local(proto.name)!r} has {length:,} bytes of data at "
                    f"{proto.offset:,} in {proto.location!r}; its {dtype}{list(shape)} needs "
                    f"{wanted:,}"
                )
            data: Any = External(proto.location, proto.offset, length)
            held = self.data_files.get(proto.location)
            if held is not None:
                data = held[proto.offset : proto.offset + length]
                if len(data) != length:
                    raise Damaged(f"the parameter {local(proto.name)!r} lies beyond the data's end")
            found = Value(name, dtype, shape, data)
        found.is_parameter = True
        return found

    def placed(self, value: Value) -> onnx_write.Tensor:
        """The value as a tensor of the ONNX model."""
        assert value.data is not None
        assert value.shape is not None
        data = value.data
        if self.path is not None and isinstance(data, memoryview) and len(data) >= EXTERNAL_BYTES:
            offset = _address(data) - _address(self.view)
            if offset >= 0 and offset + len(data) <= len(self.view):
                data = External(self.path.name, offset, len(data))
        if not isinstance(data, External) and len(data) >= HELD_BYTES:
            location = f"%{len(self.files)}"
            self.files[location] = data
            data = External(location, 0, len(data))
        shape = tuple(dim or 0 for dim in value.shape)
        return onnx_write.Tensor(value.name, value.dtype, shape, data)


def lower(model: ModelProto, storage: Storage) -> Lowered:
    """Lower a whole model. Raises Damaged, Fault."""
    main = model.graph
    assert main is not None
    names: set[str] = set()
    inputs = [_input(each, names) for each in main.inputs]
    parameters: dict[str, Value] = {}
    for proto in main.parameters:
        name = unique(proto.ref_key or local(proto.name), names)
        parameters[proto.name] = storage.parameter(proto, name)
    hidden = {}
    for name in _assignable(model, parameters):
        value = parameters[name]
        hidden[value.name] = value.data
        value.data = None

    low = Lowering(model, parameters)
    result = low.run(main, [value for value, _ in inputs])
    flat = [
        each if isinstance(each, Value) else low.g.constant(each)
        for each in map(low.now, leaves(result))
        if each is not MONAD and each is not None
    ]
    if not flat:
        raise Damaged("the graph gives nothing")
    # A network may give an input back as it is: then the two have one name, as in the file.
    given = {leaf.name for value, _ in inputs for leaf in leaves(value) if isinstance(leaf, Value)}
    titles = []
    for title, value in zip(_titles(main, len(flat)), flat, strict=True):
        is_input = title == value.name and value.name in given
        given.discard(value.name)
        titles.append(title if is_input else unique(title, names))
    renamed: dict[str, str] = {}
    outputs = []
    made = {name for node in low.g.scope.nodes for name in node.outputs}
    types = _declared(main)
    for place, (value, title) in enumerate(zip(flat, titles, strict=True)):
        if value.name in made and value.name not in renamed:
            renamed[value.name] = title
        elif title != value.name:
            source = renamed.get(value.name, value.name)
            low.g.add(Node("Identity", [source], [title], {}, title))
        shape = value.shape
        if len(types) == len(flat) and types[place] is not None:
            told = types[place]
            shape = told.shape if told.shape is not None else shape
        outputs.append(ValueInfo(title, value.dtype, shape))
    slots = []
    states = {}
    for name, value in low.state.items():
        title = unique(f"{name}.next", names)
        low.g.add(Node("Identity", [renamed.get(value.name, value.name)], [title], {}, title))
        outputs.append(ValueInfo(title, value.dtype, value.shape))
        states[name] = title

    by_name = dict(low.g.constants)
    for value in parameters.values():
        if value.name in hidden:
            value.data = hidden[value.name]
        by_name[value.name] = value
    graph = Graph(local(main.name) or "main", low.g.scope.nodes)
    for node in graph.nodes:
        _rename(node, renamed)
    constant = {name: value for name, value in by_name.items() if name not in states}
    nodes = fold.fold(graph.nodes, constant, {each.name for each in outputs}, storage.may_copy)
    graph.nodes = nodes
    graph.inputs = [
        ValueInfo(value.name, value.dtype, _symbolic(value))
        for group in inputs
        for value in leaves(group[0])
        if isinstance(value, Value)
    ]
    for name, title in states.items():
        value = by_name[name]
        graph.inputs.append(ValueInfo(name, value.dtype, value.shape))
        slots.append(StateSlot(name, title, value))
    graph.outputs = outputs
    used = fold.names_used(nodes)
    graph.initializers = [storage.placed(constant[name]) for name in constant if name in used]
    opsets = {"": OPSET}
    if fold.uses_domain(nodes, "com.microsoft"):
        opsets["com.microsoft"] = 1
    producer = " ".join(part for part in (model.producer, model.version) if part)
    data = onnx_write.model_bytes(graph, opsets, producer, model.user_info)
    info = plain_info(graph, opsets, producer, model.user_info, storage.files)
    return Lowered(data, storage.files, info, tuple(slots))


def unique(name: str, names: set[str]) -> str:
    """The name, or that with a number where it is taken; then taken."""
    found, number = name or "value", 1
    while found in names:
        found = f"{name}_{number}"
        number += 1
    names.add(found)
    return found


def _input(proto: ValueProto, names: set[str]) -> tuple[Any, str]:
    """The value that a graph's input stands for: a tensor, or a tuple of them."""
    name = local(proto.name)

    def value(told: Any, title: str) -> Any:
        if isinstance(told, tuple):
            return tuple(value(each, f"{title}_{place}") for place, each in enumerate(told))
        if not isinstance(told, Abstract):
            raise Damaged(f"the input {name!r} has no type that is known here")
        return Value(unique(title, names), told.dtype, told.shape)

    told: Any = None
    if proto.tensors:
        told = constants.tensor_type(proto.tensors[0])
    elif proto.structure is not None:
        if proto.structure.type in (23, 24):
            return MONAD, name
        told = constants.abstract(proto.structure)
    return value(told, name), name


def _symbolic(value: Value) -> Any:
    if value.shape is None:
        return None
    return tuple(
        f"{value.name}_{axis}" if dim is None else dim for axis, dim in enumerate(value.shape)
    )


def _titles(main: GraphProto, count: int) -> list[str]:
    """The outputs' names: of the file's output, or of the nodes that a tuple is made of."""
    if count == 1 and len(main.outputs) == 1:
        return [local(main.outputs[0].name)]
    nodes = {node.output: node for node in main.nodes}
    titles: list[str] = []
    todo = [each.name for each in reversed(main.outputs)]
    steps = 0
    while todo and steps < 100_000:
        steps += 1
        name = todo.pop()
        node = nodes.get(name)
        kind = node.op_type.removeprefix("REF::").partition(":")[0] if node is not None else ""
        if node is not None and kind in ("Depend", "Return") and node.inputs:
            todo.append(node.inputs[0])
        elif node is not None and kind in ("MakeTuple", "make_tuple", "MakeList", "make_list"):
            todo += reversed(node.inputs)
        else:
            titles.append(local(name))
    if len(titles) == count:
        return titles
    base = local(main.outputs[0].name) if main.outputs else "output"
    return [f"{base}_{place}" for place in range(count)]


def _declared(main: GraphProto) -> list[Any]:
    """The outputs' types as the file declares them, flat."""
    types: list[Any] = []
    for each in main.outputs:
        if each.tensors:
            types += [constants.tensor_type(tensor) for tensor in each.tensors]
        elif each.structure is not None:
            types += leaves(constants.abstract(each.structure))
        else:
            types.append(None)
    return types


def _assignable(model: ModelProto, parameters: Mapping[str, Value]) -> set[str]:
    """The parameters that some node may assign to."""
    table = known()
    graphs = [graph for graph in (model.graph, *model.functions.values()) if graph is not None]
    found: set[str] = set()
    any_writer = False
    passing: dict[str, bool] = {}  # by op_type: nodes that assign, or pass a parameter on
    for op_type in {node.op_type for graph in graphs for node in graph.nodes}:
        key = op_type.removeprefix("REF::")
        row = model.primitives.get(key)
        kind = (key if row is None else row.op_type).removeprefix("S-Prim-")
        writes = kind in table and table[kind].writes
        any_writer |= writes
        passing[op_type] = writes or row is None or kind in ("Partial", "MakeTuple", "Switch")
    if not any_writer:
        return found
    for graph in graphs:
        for node in graph.nodes:
            if passing[node.op_type]:
                found.update(name for name in node.inputs if name in parameters)
    return found


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


def _address(view: memoryview) -> int:
    import numpy as np

    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address
