"""Summaries: of a file, without a runtime, and of a model that is built."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.report.summary import MINDIR, CompiledPart, ModelSummary, Operator, of_graph

if TYPE_CHECKING:
    from typing import BinaryIO

    from onnx import ModelProto

    from engine.formats import ModelFile
    from engine.formats.mindir import CompiledModels, Description
    from engine.model.facts import ModelFacts
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
    from engine.formats import ModelFile
    from engine.formats.given import given

    found = given(model)
    if isinstance(found, str):
        path, file = found, ModelFile(found)
    else:
        path, file = "", ModelFile.of_bytes(found)
    file.unlock(dec_key, dec_mode)
    if file.encryption and not dec_key and not target:
        return locked(path, file.encryption)
    targets = [target] if isinstance(target, str) else [*target]
    summary = of_file(path, file, [*filter(None, targets)])
    if not target:
        return summary
    from engine.shortcut import load

    with load(found, target, dec_key=dec_key, dec_mode=dec_mode) as built:
        return placed(summary, built)


def placed(summary: ModelSummary, model: ModelFacts) -> ModelSummary:
    """Return a file's summary with what is known of the built model."""
    plan = model._require_built().plan
    return replace(
        summary,
        inputs=summary.inputs if summary.inputs is not None else tuple(model.inputs),
        outputs=summary.outputs if summary.outputs is not None else tuple(model.outputs),
        backend=plan.backend.name,
        placement=tuple(plan.placement()),
        memory=model.memory(),
    )


def of_model(model: ModelFacts) -> ModelSummary:
    """Return the summary of a built model: the graph that its backends got, as resized."""
    plan = model._require_built().plan
    path = model.model_path_
    summary = of_graph(
        plan.source.graph,
        model=path,
        format=plan.source.format,
        size_bytes=_size_of(path) if path else None,
        inputs=tuple(model.inputs),
        outputs=tuple(model.outputs),
    )
    return placed(summary, model)


def locked(path: str, encryption: str) -> ModelSummary:
    """Return what an encrypted file shows without its key."""
    return ModelSummary(path, "encrypted", encryption, _size_of(path))


def of_file(path: str, file: ModelFile, targets: Sequence[str] = ()) -> ModelSummary:
    """Return the summary of a file that is opened. targets: may have compiled forms of their own.

    Raises ModelError for what cannot be read.
    """
    written = file.description()
    if written is not None:
        return _of_mindir(path, written)
    source = file(_suffixes(targets))
    return of_graph(
        source.graph,
        model=path,
        format=source.format,
        encryption=file.encryption,
        size_bytes=_size_of(path),
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


def _size_of(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:  # it has gone since
        return None


def _of_mindir(path: str, written: Description) -> ModelSummary:
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
        MINDIR,
        written.encryption,
        _size_of(path),
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
    """Return what a summary says of models that are compiled for Ascend."""
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
