"""Level of the kit: operators mean what ONNX says, also where runtimes like to say otherwise.

Old operator sets, integers at their limits, numbers that are none, indices. A model that is refused
is no failure: `LoadedModel.unsupported` is the place for what a runtime does in another way.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from engine.errors import InputError, ModelError
from engine.types import DType
from engine_testing import meaning_models as models
from engine_testing.level import Array, Level, Trial, floats, longs

LIMITS = {DType.INT32: 2**24, DType.INT64: 2**53}
"""By type: from here on a float of as many bits does not hold every number."""
COMPARISONS = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
GATHERS = ("Gather", "GatherElements", "GatherND")
NUMPYS = {
    "Equal": np.equal, "Less": np.less, "Greater": np.greater,
    "LessOrEqual": np.less_equal, "GreaterOrEqual": np.greater_equal,
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply,
}  # fmt: skip
EXTREMES = {DType.INT8: (-128, 127), DType.UINT8: (0, 255)}
BUILDS = 10
DIRT_BYTES = (64, 512, 1152, 4096, 65536)  # what small weights and activations have


class Meanings(Level):
    """The same node, the same numbers, in every runtime that takes it."""

    @pytest.mark.parametrize("name", models.MEANINGS)
    def test_older_operator_sets_keep_their_meaning(self, trial: Trial, name: str) -> None:
        meaning = models.MEANINGS[name]
        running = trial.open_or_skip(partial(models.of_its_time, name=name), meaning.x)
        [y] = running.predict(meaning.x)
        self.assert_close(y, meaning.y)

    @pytest.mark.parametrize("dtype", LIMITS, ids=str)
    def test_neighbouring_integers_are_told_apart(self, trial: Trial, dtype: DType) -> None:
        """A runtime that compares them as floats takes them for equal."""
        limit = LIMITS[dtype]
        numbers = [limit, limit + 1, -limit, -limit - 1, 2 * limit + 1, 2 * limit + 2]
        a = np.repeat(np.array(numbers, dtype.numpy), len(numbers))
        b = np.tile(np.array(numbers, dtype.numpy), len(numbers))
        self._compare(trial, dtype, a, b)

    def test_nothing_is_less_than_nan_or_equal_to_it(self, trial: Trial) -> None:
        numbers = floats([np.nan, -np.inf, -1, 0, 1, np.inf])
        # Long enough for vector instructions, and with a rest.
        a, b = np.repeat(numbers, len(numbers)), np.tile(numbers, len(numbers))
        self._compare(trial, DType.FLOAT32, a, b)

    def _compare(self, trial: Trial, dtype: DType, a: Array, b: Array) -> None:
        """Compare arrays with each operator that is taken; skip where none is."""
        refused = []
        for operator in COMPARISONS:
            try:
                running = trial.open(partial(models.compared, operator=operator, dtype=dtype), a, b)
            except ModelError as error:
                refused.append(str(error))
                continue
            [y] = running.predict(a, b)
            assert isinstance(y, np.ndarray)
            wrong = [
                f"{operator}({left!r}, {right!r}) is {bool(got)}"
                for left, right, got, wanted in zip(
                    a.tolist(), b.tolist(), y.tolist(), NUMPYS[operator](a, b), strict=True
                )
                if bool(got) != bool(wanted)
            ]
            assert wrong == [], f"{len(wrong)} comparisons are wrong: {wrong[:5]}"
        if len(refused) == len(COMPARISONS):
            pytest.skip(f"refused: {refused[0]}")

    @pytest.mark.parametrize("operator", ["Exp", "Log", "Sqrt", "Neg", "Abs"])
    def test_nan_stays_nan(self, trial: Trial, operator: str) -> None:
        x = np.tile(floats([np.nan, 1.0]), 19)
        running = trial.open_or_skip(partial(models.mapped, operator=operator), x)
        [y] = running.predict(x)
        assert isinstance(y, np.ndarray)
        found = y[np.isnan(x)]
        assert np.isnan(found).all(), f"{operator} of NaN is {found[~np.isnan(found)].tolist()}"
        assert np.isfinite(y[~np.isnan(x)]).all(), f"{operator} of 1 is not finite"

    @pytest.mark.parametrize("dtype", EXTREMES, ids=str)
    def test_sums_of_extreme_products_do_not_saturate(self, trial: Trial, dtype: DType) -> None:
        """Of the sums of two products, 16 bits hold hardly one."""
        lowest, highest = EXTREMES[dtype]
        x = np.array([[lowest] * 66, [highest] * 66], dtype.numpy)
        weight = np.array([[-128, 127]] * 66, np.int8)
        model = partial(models.multiplied_integers, dtype=dtype, weight=weight)
        [y] = trial.open_or_skip(model, x).predict(x)
        exact = x.astype(np.int64) @ weight.astype(np.int64)
        self.assert_close(y, exact.astype(np.int32))

    @pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8], ids=str)
    def test_integer_convolutions_do_not_saturate(self, trial: Trial, dtype: DType) -> None:
        """dtype: the weight's."""
        x = np.full((1, 66, 2, 2), 255, np.uint8)
        x[:, :, 0] = 3
        limits = EXTREMES[dtype]
        weight = np.array([[number] * 66 for number in limits], dtype.numpy).reshape(2, 66, 1, 1)
        model = partial(models.convolved_integers, weight=weight)
        [y] = trial.open_or_skip(model, x).predict(x)
        exact = np.einsum("nchw,mc->nmhw", x.astype(np.int64), weight[..., 0, 0].astype(np.int64))
        self.assert_close(y, exact.astype(np.int32))

    @pytest.mark.parametrize("operator", ["Add", "Sub", "Mul"])
    def test_small_integers_wrap(self, trial: Trial, operator: str) -> None:
        """As in ONNX's reference implementation: of a result, the low bits are left."""
        for dtype in EXTREMES:
            numbers = np.array([*EXTREMES[dtype], 1, 2, 100], dtype.numpy)
            a, b = np.repeat(numbers, len(numbers)), np.tile(numbers, len(numbers))
            model = partial(models.combined, operator=operator, dtype=dtype)
            [y] = trial.open_or_skip(model, a, b).predict(a, b)
            self.assert_close(y, NUMPYS[operator](a, b))

    @pytest.mark.parametrize("operator", GATHERS)
    def test_an_index_from_the_end_is_counted_from_there(self, trial: Trial, operator: str) -> None:
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        for rows in ([-1, -3], [0, -2], [2, 1]):
            at = _places(operator, *rows)
            [y] = trial.open_or_skip(partial(models.gathered, operator=operator), x, at).predict(
                x, at
            )
            self.assert_close(y, x[rows])

    @pytest.mark.parametrize("operator", GATHERS)
    def test_an_index_out_of_range_is_an_error(self, trial: Trial, operator: str) -> None:
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        good = _places(operator, 0, 1)
        running = trial.open_or_skip(partial(models.gathered, operator=operator), x, good)
        for row in (3, -4, 2**40):
            at = _places(operator, 0, row)
            try:
                [y] = running.predict(x, at)
            except (InputError, ModelError):
                continue
            pytest.fail(f"index {row} of 3 rows gave {np.asarray(y)[1].tolist()}, and no error")
        [y] = running.predict(x, good)
        self.assert_close(y, x[:2])

    @pytest.mark.parametrize("operator", models.MOVES)
    def test_wide_integers_are_moved_to_the_last_bit(self, trial: Trial, operator: str) -> None:
        """Both types of 64 bits, next to the limits of what double and int64 hold."""
        edges = [2**53 + 1, 2**62 + 1, 2**63 - 1]
        refused = []
        for dtype, more in (
            (DType.INT64, [-(2**53) - 1, -(2**63), -(2**63) + 1]),
            (DType.UINT64, [2**63, 2**63 + 1, 2**64 - 1]),
        ):
            x = np.array([edges, more], dtype.numpy)
            try:
                running = trial.open(partial(models.carried, operator=operator, dtype=dtype), x)
            except ModelError as error:
                refused.append(str(error))
                continue
            [y] = running.predict(x)
            self.assert_close(y, _moved(x, operator))
        if len(refused) == 2:
            pytest.skip(f"refused: {refused[0]}")

    def test_what_a_model_fills_itself_is_written_in_every_build(self, trial: Trial) -> None:
        """Memory that a runtime gets is dirty here: what it does not write is NaN."""
        shape = (1, models.CHANNELS, models.SIDE, models.SIDE)
        source = trial.source(models.filled)
        for number in range(1, BUILDS + 1):
            _leave_dirt()
            x = np.full(shape, number, np.float32)
            running = trial.open_or_skip(source, x)
            mean = number * models.CHANNELS * models.KERNEL**2 * models.FILTER_VALUE
            for _ in range(2):
                _leave_dirt()
                y, total = running.predict(x)
                self.assert_close(y, np.full((1, models.FILTERS, 1, 1), mean, np.float32))
                self.assert_close(total, np.full((1,) * 4, models.FILTERS * mean, np.float32))
            running.context.close()
            running.executable.close()


def _places(operator: str, *rows: int) -> Array:
    """Return the indices by which an operator gathers rows of 4 elements."""
    at = longs(rows)
    if operator == "GatherElements":
        return np.ascontiguousarray(np.broadcast_to(at[:, None], (len(rows), 4)))
    return at[:, None].copy() if operator == "GatherND" else at


def _moved(x: Array, operator: str) -> Array:
    """Return what `models.carried` gives."""
    return {
        "Identity": x, "Transpose": np.ascontiguousarray(x.T), "Concat": np.concatenate([x, x]),
        "Gather": x[[1, 0, -1]], "Reshape": x.reshape(3, 2),
    }[operator]  # fmt: skip


def _leave_dirt() -> None:
    """Allocate memory of many sizes, fill it with NaN, and free it."""
    dirt = [np.full(nbytes // 4, np.nan, np.float32) for nbytes in DIRT_BYTES for _ in range(40)]
    del dirt
