"""The CPUs of this process, which the models that run on them share.

Each model has a semaphore of its own. Together their predicts take no more CPUs than there are; a
model of which nothing runs may begin one predict beyond that, unless a request of a higher priority
waits. So no model waits for the long runs of another.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from weakref import ref

from engine.errors import ModelStateError
from engine.host import fork
from engine.host.cpus import usable_cpus
from engine.host.fair_semaphore import CallbackWaiter, FairSemaphore, Waiter
from engine.host.interrupts import raised_by_handler


class SharedSemaphore(FairSemaphore):
    """The semaphore of a model whose predicts take CPUs that others share.

    `_holders` has how many CPUs each owner of a slot has. A predict that may take a slot beyond
    `slots` (see FairSemaphore, extra) has none: it is over sooner than another could begin.
    width: how many CPUs a predict takes. turn: the higher, the later the last one began.
    """

    def __init__(self, slots: int, width: int) -> None:
        super().__init__(slots)
        self.width = min(width, usable_cpus())
        self.turn = 0
        self._cpus = _cpus
        self._lock = self._cpus.join(self)

    @property
    def cpus(self) -> int:
        """Return how many CPUs its predicts have."""
        return sum(list(self._holders.values()))

    @property
    def first(self) -> Waiter | None:
        """Return the waiter whose turn it is; None where none waits."""
        while self._waiting:
            if (waiter := self._first()) is not None:  # else an interrupt had left a rank empty
                return waiter
        return None

    def has_slot(self, first: Waiter) -> bool:
        """Return whether the waiter whose turn it is lacks nothing but CPUs."""
        if first.owner in self._holders:  # an interrupt stopped who was admitting it
            return True
        most = self.slots if self._called else self.slots + first.extra
        return len(self._holders) < most and not (self._pausing and first.request)

    def admit_one(self) -> bool:
        """Admit the waiter whose turn it is, if it may have its CPUs."""
        return super()._admits_one()

    def withdraw(self, waiter: CallbackWaiter) -> bool:
        """See FairSemaphore. Those of a lower priority may have waited for it."""
        if not super().withdraw(waiter):
            return False
        with self._lock:
            self._admit()
        return True

    def lend(self, owner: int) -> int:
        """Take its CPUs from the owner of a slot; return how many."""
        width = self._holders.get(owner, 0)
        if width:
            with self._lock:
                self._holders[owner] = 0
                self._admit()
        return width

    def take_back(self, owner: int, width: int) -> None:
        """Give the owner of a slot its CPUs again."""
        with self._lock:
            if owner in self._holders:
                self._holders[owner] = width

    def _holds(self, owner: int, extra: int, priority: int) -> bool:
        width = 0 if extra else self.width
        if width and not self._cpus.may_begin(self, priority):
            return False
        if not super()._holds(owner, extra, priority):
            return False
        self._holders[owner] = width
        self.turn = next(_turns)
        return True

    def _admit(self) -> None:
        self._cpus.admit()


class SharedCpus:
    """Says which predicts begin next; `may_begin` and `admit` are for who has the lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._members: tuple[ref[SharedSemaphore], ...] = ()
        self._count = 1
        self._next: SharedSemaphore | None = None  # while some are admitted: whose turn it is

    def join(self, semaphore: SharedSemaphore) -> threading.RLock:
        """Take a semaphore in for as long as it is alive; return the lock of them all."""
        fork.watch(self)
        with self._lock:
            self._count = usable_cpus()
            self._members = (*(each for each in self._members if each()), ref(semaphore))
        return self._lock

    def semaphores(self) -> list[SharedSemaphore]:
        """Return those that share the CPUs."""
        return [each for reference in self._members if (each := reference())]

    @property
    def is_interrupted(self) -> bool:
        """True where the calling thread has the lock."""
        try:
            threading.Condition(self._lock).notify(0)  # wakes none, and asks just that
        except RuntimeError as error:
            if raised_by_handler(error):
                raise
            return False
        return True

    def may_begin(self, semaphore: SharedSemaphore, priority: int) -> bool:
        """Return whether a predict may have its CPUs."""
        is_in_turn = self._next is None or self._next is semaphore
        is_highest = True
        taken = own = semaphore.cpus
        for each in self.semaphores():
            if each is semaphore:
                continue
            taken += each.cpus
            first = each.first
            if first is not None:
                is_highest = is_highest and first.priority <= priority
                if self._next is None and each.has_slot(first):
                    is_in_turn = False
        if is_in_turn and taken + semaphore.width <= self._count:
            return True
        return is_highest and not own

    def admit(self) -> None:
        """Admit waiters: of the highest priority, of the model with the fewest CPUs, in turns."""
        try:
            while self._admits_one():
                pass
        finally:
            self._next = None

    def _admits_one(self) -> bool:
        waiting = [
            (-first.priority, each.cpus, each.turn, each)
            for each in self.semaphores()
            if (first := each.first) is not None and each.has_slot(first)
        ]
        waiting.sort(key=lambda each: each[:3])
        self._next = waiting[0][3] if waiting else None
        return any(each.admit_one() for *_, each in waiting)

    def _abandon(self) -> None:
        """In a forked child, which has no predict of its parent's."""
        self._lock = threading.RLock()
        self._members, self._next = (), None


@contextmanager
def lent() -> Iterator[None]:
    """Lend the CPUs of the calling thread's predict to others while it waits.

    For a request of another model too, which may wait for these very CPUs. Raises ModelStateError
    in a signal handler or finalizer that interrupts who has the lock, which all would wait for.
    """
    if _cpus.is_interrupted:
        raise ModelStateError(
            "a signal handler or finalizer waits for a predict, and interrupts a step of the same "
            "thread that all predicts wait for; call it from another thread"
        )
    owner = threading.get_ident()
    given = [(each, width) for each in _cpus.semaphores() if (width := each.lend(owner))]
    try:
        yield
    finally:
        for semaphore, width in given:
            semaphore.take_back(owner, width)


_turns = count(1)
_cpus = SharedCpus()
