"""Level of the kit: weights that are exchanged between two predicts."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from engine.errors import InputError
from engine.types import Capability
from engine_testing import models
from engine_testing.level import Array, Level, Running, Trial, floats

NAMES = ("two", "one")  # of models.affine: y = two * x + one
UPDATES = 60


def _row() -> Array:
    return floats([[1, 2, 3]])


class Weights(Level):
    """Capability UPDATE_WEIGHTS."""

    @pytest.fixture
    def running(self, trial: Trial) -> Running:
        """A model with variable weights."""
        self.require(trial, Capability.UPDATE_WEIGHTS)
        return trial.open(models.affine, _row(), variable_weights=NAMES)

    def _update(self, running: Running, additive: bool = False, **weights: Any) -> None:
        update = running.backend.bind("engine_update_weights")
        assert update(running.executable, weights, additive), "it did not return True"

    def test_updated_weights_are_used_by_every_context(
        self, trial: Trial, running: Running
    ) -> None:
        other = trial.context(running.executable)
        running.predict(_row())
        self._update(running, two=floats([3]), one=floats([-1]))
        for context in (running, other, trial.context(running.executable)):
            [y] = context.predict(_row())
            self.assert_close(y, 3 * _row() - 1)
        self._update(running, one=floats([4]))  # the others stay as they were updated
        [y] = running.predict(_row())
        self.assert_close(y, 3 * _row() + 4)

    def test_an_additive_update_adds_to_the_weights_as_loaded(self, running: Running) -> None:
        for _ in range(2):
            self._update(running, additive=True, two=floats([3]))
            [y] = running.predict(_row())
            self.assert_close(y, 5 * _row() + 1)

    def test_new_weights_are_copied(self, running: Running) -> None:
        weight = floats([3])
        self._update(running, two=weight)
        weight[:] = 100
        [y] = running.predict(_row())
        self.assert_close(y, 3 * _row() + 1)

    def test_an_update_changes_no_other_executable_of_the_model(
        self, trial: Trial, running: Running
    ) -> None:
        def opened() -> Running:
            return trial.open(models.affine, _row(), variable_weights=NAMES)

        earlier = opened()
        self._update(running, two=floats([3]))
        for other in (earlier, opened()):  # as after a resize, and in another model
            [y] = other.predict(_row())
            self.assert_close(y, 2 * _row() + 1)
        [y] = running.predict(_row())
        self.assert_close(y, 3 * _row() + 1)

    def test_an_update_that_fails_changes_nothing(self, running: Running) -> None:
        for weights, name in (
            ({"two": floats([3]), "one": floats([1, 2])}, "one"),
            ({"two": np.array([3], np.float64)}, "two"),
            ({"one": floats([7]), "nobody": floats([3])}, "nobody"),
        ):
            with pytest.raises(InputError, match=f"'{name}'"):
                self._update(running, **weights)
            [y] = running.predict(_row())
            self.assert_close(y, 2 * _row() + 1)

    def test_a_predict_sees_all_of_an_update_or_none(self, trial: Trial, running: Running) -> None:
        mixed: list[Array] = []
        done = threading.Event()

        def work(context: Running) -> None:
            while not done.is_set():
                [y] = context.predict(_row())  # two and one are equal: y = two * (x + 1)
                assert isinstance(y, np.ndarray)
                if not np.allclose(y / (_row() + 1), y[0, 0] / 2, rtol=1e-3):
                    mixed.append(y)

        self._update(running, two=floats([1]), one=floats([1]))
        contexts = [trial.context(running.executable) for _ in range(2)]
        threads = [threading.Thread(target=work, args=(context,)) for context in contexts]
        for thread in threads:
            thread.start()
        try:
            for value in range(1, UPDATES):
                self._update(running, two=floats([value]), one=floats([value]))
        finally:
            done.set()
            for thread in threads:
                thread.join(60)
        assert mixed == [], f"{len(mixed)} predicts mixed old and new weights, first {mixed[0]}"
