"""Level of the kit: predict gives the right answers, whatever the types, shapes and values."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from engine.errors import Cancelled, ModelError
from engine.types import CancelToken, Capability, DType, ShapeRange
from engine_testing import models
from engine_testing.level import Array, Level, Trial, floats

NUMBERS = [DType.FLOAT16, DType.FLOAT32, DType.FLOAT64, DType.INT32, DType.INT64]
WHOLE = [
    DType.INT8, DType.INT16, DType.INT32, DType.INT64,
    DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64,
]  # fmt: skip


WIDE: dict[DType, tuple[list[Any], list[Any]]] = {
    DType.FLOAT64: ([1 + 2.0**-40, 1 + 2.0**-52, 2.0**53 + 2], [1 + 2.0**-25, 1e8 + 1]),
    DType.INT64: ([2**40 + 1, -(2**53) - 1, 2**62 - 1], [70001, -70001, 3_000_000_001]),
    DType.UINT64: ([2**40 + 1, 2**62 + 1, 2**63 - 1], [70001, 4_000_000_001]),
}
"""By type: numbers to double and numbers to square, whose results fewer bits cannot hold."""


def _numbers(*shape: int) -> Array:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


class Semantics(Level):
    """Predict, against closed forms."""

    @pytest.mark.parametrize("batch", [1, 3, 4])
    def test_predict_matches_the_closed_form(self, trial: Trial, batch: int) -> None:
        x = _numbers(batch, 3)
        [y] = trial.run(models.affine, x)
        self.assert_close(y, 2 * x + 1)

    @pytest.mark.parametrize("dtype", NUMBERS, ids=str)
    def test_numbers_are_computed_in_their_type(self, trial: Trial, dtype: DType) -> None:
        x = np.array([0, 1, 3, -7, 1000], dtype.numpy)
        [y] = trial.run(partial(models.doubled, dtype=dtype), x)
        self.assert_close(y, x + x)

    @pytest.mark.parametrize("dtype", WIDE, ids=str)
    def test_numbers_of_64_bits_are_computed_in_64_bits(self, trial: Trial, dtype: DType) -> None:
        """As exactly as rounding each step, or more: a fused multiply-add rounds once."""
        numbers, squared = WIDE[dtype]
        for model, values, rounded, exact in (
            (models.doubled, numbers, [2 * x for x in numbers], [2 * Fraction(x) for x in numbers]),
            (
                models.squares,
                squared,
                [x * x + x for x in squared],
                [Fraction(x) ** 2 + Fraction(x) for x in squared],
            ),
        ):
            running = trial.open_or_skip(partial(model, dtype=dtype), np.array(values, dtype.numpy))
            [y] = running.predict(np.array(values, dtype.numpy))
            assert isinstance(y, np.ndarray)
            assert y.dtype == dtype.numpy, f"expected {dtype}, got {y.dtype}"
            wrong = [
                f"{got!r} instead of {step!r}"
                for got, step, truth in zip(y.tolist(), rounded, exact, strict=True)
                if not np.isfinite(got) or abs(Fraction(got) - truth) > abs(Fraction(step) - truth)
            ]
            assert wrong == [], f"{model.__name__}: computed with fewer bits: {wrong}"

    def test_sums_of_products_are_as_precise_as_float32(self, trial: Trial) -> None:
        x = models.FINE[:64].reshape(2, 32)
        [y] = trial.run(models.dense, x)
        weight = models.FINE.reshape(32, 4)
        self.assert_close(y, floats(x.astype(np.float64) @ weight.astype(np.float64)))

    def test_arithmetic_is_as_precise_as_float32(self, trial: Trial) -> None:
        [y] = trial.run(models.polynomial, models.FINE)
        x = models.FINE.astype(np.float64)
        a, b, c = floats([0.1, 0.3, 0.7]).astype(np.float64)
        self.assert_close(y, floats((a * x + b) * x + c))

    @pytest.mark.parametrize("dtype", WHOLE, ids=str)
    def test_whole_numbers_arrive_to_the_last_bit(self, trial: Trial, dtype: DType) -> None:
        limits = np.iinfo(dtype.numpy)
        x = np.array(
            [[limits.min, limits.max, 0], [limits.max - 1, limits.min + 1, 1]], dtype.numpy
        )
        [y] = trial.run(partial(models.moved, dtype=dtype), x)
        self.assert_close(y, np.ascontiguousarray(x.T))

    def test_bfloat16_arrives_to_the_last_bit_or_is_refused(self, trial: Trial) -> None:
        pytest.importorskip("ml_dtypes", reason="bfloat16 arrays need ml_dtypes")
        dtype = DType.BFLOAT16.numpy
        x = np.array([[1, -2, 3.140625], [2.0**-126, 2.0**127, -0.0]], dtype)
        running = trial.open_or_skip(partial(models.moved, dtype=DType.BFLOAT16))
        [y] = running.predict(x)
        assert isinstance(y, np.ndarray)
        assert y.dtype == dtype, f"expected bfloat16, got {y.dtype}"
        self.assert_close(y.view(np.uint16), np.ascontiguousarray(x.T).view(np.uint16))

    def test_text_arrives_as_str(self, trial: Trial) -> None:
        x = np.array([["", "a", "größer"], ["漢字", "tab\t", "a" * 100]], object)
        [y] = trial.run(partial(models.moved, dtype=DType.STRING), x)
        self.assert_close(y, np.ascontiguousarray(x.T))
        assert isinstance(y, np.ndarray)
        assert all(type(item) is str for item in y.flat), "expected str in an array of objects"

    def test_booleans_are_booleans(self, trial: Trial) -> None:
        x = np.array([True, False, True])
        [y] = trial.run(models.negated, x)
        self.assert_close(y, np.array([False, True, False]))

    def test_outputs_have_types_of_their_own(self, trial: Trial) -> None:
        x = np.array([1, 2, 3, 4], np.int64)
        y, is_big = trial.run(models.mixed_dtypes, x)
        self.assert_close(y, floats([1, 2, 3, 4]))
        self.assert_close(is_big, np.array([False, False, True, True]))

    def test_values_that_are_not_finite_stay_so(self, trial: Trial) -> None:
        x = floats([[np.inf, -np.inf, np.nan]])
        [y] = trial.run(models.affine, x)
        self.assert_close(y, x)

    def test_a_scalar_stays_a_scalar(self, trial: Trial) -> None:
        [y] = trial.run(models.scalar, np.array(3, np.float32))
        self.assert_close(y, np.array(7, np.float32))

    def test_tensors_without_elements_are_tensors(self, trial: Trial) -> None:
        x = np.zeros((0, 3), np.float32)
        y, total = trial.run(models.empty, x)
        self.assert_close(y, x)
        self.assert_close(total, np.zeros(3, np.float32))

    def test_a_batch_may_be_empty(self, trial: Trial) -> None:
        self.require(trial, Capability.DYNAMIC_SHAPES)
        x = np.zeros((0, 3), np.float32)
        [y] = trial.run(models.affine, x)
        self.assert_close(y, x)

    def test_a_model_needs_no_batch(self, trial: Trial) -> None:
        x = _numbers(2, 3)
        [y] = trial.run(models.no_batch, x)
        self.assert_close(y, x.T + floats([[0], [1], [2]]))

    def test_axes_are_moved_as_the_model_says(self, trial: Trial) -> None:
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        for order in ((1, 2, 0), (0, 2, 1)):
            [y] = trial.run(partial(models.turned, order=order), x)
            self.assert_close(y, np.ascontiguousarray(x.transpose(order)))

    def test_a_model_needs_no_inputs(self, trial: Trial) -> None:
        [y] = trial.run(models.constant)
        self.assert_close(y, floats([1, 2, 3]))

    def test_inputs_and_outputs_are_described_in_the_models_order(self, trial: Trial) -> None:
        executable = trial.compile(models.several)
        assert [spec.name for spec in executable.inputs] == ["z", "a", "m"]
        assert [spec.name for spec in executable.outputs] == ["y", "b", "x"]
        for spec in (*executable.inputs, *executable.outputs):
            assert spec.dtype is DType.FLOAT32
            assert spec.shape == ((3,) if spec.name == "m" else (2, 3))

    def test_values_go_in_and_out_in_the_models_order(self, trial: Trial) -> None:
        z, a, m = _numbers(2, 3), 10 * _numbers(2, 3) + 5, floats([1, 2, 3])
        y, b, x = trial.run(models.several, z, a, m)
        self.assert_close(y, z - a)
        self.assert_close(b, a * m)
        self.assert_close(x, z + m)

    def test_an_input_that_no_node_reads_keeps_its_place(self, trial: Trial) -> None:
        unread, x, z = floats([100, 200, 300]), floats([5, 7, 9]), floats([1, 2, 3])
        running = trial.open(models.unread)
        assert [spec.name for spec in running.executable.inputs] == ["unread", "x", "z"]
        for _ in range(2):
            [y] = running.predict(unread, x, z)
            self.assert_close(y, x - z)
            buffer = np.full(3, -1, np.float32)
            running.predict(unread, x, z, outputs=[buffer])
            self.assert_close(buffer, x - z)

    def test_sequences_are_lists_or_refused(self, trial: Trial) -> None:
        running = trial.open_or_skip(models.sequences)
        xs: list[Array] = [floats([1, 2]), floats([3, 4, 5])]
        for at in (1, 0):
            one, longer = running.predict(xs, np.array(at))
            self.assert_close(one, xs[at])
            assert isinstance(longer, list), f"expected a list, got {type(longer)}"
            assert len(longer) == 3, f"expected 3 elements, got {len(longer)}"
            for element, expected in zip(longer, [*xs, xs[at]], strict=True):
                self.assert_close(element, expected)
                assert not np.shares_memory(element, expected), "an element is the input's memory"
        assert len(xs) == 2, "predict changed the list"

    def test_optionals_may_be_absent_or_are_refused(self, trial: Trial) -> None:
        running = trial.open_or_skip(models.optionals)
        for x in (floats([1, 2]), None, floats([]), None):
            y, there = running.predict(x)
            self.assert_close(y, floats([-1]) if x is None else x)
            self.assert_close(there, np.array(x is not None))

    def test_both_branches_of_a_condition_run(self, trial: Trial) -> None:
        x = floats([1, 2, 3])
        running = trial.open(models.branch, np.array(True), x)
        for flag, expected in [(True, 2 * x), (False, x - 1), (True, 2 * x)]:
            [y] = running.predict(np.array(flag), x)
            self.assert_close(y, expected)

    def test_shapes_that_depend_on_the_data_are_exact(self, trial: Trial) -> None:
        running = trial.open(models.nonzero, np.zeros(4, np.float32))
        for x in ([0, 1, 0, 2], [0, 0, 0, 0], [1, 1, 1, 1]):
            [y] = running.predict(floats(x))
            self.assert_close(y, np.array([[i for i, value in enumerate(x) if value]], np.int64))

    def test_symbolic_dims_take_any_size(self, trial: Trial) -> None:
        self.require(trial, Capability.DYNAMIC_SHAPES)
        running = trial.open(models.shared_dims)
        for rows, common, columns in [(1, 1, 1), (2, 3, 4), (5, 2, 1), (2, 3, 4)]:
            left, right = _numbers(rows, common), _numbers(common, columns)
            [y] = running.predict(left, right)
            self.assert_close(y, left @ right)

    def test_shapes_may_change_from_call_to_call(self, trial: Trial) -> None:
        self.require(trial, Capability.DYNAMIC_SHAPES)
        running = trial.open(models.affine)
        for batch in [*range(1, 40), 1, 1000, 2, 39, 1]:
            x = _numbers(batch, 3)
            [y] = running.predict(x)
            self.assert_close(y, 2 * x + 1)

    def test_a_range_of_shapes_is_compiled_for(self, trial: Trial) -> None:
        self.require(trial, Capability.DYNAMIC_SHAPES)
        shapes = {"x": ShapeRange((1, 3), (2, 3), (5, 3))}
        running = trial.open(models.affine, shapes=shapes)
        assert running.executable.inputs[0].bounds in ((), ((1, 5), None), ((1, 5), (3, 3)))
        for batch in (1, 2, 5, 3):
            x = _numbers(batch, 3)
            [y] = running.predict(x)
            self.assert_close(y, 2 * x + 1)

    def test_large_tensors_arrive_whole(self, trial: Trial) -> None:
        x = np.ones((1_400_000, 3), np.float32)  # 16.8 MB
        x[-1] = 5
        [y] = trial.run(models.affine, x)
        self.assert_close(y, 2 * x + 1)

    def test_what_is_prepared_gives_the_same_bits(self, trial: Trial) -> None:
        self.require(trial, Capability.PREPARE)
        x = models.FINE[:64].reshape(2, 32)
        [expected] = trial.run(models.dense, x)
        running = trial.open(models.dense, x)
        prepare: Any = running.executable.prepare  # type: ignore[attr-defined]
        for _ in range(2):  # the second has nothing to do
            prepare({"x": x.shape}, None, None)
            [y] = running.predict(x)
            np.testing.assert_array_equal(y, expected, err_msg="prepared, it gives other bits")
        if trial.backend.can(Capability.DYNAMIC_SHAPES):  # others are as they were
            other = models.FINE[:96].reshape(3, 32)
            [y] = running.predict(other)
            np.testing.assert_array_equal(y, trial.run(models.dense, other)[0])

    def test_preparing_reports_progress_and_is_cancelled(self, trial: Trial) -> None:
        self.require(trial, Capability.PREPARE)
        x = models.FINE[:64].reshape(2, 32)
        executable: Any = trial.compile(models.dense, x)
        if trial.backend.can(Capability.CANCEL_COMPILE):
            token = CancelToken()
            token.cancel()
            with pytest.raises(Cancelled):
                executable.prepare({"x": x.shape}, None, token)
        steps: dict[str, list[int]] = {}

        def note(phase: str, done: int, total: int | None) -> None:
            steps.setdefault(phase, []).append(done)
            assert total is None or 0 <= done <= total, f"{phase!r}: {done} steps of {total}"

        executable.prepare({"x": x.shape}, note, CancelToken())
        for phase, done in steps.items():
            assert done == sorted(done), f"phase {phase!r} goes back: {done}"
        [y] = trial.context(executable).predict(x)
        weight = models.FINE.reshape(32, 4)
        self.assert_close(y, floats(x.astype(np.float64) @ weight.astype(np.float64)))

    def test_shapes_that_cannot_be_are_not_prepared(self, trial: Trial) -> None:
        self.require(trial, Capability.PREPARE)
        x = models.FINE[:64].reshape(2, 32)
        running = trial.open(models.dense, x)
        prepare: Any = running.executable.prepare  # type: ignore[attr-defined]
        with pytest.raises(ModelError):
            prepare({"x": (2, 31)}, None, None)
        prepare({"x": x.shape}, None, None)
        [y] = running.predict(x)
        assert isinstance(y, np.ndarray)
        assert y.shape == (2, 4)
