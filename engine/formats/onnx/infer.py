"""Type inference beyond the file, with the onnx package; imported where that is.

An operator that onnx does not know ends its inference. Its results can be guessed: of
the type that its readers' own rules want, else of the type that goes in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TypeProto

from engine.formats.collectives import WITH_SHAPE, is_collective
from engine.formats.onnx.graphs import is_small
from engine.formats.onnx.safe_inference import infer_shapes
from engine.host.interrupts import pass_interrupt
from engine.types import Dim

_NOTHING: Mapping[str, TypeProto] = {}


def types_of(
    model: ModelProto,
    names: Collection[str],
    guess: bool,
    known: Mapping[str, TypeProto] = _NOTHING,
    *,
    data_prop: bool = True,
) -> dict[str, TypeProto]:
    """Infer the types of these values of the main graph; one that stays open is left out.

    guess: go on where onnx's inference ends. A wrong guess is refused by the runtime that gets
        it: it knows its operators. known: types beyond those in the file.
    data_prop: also through values of shapes: more is known then, and it takes more memory.
    """
    graph = model.graph
    types = {
        info.name: info.type
        for info in (*graph.value_info, *graph.output, *graph.input)
        if is_known(info.type)
    }
    for tensor in graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    for sparse in graph.sparse_initializer:
        types[sparse.values.name] = onnx.helper.make_tensor_type_proto(
            sparse.values.data_type, sparse.dims
        )
    types.update({name: kind for name, kind in _received(graph) if name not in types})
    types.update(known)
    opsets = {opset.domain or "ai.onnx": opset.version for opset in model.opset_import}
    while not types.keys() >= {*names}:
        further = _inferred(model, types, data_prop)
        if not further and guess:
            further = dict(_guessed(graph, types, opsets))
        if not further:
            break
        types.update(further)
    return {name: types[name] for name in names if name in types}


def _received(graph: GraphProto) -> Iterator[tuple[str, TypeProto]]:
    """Yield the types of what other ranks send, as the nodes that receive it say them."""
    for node in graph.node:
        if node.op_type == "Receive" and is_collective(node.op_type, node.domain):
            said = {attribute.name: attribute for attribute in node.attribute}
            if node.output and "to" in said:
                sizes: list[int] | None = list(said["sizes"].ints) if "sizes" in said else []
                if WITH_SHAPE in said:
                    sizes = None
                yield node.output[0], onnx.helper.make_tensor_type_proto(said["to"].i, sizes)


def is_known(kind: TypeProto) -> bool:
    """Return whether a type says what it is a type of."""
    which = kind.WhichOneof("value")
    return which is not None and (which != "tensor_type" or kind.tensor_type.elem_type != 0)


def shaped(kind: TypeProto, shape: Sequence[Dim]) -> TypeProto:
    """Return `kind` with `shape` where it is a tensor's without one, else itself."""
    tensor = kind.tensor_type
    if not kind.HasField("tensor_type") or tensor.HasField("shape"):
        return kind
    return onnx.helper.make_tensor_type_proto(tensor.elem_type, list(shape))


def shape_of(kind: TypeProto | None) -> tuple[Dim, ...] | None:
    """Return the shape of a type as far as it is known; None for an open rank."""
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in kind.tensor_type.shape.dim
    )


def _inferred(
    model: ModelProto, types: Mapping[str, TypeProto], data_prop: bool
) -> dict[str, TypeProto]:
    """Infer further types with onnx. Weights become inputs: their type is all that counts."""
    graph = model.graph
    light = ModelProto(ir_version=model.ir_version)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    light.graph.name = graph.name
    light.graph.node.extend(graph.node)
    light.graph.initializer.extend(filter(is_small, graph.initializer))
    made = {name for node in graph.node for name in node.output}
    for name in types.keys() - {tensor.name for tensor in light.graph.initializer}:
        values = light.graph.value_info if name in made else light.graph.input
        values.add(name=name).type.CopyFrom(types[name])
    try:
        result = infer_shapes(light, data_prop=data_prop)
    except Exception as error:  # onnx's own: it knows nothing more; the runtimes will say why
        pass_interrupt(error)
        return {}
    return {
        info.name: info.type
        for info in result.graph.value_info
        if info.name not in types and is_known(info.type)
    }


def _guessed(
    graph: GraphProto, types: Mapping[str, TypeProto], opsets: Mapping[str, int]
) -> Iterator[tuple[str, TypeProto]]:
    """Guess types of what nodes make from inputs of known type, where inference went no further."""
    readers: dict[str, list[NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    for node in graph.node:
        if not all(name in types for name in node.input if name):
            continue
        for name in node.output:
            if name and name not in types:
                rules = (_by_rule(judge, name, types, opsets) for judge in (node, *readers[name]))
                element = next(filter(None, rules), 0) or _first(node, types)
                if element:
                    yield name, onnx.helper.make_tensor_type_proto(element, None)


def _by_rule(
    node: NodeProto, name: str, types: Mapping[str, TypeProto], opsets: Mapping[str, int]
) -> int:
    """Return the element type that the rules of a node's operator leave for a value; 0 for none.

    name: what it reads or makes; of the type of whatever its operator says is of the same type.
    """
    try:
        version = opsets.get(node.domain or "ai.onnx", 1)
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return 0
    kinds = {**_kinds(node.output, schema.outputs), **_kinds(node.input, schema.inputs)}
    kind = kinds.get(name, "")
    for other, its_kind in kinds.items():
        if its_kind == kind and other in types and types[other].HasField("tensor_type"):
            return int(types[other].tensor_type.elem_type)
    allowed = next(
        (rule.allowed_type_strs for rule in schema.type_constraints if rule.type_param_str == kind),
        [kind],
    )
    return _ELEMENTS.get(allowed[0], 0) if len(allowed) == 1 else 0


def _kinds(
    names: Sequence[str], formal: Sequence[onnx.defs.OpSchema.FormalParameter]
) -> dict[str, str]:
    """Return the type variable, or the type, of each value; none where values may differ."""
    return {
        name: formal[min(index, len(formal) - 1)].type_str
        for index, name in enumerate(names)
        if name and formal and formal[min(index, len(formal) - 1)].is_homogeneous
    }


def _first(node: NodeProto, types: Mapping[str, TypeProto]) -> int:
    """Return the element type of the first tensor that a node reads; 0 for none."""
    kinds = (types[name].tensor_type.elem_type for name in node.input if name)
    return next((int(kind) for kind in kinds if kind), 0)


# As operators' rules write them: "tensor(float)".
_ELEMENTS = {
    f"tensor({onnx.TensorProto.DataType.Name(number).lower()})": number
    for number in onnx.TensorProto.DataType.values()
}
