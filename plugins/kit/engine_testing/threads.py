"""Level of the kit: threads, deadlines, cancelling, and the users' view through Model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import engine
from engine.errors import Cancelled, DeadlineExceeded
from engine.types import CancelToken, Capability, ExecutionContext, Values
from engine_testing import models
from engine_testing.level import (
    PATIENCE_S,
    Array,
    Level,
    Running,
    Trial,
    assert_stops_early,
    floats,
    spent_s,
    time_predict,
    time_slow,
)

THREADS = 4
CALLS = 50


def _grid(value: float) -> Array:
    return np.full((2, 3), value, np.float32)


class Threads(Level):
    """An executable is any thread's, a context one thread's at a time."""

    def test_threads_with_contexts_of_their_own_get_their_own_results(self, trial: Trial) -> None:
        executable = trial.compile(models.several)
        contexts = [trial.context(executable) for _ in range(THREADS)]

        def work(number: int) -> None:
            for call in range(CALLS):
                value = 100 * number + call
                y, b, x = contexts[number].predict(
                    _grid(value), _grid(number), np.full(3, call, np.float32)
                )
                self.assert_close(y, _grid(value - number))
                self.assert_close(b, _grid(number * call))
                self.assert_close(x, _grid(value + call))

        _run_threads(work)

    def test_a_context_may_change_threads(self, trial: Trial) -> None:
        running = trial.open(models.scalar)
        [y] = running.predict(np.array(1, np.float32))
        self.assert_close(y, np.array(3, np.float32))
        turn = threading.Lock()

        def work(number: int) -> None:
            for _ in range(10):
                with turn:
                    [y] = running.predict(np.array(number, np.float32))
                self.assert_close(y, np.array(2 * number + 1, np.float32))

        _run_threads(work)
        [y] = running.predict(np.array(1, np.float32))
        self.assert_close(y, np.array(3, np.float32))

    def test_contexts_may_be_opened_at_once(self, trial: Trial) -> None:
        executable = trial.compile(models.scalar)
        opened: list[ExecutionContext] = []

        def work(number: int) -> None:
            for _ in range(5):
                context = executable.open_context()
                opened.append(context)
                [y] = trial.backend.predict(context, [np.array(number, np.float32)], None, None)
                self.assert_close(y, np.array(2 * number + 1, np.float32))

        _run_threads(work)
        assert len({id(context) for context in opened}) == len(opened), "two threads got one"
        for context in opened:
            context.close()

    def test_models_may_be_built_by_several_threads_at_once(self, trial: Trial) -> None:
        source = trial.source(models.scalar)
        opened: list[Running] = []

        def work(number: int) -> None:
            running = trial.open(source)
            opened.append(running)
            [y] = running.predict(np.array(number, np.float32))
            self.assert_close(y, np.array(2 * number + 1, np.float32))

        _run_threads(work, count=2)
        for running in opened:  # used where they were not built, after those threads have ended
            [y] = running.predict(np.array(3, np.float32))
            self.assert_close(y, np.array(7, np.float32))

    def test_a_context_may_be_closed_by_another_thread(self, trial: Trial) -> None:
        executable = trial.compile(models.scalar)
        contexts: list[Running] = [trial.context(executable) for _ in range(THREADS)]
        for running in contexts:
            running.predict(np.array(1, np.float32))
        _run_threads(lambda number: contexts[number].context.close())
        [y] = trial.context(executable).predict(np.array(1, np.float32))
        self.assert_close(y, np.array(3, np.float32))


class Stopping(Level):
    """Long work stops when it is told to, and leaves everything usable."""

    def test_a_predict_stops_at_its_deadline(self, trial: Trial) -> None:
        self.require(trial, Capability.DEADLINES)
        running, x, whole_s = time_slow(trial)

        def stopped_s(after_s: float) -> float:
            start_s = time.monotonic()
            with pytest.raises(DeadlineExceeded):
                running.predict(x, deadline_s=start_s + after_s)
            return time.monotonic() - start_s

        assert_stops_early(running, x, whole_s, stopped_s)
        # The context is usable afterwards, and the old deadline forgotten.
        small = x[:3] if trial.backend.can(Capability.DYNAMIC_SHAPES) else x
        [y] = running.predict(small)
        self.assert_close(y, np.roll(small, models.SLOW_STEPS, axis=1))

    @pytest.mark.parametrize("way", ["deadline", "cancel"])
    def test_a_predict_that_was_stopped_goes_on_nowhere(self, trial: Trial, way: str) -> None:
        """Its remaining work is not done by an abandoned thread."""
        is_deadline = way == "deadline"
        self.require(trial, Capability.DEADLINES if is_deadline else Capability.CANCEL_PREDICT)
        running, x, _ = time_slow(trial)
        begin_s = time.process_time()
        whole_s = time_predict(running, x)
        whole_processor_s = time.process_time() - begin_s
        spinning_s = spent_s(whole_s)  # some pools wait like that for the next predict
        shares = []
        # A machine that was busier as the whole was measured may be through by the tenth of it.
        for after_s in (whole_s / part for part in (10, 10, 30, 100, 100)):
            stopped = trial.context(running.executable)
            was_stopped = _is_stopped(stopped, x, after_s, by_deadline=is_deadline)
            share = (spent_s(whole_s) - spinning_s) / whole_processor_s
            stopped.context.close()
            if was_stopped:
                shares.append(share)
                if share < 0.3:
                    return
        assert shares, f"predict went on to its end, for all its {way}"
        raise AssertionError(
            f"predict was left at its {way} and not stopped: {min(shares):.0%} of the processor "
            "time of a whole one was spent afterwards"
        )

    def test_a_deadline_that_has_passed_stops_a_predict(self, trial: Trial) -> None:
        self.require(trial, Capability.DEADLINES)
        x = np.ones((4096, models.SLOW_WIDTH), np.float32)
        running = trial.open(models.slow, x)
        with pytest.raises(DeadlineExceeded):
            running.predict(x, deadline_s=time.monotonic() - 1)

    def test_a_deadline_that_is_kept_changes_nothing(self, trial: Trial) -> None:
        self.require(trial, Capability.DEADLINES)
        x = np.ones((2, 3), np.float32)
        running = trial.open(models.affine, x)
        for _ in range(3):
            [y] = running.predict(x, deadline_s=time.monotonic() + 60)
            self.assert_close(y, 2 * x + 1)

    def test_a_cancelled_compile_does_not_begin(self, trial: Trial) -> None:
        self.require(trial, Capability.CANCEL_COMPILE)
        token = CancelToken()
        token.cancel()
        with pytest.raises(Cancelled):
            trial.compile(models.affine, np.ones((1, 3), np.float32), cancel=token)

    def test_a_compile_is_cancelled_on_its_way(self, trial: Trial) -> None:
        self.require(trial, Capability.CANCEL_COMPILE)
        token = CancelToken()
        slow_x = np.ones((1, models.SLOW_WIDTH), np.float32)

        def build_and_run() -> None:
            trial.open(
                models.slow,
                slow_x,
                cancel=token,
                progress=lambda phase, done, total: token.cancel(),
            ).predict(slow_x)  # some compile at the first

        try:
            build_and_run()
        except Cancelled:
            pass
        else:
            pytest.fail(
                "engine_compile and the first predict went on after the cancel"
                if token.cancelled
                else "neither engine_compile nor the first predict called options.progress, which "
                "cancels here; what has no steps does not announce 'cancel_compile'"
            )
        x = np.ones((1, 3), np.float32)
        [y] = trial.run(models.affine, x)
        self.assert_close(y, 2 * x + 1)

    def test_a_first_predict_that_compiles_can_be_cancelled(self, trial: Trial) -> None:
        """Told from the others by the processor time that it takes."""
        self.require(trial, Capability.CANCEL_COMPILE)
        trial.run(models.dense, np.ones((2, 32), np.float32))  # libraries that are loaded late
        token, calls = CancelToken(), []
        is_predicting = False

        def note(phase: str, done: int, total: int | None) -> None:
            if is_predicting:
                calls.append(phase)
                token.cancel()

        x = np.ones((1, models.SLOW_WIDTH), np.float32)
        running = trial.open(models.slow, x, cancel=token, progress=note)
        is_predicting = True
        try:
            first_s = _processor_s(running, x)
        except Cancelled:
            return
        assert not calls, "the first predict reported progress, and went on after the cancel"
        later_s = min(_processor_s(running, x) for _ in range(3))
        assert first_s < 0.4 + 10 * later_s, (
            f"the first predict took {first_s:.2f} s of processor time, a later one "
            f"{later_s:.3f} s: it compiled, and neither reported progress nor could be cancelled"
        )

    def test_progress_only_goes_forward(self, trial: Trial) -> None:
        steps: dict[str, list[tuple[int, int | None]]] = {}
        trial.compile(
            models.slow,
            np.ones((1, models.SLOW_WIDTH), np.float32),
            progress=lambda phase, done, total: steps.setdefault(phase, []).append((done, total)),
        )
        for phase, seen in steps.items():
            assert phase, "a phase has no name"
            done = [step for step, _ in seen]
            assert done == sorted(done), f"phase {phase!r} goes back: {done}"
            assert all(total is None or 0 <= step <= total for step, total in seen), (
                f"phase {phase!r} has more steps done than there are: {seen}"
            )


class Told:
    """The end of a predict that was begun, as `done` was told it.

    calls: how often. values: copies, made in the call. failed: what `then` raised there.
    """

    def __init__(self, then: Callable[[], None] | None = None) -> None:
        self.calls = 0
        self.values: list[Array] = []
        self.error: BaseException | None = None
        self.failed: BaseException | None = None
        self._then = then
        self._has_come = threading.Event()

    def done(self, values: Values | None, error: BaseException | None) -> None:
        """See engine.types.Done."""
        self.calls += 1
        self.error = error
        self.values = [np.array(value) for value in values or ()]
        try:
            if self._then is not None:
                self._then()
        except Exception as failed:
            self.failed = failed
        self._has_come.set()

    def wait(self) -> None:
        """Wait until it has come."""
        limit_s = 3 * PATIENCE_S
        assert self._has_come.wait(limit_s), f"done was not called within {limit_s:g} s"
        if self.failed is not None:
            raise self.failed


class Beginning(Level):
    """A predict that engine_predict_async begins is told once, when all of it has ended."""

    def _begin(self, running: Running, x: Array, told: Told, deadline_s: float | None) -> None:
        begin = running.backend.bind("engine_predict_async")
        begin(running.context, [x], None, deadline_s, told.done)

    def test_a_begun_predict_gives_its_values_once(self, trial: Trial) -> None:
        self.require(trial, Capability.ASYNC_PREDICT)
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        running = trial.open(models.affine, x)
        ends = []
        for number in range(5):  # a second call for one comes before the first for the next
            told = Told()
            ends.append(told)
            self._begin(running, x + np.float32(number), told, None)
            told.wait()
            assert told.error is None, f"done got an error: {told.error!r}"
            [y] = told.values
            self.assert_close(y, 2 * (x + np.float32(number)) + 1)
        for told in ends:
            assert told.calls == 1, f"done was called {told.calls} times for one predict"

    def test_a_context_is_free_once_the_end_is_told(self, trial: Trial) -> None:
        self.require(trial, Capability.ASYNC_PREDICT)
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        running = trial.open(models.affine, x)
        second = Told()
        first = Told(then=lambda: self._begin(running, x + np.float32(1), second, None))
        self._begin(running, x, first, None)
        first.wait()
        second.wait()
        for number, told in enumerate((first, second)):
            assert told.error is None, f"done got an error: {told.error!r}"
            [y] = told.values
            self.assert_close(y, 2 * (x + np.float32(number)) + 1)
        running.context.close()  # nothing of a predict that has ended is in its way

    def test_a_begun_predict_that_fails_says_so_once(self, trial: Trial) -> None:
        self.require(trial, Capability.ASYNC_PREDICT)
        self.require(trial, Capability.DEADLINES)
        x = np.ones((4096, models.SLOW_WIDTH), np.float32)
        running = trial.open(models.slow, x)
        raised: BaseException | None = None
        told = Told()
        try:
            self._begin(running, x, told, time.monotonic() - 1)
        except DeadlineExceeded as error:
            raised = error
        else:
            told.wait()
            assert isinstance(told.error, DeadlineExceeded), f"done got {told.error!r}"
        again = Told()  # the context stays usable
        self._begin(running, x, again, None)
        again.wait()
        assert again.error is None, f"done got an error: {again.error!r}"
        assert told.calls == (raised is None), (
            f"a predict whose deadline had passed raised {raised!r}, and done was called "
            f"{told.calls} times: one or the other"
        )


class UsersView(Level):
    """The same backend through engine.Model, as its users meet it."""

    def test_threads_share_a_model(self, trial: Trial) -> None:
        with _build(trial, models.several(trial.folder)) as model:

            def work(number: int) -> None:
                kept = []
                for call in range(CALLS):
                    value = 100 * number + call
                    results = model.predict(
                        [_grid(value), _grid(number), np.full(3, call, np.float32)]
                    )
                    kept.append((value, call, results))
                for value, call, results in kept:
                    y, b, x = (tensor.get_data_to_numpy() for tensor in results)
                    self.assert_close(y, _grid(value - number))
                    self.assert_close(b, _grid(number * call))
                    self.assert_close(x, _grid(value + call))

            _run_threads(work)

    def test_results_have_the_models_names(self, trial: Trial) -> None:
        z, a, m = _grid(5), _grid(2), floats([1, 2, 3])
        with _build(trial, models.several(trial.folder)) as model:
            results = model.predict({"m": m, "z": z, "a": a})
            assert [tensor.name for tensor in results] == ["y", "b", "x"]
            outputs = model(z=z, a=a, m=m)
            self.assert_close(outputs["y"], z - a)
            self.assert_close(outputs["b"], a * m)
            self.assert_close(outputs["x"], z + m)

    def test_preallocated_outputs_are_filled_again_and_again(self, trial: Trial) -> None:
        x, y = np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32)
        other_x, other_y = _grid(7), np.zeros((3, 2), np.float32)
        rows = floats([[0], [1], [2]])
        tensors = [engine.Tensor(x)], [engine.Tensor(y)]
        others = [engine.Tensor(other_x)], [engine.Tensor(other_y)]
        with _build(trial, models.no_batch(trial.folder)) as model:
            for value in range(4):
                x[:] = value
                model.predict(*tensors)
                self.assert_close(y, x.T + rows)
                model.predict(*others)
                self.assert_close(other_y, other_x.T + rows)
                self.assert_close(y, x.T + rows)
                for step in range(3):
                    x[:] = 10 * value + step
                    model.predict(*tensors)
                    self.assert_close(y, x.T + rows)

    @pytest.mark.parametrize("layout", ["plain", "strided", "reversed", "fortran", "transposed"])
    def test_arrays_of_any_layout_are_read(self, trial: Trial, layout: str) -> None:
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        views: dict[str, Array] = {
            "plain": x.copy(),
            "strided": np.repeat(x, 2, axis=1)[:, ::2],
            "reversed": np.ascontiguousarray(x[::-1])[::-1],
            "fortran": np.asfortranarray(x),
            "transposed": np.ascontiguousarray(x.T).T,
        }
        view = views[layout]
        with _build(trial, models.no_batch(trial.folder)) as model:
            [y] = model.predict([view])
            self.assert_close(y.get_data_to_numpy(), x.T + floats([[0], [1], [2]]))
            np.testing.assert_array_equal(view, x, err_msg="predict changed its input")


def _is_stopped(running: Running, x: Array, after_s: float, by_deadline: bool) -> bool:
    """Return whether a predict, stopped so late, ends with the error for that."""
    expected: type[Exception] = DeadlineExceeded if by_deadline else Cancelled
    try:
        if by_deadline:
            running.predict(x, deadline_s=time.monotonic() + after_s)
            return False
        cancel: Any = getattr(running.context, "cancel", None)
        assert cancel is not None, "'cancel_predict' is announced, without cancel()"
        timer = threading.Timer(after_s, cancel)
        timer.start()
        try:
            running.predict(x)
        finally:
            timer.join()
    except expected:
        return True
    return False


def _processor_s(running: Running, x: Array) -> float:
    begin_s = time.process_time()
    running.predict(x)
    return time.process_time() - begin_s


def _build(trial: Trial, path: object) -> engine.Model:
    return engine.load(str(path), target=trial.backend.name)


def _run_threads(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run work(0), work(1), ... at once; raise the first error of any."""
    barrier = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            barrier.wait(timeout=60)
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if errors:
        raise errors[0]
