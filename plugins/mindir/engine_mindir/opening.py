"""Opens a .mindir: as an ONNX model, or as what is in it that is compiled for Ascend."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

from engine.errors import ModelError
from engine.formats.description import CompiledModels
from engine.formats.format import FormatFile
from engine.formats.onnx import read_part
from engine.formats.opened import OpenedSource
from engine.formats.variable import declared_weights
from engine_mindir import decode
from engine_mindir.assemble import lower
from engine_mindir.compiled import compiled_models, read_om
from engine_mindir.errors import refused
from engine_mindir.messages import DecodeError, GraphProto, ModelProto
from engine_mindir.names import local, primitive_named
from engine_mindir.storage import SMALL_BYTES, Storage

# Those that MindSpore Lite updates, each with its inputs that may be a weight, likeliest first.
_WEIGHTED = {"Conv2D": (1,), "MatMul": (1, 0), "MatMulV2": (1, 0), "BatchMatMul": (1, 0)}
_PASSING = frozenset({"Load", "Depend", "Identity"})  # give their first input as it is
_RANKS = (2, 4)


def opened(file: FormatFile) -> OpenedSource:
    """Return a MindIR model as an ONNX model, or as the compiled one that is in it.

    Weights are not copied. The ONNX model names those of a large file in the .mindir or its data
    files, which must not change while a model is built, others in `files`: see ModelSource, and
    `engine.formats.onnx.inline` for who wants all of it in `data`. Raises ModelError, also for a
    compiled model where the backend reads no such form.
    """
    data = file.data
    if isinstance(data, mmap.mmap) and len(data) <= SMALL_BYTES:
        data = data[:]  # it is looked at for longer than a file may be expected to stay as it is
    view = memoryview(data)
    with refused(file.path, view):
        proto = decode.model(view)
        if not proto.little_endian:
            raise DecodeError("its numbers are big endian; export it on a little-endian machine")
        assert proto.graph is not None
        models = compiled_models(proto)
        variables = {}
        if file.variable_weights and models is None:
            variables = _variable_parameters(proto, file.variable_weights, file.name)
        storage = Storage(view, file.path, file.base, file.dec_key, file.dec_mode, file.version)
        locations = [tensor.location for tensor in proto.graph.parameters if tensor.location]
        storage.open(locations, file.weights)
        if models is not None:
            return _compiled(file, models, proto, storage)
        lowered = lower(proto, storage, variables, file.name, file.input_shapes, file.cancel)
    graph = lowered.info
    if graph is None:
        model = read_part(lowered.data, storage.folder, file.name, storage.files)
        assert model.repaired is None, "what is written here breaks no rule"
        graph = model.graph
    return OpenedSource(
        format="onnx",
        path=file.path,
        data=lowered.data,
        folder=storage.folder,
        graph=graph,
        is_secret=file.dec_key is not None,
        files=storage.files,
        state=lowered.state,
        variables=lowered.variables,
        versions=storage.versions,
        read_files=storage.read_files,
    )


def _compiled(
    file: FormatFile, models: CompiledModels, proto: ModelProto, storage: Storage
) -> OpenedSource:
    """Return the compiled model that is meant. Raises ModelError where that cannot be run."""
    step = ""
    if "om" not in file.formats:
        step = (
            "run it with target 'ascend', or give the model that it was converted from, which "
            "runs on every target"
        )
    elif len(models.graphs) > 1 and not file.entry:
        step = "run them with engine.MultiModelRunner, which has an executor for each"
    if step:
        raise ModelError(
            f"{file.name}: is {models} compiled for Ascend; {step}",
            "" if file.path is None else file.name,
        )
    return OpenedSource(
        format="om",
        path=file.path,
        data=read_om(proto, storage, int(file.entry or 0)),
        is_secret=file.dec_key is not None,
        read_files={**storage.versions, **storage.read_files},
    )


def _variable_parameters(
    model: ModelProto, wanted: Sequence[str], name: str
) -> dict[str, tuple[str, ...]]:
    """Return the parameters that `wanted` names, as the file names them, each with these names.

    A node goes by its full name ("Default/fc1-Dense/MatMul-op0") or by that without the last part,
    as MindSpore Lite has it. name: what errors call the model. Raises InputError.
    """
    main = model.graph
    assert main is not None
    by_title = {proto.ref_key or local(proto.name): proto.name for proto in main.parameters}
    titles = {own: title for title, own in by_title.items()}
    ranks = {proto.name: len(proto.dims) for proto in main.parameters}
    readers: dict[str, list[str]] = {}
    for graph in (main, *model.functions.values()):
        for full_name, parameter in _weights(model, graph, ranks):
            title = titles[parameter]
            for known in {full_name, full_name.rpartition("/")[0]} - {""}:
                if title not in readers.setdefault(known, []):
                    readers[known].append(title)
    meant = declared_weights(wanted, by_title, readers, name)
    return {by_title[title]: tuple(declared) for title, declared in meant.items()}


def _weights(model: ModelProto, graph: GraphProto, ranks: dict[str, int]) -> list[tuple[str, str]]:
    """Return the full names of a graph's weighted nodes, each with the parameter that it reads."""
    passed: dict[str, str] = {}
    result = []
    for node in graph.nodes:
        primitive, _ = primitive_named(model, node.op_type)
        if primitive in _PASSING and node.inputs:
            passed[node.output] = passed.get(node.inputs[0], node.inputs[0])
        for position in _WEIGHTED.get(primitive, ()):
            if position < len(node.inputs):
                source = passed.get(node.inputs[position], node.inputs[position])
                if ranks.get(source) in _RANKS:
                    result.append((node.domain or local(node.name), source))
                    break
    return result
