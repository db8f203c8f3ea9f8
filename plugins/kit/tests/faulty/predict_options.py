"""Faults of the options of a predict: they outlive it, or take more with them than they say."""

from __future__ import annotations

from faulty import Faulty, caught_by

SAME = "test_options_of_a_predict_change_no_result"


@caught_by("test_options_of_a_predict_are_forgotten_after_it", says="DID NOT RAISE")
class KeepsThatNobodyCancels(Faulty):
    def predict_with(self, context, inputs, outputs, deadline_s, options):
        if options is not None:
            context.notes["nobody"] = not options.can_be_cancelled
        return self.predict(context, inputs, outputs, deadline_s)

    def cancel(self, context):
        if not context.notes.get("nobody"):
            super().cancel(context)


@caught_by("test_a_predict_that_nobody_cancels_keeps_its_deadline", says="DID NOT RAISE")
class ForgetsTheDeadlineOfWhatNobodyCancels(Faulty):
    def predict_with(self, context, inputs, outputs, deadline_s, options):
        if options is not None and not options.can_be_cancelled:
            deadline_s = None
        return self.predict(context, inputs, outputs, deadline_s)


@caught_by("test_a_predict_that_says_so_can_be_cancelled", says="DID NOT RAISE")
class CancelsNothingThatHasAnId(Faulty):
    def predict_with(self, context, inputs, outputs, deadline_s, options):
        context.notes["named"] = options is not None and bool(options.id)
        return self.predict(context, inputs, outputs, deadline_s)

    def cancel(self, context):
        if not context.notes.get("named"):
            super().cancel(context)


@caught_by(SAME, says="Not equal to tolerance")
class ComputesByPriority(Faulty):
    """One of a low priority gets what the device has still from the last."""

    def predict_with(self, context, inputs, outputs, deadline_s, options):
        last = context.notes.get("last")
        if options is not None and options.priority < 0 and last is not None:
            inputs = last
        context.notes["last"] = inputs
        return self.predict(context, inputs, outputs, deadline_s)


@caught_by(SAME, says="the id is too long")
class RefusesLongIds(Faulty):
    def predict_with(self, context, inputs, outputs, deadline_s, options):
        if options is not None and len(options.id) > 64:
            raise ValueError("the id is too long")
        return self.predict(context, inputs, outputs, deadline_s)


@caught_by("test_options_of_a_begun_predict_change_no_result", says="no integer above 10")
class BeginsOnlyUsualPriorities(Faulty):
    def begin_with(self, context, inputs, outputs, deadline_s, done, options):
        if options is not None and options.priority > 10:
            raise ValueError("no integer above 10 is a priority")
        return self.predict_async(context, inputs, outputs, deadline_s, done)
