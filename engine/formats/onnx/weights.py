"""Weights taken out of an ONNX model: large ones left where they are, variable ones made inputs.

And put back: variable ones made constants, with other values.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.formats.files import open_file
from engine.formats.onnx import limits, schema, writer
from engine.formats.onnx.model import read_part
from engine.formats.onnx.rewrite import StoredTensor, changed, stored_tensor
from engine.formats.onnx.scan_outputs import with_open_scans
from engine.formats.onnx.value import read_name_and_type
from engine.formats.onnx.writer import External, Parts, ValueInfo
from engine.formats.opened import Array, OpenedSource, Slot, open_external
from engine.formats.protobuf import Budget
from engine.formats.variable import declared_weights
from engine.types import DType, GraphInfo, ModelSource

APART_BYTES = 1 << 16  # smaller tensors stay in the model

# Operators that have a weight, each with its inputs that may be one, likeliest first.
_WEIGHTED = {"Conv": (1,), "MatMul": (1, 0), "Gemm": (1, 0)}
_RANKS = (2, 4)


def with_weights_apart(source: ModelSource) -> ModelSource:
    """Return the model with its large weights in `files`, as views of where they are.

    For one who takes the model apart: what is cut out of it then refers to the weights, and none
    is copied. They are views of `data`, or of a mapping of the file, which stays mapped as long as
    one is in use. A model whose weights are elsewhere already is given back as it is.
    Raises ModelError where the file changed since it was checked.
    """
    graph = source.graph
    if graph is None or source.files:
        return source
    if all(info.location or info.nbytes < APART_BYTES for info in graph.parameters):
        return source
    if source.data is None and any(info.location for info in graph.parameters):
        return source  # found from the path only, see ModelSource.folder
    content: bytes | mmap.mmap | None = source.data
    if content is None:
        assert source.path is not None
        content, version = open_file(source.path)
        if isinstance(source, OpenedSource) and source.versions.get(source.path) != version:
            source.check_unchanged()
    data, files, _ = _taken_out(memoryview(content), graph, ())
    return replace(source, data=data, files=files)


def with_variables(
    source: OpenedSource, content: bytes | mmap.mmap, wanted: Sequence[str]
) -> OpenedSource:
    """Return the model with the declared weights as inputs; see `OpenedSource.variables`.

    content: what `source.graph` was read from. wanted: names, as `declared_weights` has them.
    Other weights are not copied: they are views of `content`, in `files`.
    Raises InputError for a name that means no weight, ModelError for a weight that cannot vary.
    """
    graph = source.graph
    assert graph is not None
    names = _declared(graph, wanted, source.name)
    if source.data is None and any(info.location for info in graph.parameters):
        raise ModelError(
            f"{source.name}: its external data is reached through links out of its folder, and "
            "then its weights cannot vary; keep model and data in one folder",
            source.name,
        )
    data, files, stored = _taken_out(memoryview(content), graph, names)
    slots = [
        _slot(stored[name], source, graph)._replace(declared_as=tuple(declared))
        for name, declared in names.items()
    ]
    data = with_open_scans(data, {slot.name: slot.initial for slot in slots})
    model = read_part(data, source.folder, source.name, files)
    versions = dict(model.versions)
    for path, version in source.versions.items():
        versions.setdefault(path, version)
    return replace(
        source,
        data=model.repaired or data,
        graph=model.graph,
        files=files,
        variables=tuple(slots),
        versions=versions,
        are_mapped=isinstance(content, mmap.mmap) and source.path in source.versions,
    )


def with_constants(source: OpenedSource, values: Mapping[str, Array]) -> OpenedSource:
    """Return the model with its `variables` as constants, for who builds it anew for each update.

    values: by name; a weight that is not among them keeps its first value. Arrays that are large
    are not copied: `files` has views of them.
    """
    graph, content = source.graph, source.data
    if not source.variables:
        return source
    assert graph is not None
    assert content is not None, "a model with variable weights is in memory"
    budget = Budget(limits.FIELDS)
    files = dict(source.files)
    taken = {*files, *(info.location for info in graph.parameters)}
    variable = {slot.name for slot in source.variables}
    # Before version 4 of the representation an initializer has to be an input too.
    is_input_too = graph.ir_version < 4

    def own_input(payload: memoryview) -> Parts | None:
        is_variable = read_name_and_type(payload, budget)[0] in variable
        return None if is_variable and not is_input_too else [payload]

    def whole_graph(payload: memoryview) -> Parts:
        parts = changed(payload, {schema.GRAPH_INPUT: own_input}, budget)
        for slot in source.variables:
            value = values.get(slot.name, slot.initial)
            tensor = _encoded(slot, value, files, taken, source.name)
            parts += [writer.head(schema.GRAPH_INITIALIZER >> 3, sum(map(len, tensor))), *tensor]
        return parts

    data = writer.joined(changed(memoryview(content), {schema.MODEL_GRAPH: whole_graph}, budget))
    model = read_part(data, source.folder, source.name, files)
    return replace(
        source,
        data=model.repaired or data,
        graph=model.graph,
        files=files,
        variables=(),
        digest="",
        are_mapped=False,
        folds_too_much=model.folds_too_much,
    )


def _encoded(
    slot: Slot,
    value: Array,
    files: dict[str, bytes | memoryview],
    taken: set[str],
    model: str,
) -> Parts:
    """Return a TensorProto of a weight's value, which is put into `files` where it is large."""
    if slot.dtype.bits < 8:  # packed, or text
        onnx = _onnx(slot.name, slot.dtype, model)
        return [onnx.numpy_helper.from_array(value, slot.name).SerializeToString()]
    raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    data: memoryview | External = raw
    if len(raw) >= APART_BYTES:
        location = _free_location(len(files), taken)
        taken.add(location)
        files[location] = raw
        data = External(location, 0, len(raw))
    return writer.tensor_parts(writer.Tensor(slot.name, slot.dtype, slot.shape, data))


