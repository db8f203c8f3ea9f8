"""Faults of Executable.prepare."""

from __future__ import annotations

from contextlib import suppress

from engine.errors import Cancelled, ModelError
from faulty import Faulty, caught_by

_WATCHED = "test_preparing_reports_progress_and_is_cancelled"


@caught_by("test_what_is_prepared_gives_the_same_bits", says="prepared, it gives other bits")
class SpecialisesWithFewerBits(Faulty):
    def prepare(self, executable, shapes, progress, cancel):
        super().prepare(executable, shapes, progress, cancel)
        executable.notes["prepared"] = [*shapes.values()]

    def predict(self, context, inputs, outputs, deadline_s):
        results = super().predict(context, inputs, outputs, deadline_s)
        if [x.shape for x in inputs] == context.executable.notes.get("prepared"):
            results = [result.astype("float16").astype(result.dtype) for result in results]
        return results


@caught_by(_WATCHED, says="DID NOT RAISE")
class PreparesToTheEnd(Faulty):
    def prepare(self, executable, shapes, progress, cancel):
        with suppress(Cancelled):
            super().prepare(executable, shapes, progress, cancel)


@caught_by(_WATCHED, says="goes back")
class CountsPreparationDown(Faulty):
    def prepare(self, executable, shapes, progress, cancel):
        super().prepare(executable, shapes, progress, cancel)
        for left in (2, 1, 0) if progress is not None else ():
            progress("tune", left, 2)


@caught_by("test_shapes_that_cannot_be_are_not_prepared", says="DID NOT RAISE")
class PreparesAnyShape(Faulty):
    def prepare(self, executable, shapes, progress, cancel):
        with suppress(ModelError):
            super().prepare(executable, shapes, progress, cancel)
