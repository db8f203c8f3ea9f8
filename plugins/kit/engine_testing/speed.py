"""Level of the kit: a backend that the plainest implementation beats by far is set up wrongly."""

from __future__ import annotations

import time

import numpy as np

from engine.reference.evaluator import Host, load
from engine.types import CompileOptions, Device
from engine_testing import models
from engine_testing.level import PATIENCE_S, Level, Trial, time_predict, turns

TIMES = 15


class Speed(Level):
    """Against onnx's reference evaluator, on the same machine at the same time."""

    def test_the_reference_is_not_fifteen_times_faster(self, trial: Trial) -> None:
        """As it is where a model is compiled anew, or interpreted, in every predict."""
        x = np.ones((64, models.SLOW_WIDTH), np.float32)
        running = trial.open(models.slow, x)
        device = Device("kit")
        loaded = load(trial.source(models.slow), Host("kit", device))
        reference = loaded.compile(CompileOptions(device=device)).open_context()
        running.predict(x)  # some compile at the first
        own_s, reference_s = [], []
        # The best of both: other processes slow them down and let go.
        for _ in turns(PATIENCE_S):
            for _ in range(4):
                begin_s = time.monotonic()
                reference.run([x], None, None)
                reference_s.append(time.monotonic() - begin_s)
            own_s.append(time_predict(running, x))
            if min(own_s) < TIMES * min(reference_s):
                return
        raise AssertionError(
            f"a predict takes {min(own_s):.3f} s at best, onnx's reference evaluator "
            f"{min(reference_s):.4f} s"
        )