def _declared(graph: GraphInfo, wanted: Sequence[str], name: str) -> dict[str, list[str]]:
    ranks = {info.name: len(info.shape) for info in graph.parameters}
    readers: dict[str, list[str]] = {}
    for node in graph.nodes:
        for position in _WEIGHTED.get(node.op_type, ()):
            weight = node.inputs[position] if position < len(node.inputs) else ""
            if ranks.get(weight) in _RANKS:
                # MindSpore Lite's names lack the last part.
                for title in {node.name, node.name.rpartition("/")[0]} - {""}:
                    if weight not in readers.setdefault(title, []):
                        readers[title].append(weight)
                break
    return declared_weights(wanted, ranks, readers, name)


def _taken_out(
    view: memoryview, graph: GraphInfo, variable: Collection[str]
) -> tuple[bytes, dict[str, bytes | memoryview], dict[str, memoryview]]:
    """Return the model without its large weights, these by location, and the variable ones encoded.

    The variable ones are inputs in it, after all others and in the order of `variable`.
    """
    budget = Budget(limits.FIELDS)
    files: dict[str, bytes | memoryview] = {}
    stored: dict[str, memoryview] = {}
    taken = {info.location for info in graph.parameters}

    def initializer(payload: memoryview) -> Parts | None:
        tensor = stored_tensor(payload, budget)
        if tensor.name in variable:
            stored[tensor.name] = payload
            return None
        if tensor.raw is None or len(tensor.raw) < APART_BYTES:
            return [payload]
        location = _free_location(len(files), taken)
        files[location] = tensor.raw
        place = External(location, 0, len(tensor.raw))
        return writer.tensor_parts(writer.Tensor(tensor.name, tensor.dtype, tensor.shape, place))

    def declared_input(payload: memoryview) -> Parts | None:
        # Before version 4 of the representation an initializer had to be an input too.
        return None if read_name_and_type(payload, budget)[0] in variable else [payload]

    def whole_graph(payload: memoryview) -> Parts:
        changes = {schema.GRAPH_INITIALIZER: initializer, schema.GRAPH_INPUT: declared_input}
        parts = changed(payload, changes, budget)
        for name in variable:
            if name not in stored:
                raise ModelError(
                    f"variable weight {name!r} is a sparse tensor, which cannot be an input; leave "
                    "it out"
                )
            tensor = stored_tensor(stored[name], budget)
            info = writer.value_info(ValueInfo(name, tensor.dtype, tensor.shape))
            parts += [writer.head(schema.GRAPH_INPUT >> 3, len(info)), info]
        return parts

    parts = changed(view, {schema.MODEL_GRAPH: whole_graph}, budget)
    return writer.joined(parts), files, stored


def _free_location(number: int, taken: Container[str]) -> str:
    while (location := f"%{number}") in taken:
        number += 1
    return location


def _slot(view: memoryview, source: OpenedSource, graph: GraphInfo) -> Slot:
    """Make the slot of a variable weight, with an array of its own."""
    tensor = stored_tensor(view, Budget(limits.FIELDS))
    nbytes = next(info.nbytes for info in graph.parameters if info.name == tensor.name)
    raw = _external(tensor.entries, source, nbytes) if tensor.entries else tensor.raw
    if raw is not None and tensor.dtype.bits >= 8:
        initial = np.frombuffer(raw, tensor.dtype.numpy).reshape(tensor.shape).copy()
    else:
        initial = _decoded(view, raw, tensor, source.name)
    return Slot(tensor.name, tensor.dtype, tensor.shape, initial)


def _external(entries: Mapping[str, str], source: OpenedSource, nbytes: int) -> bytes:
    with open_external(source, entries["location"]) as file:
        file.seek(int(entries.get("offset", "0")))
        return file.read(nbytes)


def _decoded(
    view: memoryview, raw: bytes | memoryview | None, tensor: StoredTensor, name: str
) -> Array:
    """Decode elements that are packed, or stored one by one, with the onnx package."""
    onnx = _onnx(tensor.name, tensor.dtype, name)
    proto = onnx.TensorProto.FromString(bytes(view))
    if raw is not None:
        proto.ClearField("external_data")
        proto.ClearField("data_location")
        proto.raw_data = bytes(raw)
    return np.array(onnx.numpy_helper.to_array(proto))


def _onnx(weight: str, dtype: DType, name: str) -> Any:
    """Import the onnx package. Raises ModelError where it is missing."""
    try:
        import onnx
        import onnx.numpy_helper
    except ImportError:
        raise ModelError(
            f"{name}: the variable weight {weight!r}, which is {dtype} and not plain bytes, takes "
            "the onnx package; run: pip install onnx",
            name,
        ) from None
    return onnx
