"""Faults of predicts that are begun: their end is told wrongly."""

from __future__ import annotations

import time

import numpy as np

from engine.errors import DeadlineExceeded
from faulty import Faulty, caught_by

ONCE = "test_a_begun_predict_gives_its_values_once"


@caught_by(ONCE, says="done was called 2 times")
class SaysTwiceThatItIsDone(Faulty):
    def predict_async(self, context, inputs, outputs, deadline_s, done):
        def twice(values, error):
            done(values, error)
            done(values, error)

        return super().predict_async(context, inputs, outputs, deadline_s, twice)


@caught_by(ONCE, says="done was not called within")
class NeverSaysThatItIsDone(Faulty):
    def predict_async(self, context, inputs, outputs, deadline_s, done):
        return True


@caught_by(ONCE, says="Not equal to tolerance")
class SaysTooSoonThatItIsDone(Faulty):
    """Its copy from the device is queued, and not complete."""

    def predict_async(self, context, inputs, outputs, deadline_s, done):
        def early(values, error):
            given = None if values is None else [np.zeros_like(value) for value in values]
            done(given, error)
            for copy, value in zip(given or (), values or (), strict=True):
                np.copyto(copy, value)

        return super().predict_async(context, inputs, outputs, deadline_s, early)


@caught_by("test_a_context_is_free_once_the_end_is_told", says="the context is busy")
class FreesItsContextAfterwards(Faulty):
    def predict_async(self, context, inputs, outputs, deadline_s, done):
        if context.notes.get("busy"):
            raise RuntimeError("the context is busy")
        context.notes["busy"] = True

        def kept(values, error):
            done(values, error)
            context.notes["busy"] = False

        return super().predict_async(context, inputs, outputs, deadline_s, kept)


@caught_by("test_a_begun_predict_that_fails_says_so_once", says="one or the other")
class RaisesAndSaysThatItIsDone(Faulty):
    def predict_async(self, context, inputs, outputs, deadline_s, done):
        if deadline_s is not None and deadline_s < time.monotonic():
            error = DeadlineExceeded("predict was stopped at its deadline")
            done(None, error)
            raise error
        return super().predict_async(context, inputs, outputs, deadline_s, done)
