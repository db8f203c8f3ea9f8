"""Weights of a model that is served are exchanged for all workers at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from steps import build

import engine
from engine import InputError, ModelParallelRunner, ModelStateError
from engine.model.model import model_state
from engine.model.update import update_together
from engine_testing import models

X = np.array([[1, 2, 3]], np.float32)


def served(folder: Path, mode: str, most: int) -> ModelParallelRunner:
    """Serve y = two * x + one, of which both weights vary."""
    keys = {"variable_weights_list": "two, one", "variable_weights_mode": mode}
    config = {"common_context": keys}
    return build(models.affine(folder), "null", 2, config, max_batch_size=most)


def weights(number: float) -> dict[str, Any]:
    return {"two": np.array([number], np.float32), "one": np.array([1000 * number], np.float32)}


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("mode", ["auto", "swap", "rebuild"])
def test_no_client_sees_old_and_new_weights(null_backend, tmp_path, mode, most) -> None:
    is_over = threading.Event()

    def client(number: int) -> None:
        newest = 0.0
        while not is_over.is_set():
            [y] = runner.predict([X]) if number % 2 else runner.submit([X]).result(30)
            # y = n x + 1000 n: the same n in each element.
            found = (y.get_data_to_numpy()[0] / (X[0] + 1000)).round(3)
            assert len({*found}) == 1
            assert found[0] >= newest
            newest = found[0]

    with served(tmp_path, mode, most) as runner, ThreadPoolExecutor(4) as threads:
        runner.update_weights(weights(1))
        clients = [threads.submit(client, number) for number in range(4)]
        for number in range(2, 40):
            runner.update_weights(weights(number))
        is_over.set()
        for going_on in clients:
            going_on.result(30)
        [y] = runner.predict([X])
        assert y.get_data_to_numpy().tolist() == (39 * X + 39000).tolist()


def test_a_rebuilt_runner_sends_nobody_to_a_method_that_it_lacks(null_backend, tmp_path) -> None:
    with served(tmp_path, "rebuild", 1) as runner:
        runner.update_weights(weights(2))
        with pytest.raises(InputError, match="pass that size, or export the model"):
            runner.predict([np.zeros((2, 4), np.float32)])


def test_models_are_updated_all_or_none(null_backend: str, tmp_path: Path) -> None:
    path = models.affine(tmp_path)
    for mode in ("swap", "rebuild"):
        config = {"common_context": {"variable_weights_mode": mode}}
        one = engine.load(path, "null", variable_weights=["two", "one"], config=config)
        other = engine.load(path, "null")
        with one, other:
            with pytest.raises(ModelStateError, match=r"^update weight failed! Error is no weight"):
                update_together([model_state(one), model_state(other)], weights(5))
            [y] = one.predict([X])
            assert y.get_data_to_numpy().tolist() == (2 * X + 1).tolist()


def test_a_runner_that_is_not_built_or_closed_says_so(null_backend: str, tmp_path: Path) -> None:
    with pytest.raises(ModelStateError, match="update weight failed! Error is the runner is not"):
        ModelParallelRunner().update_weights(weights(1))
    runner = served(tmp_path, "swap", 1)
    runner.close()
    with pytest.raises(ModelStateError, match="update weight failed! Error is the runner is clo"):
        runner.update_weights(weights(1))
