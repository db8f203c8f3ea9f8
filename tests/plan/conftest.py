"""Fixtures of plans. Helpers of this folder's tests are importable: fake_device, plan_models."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fake_device

Install = Callable[..., ModuleType]


@pytest.fixture
def install(null_backend: str, install: Install) -> Install:
    """Install null backends, as everywhere, beside the null backend itself."""
    return install


@pytest.fixture
def second(install: Install) -> ModuleType:
    """The backend that gets what the null backend, or `first`, refuses."""
    return install("second")


@pytest.fixture
def install_device(install: Install) -> Callable[..., ModuleType]:
    """Install the backend "device" of fake_device, with more text below."""

    def make(extra: str = "") -> ModuleType:
        source = fake_device.SOURCE.replace("{name!r}", "'device'") + extra
        return install("device", extra=source, capabilities=fake_device.CAPABILITIES)

    return make
