"""Faults of numbers in few bits, of fusions, and of speed."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from engine.errors import DeadlineExceeded
from engine.types import Arithmetic
from faulty import Context, Faulty, caught_by
from faulty.answers import Changes


def operators(context: Context) -> set[str]:
    """The operators of the model that a context runs."""
    return {node.op_type for node in context.inner._executable.inner._nodes}


def _in_eight_bits(x: Any) -> Any:
    scale = np.float32(max(np.abs(x).max(initial=0) / 127, 1e-9))
    return np.round(x / scale) * scale


@caught_by("test_weights_stored_as_int8_are_computed_in_float", says="x was computed in fewer bits")
class QuantizesActivations(Faulty):
    """Because the weights are in 8 bits, as runtimes with 8-bit instructions do by themselves."""

    def predict(self, context, inputs, outputs, deadline_s):
        if {"Cast", "MatMul"} <= operators(context):
            inputs = [_in_eight_bits(x) if x.dtype == np.float32 else x for x in inputs]
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_integer_products_are_exact", says="Arrays are not equal")
class AddsPairsOfProductsInSixteenBits(Changes):
    """As older x86 processors do with bytes: the sum of a pair saturates."""

    def change(self, context, inputs, results):
        if "MatMulInteger" not in operators(context):
            return results
        initial = context.inner._executable.inner.evaluator.rt_inits_
        x, weight = inputs[0].astype(np.int64), initial["weight"].astype(np.int64)
        products = x[:, :, None] * weight[None]
        pairs = np.clip(products[:, ::2] + products[:, 1::2], -(2**15), 2**15 - 1)
        zero = int(initial["zero"]) * weight.sum(0)
        return [(pairs.sum(1) - zero).astype(np.int32)]


@caught_by("test_quantized_products_are_within_half_a_quantum", says="more than half a quantum")
class RoundsQuantaDown(Changes):
    def change(self, context, inputs, results):
        found = operators(context)
        if "QLinearMatMul" in found:
            return [results[0] - np.uint8(1)]
        if "QuantizeLinear" in found:
            quantum = context.inner._executable.inner.evaluator.rt_inits_["ys"]
            return [results[0] - quantum]
        return results


@caught_by("test_results_are_as_exact_as_asked_for", says="arithmetic 'rounded': off by")
class TakesRoundedForFloat16(Faulty):
    """Rounded factors have float32's range, float16 has not."""

    def compile(self, loaded, options):
        executable = super().compile(loaded, options)
        executable.notes["is_half"] = options.arithmetic not in (None, Arithmetic.EXACT)
        return executable

    def predict(self, context, inputs, outputs, deadline_s):
        if context.executable.notes["is_half"]:
            with np.errstate(over="ignore"):
                inputs = [x.astype(np.float16).astype(x.dtype) for x in inputs]
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_casts_to_small_types_are_right_or_refused", says="are wrong")
class CutsWhatItCastsToSmallTypes(Faulty):
    """Towards zero, and not to the nearest."""

    def predict(self, context, inputs, outputs, deadline_s):
        nodes = context.inner._executable.inner._nodes
        if [node.op_type for node in nodes] == ["Cast", "Cast"]:
            inputs = [x - np.sign(x) * np.abs(x) / 64 for x in inputs]
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_a_whole_graph_gives_what_its_parts_give", says="the whole graph differs")
class FusesTheGeluWrongly(Changes):
    """With another formula, and only where it finds all of it in one graph."""

    def change(self, context, inputs, results):
        if not {"Erf", "Softmax"} <= operators(context):
            return results
        return [y + np.float32(3e-4) * np.sin(y) for y in results]


@caught_by("test_the_reference_is_not_fifteen_times_faster", says="at best")
class InterpretsEveryPredict(Faulty):
    """Does it thirty times over, for nothing."""

    def predict(self, context, inputs, outputs, deadline_s):
        if len(context.inner._executable.inner._nodes) > 50:
            for _ in range(29):
                super().predict(context, inputs, None, deadline_s)
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_a_predict_that_was_stopped_goes_on_nowhere", says="left at its deadline")
class PretendsItsDeadline(Faulty):
    """Returns in time, and leaves the thread that runs the model to itself."""

    def predict(self, context, inputs, outputs, deadline_s):
        if deadline_s is None:
            return super().predict(context, inputs, outputs, None)
        run, results = super().predict, []
        other = context.executable.open_context()
        thread = threading.Thread(
            target=lambda: results.append(run(other, inputs, outputs, None)), daemon=True
        )
        thread.start()
        thread.join(max(0.0, deadline_s - time.monotonic()))
        if thread.is_alive():
            raise DeadlineExceeded("predict was stopped at its deadline")
        return results[0]


@caught_by("test_a_first_predict_that_compiles_can_be_cancelled", says="it compiled, and neither")
class CompilesAtTheFirstPredictInSilence(Faulty):
    """After an engine_compile that reports progress and can be cancelled."""

    def predict(self, context, inputs, outputs, deadline_s):
        notes = context.executable.notes
        if len(context.inner._executable.inner._nodes) > 50 and not notes.get("compiled"):
            end_s = time.thread_time() + 1.5
            while time.thread_time() < end_s:
                np.linalg.inv(np.eye(50) + 1)
            notes["compiled"] = True
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_a_first_predict_that_compiles_can_be_cancelled", says="went on after the cancel")
class ReportsAFirstPredictThatCannotBeCancelled(Faulty):
    def compile(self, loaded, options):
        executable = super().compile(loaded, options)
        executable.notes["progress"] = options.progress
        return executable

    def predict(self, context, inputs, outputs, deadline_s):
        progress = context.executable.notes.pop("progress", None)
        if progress is not None:
            progress("specialise", 0, 1)
        return super().predict(context, inputs, outputs, deadline_s)
