"""Level of the kit: options of one predict, for a backend whose hooks take them."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from engine.errors import Cancelled, DeadlineExceeded
from engine.types import Capability, PredictOptions, Values
from engine_testing import models
from engine_testing.level import Array, Level, Running, Trial, row, time_slow
from engine_testing.threads import Told

OPTIONS = (
    PredictOptions(),
    PredictOptions(id="a", priority=1, can_be_cancelled=True),
    PredictOptions(id="%s {0} \\ \n\x00 \u00e9\U0001f600", priority=-100),
    PredictOptions(id="r" * 1000, priority=100, can_be_cancelled=True),
)


def _predict(
    running: Running,
    x: Array,
    options: PredictOptions,
    outputs: list[Any] | None = None,
    deadline_s: float | None = None,
) -> Values:
    with_options = running.backend.predict_with
    assert with_options is not None
    values: Values = with_options(running.context, [x], outputs, deadline_s, options)
    return values


class Asked(Level):
    """Options are of one predict: they change no result, and nothing of the next predict."""

    def _require(self, trial: Trial, *capabilities: Capability) -> None:
        if trial.backend.predict_with is None:
            pytest.skip("engine_predict has no parameter 'options'")
        for capability in capabilities:
            self.require(trial, capability)

    def test_options_of_a_predict_change_no_result(self, trial: Trial) -> None:
        self._require(trial)
        x = row(0, 2)
        running = trial.open(models.affine, x)
        for number, options in enumerate(OPTIONS * 2):
            given = x + np.float32(number)
            [y] = _predict(running, given, options)
            self.assert_close(y, 2 * given + 1)
            filled = np.zeros_like(x)
            outputs = [filled]
            results = _predict(running, given, options, outputs)
            assert results[0] is filled, "the buffer that was given is not returned"
            self.assert_close(filled, 2 * given + 1)

    def test_options_of_a_predict_are_forgotten_after_it(self, trial: Trial) -> None:
        """A predict without options can be cancelled, also after one that could not."""
        self._require(trial, Capability.CANCEL_PREDICT)
        running, x, _ = time_slow(trial)
        small = x[:3] if trial.backend.can(Capability.DYNAMIC_SHAPES) else x
        _predict(running, small, PredictOptions(id="first", can_be_cancelled=False))
        cancel: Any = running.context.cancel  # type: ignore[attr-defined]
        cancel()  # before it begins, as the core may
        with pytest.raises(Cancelled):
            running.predict(x)

    def test_a_predict_that_says_so_can_be_cancelled(self, trial: Trial) -> None:
        self._require(trial, Capability.CANCEL_PREDICT)
        running, x, whole_s = time_slow(trial)
        timer = threading.Timer(whole_s / 10, running.context.cancel)  # type: ignore[attr-defined]
        timer.start()
        options = PredictOptions(id="one", can_be_cancelled=True)

        def until_cancelled() -> None:
            for _ in range(10):  # a machine that was busier before may be through with some
                _predict(running, x, options)

        try:
            with pytest.raises(Cancelled):
                until_cancelled()
        finally:
            timer.join()

    def test_a_predict_that_nobody_cancels_keeps_its_deadline(self, trial: Trial) -> None:
        self._require(trial, Capability.DEADLINES)
        x = np.ones((4096, models.SLOW_WIDTH), np.float32)
        running = trial.open(models.slow, x)
        with pytest.raises(DeadlineExceeded):
            _predict(running, x, PredictOptions(), None, time.monotonic() - 1)

    def test_options_of_a_begun_predict_change_no_result(self, trial: Trial) -> None:
        self.require(trial, Capability.ASYNC_PREDICT)
        begin = trial.backend.begin_with
        if begin is None:
            pytest.skip("engine_predict_async has no parameter 'options'")
        x = row(0, 2)
        running = trial.open(models.affine, x)
        for number, options in enumerate(OPTIONS * 2):
            told = Told()
            begin(running.context, [x + np.float32(number)], None, None, told.done, options)
            told.wait()
            assert told.error is None, f"done got an error: {told.error!r}"
            self.assert_close(told.values[0], 2 * (x + np.float32(number)) + 1)
