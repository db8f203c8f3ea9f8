"""Opens a .mindir: as an ONNX model, or as what is in it that is compiled for Ascend."""

from __future__ import annotations

import mmap

from engine.errors import ModelError
from engine.formats.description import CompiledModels
from engine.formats.format import FormatFile
from engine.formats.onnx import read_part
from engine.formats.opened import OpenedSource
from engine_mindir import decode
from engine_mindir.assemble import lower
from engine_mindir.compiled import compiled_models, read_om
from engine_mindir.errors import refused
from engine_mindir.messages import DecodeError, ModelProto
from engine_mindir.storage import SMALL_BYTES, Storage
from engine_mindir.variables import variable_parameters


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
            variables = variable_parameters(proto, file.variable_weights, file.name)
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
