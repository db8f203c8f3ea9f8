"""Faults of weights that are lent or common to a group, and of a shared workspace."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np

from engine.errors import BackendUnavailable, DeadlineExceeded
from engine.types import DeviceBuffer
from engine_testing.null_device import fake_device
from faulty import Faulty, caught_by

LENT = "test_what_is_lent_is_described"
BITS = "test_borrowed_weights_give_the_lenders_bits"
BESIDE = "test_contexts_beside_each_other_get_their_own_results"


@caught_by(LENT, says="the lender is called 'null'")
class LendsUnderAnotherName(Faulty):
    def share(self, executable, pids):
        return replace(super().share(executable, pids), backend="null")


@caught_by(LENT, says="bytes are lent of weights")
class DoesNotSayHowMuchItLends(Faulty):
    def share(self, executable, pids):
        return replace(super().share(executable, pids), nbytes=0)


@caught_by(LENT, says="its owner has no close()")
class LendsForGood(Faulty):
    kept: Any = None

    def share(self, executable, pids):
        self.kept = super().share(executable, pids)
        return replace(self.kept, owner=object())


class Borrowing(Faulty):
    """Knows of each executable whether it borrows."""

    def compile(self, loaded, options):
        executable = super().compile(loaded, options)
        executable.notes["borrows"] = options.shared_weights is not None
        executable.notes["lends"] = options.lend
        return executable


@caught_by(BITS, "test_another_process_borrows_weights", says="are not the lender's bits")
class RoundsWhatItBorrows(Borrowing):
    def predict(self, context, inputs, outputs, deadline_s):
        results = super().predict(context, inputs, outputs, deadline_s)
        if context.executable.notes["borrows"]:
            return [np.nextafter(result, np.float32(np.inf)) for result in results]
        return results


@caught_by(
    "test_another_process_borrows_weights", says="another process could not borrow", control=BITS
)
class LendsToItselfOnly(Faulty):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.lent: dict[bytes, Any] = {}

    def share(self, executable, pids):
        shared = super().share(executable, pids)
        self.lent[shared.token] = shared.files
        return replace(shared, files={})

    def compile(self, loaded, options):
        if shared := options.shared_weights:
            options = replace(
                options, shared_weights=replace(shared, files=self.lent[shared.token])
            )
        return super().compile(loaded, options)


@caught_by(
    "test_a_borrower_has_no_weights_of_its_own", says="bytes of weights are private", control=BITS
)
class CopiesWhatItBorrows(Faulty):
    def report(self, memory):
        if memory.mapped_bytes:
            return replace(memory, mapped_bytes=0, weights_bytes=memory.mapped_bytes)
        return memory


@caught_by(
    "test_a_lender_that_is_closed_leaves_borrowers_of_its_process_right",
    says="after the lender was closed",
    control=BITS,
)
class FreesWhatOthersUse(Borrowing):
    lent: Any = None  # the executable that lends

    def share(self, executable, pids):
        self.lent = executable
        return super().share(executable, pids)

    def predict(self, context, inputs, outputs, deadline_s):
        results = super().predict(context, inputs, outputs, deadline_s)
        is_gone = self.lent is not None and self.lent.notes.get("closed", False)
        if is_gone and context.executable.notes["borrows"]:
            return [result * 0 for result in results]
        return results

    def close_executable(self, executable):
        super().close_executable(executable)
        executable.notes["closed"] = True


@caught_by("test_a_loan_that_has_ended_is_refused", says="DID NOT RAISE", control=BITS)
class LendsWhatIsGone(Faulty):
    def compile(self, loaded, options):
        try:
            return super().compile(loaded, options)
        except BackendUnavailable:
            return super().compile(loaded, replace(options, shared_weights=None))


@caught_by("test_lending_over_and_over_takes_nothing", says="more files are open", control=BITS)
class EndsNoLoan(Faulty):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.kept: list[Any] = []

    def share(self, executable, pids):
        self.kept.append(super().share(executable, pids))
        return super().share(executable, pids)


@caught_by(
    "test_models_of_a_group_have_equal_weights_once",
    says="bytes of weights are private",
    control=BITS,
)
class HasNoGroups(Faulty):
    def compile(self, loaded, options):
        lend = "" if options.lend == "process" else options.lend
        return super().compile(loaded, replace(options, lend=lend))


@caught_by(
    "test_a_model_of_a_group_that_is_closed_leaves_the_others_right",
    says="after the first model of the group was closed",
    control="test_models_of_a_group_have_equal_weights_once",
)
class FreesWhatTheGroupUses(Borrowing):
    first: Any = None  # of the group that is open

    def compile(self, loaded, options):
        executable = super().compile(loaded, options)
        if options.lend == "process" and (self.first is None or self.first.notes.get("ended")):
            self.first = executable
        else:
            executable.notes["first"] = self.first
        return executable

    def close_executable(self, executable):
        super().close_executable(executable)
        executable.notes["ended"] = True

    def predict(self, context, inputs, outputs, deadline_s):
        results = super().predict(context, inputs, outputs, deadline_s)
        first = context.executable.notes.get("first")
        is_gone = first is not None and first.notes.get("ended")
        return [result * 0 for result in results] if is_gone else results


@caught_by(
    "test_resident_outputs_outlast_a_predict_beside_them",
    says="Not equal to tolerance",
    control=BESIDE,
)
class KeepsResultsInTheWorkspace(Faulty):
    """A resident output is where the next predict beside it works."""

    def predict(self, context, inputs, outputs, deadline_s):
        results = super().predict(context, inputs, outputs, deadline_s)
        before, self.resident = self.resident, results[0]
        if isinstance(before, DeviceBuffer) and before is not results[0]:
            fake_device().order(before.stream, None)
            with contextlib.suppress(RuntimeError):  # of a test that has ended
                fake_device().write(before, np.zeros(before.shape, np.float32))
        return results

    resident: Any = None


@caught_by(
    "test_a_predict_that_is_late_leaves_those_beside_it_right",
    says="the stream is busy",
    control=BESIDE,
)
class LeavesItsStreamBusy(Faulty):
    late: Any = None

    def predict(self, context, inputs, outputs, deadline_s):
        if self.late is not None and context.notes.get("beside") is self.late:
            raise BackendUnavailable("the stream is busy", self.name)
        try:
            return super().predict(context, inputs, outputs, deadline_s)
        except DeadlineExceeded:
            self.late = context
            raise

    def open_beside(self, executable, beside):
        context = super().open_beside(executable, beside)
        context.notes["beside"] = beside
        return context


@caught_by(
    "test_a_shared_workspace_is_freed_with_its_contexts",
    says="when four beside it have come and gone",
    control=BESIDE,
)
class KeepsTheWorkspaceOfGuests(Faulty):
    guests = 0

    def open_beside(self, executable, beside):
        self.guests += 1
        return super().open_beside(executable, beside)

    def report(self, memory):
        return replace(memory, workspace_bytes=memory.workspace_bytes + 8 * self.guests)


@caught_by(
    "test_a_shared_workspace_is_freed_with_its_contexts",
    says="when no context is open",
    control=BESIDE,
)
class KeepsTheWorkspaceOfAll(Faulty):
    def report(self, memory):
        return replace(memory, workspace_bytes=max(memory.workspace_bytes, 64))
