"""A model that is built a second time comes from the compile cache, on an emulated GPU."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine.weights.store import Store
from engine_testing import models

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENGINE_CACHE", "on")
    return tmp_path / "cache"


def run(path: Path, cache: Path, **section: str) -> None:
    config = {
        "common_context": {"model_cache_dir": str(cache)},
        "gpu_context": {"input_shape": "x:[2,3]", **section},
    }
    with engine.load(path, target="gpu", config=config) as model:
        np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)


def test_an_engine_is_built_once_for_the_same_options(
    tmp_path: Path, cache: Path, emulated: Any
) -> None:
    path = models.affine(tmp_path)
    with emulated.counting() as counts:
        run(path, cache)
        run(path, cache)
    assert counts["builds"] == 1
    with emulated.counting() as counts:
        run(path, cache, precision_mode="preferred_fp16")
        run(path, cache, precision_mode="preferred_fp16")
    assert counts["builds"] == 1
    assert len(Store(cache).entries()) == 2


def test_a_lent_engine_is_not_built_again_and_each_process_is_told_to_have_its_own_copy(
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    emulated: Any,
) -> None:
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(cache))
    monkeypatch.setattr("engine.backends.doors._warned", set())
    path = models.affine(tmp_path)
    shapes = {"input_shape": "x:[2,3]"}
    lend = {**shapes, "shareable_weight_pid_list": str(os.getpid())}
    with emulated.counting() as counts, caplog.at_level(logging.WARNING, "engine"):
        master = engine.load(path, "gpu", config={"gpu_context": lend})
        handle = master.get_model_info("shareable_weight_mem_handle")
        borrow = {**shapes, "shareable_weight_mem_handle": handle}
        with engine.load(path, "gpu", config={"gpu_context": borrow}) as slave:
            master.close()
            np.testing.assert_array_equal(slave(x=X)["y"], 2 * X + 1)
    assert counts["builds"] == 1
    [said] = [text for text in caplog.messages if "not shared" in text]
    assert "each process has its own there" in said
