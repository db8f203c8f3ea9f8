from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import engine
from engine import Model

Load = Callable[..., Model]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Build one of the testing models for the cpu; keys of [cpu_context] by keyword."""

    def build(make: Callable[[Path], Path], **options: str) -> Model:
        config = {"cpu_context": options} if options else None
        return engine.load(make(tmp_path), target="cpu", config=config)

    return build
