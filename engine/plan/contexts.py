"""Execution contexts, lent for a call.

A predict takes the context that its thread used last if that is idle, else any idle one, else a new
one. So there are as many as predicts ever ran at once, whatever the number of threads.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from engine.errors import ModelStateError
from engine.host import fork
from engine.host.interrupts import raised_by_handler

if TYPE_CHECKING:
    from engine.host.fair_semaphore import FairSemaphore
    from engine.types import CancelToken, ExecutionContext


class ContextSource(Protocol):
    """The origin of contexts: an executable, or a wrapper of one.

    An optional `concurrency` is as Executable's.
    """

    def open_context(self) -> ExecutionContext:
        """See Executable."""

    def close(self) -> None:
        """See Executable."""


class Lease:
    """A context as one thread knows it.

    The thread keeps it between its predicts, in which it is idle. Another thread that takes the
    context makes a lease of its own, so this one is not among the idle any more: that a thread
    finds its own lease there means that nobody else has used the context since.

    entry: by which the pool knows it. is_spoiled: its context is not to be used again.
    """

    # Any: contexts of plan/ and of backends, which have a `reset` or `cancel` or not.
    __slots__ = ("__weakref__", "context", "entry", "is_spoiled")

    def __init__(self) -> None:
        self.context: Any = None
        self.entry: _Entry | None = None
        self.is_spoiled = False


class _Entry(weakref.ref[Lease]):
    """An open context in its pool's books; calls the pool's `_lost.append` if its lease is lost.

    No `__del__` does that: what a signal handler raises in one, Python can only print.
    lent_to: the thread that holds a slot of the pool's semaphore for it; 0 where none does.
    """

    __slots__ = ("context", "lent_to")

    context: Any
    lent_to: int


class ContextPool:
    """The contexts of one executable.

    A predict that stands on speed takes its thread's lease by `del pool.idle[lease]`, which is
    atomic, and calls `borrow` where that is a KeyError; it gives back by `pool.idle[lease] = None`
    and then calls `settle` if `is_closed`. No lock is on that way. Where there is a semaphore, it
    calls `borrow` and `give_back`. `recover` ends what a signal handler interrupted on the way.

    Closing never pulls memory from under a running predict: what is lent is closed when it comes
    back, and the executable after the last of them.

    A signal handler may raise at each call and each step of a loop. So what is open is a set, not
    a number, and whatever ends something may be done again; the next use does what was left undone.
    """

    def __init__(self, executable: ContextSource) -> None:
        self.idle: dict[Lease, None] = {}
        self.is_closed = False
        slots = getattr(executable, "concurrency", 0)
        self.semaphore: FairSemaphore | None = None
        if slots > 0:
            from engine.host.fair_semaphore import FairSemaphore

            self.semaphore = FairSemaphore(slots)
        self._executable: ContextSource | None = executable
        self._open: dict[_Entry, None] = {}
        self._lost: deque[_Entry] = deque()  # to be closed: nobody has them any more
        self._closing = threading.RLock()  # reentrant: a signal handler may close too
        self._retiring = threading.RLock()  # held while an idle context is out, to be reset
        self._pid = os.getpid()

    def limit(self, slots: int) -> None:
        """Let no more than `slots` predicts run at once. To be called before the first."""
        from engine.host.fair_semaphore import FairSemaphore

        if self.semaphore is None or slots < self.semaphore.slots:
            self.semaphore = FairSemaphore(slots)

    @property
    def open_count(self) -> int:
        """Return how many contexts are open, or being opened."""
        return len(self._open)

    def borrow(
        self,
        last: Lease | None = None,
        deadline_s: float | None = None,
        cancel: CancelToken | None = None,
        priority: int = 0,
    ) -> Lease:
        """Take a context for a predict: that of `last`, else an idle one, else a new one.

        Where the backend limits how many run at once, wait for one to end. Raises what
        `FairSemaphore.acquire` raises, and ModelStateError once the pool is closed.
        """
        if self._lost:
            self._close_lost()
        if self.semaphore is None:
            return self._take(last)
        thread = threading.get_ident()
        self.semaphore.acquire(deadline_s, cancel, priority=priority)
        try:
            lease = self._take(last)
            assert lease.entry is not None
            lease.entry.lent_to = thread
        except BaseException:
            try:
                self.semaphore.release(thread)
            finally:
                # Again, for a signal handler that raised in the first.
                self.semaphore.release(thread)
            raise
        return lease

    def give_back(self, lease: Lease) -> None:
        """Take a context back from a predict of the calling thread."""
        assert lease.entry is not None
        lease.entry.lent_to = 0
        self.idle[lease] = None
        self.settle()

    def lend(self, owner: int) -> Lease:
        """Take a context for a predict for which no thread waits: an idle one, else a new one.

        owner: who holds the slot of the semaphore for it, where there is one. `take_back` or
        `discard` follows, and then the release of that slot. Raises ModelStateError once closed.
        """
        if self._lost:
            self._close_lost()
        lease = self._take(None)
        if self.semaphore is not None and lease.entry is not None:
            lease.entry.lent_to = owner
        return lease

    def take_back(self, lease: Lease) -> None:
        """Take back what `lend` gave; its slot stays with its owner."""
        assert lease.entry is not None
        lease.entry.lent_to = 0
        self.idle[lease] = None
        if self.is_closed:
            self._close_idle()

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Keep the executable open meanwhile, for who works with it without a context.

        Raises ModelStateError once the pool is closed.
        """
        lease = self._lease()
        assert lease.entry is not None
        self._open[lease.entry] = None
        try:
            if self.is_closed:
                raise _closed()
            yield
        finally:
            self.destroy(lease)

    def settle(self) -> None:
        """Do what follows when a context came back: close if the pool was, admit who waits."""
        if self.is_closed:
            self._close_idle()
        if self.semaphore is not None:
            self.semaphore.release()

    def discard(self, lease: Lease) -> None:
        """Close a context instead of giving it back, whichever thread had it."""
        lease.is_spoiled = True
        self.destroy(lease)

    def recover(self, lease: Lease) -> None:
        """End what an interrupt may have cut off after a failed predict of the calling thread."""
        try:
            self._recover(lease)
        except BaseException:
            self._recover(lease)  # again, for a signal handler that raised in the first
            raise

    def _recover(self, lease: Lease) -> None:
        if lease.is_spoiled or (lease.entry is not None and lease.entry.lent_to):
            self.discard(lease)
        self._close_lost()
        self.settle()

    def retire(self, lease: Lease | None) -> None:
        """Let go of what a thread that ends had its context keep, if it is idle.

        With a semaphore that waits until the context is used again: to take it out of the idle
        needs a slot, and another thread would open one too many.
        """
        if lease is None or self.semaphore is not None or self._pid != os.getpid():
            return
        own = self._lease()
        with self._retiring:
            try:
                del self.idle[lease]
            except KeyError:
                return
            try:
                self._exchange(lease, own)
            except BaseException:
                self._drop(lease, own)
                raise
            self.idle[own] = None
        if self.is_closed:
            self._close_idle()

    def close(self) -> None:
        """Close what is idle now and what is lent when it comes back; twice does nothing."""
        self.is_closed = True
        try:
            self._close_idle()
        except BaseException:
            self._close_idle()  # again, for a signal handler that raised in the first
            raise

    def destroy(self, lease: Lease) -> None:
        """Close the context of a lease that is not idle; twice does nothing."""
        entry, lease.context, lease.entry = lease.entry, None, None
        if entry is not None:
            self._lost.append(entry)
        self._close_lost()

    def _take(self, last: Lease | None) -> Lease:
        if self.is_closed:
            raise _closed()
        if last is not None:
            try:
                del self.idle[last]
            except KeyError:
                pass
            else:
                return last
        own = self._lease()
        # Not `popitem`: a signal handler that raises as a call returns would lose the lease. Where
        # there is no call, neither that nor another thread comes between.
        for lease in self.idle:
            del self.idle[lease]
            break
        else:
            with self._retiring:  # a thread that ends may have one out, and brings it back
                pass
            for lease in self.idle:
                del self.idle[lease]
                break
            else:
                return self._open_one(own)
        try:
            self._exchange(lease, own)
        except BaseException:
            try:
                self._drop(lease, own)
            finally:
                self._drop(lease, own)  # again, for a signal handler that raised in the first
            raise
        return own

    def _exchange(self, lease: Lease, own: Lease) -> None:
        """Give the context of a lease, with its entry in the books, to another that has none."""
        old, new = lease.entry, own.entry
        assert old is not None
        assert new is not None
        # One step, because it has no call: the context has one entry before and after.
        own.context = new.context = lease.context
        self._open[new] = None
        del self._open[old]
        lease.context = lease.entry = None
        reset = getattr(own.context, "reset", None)
        if reset is not None:
            reset()

    def _drop(self, *leases: Lease) -> None:
        for lease in leases:
            self.destroy(lease)

    def _lease(self) -> Lease:
        """Return a lease of nothing, with an entry that is not in the books yet."""
        lease = Lease()
        lease.entry = entry = _Entry(lease, self._lost.append)
        entry.context, entry.lent_to = None, 0
        hash(entry)  # a reference that has been hashed still can be when its lease has gone
        return lease

    def _open_one(self, lease: Lease) -> Lease:
        """Open a context for a lease of nothing."""
        entry = lease.entry
        assert entry is not None
        try:
            # Noted before the pool is looked at: `close` sees the entry, or this a closed pool.
            self._open[entry] = None
            if self.is_closed:
                raise _closed()
            assert self._executable is not None
            entry.context = lease.context = self._executable.open_context()
        except BaseException:
            try:
                self.destroy(lease)
            finally:
                self.destroy(lease)  # again, for a signal handler that raised in the first
            raise
        return lease

    def _close_idle(self) -> None:
        for lease in list(self.idle):
            try:
                del self.idle[lease]
            except KeyError:  # another thread took it
                continue
            entry, lease.context, lease.entry = lease.entry, None, None
            assert entry is not None, "it was idle"
            self._lost.append(entry)
        self._close_lost()

    def _close_lost(self) -> None:
        """Close the contexts that nobody has any more, and the executable after the last of all."""
        if self._pid != os.getpid():  # nothing of the parent's may be freed in a forked child
            fork.never_free(self)
            return
        with self._closing:
            while self._lost:
                entry = self._lost[0]
                if entry.context is not None:
                    close(entry.context)
                    entry.context = None
                if self.semaphore is not None and entry.lent_to:
                    self.semaphore.release(entry.lent_to)
                self._open.pop(entry, None)
                # Only now: until then it is done again where a signal handler has raised. One that
                # closes the model in the middle of this has taken it out already.
                if self._lost and self._lost[0] is entry:
                    self._lost.popleft()
            if self.is_closed and not self._open and self._executable is not None:
                close(self._executable)
                self._executable = None


def _closed() -> ModelStateError:
    return ModelStateError("predict failed! the model is closed; build a new one")


class _Closable(Protocol):
    def close(self) -> None: ...


def close(thing: _Closable) -> None:
    """Close it; an error is logged, because nobody who could mend it is there to catch it."""
    try:
        thing.close()
    except BaseException as error:  # SystemExit, or a panic of a compiled extension
        if raised_by_handler(error):
            raise
        import logging

        logging.getLogger("engine").exception("closing %s failed", type(thing).__name__)
