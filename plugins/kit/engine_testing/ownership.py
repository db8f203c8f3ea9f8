"""Level of the kit: who owns which memory, and when it may change."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import InputError
from engine.types import Value, Values
from engine_testing import models
from engine_testing.level import Array, Level, Trial, floats, row


def _lists_at(addresses: set[tuple[int, int]], x: Array, y: Array) -> tuple[list[Array], ...]:
    """Return [x] and [y], where two lists of `addresses` lay if that memory is free."""
    fresh = {id(values): values for values in ([x] for _ in range(5000))}
    for first, second in addresses:
        if first in fresh and second in fresh:
            fresh[second][0] = y
            return fresh[first], fresh[second]
    return [x], [y]


def _arrays(values: Values) -> list[Array]:
    assert all(isinstance(value, np.ndarray) for value in values), [type(v) for v in values]
    return [value for value in values if isinstance(value, np.ndarray)]


class Results(Level):
    """Results are new memory, which belongs to the caller."""

    def test_a_result_never_changes_under_its_owner(self, trial: Trial) -> None:
        running = trial.open(models.affine, row(0))
        kept = [(start, running.predict(row(start))[0]) for start in range(20)]
        for start, y in kept:
            self.assert_close(y, 2 * row(start) + 1)
        running.context.close()
        running.executable.close()
        for start, y in kept:
            self.assert_close(y, 2 * row(start) + 1)

    def test_results_are_contiguous_and_writable(self, trial: Trial) -> None:
        for results in (
            trial.run(models.no_batch, np.ones((2, 3), np.float32)),
            trial.run(models.identity, np.ones(3, np.float32)),
            trial.run(models.constant),
        ):
            [y] = _arrays(results)
            assert y.flags.c_contiguous, "the result is not C-contiguous"
            assert y.flags.writeable, "the result is read-only"

    def test_a_result_is_not_the_inputs_memory(self, trial: Trial) -> None:
        x = floats([1, 2, 3])
        [y] = _arrays(trial.run(models.identity, x))
        assert not np.shares_memory(x, y), "the result is the input's own memory"
        x[:] = 0
        self.assert_close(y, floats([1, 2, 3]))

    def test_two_results_share_no_memory(self, trial: Trial) -> None:
        first, second = _arrays(trial.run(models.twins, floats([1, 2, 3])))
        self.assert_close(first, floats([2, 3, 4]))
        self.assert_close(second, floats([2, 3, 4]))
        assert not np.shares_memory(first, second), "two results are the same memory"

    def test_changing_a_result_does_not_change_the_model(self, trial: Trial) -> None:
        running = trial.open(models.constant)
        for _ in range(3):
            [y] = _arrays(running.predict())
            self.assert_close(y, floats([1, 2, 3]))
            y[:] = 0


class Inputs(Level):
    """Inputs are the caller's: read anew in every call, changed in none."""

    def test_inputs_are_not_modified(self, trial: Trial) -> None:
        inputs = [np.full(shape, 2, np.float32) for shape in ((2, 3), (2, 3), (3,))]
        before = [array.tobytes() for array in inputs]
        trial.run(models.several, *inputs)
        assert [array.tobytes() for array in inputs] == before, "predict changed its inputs"

    def test_inputs_may_be_read_only(self, trial: Trial) -> None:
        x = row(0)
        x.flags.writeable = False
        [y] = trial.run(models.affine, x)
        self.assert_close(y, 2 * x + 1)

    def test_an_input_changed_in_place_is_seen(self, trial: Trial) -> None:
        x = row(0)
        running = trial.open(models.affine, x)
        for start in range(5):
            x[:] = row(start)
            [y] = running.predict(x)
            self.assert_close(y, 2 * row(start) + 1)

    def test_a_new_array_at_an_old_address_is_seen(self, trial: Trial) -> None:
        running = trial.open(models.affine, row(0))
        for start in range(50):
            # Freed before the next is made: numpy gives it the same memory, Python the same id.
            [y] = running.predict(row(start))
            self.assert_close(y, 2 * row(start) + 1)

    def test_one_array_may_be_two_inputs(self, trial: Trial) -> None:
        both, m = np.full((2, 3), 5, np.float32), floats([1, 2, 3])
        y, b, x = trial.run(models.several, both, both, m)
        self.assert_close(y, np.zeros((2, 3), np.float32))
        self.assert_close(b, both * m)
        self.assert_close(x, both + m)


