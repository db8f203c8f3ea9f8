"""`Model.memory` says what is free on the devices of a model, where their backends tell it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from plan_models import chain, refusing

import engine
from engine.errors import BackendUnavailable
from engine_testing import models, null_device

Install = Callable[..., ModuleType]
TELLS = frozenset({"device_memory", "mixed_placement"})
GONE = """
@hookimpl
def engine_memory(device):
    from engine.errors import BackendUnavailable

    raise {error}("the card was pulled out")
"""


def test_free_memory_of_the_device_is_shown(null_backend: str, tmp_path: Path) -> None:
    device = null_device.fake_device()
    free = device.memory_bytes - device.held_bytes
    with engine.load(models.affine(tmp_path), target=null_backend) as model:
        memory = model.memory()
    assert memory.free_bytes == {"null:0": free}
    assert str(memory).endswith(f"\nfree on null:0: {free:,}")


def test_a_backend_that_does_not_tell_it_is_left_out(install: Install, tmp_path: Path) -> None:
    install("silent")
    with engine.load(models.affine(tmp_path), target="silent") as model:
        assert model.memory().free_bytes == {}


@pytest.mark.parametrize("error", ["BackendUnavailable", "RuntimeError"])
def test_a_device_that_is_gone_hides_nothing_else(
    install: Install, tmp_path: Path, error: str
) -> None:
    """One of two parts: the other's memory is known all the same."""
    install("gone", extra=GONE.format(error=error), capabilities=TELLS)
    install("there", capabilities=TELLS)
    path = chain(tmp_path, "Neg", "Tanh")
    config = refusing(gone="Tanh")
    with engine.load(path, target=["gone", "there"], config=config) as model:
        assert [part.backend for part in model.memory().parts] == ["gone", "there"]
        assert [*model.memory().free_bytes] == ["null:0"]


def test_a_hook_that_raises_what_it_may_not_is_the_backends_fault(
    install: Install, tmp_path: Path
) -> None:
    from engine.backends import open_backend

    install("gone", extra=GONE.format(error="RuntimeError"), capabilities=TELLS)
    backend = open_backend("gone")
    [device] = backend.present
    with pytest.raises(BackendUnavailable, match="'gone' is at fault: its engine_memory raised"):
        backend.memory(device)
