"""Faults of what operators mean: old operator sets, integers, NaN, indices, unwritten memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.errors import ModelError
from faulty import Context, Faulty, caught_by
from faulty.answers import Changes
from faulty.numbers import operators

COMPARISONS = {
    "Equal": np.equal, "Less": np.less, "Greater": np.greater,
    "LessOrEqual": np.less_equal, "GreaterOrEqual": np.greater_equal,
}  # fmt: skip


def _weight(context: Context) -> Any:
    return context.inner._executable.inner.evaluator.rt_inits_["weight"].astype(np.int64)


def _opset(context: Context) -> int:
    return int(context.inner._executable.inner.evaluator.opsets[""])


@caught_by("test_older_operator_sets_keep_their_meaning", says="Not equal to tolerance")
class ReadsOldModelsAsNewOnes(Changes):
    """Softmax along one axis, as from operator set 13 on."""

    def change(self, context, inputs, results):
        if "Softmax" not in operators(context) or _opset(context) >= 13:
            return results
        powers = np.exp(inputs[0] - inputs[0].max(-1, keepdims=True))
        return [powers / powers.sum(-1, keepdims=True)]


@caught_by("test_older_operator_sets_keep_their_meaning", says="Not equal to tolerance")
class OverlooksAxesThatAreAttributes(Changes):
    """Reduces all axes, where later operator sets would have an input of them."""

    def change(self, context, inputs, results):
        if "ReduceL1" not in operators(context):
            return results
        return [np.full_like(results[0], np.abs(inputs[0]).sum())]


class _ComparesIn(Changes):
    """Compares whole numbers in a type of floating point."""

    floats: dict[Any, Any]

    def change(self, context, inputs, results):
        [operator] = operators(context) & COMPARISONS.keys() or [""]
        wider = self.floats.get(inputs[0].dtype) if inputs else None
        if not operator or wider is None:
            return results
        return [COMPARISONS[operator](*(x.astype(wider) for x in inputs))]


@caught_by("test_neighbouring_integers_are_told_apart", says="comparisons are wrong")
class ComparesIntegersInSingle(_ComparesIn):
    floats = {np.dtype(np.int32): np.float32}  # noqa: RUF012


@caught_by("test_neighbouring_integers_are_told_apart", says="comparisons are wrong")
class ComparesLongsInDouble(_ComparesIn):
    floats = {np.dtype(np.int64): np.float64}  # noqa: RUF012


@caught_by("test_nothing_is_less_than_nan_or_equal_to_it", says="comparisons are wrong")
class ComputesGreaterAsNotLessOrEqual(Changes):
    def change(self, context, inputs, results):
        if operators(context) != {"Greater"}:
            return results
        return [~np.less_equal(*inputs)]


@caught_by("test_nan_stays_nan", says="of NaN is")
class ClampsBeforeExp(Changes):
    """With minimum and maximum instructions, which give the other number for NaN."""

    def change(self, context, inputs, results):
        if operators(context) != {"Exp"}:
            return results
        with np.errstate(all="ignore"):
            return [np.exp(np.fmax(np.fmin(inputs[0], np.float32(100)), np.float32(-100)))]


@caught_by("test_sums_of_extreme_products_do_not_saturate", says="Arrays are not equal")
class SumsPairsOfProductsInSixteenBits(Changes):
    def change(self, context, inputs, results):
        if operators(context) != {"MatMulInteger"} or inputs[0].shape[0] != 2:
            return results
        products = inputs[0].astype(np.int64)[:, :, None] * _weight(context)[None]
        pairs = np.clip(products[:, ::2] + products[:, 1::2], -(2**15), 2**15 - 1)
        return [pairs.sum(1).astype(np.int32)]


@caught_by("test_integer_convolutions_do_not_saturate", says="Arrays are not equal")
class SaturatesConvolutionsInSixteenBits(Changes):
    def change(self, context, inputs, results):
        if "ConvInteger" not in operators(context):
            return results
        return [np.clip(results[0], -(2**15), 2**15 - 1)]


@caught_by("test_small_integers_wrap", says="Arrays are not equal")
class SaturatesSmallIntegers(Changes):
    def change(self, context, inputs, results):
        if operators(context) != {"Add"} or results[0].dtype != np.int8:
            return results
        wide = inputs[0].astype(np.int16) + inputs[1]
        return [np.clip(wide, -128, 127).astype(np.int8)]


@caught_by("test_an_index_from_the_end_is_counted_from_there", says="Not equal to tolerance")
class TakesNegativeIndicesForTheFirst(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        if "Gather" in operators(context):
            inputs = [x.clip(0) if x.dtype == np.int64 else x for x in inputs]
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_an_index_out_of_range_is_an_error", says="and no error")
class GathersZerosFromOutside(Changes):
    def predict(self, context, inputs, outputs, deadline_s):
        try:
            return super().predict(context, inputs, outputs, deadline_s)
        except ModelError:
            if "Gather" not in operators(context):
                raise
            return [np.zeros((2, 4), np.float32)]

    def change(self, context, inputs, results):
        return results


@caught_by("test_an_index_out_of_range_is_an_error", says="IndexError")
class LetsTheIndexErrorOut(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        try:
            return super().predict(context, inputs, outputs, deadline_s)
        except ModelError as error:
            if "Gather" not in operators(context):
                raise
            raise IndexError(str(error)) from error


@caught_by("test_wide_integers_are_moved_to_the_last_bit", says="Arrays are not equal")
class MovesUnsignedLongsAsSigned(Changes):
    """The limits of int64 stay, by luck; what is beyond them does not."""

    def change(self, context, inputs, results):
        return [np.minimum(y, 2**63 - 1) if y.dtype == "u8" else y for y in results]


@caught_by("test_wide_integers_are_moved_to_the_last_bit", says="Arrays are not equal")
class ConcatenatesLongsAsDoubles(Changes):
    def change(self, context, inputs, results):
        if "Concat" not in operators(context):
            return results
        with np.errstate(invalid="ignore"):
            return [y.astype(np.float64).astype(y.dtype) for y in results]


@caught_by(
    "test_what_a_model_fills_itself_is_written_in_every_build", says="Not equal to tolerance"
)
class WritesItsConstantsOnce(Changes):
    """Believes from the third build on that the memory still holds what it wrote there."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.builds = 0

    def compile(self, loaded, options):
        executable = super().compile(loaded, options)
        if any(node.op_type == "ConstantOfShape" for node in loaded.graph.nodes):
            self.builds += 1
            executable.notes["is_unwritten"] = self.builds > 2
        return executable

    def change(self, context, inputs, results):
        if not context.executable.notes.get("is_unwritten"):
            return results
        return [np.full_like(y, np.nan) for y in results]
