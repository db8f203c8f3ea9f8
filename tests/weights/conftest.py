"""A cache of the test's own, and models that are built with it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import engine
from engine import Model
from engine_testing import models

Load = Callable[..., Model]

sys.path.insert(0, str(Path(__file__).parent))  # helpers of this folder can be imported


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """y = 2x + 1, x float32[batch, 3]."""
    return models.affine(tmp_path)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that holds the entries of this test, once something was built."""
    monkeypatch.setenv("ENGINE_CACHE", "on")
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "default"))
    return tmp_path / "cache" / "v1" / "entries"


@pytest.fixture
def load(cache: Path, null_backend: str) -> Load:
    """Build a model on the null backend, with a cache that the configuration names."""

    def load(path: Path, target: str = null_backend, **sections: dict[str, str]) -> Model:
        common = {"model_cache_dir": str(cache.parents[1]), **sections.pop("common_context", {})}
        return engine.load(path, target, config={"common_context": common, **sections})

    return load
