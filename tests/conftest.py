from pathlib import Path

import pytest

import engine
from engine import Context, Model
from engine.testing import models
from engine.testing.fixtures import null_backend, plugin_folder

__all__ = ["null_backend", "plugin_folder"]


@pytest.fixture
def null_context(null_backend: str) -> Context:
    """A context whose target is the null backend."""
    context = Context()
    context.target = [null_backend]
    return context


@pytest.fixture
def affine(null_backend: str, tmp_path: Path) -> Model:
    """y = 2x + 1, x float32[batch, 3]."""
    return engine.load(models.affine(tmp_path), target=null_backend)


@pytest.fixture
def several(null_backend: str, tmp_path: Path) -> Model:
    """Inputs z, a, m; outputs y = z - a, b = a * m, x = z + m; all float32[2, 3] but m, [3]."""
    return engine.load(models.several(tmp_path), target=null_backend)
