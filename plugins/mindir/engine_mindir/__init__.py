"""MindIR, MindSpore's format: read without MindSpore and lowered to ONNX.

decode.py      decodes the file's protobuf messages: messages.py
constants.py   decodes constants and inferred types, in every dialect
storage.py     the tensors' data; names.py: names of values and primitives
lower.py       interprets the graph symbolically; structural.py: tuples, effects, closures
control.py     branches to If, loops to Loop; functions.py: the call graph
in_place.py    tensors that are changed in place; tuples.py: limits on tuples
primitives/    the table: one function a primitive, which writes ONNX nodes
emit.py        the graph builder; shape_inference.py: shapes that the file leaves open
fold.py        dead code, biases, BatchNorm; assemble.py: the ONNX model; outputs.py: its outputs
variables.py   declared variable weights
compiled.py    models in a file that are compiled for Ascend
summary.py     a file's summary for `engine inspect`; errors.py: errors as ModelError
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from engine.cancel import CancelToken
from engine_mindir import decode
from engine_mindir.assemble import lower
from engine_mindir.compiled import (
    CompiledModels,
    FoundCompiled,
    compiled_models,
    read_om,
)
from engine_mindir.errors import refused
from engine_mindir.messages import DecodeError, ModelProto
from engine_mindir.storage import SMALL_BYTES, Storage
from engine_mindir.summary import Description, describe
from engine_mindir.variables import variable_parameters
from engine.formats.onnx import read_model
from engine.formats.opened import FileVersion, OpenedSource

__all__ = ["CompiledModels", "Description", "FoundCompiled", "describe", "open_mindir"]


def open_mindir(
    path: Path | None,
    data: bytes | mmap.mmap,
    *,
    dec_key: bytes | None = None,
    dec_mode: str = "AES-GCM",
    folder: Path | None = None,
    weights: bytes | None = None,
    version: FileVersion | None = None,
    variable_weights: Sequence[str] = (),
    input_shapes: Mapping[str, Sequence[int | None]] | None = None,
    cancel: CancelToken | None = None,
) -> OpenedSource:
    """Read a MindIR model as an ONNX model.

    path: its file; None for a model in memory. data: what is in the file, decrypted. dec_key,
    dec_mode: what the file is encrypted with, and with it the data files of a split model; None
    for a plain one. folder: where those data files are, None for the folder of `path`; also
    [model_file] mindir_path. weights: the data file of a split model in memory. version: of the
    file, where `data` is mapped from it. variable_weights, input_shapes: see ModelFile.
    cancel: stops it while the graph is lowered, with Cancelled.
    Weights are not copied. The ONNX model names those of a large file in the .mindir or its data
    files, which must not change while a model is built, others in `files`: see ModelSource, and
    `engine.formats.onnx.inline` for who wants all of it in `data`. Raises ModelError, and
    FoundCompiled for models that are compiled: there is no graph to lower.
    """
    name = str(path) if path is not None else "model bytes"
    if isinstance(data, mmap.mmap) and len(data) <= SMALL_BYTES:
        data = data[:]  # it is looked at for longer than a file may be expected to stay as it is
    view = memoryview(data)
    base = folder if folder is not None else path.parent if path is not None else None
    with refused(path, view):
        proto = decode.model(view)
        if not proto.little_endian:
            raise DecodeError("its numbers are big endian; export it on a little-endian machine")
        assert proto.graph is not None
        models = compiled_models(proto)
        variables = {}
        if variable_weights and models is None:
            variables = variable_parameters(proto, variable_weights, name)
        storage = Storage(view, path, base, dec_key, dec_mode, version)
        locations = [tensor.location for tensor in proto.graph.parameters if tensor.location]
        storage.open(locations, weights)
        if models is not None:
            om = partial(_om, proto, storage, path, view)
            raise FoundCompiled(models, om, {**storage.versions, **storage.read_files})
        lowered = lower(proto, storage, variables, name, input_shapes, cancel)
    graph = lowered.info
    if graph is None:
        beside = storage.folder / "part" if storage.folder is not None else None  # just a name
        model = read_model(memoryview(lowered.data), beside, name, storage.files)
        assert model.repaired is None, "what is written here breaks no rule"
        graph = model.graph
    return OpenedSource(
        format="onnx",
        path=path,
        data=lowered.data,
        folder=storage.folder,
        graph=graph,
        is_secret=dec_key is not None,
        files=storage.files,
        state=lowered.state,
        variables=lowered.variables,
        versions=storage.versions,
        read_files=storage.read_files,
    )


def _om(
    proto: ModelProto, storage: Storage, path: Path | None, view: memoryview, number: int
) -> bytes:
    with refused(path, view):
        return read_om(proto, storage, number)
