"""Options that a model's file holds itself, in its metadata: read where the user asks for that."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from engine.formats import ModelFile
from engine.onnxruntime.options import ExecutionMode, GraphOptimizationLevel, SessionOptions

_KEY = "ort_config"
_FIELDS: dict[str, Callable[[Any], Any]] = {
    "intra_op_num_threads": int,
    "inter_op_num_threads": int,
    "execution_mode": lambda number: _member(ExecutionMode, number),
    "graph_optimization_level": lambda number: _member(GraphOptimizationLevel, number),
    "enable_profiling": bool,
}


def configured(model: str | bytes) -> Any:
    """Return the options in a model's file; those of no change where it has none.

    Raises RuntimeError for what is no such configuration.
    """
    options = SessionOptions()
    file = ModelFile.of_bytes(model) if isinstance(model, bytes) else ModelFile(model)
    graph = file().graph
    text = "" if graph is None else graph.metadata.get(_KEY, "")
    if not text:
        return options
    try:
        given = json.loads(text).get("session_options", {})
        for name, value in given.items():
            if name not in _FIELDS:
                raise ValueError(f"unknown option {name!r}; known: {', '.join(_FIELDS)}")
            setattr(options, name, _FIELDS[name](value))
    except (AttributeError, TypeError, ValueError) as error:
        raise RuntimeError(f"the model's metadata {_KEY!r} cannot be used: {error}") from error
    return options


def _member(kind: Any, number: int) -> Any:
    return kind(int(number))
