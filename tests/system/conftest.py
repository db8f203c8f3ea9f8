"""The system tests run real models on the cpu backend."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # `own_python` is for every folder below


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("engine_cpu") is not None:
        return
    skip = pytest.mark.skip(reason="the cpu backend is not installed: pip install -e plugins/cpu")
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(skip)
