"""Summaries of files, without a runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine.model.model import model_state
from engine.model.shortcut import load
from engine.report.files import require_model
from engine.report.summary import CompiledPart, ModelSummary, Operator, file_size, of_graph, placed

if TYPE_CHECKING:
    from typing import BinaryIO

    from onnx import ModelProto

    from engine.formats import ModelFile
    from engine.formats.description import CompiledModels, Description
    from engine.typing import DecMode


def inspect(
    model: str | os.PathLike[str] | bytes | BinaryIO | ModelProto,
    target: str | Sequence[str] = "",
    *,
    dec_key: bytes | None = None,
    dec_mode: DecMode = "AES-GCM",
) -> ModelSummary:
    """Return what a model's file holds; it is read and checked without a runtime.

    model: as for engine.load: a path, also of a folder with one model, or the model in memory.
    target: also build the model for it, and say where its nodes run and what it takes in memory.
    dec_key, dec_mode: for an encrypted file; without its key the summary says how it is encrypted,
    and no more.
    Raises RuntimeError (ModelError) for a file that is missing or damaged, and what engine.load
    raises where there is a target.
    """
    found, file = file_given(model, dec_key, dec_mode, "engine.inspect")
    path = found if isinstance(found, str) else ""
    if file.encryption and not dec_key and not target:
        return locked(path, file.encryption)
    targets = [target] if isinstance(target, str) else [*target]
    summary = of_file(path, file, [*filter(None, targets)])
    if not target:
        return summary
    with load(found, target, dec_key=dec_key, dec_mode=dec_mode) as built:
        return placed(summary, model_state(built))


def file_given(
    model: Any, dec_key: bytes | None, dec_mode: DecMode, function: str
) -> tuple[str | bytes, ModelFile]:
    """Return what `function` is given as a path or bytes, and the file to open it by."""
    from engine.formats import ModelFile
    from engine.formats.given import given

    found = given(model)
    if isinstance(found, str):
        require_model(found, function)
    file = ModelFile(found) if isinstance(found, str) else ModelFile.of_bytes(found)
    file.unlock(dec_key, dec_mode)
    return found, file


def locked(path: str, encryption: str) -> ModelSummary:
    """Return what an encrypted file shows without its key."""
    return ModelSummary(path, "encrypted", encryption, file_size(path))


def of_file(path: str, file: ModelFile, targets: Sequence[str] = ()) -> ModelSummary:
    """Return the summary of a file that is opened. targets: may have compiled forms of their own.

    Raises ModelError for what cannot be read.
    """
    written = file.description()
    if written is not None:
        return _of_description(path, file, written)
    source = file(_suffixes(targets))
    return of_graph(
        source.graph,
        model=path,
        format=source.format,
        encryption=file.encryption,
        size_bytes=file_size(path),
    )


def _suffixes(targets: Sequence[str]) -> Mapping[str, str]:
    from engine.backends import find_target, open_backend
    from engine.errors import BackendError

    suffixes: dict[str, str] = {}
    for name in targets:
        try:
            suffixes |= open_backend(find_target(name).backend).info.suffixes
        except BackendError:
            continue  # building for it will say so, unless a later target serves
    return suffixes


def _of_description(path: str, file: ModelFile, written: Description) -> ModelSummary:
    def support(name: str) -> str:
        if name in written.collectives:
            return "yes, beside the other ranks"
        if written.compiled is not None:
            return "yes, on Ascend"
        return "no" if name in written.unsupported else "yes"

    operators = [Operator("", name, n, support(name)) for name, n in written.primitives.items()]
    operators.sort(key=lambda op: (op.support != "no", -op.count, op.name))
    return ModelSummary(
        path,
        file.format,
        file.encryption,
        file_size(path),
        written.inputs,
        written.outputs,
        name=written.name,
        producer=written.producer,
        metadata=written.user_info,
        operators=tuple(operators),
        functions=written.functions,
        compiled=_compiled(written.compiled),
        parameters=written.parameters,
    )


def _compiled(models: CompiledModels | None) -> tuple[CompiledPart, ...]:
    if models is None:
        return ()
    graphs = [
        CompiledPart(f"model {number}", graph.inputs, graph.outputs, graph.nbytes)
        for number, graph in enumerate(models.graphs)
    ]
    executors = [
        CompiledPart(
            f"executor {number}",
            executor.inputs,
            executor.outputs,
            runs=tuple(range(executor.first, executor.last + 1)),
        )
        for number, executor in enumerate(models.executors)
    ]
    return (*graphs, *executors)
