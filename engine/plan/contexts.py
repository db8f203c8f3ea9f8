"""Execution contexts, lent for a call.

A predict takes the context that its thread used last if that is idle, else any idle one, else a new
one. So there are as many as predicts ever ran at once, whatever the number of threads.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Protocol

from engine.errors import ModelStateError
from engine.host import fork
from engine.plan.gate import Gate

if TYPE_CHECKING:
    from engine.cancel import CancelToken
    from engine.types import ExecutionContext


class ContextSource(Protocol):
    """What contexts come from: an executable, or a wrapper of one.

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

    lent_to: the thread that holds a slot of the pool's gate for it; 0 where none does.
    """

    # Any: contexts of plan/ and of backends, which have a `reset` or `cancel` or not.
    __slots__ = ("_pool", "context", "lent_to")

    def __init__(self, pool: ContextPool) -> None:
        self.context: Any = None
        self.lent_to = 0
        self._pool = pool

    def __del__(self) -> None:
        # One that an interrupt lost on its way; a pool that is closed has emptied its leases.
        if self.context is not None or self.lent_to:
            self._pool.discard(self)


class ContextPool:
    """The contexts of one executable.

    A predict that stands on speed takes its thread's lease by `del pool.idle[lease]`, which is
    atomic, and calls `borrow` where that is a KeyError; it gives back by `pool.idle[lease] = None`
    and then calls `settle` if `is_closed`. No lock is on that way. Where there is a gate, it calls
    `borrow` and `give_back`. What a signal handler interrupted on the way, `recover` ends.

    Closing never pulls memory from under a running predict: what is lent is closed when it comes
    back, and the executable after the last of them.
    """

    def __init__(self, executable: ContextSource) -> None:
        self.idle: dict[Lease, None] = {}
        self.open_count = 0
        self.is_closed = False
        slots = getattr(executable, "concurrency", 0)
        self.gate = Gate(slots) if slots > 0 else None
        self._executable = executable
        self._pid = os.getpid()
        # Reentrant: a finalizer gives back too, at any moment of the same thread.
        self._lock = threading.RLock()

    def borrow(
        self,
        last: Lease | None = None,
        deadline_s: float | None = None,
        cancel: CancelToken | None = None,
    ) -> Lease:
        """Take a context for a predict: that of `last`, else an idle one, else a new one.

        Where the backend limits how many run at once, wait for one to end. Raises what
        `Gate.enter` raises, and ModelStateError once the pool is closed.
        """
        if self.gate is None:
            return self._take(last)
        thread = threading.get_ident()
        self.gate.enter(deadline_s, cancel)
        try:
            lease = self._take(last)
            lease.lent_to = thread
        except BaseException:
            try:
                self.gate.leave(thread)
            finally:
                self.gate.leave(thread)  # again, for a signal handler that raised in the first
            raise
        return lease

    def give_back(self, lease: Lease) -> None:
        """Take a context back from a predict of the calling thread."""
        lease.lent_to = 0
        self.idle[lease] = None
        self.settle()

    def settle(self) -> None:
        """Do what follows when a context came back: close if the pool was, admit who waits."""
        if self.is_closed:
            self._close_idle()
        if self.gate is not None:
            self.gate.leave()

    def discard(self, lease: Lease) -> None:
        """Close a context instead of giving it back, whichever thread had it."""
        self.destroy(lease)
        if self.gate is not None and lease.lent_to:
            self.gate.leave(lease.lent_to)
            lease.lent_to = 0

    def recover(self, lease: Lease) -> None:
        """End what an interrupt may have cut off after a failed predict of the calling thread."""
        if lease.lent_to:
            self.discard(lease)
        else:
            self.settle()

    def retire(self, lease: Lease | None) -> None:
        """Let go of what a thread that ends had its context keep, if it is idle.

        Behind a gate that waits until the context is used again: to take it out of the idle needs
        a slot, and another thread would open one too many.
        """
        if lease is None or self.gate is not None or self._pid != os.getpid():
            return
        try:
            del self.idle[lease]
        except KeyError:
            return
        self.idle[self._pass_on(lease)] = None
        if self.is_closed:
            self._close_idle()

    def close(self) -> None:
        """Close what is idle now and what is lent when it comes back; twice does nothing."""
        with self._lock:
            if self.is_closed:
                return
            self.open_count += 1  # this call's own: the executable outlives the loop below
            self.is_closed = True
        self._close_idle()
        self._count_down()

    def destroy(self, lease: Lease) -> None:
        """Close the context of a lease that is not idle; twice does nothing."""
        is_child = self._pid != os.getpid()
        context, lease.context = lease.context, None
        if context is None:
            return
        if is_child:  # nothing of the parent's may be freed in a forked child
            fork.never_free(self, context)
            return
        try:
            close(context)
        finally:
            self._count_down()

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
        try:
            lease, _ = self.idle.popitem()
        except KeyError:
            return self._open()
        return self._pass_on(lease)

    def _open(self) -> Lease:
        lease = Lease(self)
        is_counted = False
        try:
            with self._lock:
                if self.is_closed:
                    raise _closed()
                self.open_count += 1
                is_counted = True
            lease.context = self._executable.open_context()
        except BaseException:
            if is_counted:
                self._count_down()
            raise
        return lease

    def _pass_on(self, lease: Lease) -> Lease:
        """Return a new lease of a context that goes to another thread."""
        own = Lease(self)
        own.context, lease.context = lease.context, None  # one step: no interrupt comes between
        reset = getattr(own.context, "reset", None)
        if reset is not None:
            try:
                reset()
            except BaseException:
                self.destroy(own)
                raise
        return own

    def _close_idle(self) -> None:
        while True:
            try:
                lease, _ = self.idle.popitem()
            except KeyError:
                return
            self.destroy(lease)

    def _count_down(self) -> None:
        with self._lock:
            self.open_count -= 1
            is_last = self.is_closed and self.open_count == 0
        if is_last:
            close(self._executable)


def _closed() -> ModelStateError:
    return ModelStateError("predict failed! the model is closed; build a new one")


class _Closable(Protocol):
    def close(self) -> None: ...


def close(thing: _Closable) -> None:
    """Close it; an error is logged, because nobody who could mend it is there to catch it."""
    try:
        thing.close()
    except KeyboardInterrupt:
        raise
    except BaseException:  # SystemExit, or a panic of a compiled extension
        import logging

        logging.getLogger("engine").exception("closing %s failed", type(thing).__name__)
