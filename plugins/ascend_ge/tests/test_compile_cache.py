"""A model that is built a second time comes from the compile cache, on an emulated machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine.weights.store import Store
from engine_testing import models

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


@pytest.mark.parametrize("section", ["common_context", "ascend_context"])
def test_atc_runs_once_for_the_same_options(
    tmp_path: Path,
    machine: Any,
    atc_runs: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
    section: str,
) -> None:
    monkeypatch.setenv("ENGINE_CACHE", "on")
    path, cache = models.affine(tmp_path), tmp_path / "cache"

    def run(shape: str) -> None:
        config: dict[str, dict[str, str]] = {"ascend_context": {"input_shape": shape}}
        config.setdefault(section, {})["model_cache_dir"] = str(cache)
        with engine.load(path, target="ascend", config=config) as model:
            np.testing.assert_array_equal(model(x=X)["y"], 2 * X + 1)

    for _ in range(2):
        run("x:[2,3]")
    assert atc_runs() == 1
    for _ in range(2):
        run("x:[1~4,3]")
    assert atc_runs() == 2
    assert len(Store(cache).entries()) == 2


def test_a_lent_model_is_not_compiled_again(
    tmp_path: Path, machine: Any, atc_runs: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    path = models.affine(tmp_path)
    shapes = {"input_shape": "x:[2,3]"}
    lend = {**shapes, "shareable_weight_pid_list": str(os.getpid())}
    master = engine.load(path, "ascend", config={"ascend_context": lend})
    handle = master.get_model_info("shareable_weight_mem_handle")
    borrow = {**shapes, "shareable_weight_mem_handle": handle}
    with engine.load(path, "ascend", config={"ascend_context": borrow}) as slave:
        master.close()
        np.testing.assert_array_equal(slave(x=X)["y"], 2 * X + 1)
    assert atc_runs() == 1
