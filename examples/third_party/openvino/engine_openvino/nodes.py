"""The nodes that OpenVINO's CPU plugin computes as ONNX means them.

It computes float64 and int64 in 32 bits, compares integers as float32, saturates small ones, and
gives some older operators their newer meaning. So operators.toml lists what was found right, by
operator and element type; other backends get the rest. int64 is the type of indices: what comes in
has at most 31 bits, or 24 where it is compared. Constants are looked at here, inputs at each
predict; operators that could make larger numbers are not listed for int64.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from engine.types import DType, GraphInfo, ModelSource

TABLE = tomllib.loads(Path(__file__).with_name("operators.toml").read_text())
TYPES = {
    name: {*TABLE["types"][group].split()}
    for group, names in TABLE["operators"].items()
    for name in names.split()
}
DTYPES = frozenset(map(DType, TABLE["types"]["moves"].split()))  # these have all the others
COMPARISONS = {*f"{TABLE['operators']['comparisons']} {TABLE['operators']['orders']}".split()}
INDEX_BITS, COMPARED_BITS, FIRST_OPSET = 31, 24, 13


class Scope:
    """Scope of the nodes of a graph: element types and int64's bits by name; the constants."""

    def __init__(self, graph: Any, folder: Path | None, types: Any, widths: Any, constants: Any):
        """Add a graph's own names to those around it."""
        from onnx import numpy_helper

        self.folder, self.types, self.widths = folder, {**types}, {**widths}
        self.constants = {*constants, *(tensor.name for tensor in graph.initializer)}
        for value in (*graph.input, *graph.output, *graph.value_info):
            tensor = value.type.tensor_type
            if tensor.elem_type and tensor.HasField("shape"):  # OpenVINO has to know the rank
                self.types[value.name] = str(DType.from_onnx(tensor.elem_type))
        for tensor in graph.initializer:
            self.types[tensor.name] = str(DType.from_onnx(tensor.data_type))
            if tensor.data_type == tensor.INT64:
                self.widths[tensor.name] = bits(numpy_helper.to_array(tensor, str(folder or "")))
        for node in graph.node:
            if node.op_type == "Constant":
                self.widths[node.output[0]] = max(bits(_value(each)) for each in node.attribute)
                self.constants.add(node.output[0])

    def of(self, node: Any) -> list[str]:
        """Return the element types of a node's inputs and outputs."""
        names = (*node.input, *node.output)
        return [self.types.get(name, "unknown type or rank") for name in names]


def bits(values: Any) -> int:
    """Return the bits, beside the sign, that numbers of type int64 need; else 0."""
    array = np.asarray(values)
    if array.dtype != np.int64 or not array.size:
        return 0
    return max((n if n >= 0 else ~n).bit_length() for n in map(int, (array.min(), array.max())))


def _value(attribute: Any) -> Any:
    from onnx import helper, numpy_helper

    value = helper.get_attribute_value(attribute)
    value = numpy_helper.to_array(value) if attribute.type == attribute.TENSOR else value
    return value.decode() if isinstance(value, bytes) else value


def limits(graph: GraphInfo) -> dict[str, int]:
    """Return the most bits that the numbers of int64 inputs may have, by name."""
    compared = {name for node in graph.nodes if node.op_type in COMPARISONS for name in node.inputs}
    names = [spec.name for spec in graph.inputs if spec.dtype is DType.INT64]
    return {name: COMPARED_BITS if name in compared else INDEX_BITS for name in names}


def unsupported_nodes(source: ModelSource, graph: GraphInfo, typed: Any) -> dict[int, str]:
    """Return the nodes to leave to another backend, by index, each with the reason.

    typed: the model with the types that onnx infers.
    """
    folder = source.folder or (source.path and source.path.parent)
    scope = Scope(typed, folder, {}, limits(graph), set())
    opset, nodes, found = graph.opsets.get("", 1), list(enumerate(typed.node)), dict[int, str]()
    for at, node in nodes:
        found.update((at, why) for why in _faults(node, scope, opset))
        if at not in found and node.op_type != "If" and scope.constants.issuperset(node.input):
            scope.constants.update(node.output)  # OpenVINO computes it once, when it compiles
    halves = [at for at, node in nodes if "float16" in scope.of(node)]
    if not found.keys().isdisjoint(halves):  # to cut between two would round once more
        found = {**dict.fromkeys(halves, "other nodes of float16 are left, too"), **found}
    return found


def _faults(node: Any, scope: Scope, opset: int) -> Iterator[str]:
    name, types = node.op_type, scope.of(node)
    if node.domain or (name not in TYPES and name != "Cast"):
        yield f"{node.domain or 'operator'} {name} is not one that OpenVINO computes exactly"
    elif opset < FIRST_OPSET:
        yield f"OpenVINO gives operators of opset {opset} their meaning in opset {FIRST_OPSET}"
    elif name == "Cast":
        if types[1] not in TABLE["casts"].get(types[0], "").split():
            yield f"Cast from {types[0]} to {types[1]} is not exact in OpenVINO"
    else:
        yield from _details(node, scope, types)
    for attribute in node.attribute:
        if attribute.type == attribute.GRAPH:
            inner = Scope(attribute.g, scope.folder, scope.types, scope.widths, scope.constants)
            for each in attribute.g.node:
                yield from _faults(each, inner, opset)


def _details(node: Any, scope: Scope, types: list[str]) -> Iterator[str]:
    name, inputs = node.op_type, node.input
    indexes, constants = (TABLE[rule].get(name, ()) for rule in ("indexes", "constants"))
    for index, value in enumerate((*inputs, *node.output)):
        is_index = index in indexes and index < len(inputs)
        if value and types[index] not in ({"int64", "int32"} if is_index else TYPES[name]):
            yield f"{name} of {types[index]} is not exact in OpenVINO"
    is_compared = name in COMPARISONS and types[0] == "int64"
    unknown, most = (64, COMPARED_BITS) if is_compared else (0, INDEX_BITS)
    for index, value in enumerate(inputs):
        if name != "Slice" and scope.widths.get(value, unknown) > most:  # its bounds are clipped
            yield f"{name} of {value!r}, which may need more than {most} bits, is not exact"
        if value and index in constants and value not in scope.constants:
            yield f"{name} is exact in OpenVINO only where {value!r} is a constant"
    most_inputs, most_outputs = TABLE["most"].get(name, (len(inputs), len(node.output)))
    if len(inputs) > most_inputs or sum(map(bool, node.output)) > most_outputs:
        yield f"{name} with so many inputs or outputs is not exact in OpenVINO"
    for attribute in node.attribute:
        right = TABLE["attributes"].get(name, {}).get(attribute.name)
        if right is not None and _value(attribute) not in right:
            yield f"{name} with this {attribute.name} is not exact in OpenVINO"
