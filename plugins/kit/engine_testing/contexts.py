"""Level of the kit: execution contexts that share, are cancelled, or let go of arrays."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

from engine.errors import Cancelled
from engine.types import Capability
from engine_testing import models
from engine_testing.level import Level, Running, Trial, assert_stops_early, row, time_slow


class Contexts(Level):
    """Contexts that share a workspace, are cancelled, or are reset."""

    def test_the_useful_concurrency_is_a_number(self, trial: Trial) -> None:
        executable = trial.compile(models.affine, row(0))
        concurrency = getattr(executable, "concurrency", 0)
        assert type(concurrency) is int, f"concurrency is {concurrency!r}, expected an int"
        assert concurrency >= 0, f"concurrency is {concurrency}, expected 0 or more"

    # -------------------------------------------------------------------------- beside another

    def test_contexts_beside_each_other_get_their_own_results(self, trial: Trial) -> None:
        self.require(trial, Capability.SHARE_WORKSPACE)
        first = trial.open(models.affine, row(0))
        x = np.ones((2, 3), np.float32)
        second = trial.context(trial.compile(models.no_batch), beside=first)
        third = trial.context(first.executable, beside=second)
        rows = np.array([[0], [1], [2]], np.float32)
        for start in range(5):
            [y] = first.predict(row(start))
            [z] = second.predict(start * x)
            [again] = third.predict(row(start + 1))
            self.assert_close(y, 2 * row(start) + 1)
            self.assert_close(z, start * x.T + rows)
            self.assert_close(again, 2 * row(start + 1) + 1)
        third.context.close()
        second.context.close()  # the core closes the one that was named last
        [y] = first.predict(row(9))
        self.assert_close(y, 2 * row(9) + 1)

    def test_contexts_beside_each_other_share_their_memory(self, trial: Trial) -> None:
        self.require(trial, Capability.SHARE_WORKSPACE)
        first = trial.open(models.affine, row(0))
        first.predict(row(0))
        alone = first.executable.memory().workspace_bytes
        for _ in range(8):
            trial.context(first.executable, beside=first).predict(row(0))
        shared = first.executable.memory().workspace_bytes
        assert shared <= 2 * alone, (
            f"one context has a workspace of {alone} bytes, with eight beside it {shared}"
        )

    # -------------------------------------------------------------------------------- cancel

    def test_a_predict_is_cancelled_by_another_thread(self, trial: Trial) -> None:
        self.require(trial, Capability.CANCEL_PREDICT)
        running, x, whole_s = time_slow(trial)

        def stopped_s(after_s: float) -> float:
            cancelled = trial.context(running.executable)
            timer = threading.Timer(after_s, _canceller(cancelled))
            start_s = time.monotonic()
            timer.start()
            with pytest.raises(Cancelled):
                cancelled.predict(x)
            took_s = time.monotonic() - start_s
            timer.join()
            cancelled.context.close()
            return took_s

        assert_stops_early(running, x, whole_s, stopped_s)

    def test_a_cancel_before_the_runtime_starts_holds(self, trial: Trial) -> None:
        self.require(trial, Capability.CANCEL_PREDICT)
        x = np.ones((4096, models.SLOW_WIDTH), np.float32)
        running = trial.open(models.slow, x)
        _canceller(running)()
        with pytest.raises(Cancelled):
            running.predict(x)

    def test_a_cancel_leaves_other_contexts_alone(self, trial: Trial) -> None:
        self.require(trial, Capability.CANCEL_PREDICT)
        running = trial.open(models.affine, row(0))
        other = trial.context(running.executable)
        _canceller(running)()
        _canceller(running)()  # a token may call twice
        running.context.close()
        for later in (other, trial.context(running.executable)):
            [y] = later.predict(row(3))
            self.assert_close(y, 2 * row(3) + 1)

    # --------------------------------------------------------------------------------- reset

    def test_a_reset_context_lets_go_of_arrays(self, trial: Trial) -> None:
        running = trial.open(models.affine, row(0))
        reset = getattr(running.context, "reset", None)
        if reset is None:
            pytest.skip(
                "contexts have no reset(), which says that they keep no arrays between calls"
            )
        for start in range(3):
            inputs, outputs = [row(start)], [np.zeros((1, 3), np.float32)]
            for _ in range(2):  # the same lists: what is bound for them stands
                trial.backend.predict(running.context, inputs, outputs, None)
                self.assert_close(outputs[0], 2 * row(start) + 1)
            kept = [weakref.ref(array) for array in (*inputs, *outputs)]
            del inputs, outputs
            reset()
            gc.collect()
            assert [ref() for ref in kept] == [None, None], "arrays are kept after reset()"
        [y] = running.predict(row(5))
        self.assert_close(y, 2 * row(5) + 1)


def _canceller(running: Running) -> Any:
    cancel = getattr(running.context, "cancel", None)
    assert cancel is not None, "'cancel_predict' is announced, but contexts have no cancel()"
    return cancel
