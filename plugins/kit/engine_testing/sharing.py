"""Level of the kit: weights lent by handle and shared by a group, and a shared workspace.

A lender is compiled with `CompileOptions.lend` "machine", and a borrower as the core does it: with
what `engine_share_weights` gave, from the lender's compiled form where there is one.
"""

from __future__ import annotations

import gc
import os
import pickle
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import DeadlineExceeded, EngineError
from engine.host.child import command, ending, environment
from engine.types import (
    Capability,
    CompileOptions,
    DeviceBuffer,
    MemoryReport,
    ModelSource,
    SharedWeights,
)
from engine_testing import models
from engine_testing.level import Array, Level, Running, Trial, row, time_slow
from engine_testing.lifecycle import expect_no_growth

LIMIT_S = 180
_NBYTES = 4 * 1024 * 1024  # of the weights of models.heavy
_X: Array = np.random.default_rng(0).standard_normal((2, 1024)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Lender:
    """An executable whose weights are lent, and what a borrower gets."""

    running: Running
    source: ModelSource
    options: CompileOptions
    shared: SharedWeights

    def end(self) -> None:
        """Close the model as the core does: first the loan ends, then the executable."""
        close: Callable[[], None] = self.shared.owner.close  # type: ignore[attr-defined]
        close()
        self.running.context.close()
        self.running.executable.close()


class Sharing(Level):
    """Capabilities SHARE_WEIGHTS and SHARE_WORKSPACE."""

    # ------------------------------------------------------------------------------- by handle

    def test_what_is_lent_is_described(self, trial: Trial) -> None:
        shared = self._lend(trial).shared
        assert isinstance(shared, SharedWeights), f"expected a SharedWeights, got {type(shared)}"
        assert shared.backend == self.backend, f"the lender is called {shared.backend!r}"
        assert shared.device == trial.device, f"it is lent on {shared.device}"
        assert shared.digest == "", "the digest of the model is the core's to fill in"
        assert shared.nbytes >= _NBYTES // 8, (
            f"{shared.nbytes} bytes are lent of weights of {_NBYTES}"
        )
        assert isinstance(shared.token, bytes), f"the token is a {type(shared.token)}, not bytes"
        unreadable = [name for name, path in shared.files.items() if not os.access(path, os.R_OK)]
        assert unreadable == [], "files that are lent cannot be read"
        assert callable(getattr(shared.owner, "close", None)), "its owner has no close()"

    def test_borrowed_weights_give_the_lenders_bits(self, trial: Trial) -> None:
        lender = self._lend(trial)
        [expected] = lender.running.predict(_X)
        [y] = self._borrow(trial, lender).predict(_X)
        self._assert_same_bits(y, expected, "of a borrower")

    def test_another_process_borrows_weights(self, trial: Trial) -> None:
        with _Child(trial) as child:
            lender = self._lend(trial, pids=[child.pid])
            [expected] = lender.running.predict(_X)
            y, report = child.borrow(lender)
        self._assert_same_bits(y, expected, "in another process")
        self._assert_not_copied(report)
        [again] = lender.running.predict(_X)
        self._assert_same_bits(again, expected, "of the lender, once its borrower has ended")

    def test_a_borrower_has_no_weights_of_its_own(self, trial: Trial) -> None:
        lender = self._lend(trial)
        borrower = self._borrow(trial, lender)
        borrower.predict(_X)
        self._assert_not_copied(borrower.executable.memory())

    def test_a_lender_that_is_closed_leaves_borrowers_of_its_process_right(
        self, trial: Trial
    ) -> None:
        lender = self._lend(trial)
        [expected] = lender.running.predict(_X)
        borrower = self._borrow(trial, lender)
        lender.end()
        gc.collect()
        for running in (borrower, trial.context(borrower.executable)):
            [y] = running.predict(_X)
            self._assert_same_bits(y, expected, "after the lender was closed")

    def test_a_loan_that_has_ended_is_refused(self, trial: Trial) -> None:
        lender = self._lend(trial)
        lender.end()
        lender.shared.owner.close()  # type: ignore[attr-defined]  # twice does nothing
        with pytest.raises(EngineError) as caught:
            self._borrow(trial, lender)
        assert len(str(caught.value).splitlines()) == 1, "the error has not one line"

    def test_lending_over_and_over_takes_nothing(self, trial: Trial) -> None:
        self.require(trial, Capability.SHARE_WEIGHTS)
        source = trial.source(models.heavy)
        options = trial.options(shapes=trial.shapes(source, [_X]), lend="machine")

        def once() -> None:
            executable = trial.build(source, options)
            shared = self._shared(trial, executable, None)
            lent = replace(shared, owner=None, digest="kit")
            borrower = trial.build(source, replace(options, lend="", shared_weights=lent))
            context = borrower.open_context()
            trial.backend.predict(context, [_X], None, None)
            shared.owner.close()  # type: ignore[attr-defined]
            executable.close()
            context.close()
            borrower.close()

        expect_no_growth(once, times=10)

    # -------------------------------------------------------------------------------- by group

    def test_models_of_a_group_have_equal_weights_once(self, trial: Trial) -> None:
        first, second = self._group(trial)
        [expected] = first.predict(_X)
        [y] = second.predict(_X)
        self._assert_same_bits(y, expected, "of the second model of a group")
        for running in (first, second):
            self._assert_not_copied(running.executable.memory())

    def test_a_model_of_a_group_that_is_closed_leaves_the_others_right(self, trial: Trial) -> None:
        first, second = self._group(trial)
        [expected] = first.predict(_X)
        first.context.close()
        first.executable.close()
        gc.collect()
        for running in (second, trial.context(second.executable)):
            [y] = running.predict(_X)
            self._assert_same_bits(y, expected, "after the first model of the group was closed")

    # --------------------------------------------------------------------------- the workspace

    def test_resident_outputs_outlast_a_predict_beside_them(self, trial: Trial) -> None:
        self.require(trial, Capability.SHARE_WORKSPACE)
        self.require(trial, Capability.DEVICE_BUFFERS)
        copy = trial.backend.bind("engine_copy")
        first = trial.open(models.affine, row(0), resident=frozenset({"y"}))
        others = [
            trial.context(
                trial.compile(models.affine, row(0), resident=frozenset({"y"})), beside=first
            ),
            trial.context(first.executable, beside=first),
        ]
        kept = [running.predict(row(start))[0] for start, running in enumerate((first, *others))]
        for start, value in enumerate(kept):
            assert isinstance(value, DeviceBuffer), "a resident output is on the host"
            y = np.empty((1, 3), np.float32)
            copy(value, y, None)
            self.assert_close(y, 2 * row(start) + 1)

    def test_a_predict_that_is_late_leaves_those_beside_it_right(self, trial: Trial) -> None:
        self.require(trial, Capability.SHARE_WORKSPACE)
        self.require(trial, Capability.DEADLINES)
        late, x, whole_s = time_slow(trial)
        beside = trial.context(trial.compile(models.affine, row(0)), beside=late)
        for start in range(3):
            with pytest.raises(DeadlineExceeded):
                late.predict(x, deadline_s=time.monotonic() + whole_s / 100)
            [y] = beside.predict(row(start))
            self.assert_close(y, 2 * row(start) + 1)

    def test_a_shared_workspace_is_freed_with_its_contexts(self, trial: Trial) -> None:
        self.require(trial, Capability.SHARE_WORKSPACE)
        executable = trial.compile(models.affine, row(0))
        first = trial.context(executable)
        first.predict(row(0))
        alone = executable.memory().workspace_bytes
        others = [trial.context(executable, beside=first) for _ in range(4)]
        for running in others:
            running.predict(row(0))
        for running in others:
            running.context.close()
        after = executable.memory().workspace_bytes
        assert after <= alone, (
            f"one context has a workspace of {alone} bytes; when four beside it have come and "
            f"gone, it is {after}"
        )
        first.context.close()
        left = executable.memory().workspace_bytes
        assert left == 0, f"{left} bytes of workspace are left when no context is open"

    # ----------------------------------------------------------------------------------- parts

    def _lend(self, trial: Trial, pids: list[int] | None = None) -> Lender:
        """Build a model and lend its weights: to this process, or to those that are listed."""
        self.require(trial, Capability.SHARE_WEIGHTS)
        source = trial.source(models.heavy)
        options = trial.options(shapes=trial.shapes(source, [_X]), lend="machine")
        if trial.backend.can(Capability.COMPILE_CACHE):
            form = trial.folder / "form"
            form.mkdir()
            options = replace(options, save_to=form)
        executable = trial.build(source, options)
        trial.close_later(executable)
        running = trial.context(executable)
        shared = self._shared(trial, executable, pids)
        if options.save_to is not None and os.listdir(options.save_to):
            source = replace(source, compiled=options.save_to)
        return Lender(running, source, replace(options, save_to=None, lend=""), shared)

    def _shared(self, trial: Trial, executable: Any, pids: list[int] | None) -> SharedWeights:
        shared: SharedWeights = trial.backend.bind("engine_share_weights")(executable, pids)
        trial.end_later(shared.owner)
        return shared

    def _borrow(self, trial: Trial, lender: Lender) -> Running:
        lent = replace(lender.shared, owner=None, digest="kit")
        executable = trial.build(lender.source, replace(lender.options, shared_weights=lent))
        trial.close_later(executable)
        return trial.context(executable)

    def _group(self, trial: Trial) -> tuple[Running, Running]:
        self.require(trial, Capability.SHARE_WEIGHTS)
        first = trial.open(models.heavy, _X, lend="process")
        return first, trial.open(models.heavy, _X, lend="process")

    def _assert_same_bits(self, actual: Any, expected: Any, whose: str) -> None:
        assert isinstance(actual, np.ndarray), f"expected a host array, got {type(actual)}"
        np.testing.assert_allclose(expected, _X, rtol=max(self.rtol, 1e-6), atol=self.atol)
        differ = np.count_nonzero(actual != expected)
        assert differ == 0, f"results {whose}: {differ} elements are not the lender's bits"

    def _assert_not_copied(self, report: MemoryReport) -> None:
        common = report.shared_bytes + report.mapped_bytes
        assert report.weights_bytes < _NBYTES // 8, (
            f"{report.weights_bytes} bytes of weights are private, of {_NBYTES} that are lent"
        )
        assert common >= _NBYTES // 8, f"{common} bytes are said to be common, of {_NBYTES}"


