"""Nodes with tensors of element types that a device does not have (`DeviceInfo.dtypes`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from typing import TYPE_CHECKING

from engine.errors import ModelError
from engine.types import DType, GraphInfo, ModelSource, ValueKind

if TYPE_CHECKING:
    from onnx import ModelProto, TypeProto

    from engine.backends import Backend
    from engine.types import Device


def refused_by_type(backend: Backend, device: Device, source: ModelSource) -> dict[int, str]:
    """Return the nodes that have an input or output of a type that the device lacks, by index.

    Constants do not count. A type that neither the file nor onnx's inference gives is left to the
    backend. Raises ModelError where an input or output of the model has such a type and no node
    reads or makes it, so that no other backend could take it over.
    """
    graph, allowed = source.graph, backend.present[device].dtypes
    assert graph is not None, "a compiled form has no nodes to place"

    def reason(dtype: DType) -> str:
        return (
            f"element type {dtype} is not among those that backend {backend.name!r} declares for "
            f"device {device}"
        )

    constants = {parameter.name for parameter in graph.parameters}
    results = {spec.name for spec in graph.outputs}
    for node in graph.nodes:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            constants.update(name for name in node.outputs if name not in results)
    types, reads = _types(source, graph, constants)
    found = {}
    for node, read in zip(graph.nodes, reads, strict=True):
        names = (name for name in (*read, *node.outputs) if name not in constants)
        others = [types[name] for name in names if name in types and types[name] not in allowed]
        if others:
            found[node.index] = reason(others[0])
    if not found:
        crossing = [(spec, "input") for spec in graph.inputs]
        crossing += [(spec, "output") for spec in graph.outputs]
        for spec, word in crossing:
            if spec.kind is not ValueKind.MAP and spec.dtype not in allowed:
                raise ModelError(
                    f"{source.name}: {word} {spec.name!r}: {reason(spec.dtype)}; list a further "
                    "target that has it",
                    source.name,
                )
    return found


def _types(
    source: ModelSource, graph: GraphInfo, constants: Set[str]
) -> tuple[Mapping[str, DType], list[Collection[str]]]:
    """Return the known element types by name, and what each node reads, also in its bodies.

    Without the onnx package these are the types and names that the core itself has read.
    """
    specs = (*graph.inputs, *graph.outputs)
    types = {spec.name: spec.dtype for spec in specs if spec.kind is not ValueKind.MAP}
    try:
        from engine.formats.onnx.graphs import reads
        from engine.plan.extract import read
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "onnx":
            raise
        return types, [node.inputs for node in graph.nodes]
    proto = read(source)
    read_by = [sorted(reads(node)) for node in proto.graph.node]
    names = {name for node in graph.nodes for name in node.outputs if name}.union(*read_by)
    return {**dict(_inferred(proto, names - constants - types.keys())), **types}, [*read_by]


def _inferred(proto: ModelProto, names: Collection[str]) -> Iterator[tuple[str, DType]]:
    """Yield the element types that the file or onnx's inference gives; a guess is none."""
    from engine.formats.onnx.infer import types_of

    for name, kind in types_of(proto, names, guess=False, data_prop=False).items():
        element = _element(kind)
        if element:
            yield name, DType.from_onnx(element)


def _element(kind: TypeProto) -> int:
    """Return the element type of a tensor, or of those in a sequence or optional; 0 for others."""
    which = kind.WhichOneof("value")
    if which in ("sequence_type", "optional_type"):
        return _element(getattr(kind, which).elem_type)
    return int(kind.tensor_type.elem_type) if which == "tensor_type" else 0