class Buffers(Level):
    """Output buffers that the caller gives are filled, and nothing else is reused."""

    def test_given_buffers_are_filled_and_returned(self, trial: Trial) -> None:
        inputs = [np.full(shape, 2, np.float32) for shape in ((2, 3), (2, 3), (3,))]
        running = trial.open(models.several)
        buffers: list[Array] = [np.full((2, 3), -1, np.float32) for _ in range(3)]
        for value in (2, 3):
            inputs[0][:] = value
            results = running.predict(*inputs, outputs=buffers)
            assert all(a is b for a, b in zip(results, buffers, strict=True)), (
                "the given buffers were not returned themselves"
            )
            assert results is buffers, "all buffers were given, but their list was not returned"
            for buffer, expected in zip(buffers, (value - 2, 4, value + 2), strict=True):
                self.assert_close(buffer, np.full((2, 3), expected, np.float32))

    def test_the_same_lists_are_read_anew(self, trial: Trial) -> None:
        x, buffer = row(0), np.zeros((1, 3), np.float32)
        running = trial.open(models.affine, x)
        inputs, outputs = [x], [buffer]
        for start in range(5):
            x[:] = row(start)
            trial.backend.predict(running.context, inputs, outputs, None)
            self.assert_close(buffer, 2 * row(start) + 1)

    def test_other_lists_are_bound_anew(self, trial: Trial) -> None:
        kept_x, kept_y = row(100), np.zeros((1, 3), np.float32)
        kept_inputs, kept_outputs = [kept_x], [kept_y]
        running = trial.open(models.affine, kept_x)
        addresses: set[tuple[int, int]] = set()
        for start in range(20):
            # Lists that are freed at once; then others lie where these lay.
            x, y = row(start), np.zeros((1, 3), np.float32)
            short_inputs, short_outputs = _lists_at(addresses, x, y)
            addresses.add((id(short_inputs), id(short_outputs)))
            trial.backend.predict(running.context, short_inputs, short_outputs, None)
            del short_inputs, short_outputs
            self.assert_close(y, 2 * x + 1)
            # Kept ones in between, of which now the one and now the other changes.
            for inputs, outputs in (
                (kept_inputs, [y]),
                (kept_inputs, kept_outputs),
                ([x], kept_outputs),
                (kept_inputs, kept_outputs),
            ):
                outputs[0].fill(-1)
                trial.backend.predict(running.context, inputs, outputs, None)
                self.assert_close(outputs[0], 2 * inputs[0] + 1)

    @pytest.mark.parametrize("given", [0, 1, 2])
    def test_some_buffers_may_be_left_out(self, trial: Trial, given: int) -> None:
        inputs = [np.full(shape, 2, np.float32) for shape in ((2, 3), (2, 3), (3,))]
        running = trial.open(models.several)
        buffer = np.full((2, 3), -1, np.float32)
        buffers: list[Value] = [None, None, None]
        buffers[given] = buffer
        results = running.predict(*inputs, outputs=buffers)
        assert results[given] is buffer, "the given buffer was not returned itself"
        for result, expected in zip(results, (0, 4, 4), strict=True):
            self.assert_close(result, np.full((2, 3), expected, np.float32))

    def test_a_scalar_buffer_is_filled(self, trial: Trial) -> None:
        buffer = np.array(-1, np.float32)
        running = trial.open(models.scalar)
        [y] = running.predict(np.array(3, np.float32), outputs=[buffer])
        assert y is buffer, "the given buffer was not returned itself"
        self.assert_close(buffer, np.array(7, np.float32))

    def test_a_buffer_is_used_in_no_later_call(self, trial: Trial) -> None:
        running = trial.open(models.affine, row(0))
        buffer = np.zeros((1, 3), np.float32)
        running.predict(row(1), outputs=[buffer])
        [y] = _arrays(running.predict(row(2)))
        assert not np.shares_memory(y, buffer), "a later result is in the given buffer"
        self.assert_close(buffer, 2 * row(1) + 1)
        self.assert_close(y, 2 * row(2) + 1)
        other = np.zeros((1, 3), np.float32)
        running.predict(row(3), outputs=[other])
        self.assert_close(buffer, 2 * row(1) + 1)
        self.assert_close(other, 2 * row(3) + 1)

    def test_a_buffer_of_another_size_is_refused_by_name(self, trial: Trial) -> None:
        x = floats([0, 1, 0, 2])  # two are found: the core cannot know
        running = trial.open(models.nonzero, x)
        buffer = np.zeros((1, 2), np.int64)
        [y] = running.predict(x, outputs=[buffer])
        assert y is buffer, "the given buffer was not returned itself"
        self.assert_close(buffer, np.array([[1, 3]], np.int64))
        for size in (1, 3):
            with pytest.raises(InputError, match="'y'"):
                running.predict(x, outputs=[np.zeros((1, size), np.int64)])

    def test_an_input_as_buffer_is_right_or_refused(self, trial: Trial) -> None:
        z, a, m = row(1), row(7), floats([1, 2, 3])
        z, a = np.repeat(z, 2, axis=0), np.repeat(a, 2, axis=0)
        expected = [z - a, a * m, z + m]
        running = trial.open(models.several)
        try:
            results = running.predict(z, a, m, outputs=[z, None, None])
        except InputError:
            return
        assert results[0] is z
        for result, wanted in zip(results, expected, strict=True):
            self.assert_close(result, wanted)