class _Child:
    """A process that is there before something is lent, and then borrows it."""

    def __init__(self, trial: Trial) -> None:
        trial_has = trial.backend.lacks(Capability.SHARE_WEIGHTS, trial.device)
        if trial_has:
            pytest.skip(trial_has)
        self._folder = trial.folder
        self._name = trial.backend.name
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                command("-m", "engine_testing.borrower", self._name, str(theirs.fileno())),
                env=environment(),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.pid = self._process.pid

    def borrow(self, lender: Lender) -> tuple[Array, MemoryReport]:
        """Return the result of a predict there, and what the executable says of its memory."""
        order, answer = self._folder / "order.pickle", self._folder / "answer.pickle"
        names, paths = tuple(lender.shared.files), tuple(lender.shared.files.values())
        lent = replace(lender.shared, owner=None, digest="kit", files={})
        options = replace(lender.options, shared_weights=lent)
        order.write_bytes(pickle.dumps((lender.source, options, names, _X, answer)))
        descriptors = [os.open(path, os.O_RDONLY) for path in paths]
        try:
            # One at least, or nothing is sent: the order itself.
            descriptors.append(os.open(order, os.O_RDONLY))
            socket.send_fds(self._socket, [b"lent"], descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        out, _ = self._process.communicate(timeout=LIMIT_S)
        code = self._process.returncode
        assert code == 0, f"another process could not borrow, and {ending(code)}:\n{out[-2000:]}"
        y, report = pickle.loads(answer.read_bytes())
        return y, report

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()  # it ends then, if it has got no order
        try:
            self._process.communicate(timeout=LIMIT_S)
        finally:
            self._process.kill()


def read_order(connection: socket.socket) -> tuple[Any, ...]:
    """Return what the parent has sent, with lent files as they come to a borrower."""
    _, descriptors, _, _ = socket.recv_fds(connection, 16, 64)
    if not descriptors:
        raise SystemExit(0)  # the parent was refused
    order = Path(f"/proc/self/fd/{descriptors[-1]}").read_bytes()
    source, options, names, x, answer = pickle.loads(order)
    files = {
        name: Path(f"/proc/self/fd/{descriptor}")
        for name, descriptor in zip(names, descriptors, strict=False)
    }
    lent = replace(options.shared_weights, files=files)
    return source, replace(options, shared_weights=lent), x, answer
