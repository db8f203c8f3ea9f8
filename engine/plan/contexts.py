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


class Opener(Protocol):
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
    """

    # Any: contexts of plan/ and of backends, which have a `reset` or `cancel` or not.
    __slots__ = ("_pool", "context")

    def __init__(self, pool: ContextPool, context: Any) -> None:
        self.context = context
        self._pool = pool

    def __del__(self) -> None:
        # One that an interrupt lost on its way; a pool that is closed has emptied its leases.
        if self.context is not None:
            self._pool.destroy(self)


class ContextPool:
    """The contexts of one executable.

    A predict that stands on speed takes its thread's lease by `del pool.idle[lease]`, which is
    atomic, and calls `borrow` where that is a KeyError; it gives back by `pool.idle[lease] = None`
    and then calls `settle` if `must_settle`. No lock is on that way.

    Closing never pulls memory from under a running predict: what is lent is closed when it comes
    back, and the executable after the last of them.
    """

    def __init__(self, executable: Opener) -> None:
        self.idle: dict[Lease, None] = {}
        self.open_count = 0
        self.is_closed = False
        slots = getattr(executable, "concurrency", 0)
        self.gate = Gate(slots) if slots > 0 else None
        self.must_settle = self.gate is not None
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
        self.gate.enter(deadline_s, cancel)
        try:
            return self._take(last)
        except BaseException:
            self.gate.leave()
            raise

    def give_back(self, lease: Lease) -> None:
        """Take a context back from a predict."""
        self.idle[lease] = None
        if self.must_settle:
            self.settle()

    def settle(self) -> None:
        """Do what follows when a context came back: admit who waits, close if the pool was."""
        if self.is_closed:
            self._close_idle()
        if self.gate is not None:
            self.gate.leave()

    def discard(self, lease: Lease) -> None:
        """Close a context instead of giving it back."""
        self.destroy(lease)
        if self.gate is not None:
            self.gate.leave()

    def retire(self, lease: Lease | None) -> None:
        """Let go of what a thread that ends had its context keep, if it is idle."""
        if lease is None or self._pid != os.getpid():
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
            self.is_closed = self.must_settle = True
        self._close_idle()
        self._count_down()

    def destroy(self, lease: Lease) -> None:
        """Close the context of a lease that is not idle."""
        context, lease.context = lease.context, None
        if self._pid != os.getpid():  # a forked child: nothing of the parent's may be freed here
            fork.never_free(self, context)
            return
        close(context)
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
        with self._lock:
            if self.is_closed:
                raise _closed()
            self.open_count += 1
        try:
            return Lease(self, self._executable.open_context())
        except BaseException:
            self._count_down()
            raise

    def _pass_on(self, lease: Lease) -> Lease:
        """Return a new lease of a context that goes to another thread."""
        own = Lease(self, lease.context)
        lease.context = None
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
