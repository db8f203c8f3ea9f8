"""Faults of contexts: sharing, cancelling, letting go; and of weights that are exchanged."""

from __future__ import annotations

import time
from weakref import WeakSet

from engine.errors import Cancelled
from faulty import Context, Executable, Faulty, caught_by


@caught_by("test_the_useful_concurrency_is_a_number", says="expected an int")
class CannotSayItsConcurrency(Faulty):
    def concurrency(self, executable):
        return None


@caught_by("test_the_useful_concurrency_is_a_number", says="expected 0 or more")
class HasAConcurrencyBelowNothing(Faulty):
    def concurrency(self, executable):
        return -1


@caught_by("test_contexts_beside_each_other_get_their_own_results", says="predict after close")
class ClosesTheOneItSharesWith(Faulty):
    def open_beside(self, executable: Executable, beside: Context) -> Context:
        context = super().open_beside(executable, beside)
        context.notes["beside"] = beside
        return context

    def close_context(self, context):
        super().close_context(context)
        if "beside" in context.notes:
            super().close_context(context.notes["beside"])


@caught_by("test_contexts_beside_each_other_share_their_memory", says="with eight beside it")
class SharesNothing(Faulty):
    def open_beside(self, executable, beside):
        return self.open_context(executable)


@caught_by("test_a_predict_is_cancelled_by_another_thread", says="DID NOT RAISE")
class CannotBeCancelled(Faulty):
    def cancel(self, context):
        pass


@caught_by("test_a_predict_is_cancelled_by_another_thread", says="predict stopped after")
class LooksAtCancelAfterwards(Faulty):
    def cancel(self, context):
        context.notes["cancelled"] = True

    def predict(self, context, inputs, outputs, deadline_s):
        results = super().predict(context, inputs, outputs, deadline_s)
        if context.notes.get("cancelled"):
            raise Cancelled("predict was cancelled")
        return results


@caught_by("test_a_cancel_before_the_runtime_starts_holds", says="DID NOT RAISE")
class ForgetsAnEarlyCancel(Faulty):
    """Takes the flag back where a predict begins, as if it were an old one's."""

    def predict(self, context, inputs, outputs, deadline_s):
        context.inner._inner._cancelled = False
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_a_cancel_leaves_other_contexts_alone", says="predict was cancelled")
class CancelsAllContexts(Faulty):
    def cancel(self, context):
        context.executable.notes["cancelled"] = True

    def predict(self, context, inputs, outputs, deadline_s):
        if context.executable.notes.get("cancelled"):
            raise Cancelled("predict was cancelled")
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_a_reset_context_lets_go_of_arrays", says="arrays are kept after reset()")
class KeepsArrays(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        context.notes["bound"] = inputs, outputs
        return super().predict(context, inputs, outputs, deadline_s)


# ------------------------------------------------------------------------------------- weights


@caught_by("test_updated_weights_are_used_by_every_context", says="Not equal to tolerance")
class UpdatesNothing(Faulty):
    def update_weights(self, executable, weights, additive):
        return True


@caught_by("test_an_additive_update_adds_to_the_weights_as_loaded", says="Not equal to tolerance")
class AddsToTheLastUpdate(Faulty):
    def update_weights(self, executable, weights, additive):
        if additive:
            current = executable.inner.inner.evaluator.rt_inits_
            weights = {name: current[name] + value for name, value in weights.items()}
        return super().update_weights(executable, weights, False)


@caught_by("test_new_weights_are_copied", says="Not equal to tolerance")
class KeepsTheCallersWeights(Faulty):
    def update_weights(self, executable, weights, additive):
        super().update_weights(executable, weights, additive)
        if not additive:
            executable.inner.inner.evaluator.rt_inits_.update(weights)
        return True


@caught_by(
    "test_an_update_that_fails_changes_nothing",
    "test_a_predict_sees_all_of_an_update_or_none",
    says="",
)
class UpdatesOneByOne(Faulty):
    def update_weights(self, executable, weights, additive):
        for name, value in weights.items():
            super().update_weights(executable, {name: value}, additive)
            time.sleep(0.001)
        return True


@caught_by("test_an_update_changes_no_other_executable_of_the_model", says="Not equal to tolerance")
class UpdatesEveryExecutable(Faulty):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.opened: WeakSet[Executable] = WeakSet()

    def compile(self, loaded, options):
        executable = super().compile(loaded, options)
        if options.variable_weights:
            self.opened.add(executable)
        return executable

    def update_weights(self, executable, weights, additive):
        for each in [*self.opened]:
            if each.inner.inner.evaluator is not None:
                super().update_weights(each, weights, additive)
        return True
