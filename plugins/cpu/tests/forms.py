"""Models of the cpu backend, with their compiled forms or without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from engine.backends import open_backend
from engine.formats import open_source
from engine.types import CompileOptions, Device, Executable, ModelSource

OPTIONS = CompileOptions(device=Device("cpu"))

X = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)


def compiled(source: ModelSource, options: CompileOptions = OPTIONS) -> Executable:
    """Return the executable of a model."""
    backend = open_backend("cpu")
    loaded = backend.load(source, options)
    try:
        executable: Executable = backend.compile(loaded, options)
    finally:
        loaded.close()
    return executable


def predict(executable: Executable, *arrays: np.ndarray) -> list[np.ndarray]:
    """Run it once."""
    context = executable.open_context()
    return [np.asarray(y) for y in open_backend("cpu").predict(context, arrays, None, None)]


def written(path: Path, folder: Path) -> ModelSource:
    """Return the model with the compiled form that its cold compile wrote."""
    source = open_source(path)
    compiled(source, replace(OPTIONS, save_to=folder)).close()
    return replace(source, compiled=folder)
