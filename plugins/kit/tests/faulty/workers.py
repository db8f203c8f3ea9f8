"""Faults of threads, deadlines, cancelling and progress."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from engine.errors import DeadlineExceeded
from faulty import Faulty, caught_by


@caught_by(
    "test_threads_with_contexts_of_their_own_get_their_own_results",
    "test_threads_share_a_model",
    says="Not equal to tolerance",
)
class SharesItsScratch(Faulty):
    """Every context binds its inputs in one place."""

    bound = None

    def predict(self, context, inputs, outputs, deadline_s):
        self.bound = inputs
        time.sleep(0.0001)  # what a real backend does here without the GIL: copy, launch
        return super().predict(context, self.bound, outputs, deadline_s)


@caught_by("test_a_context_may_change_threads", says="belongs to another thread")
class BindsContextsToThreads(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        if context.notes.setdefault("thread", threading.get_ident()) != threading.get_ident():
            raise RuntimeError("the context belongs to another thread")
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_contexts_may_be_opened_at_once", says="two threads got one")
class HandsOneContextOutTwice(Faulty):
    """Looks whether a context is spare, and takes it, in two steps."""

    def open_context(self, executable):
        notes = executable.notes
        spare = notes.get("spare") or super().open_context(executable)
        notes["spare"] = spare
        time.sleep(0.002)
        notes["spare"] = None
        return spare


@caught_by(
    "test_models_may_be_built_by_several_threads_at_once", says="no current context in this thread"
)
class CompilesInTheMainThreadOnly(Faulty):
    def compile(self, loaded, options):
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("no current context in this thread")
        return super().compile(loaded, options)


@caught_by("test_models_may_be_built_by_several_threads_at_once", says="the builder is busy")
class HasOneBuilder(Faulty):
    busy = False

    def compile(self, loaded, options):
        if self.busy:
            raise RuntimeError("the builder is busy")
        self.busy = True
        time.sleep(0.05)
        self.busy = False
        return super().compile(loaded, options)


@caught_by("test_a_context_may_be_closed_by_another_thread", says="opened in another thread")
class ClosesOnlyWhereItOpened(Faulty):
    def open_context(self, executable):
        context = super().open_context(executable)
        context.notes["thread"] = threading.get_ident()
        return context

    def close_context(self, context):
        if context.notes["thread"] != threading.get_ident():
            raise RuntimeError("the context was opened in another thread")
        super().close_context(context)


@caught_by(
    "test_a_predict_stops_at_its_deadline",
    "test_a_deadline_that_has_passed_stops_a_predict",
    says="DID NOT RAISE",
)
class IgnoresDeadlines(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        return super().predict(context, inputs, outputs, None)


@caught_by("test_a_predict_stops_at_its_deadline", says="predict stopped after")
class LooksAtTheClockAfterwards(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        results = super().predict(context, inputs, outputs, None)
        if deadline_s is not None and time.monotonic() > deadline_s:
            raise DeadlineExceeded("the deadline has passed")
        return results


@caught_by("test_a_predict_stops_at_its_deadline", says="the context was stopped")
class CannotGoOnAfterADeadline(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        if context.notes.get("stopped", 0) and deadline_s is None:
            raise RuntimeError("the context was stopped")
        try:
            return super().predict(context, inputs, outputs, deadline_s)
        except DeadlineExceeded:
            context.notes["stopped"] = True
            raise


@caught_by("test_a_deadline_that_is_kept_changes_nothing", says="DeadlineExceeded")
class ReadsTheWrongClock(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        if deadline_s is not None and time.time() > deadline_s:
            raise DeadlineExceeded("predict was stopped at its deadline")
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by(
    "test_a_cancelled_compile_does_not_begin",
    "test_a_compile_is_cancelled_on_its_way",
    says="Cancelled",
)
class IgnoresCancel(Faulty):
    def compile(self, loaded, options):
        return super().compile(loaded, replace(options, cancel=None))


@caught_by("test_a_compile_is_cancelled_on_its_way", says="went on after the cancel")
class LooksAtCancelOnce(Faulty):
    def compile(self, loaded, options):
        if options.cancel is not None:
            options.cancel.check()
        return super().compile(loaded, replace(options, cancel=None))


@caught_by("test_progress_only_goes_forward", says="goes back")
class CountsDown(Faulty):
    def compile(self, loaded, options):
        report = options.progress
        if report is not None:
            options = replace(
                options, progress=lambda phase, done, total: report(phase, total - done, total)
            )
        return super().compile(loaded, options)


@caught_by("test_progress_only_goes_forward", says="more steps done than there are")
class DoesMoreThanThereIs(Faulty):
    def compile(self, loaded, options):
        report = options.progress
        if report is not None:
            options = replace(
                options, progress=lambda phase, done, total: report(phase, done, total // 2)
            )
        return super().compile(loaded, options)
