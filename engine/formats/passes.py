"""Passes: rewrites of a model's graph before anything is compiled.

    [project.entry-points."engine.passes.v1"]
    mine = "my_package:PASS"

`ENGINE_PASSES=mine,other` switches them on, in this order. Nothing is imported for one that is off.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Protocol, cast

from engine.backends import doors
from engine.backends.doors import PASSES
from engine.backends.records import BackendState
from engine.errors import EngineError, ModelError, one_line
from engine.formats.onnx import read_part
from engine.formats.opened import OpenedSource
from engine.host.interrupts import raised_by_handler
from engine.types import GraphInfo

VARIABLE = "ENGINE_PASSES"


class Pass(Protocol):
    """An object that an entry of group `engine.passes.v1` names. For any thread."""

    version: str
    """Of what it does: with its name it is part of the key of what is compiled and cached."""

    def rewrite(self, model: bytes) -> bytes | None:
        """Return the model rewritten, a serialized ModelProto; None where it stays as it is.

        Inputs and outputs stay, in name, type, shape and order. Large tensors are external data,
        whose locations, offsets and lengths mean something to the core alone: a tensor keeps them.
        The core checks the result as it checks a file. Raises ModelError for a model that is
        refused.
        """


def enabled() -> tuple[str, ...]:
    """Return the names of the passes that are switched on, in their order."""
    names = (name.strip() for name in os.environ.get(VARIABLE, "").split(","))
    return tuple(dict.fromkeys(filter(None, names)))


def rewritten(source: OpenedSource, names: tuple[str, ...]) -> OpenedSource:
    """Return a model after the passes of these names.

    Raises ModelError for a name that no distribution offers, and for a pass that fails.
    """
    points = doors.points(PASSES)
    for name in names:
        found, loaded = doors.resolve(PASSES, name, points)
        if found.state is not BackendState.READY:
            raise ModelError(f"{VARIABLE} names {name!r}, but {found}") from loaded
        source = _after(_in_memory(source, name), name, cast("Pass", loaded))
    return source


def _in_memory(source: OpenedSource, name: str) -> OpenedSource:
    """Return the model with its graph in memory, and large weights in `files`."""
    from engine.formats.onnx.weights import with_weights_apart

    apart = cast("OpenedSource", with_weights_apart(source))
    if apart.data is not None:
        return apart
    assert source.path is not None
    if source.graph is None or any(info.location for info in source.graph.parameters):
        raise _failed(source, name, "external data is reached through links out of its folder")
    data = source.path.read_bytes()
    source.check_unchanged()
    return replace(source, data=data)


def _after(source: OpenedSource, name: str, rewrite: Pass) -> OpenedSource:
    content = source.data
    assert content is not None
    source = replace(source, passes=(*source.passes, f"{name} {rewrite.version}"))
    try:
        data = rewrite.rewrite(content)
        if data is None:
            return source
        data = bytes(data)
    except Exception as error:
        if isinstance(error, EngineError) or raised_by_handler(error):
            raise
        raise _failed(source, name, f"it raised {one_line(error)}") from error
    try:
        model = read_part(data, source.folder, source.name, source.files)
    except ModelError as error:
        raise _failed(source, name, f"its result is {error}") from error
    if _edges(model.graph) != _edges(source.graph):
        raise _failed(source, name, "it changed the model's inputs or outputs")
    return replace(
        source,
        data=model.repaired or data,
        graph=model.graph,
        folds_too_much=model.folds_too_much,
        versions={**source.versions, **model.versions},
        digest="",
    )


def _edges(graph: GraphInfo | None) -> object:
    return None if graph is None else (graph.inputs, graph.outputs)


def _failed(source: OpenedSource, name: str, why: str) -> ModelError:
    where = "" if source.path is None else source.name
    text = f"{source.name}: pass {name!r} failed: {why}; mend it, or leave it out of {VARIABLE}"
    return ModelError(text, where)
