"""Isolated workers: Python processes that are sent messages, and whose death is an answer too.

    with Worker("my.module:serve", request) as worker:   # calls serve(request, connection) there
        try:
            answer = worker.receive(timeout_s=30)
        except Ended as end:
            print(f"it {end}")                            # it crashed with SIGSEGV (free(): ...)

A crash or hang in a worker costs that process and what it has started, and no other. It ends
with its parent, however that ends, and leaves nothing: its stderr is in memory without a name, and
no descriptor of the parent's but its own end of the messages is open in it.

`receive` is for one thread at a time; `kill` may be called by any.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from engine.host import fork
from engine.host.blocks import Closing
from engine.host.child import ending, environment, has_ended, kill, last_words, start
from engine.host.interrupts import pass_interrupt, undisturbed
from engine.host.lack import explained, lack_of

_LOOK_S = 0.1  # how soon an end is seen while what the worker left running holds its messages open
_STALL_S = 5  # for the next part of a message that has begun: its sender may have died in it
_END_S = 5.0  # for the end of a worker that somebody has seen to end
_FREE_S = 60.0  # for a worker that was told to end, to free what it holds
_PATIENCE_S = 600.0  # for one that has said all: runtimes take long to end on a busy machine


class Ended(Exception):
    """A worker has ended and all that it sent has been received.

    status: its exit status, negative for a signal. last_words: the last line of its stderr.
    """

    def __init__(self, status: int, last_words: str, end: str = "") -> None:
        self.end = end or ending(status) or "ended with status 0"
        super().__init__(f"{self.end} ({last_words})" if last_words else self.end)
        self.status = status
        self.last_words = last_words


class Worker(Closing):
    """One worker process.

    function: "module:name" of a function (request, connection) that is called there; what it
        returns is the exit status. It sends what `receive` gives with `connection.send`, and
        receives what `send` is given with `connection.recv`, EOFError when nothing will come.
    request: what can be pickled; large is fine. env: from `environment`, which None stands for.
    cwd: its working folder. module: what `python -m` runs, which calls `serve.main` of engine.host
    in the end. Both ends trust each other's pickles: a worker has its user's rights.
    """

    def __init__(
        self,
        function: str,
        request: object = None,
        *,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        module: str = "engine.host.serve",
    ) -> None:
        with explained("a worker process cannot be started"):
            self._start(function, request, env, cwd, module)

    def _start(
        self,
        function: str,
        request: object,
        env: dict[str, str] | None,
        cwd: Path | None,
        module: str,
    ) -> None:
        with ExitStack() as opened:  # where there is no room for all of these, none stays
            self._errors = _nameless_file()
            opened.callback(self._errors.close)
            self._connection, theirs = connection.Pipe()
            opened.callback(self._connection.close)
            opened.callback(theirs.close)
            with _socket(self._connection) as end:
                limit = struct.pack("@ll", _STALL_S, 0)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            lifeline, self._lifeline = os.pipe()
            opened.pop_all()
        # The child is in there as soon as there is one, whatever a signal handler raises here.
        self._started: list[subprocess.Popen[bytes] | BaseException] = []
        try:
            try:
                fds = theirs.fileno(), lifeline
                _start_in_a_thread(
                    partial(
                        start,
                        ["-m", module, *map(str, fds), function],
                        self._errors,
                        env=env or environment(),
                        cwd=cwd,
                        pass_fds=fds,
                    ),
                    self._started,
                )
            finally:
                theirs.close()
                os.close(lifeline)
            fork.watch(self)
            self.send(request)
        except BaseException:
            self.close()
            raise

    def __del__(self) -> None:
        if hasattr(self, "_started"):
            self.close()

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        [process] = self._started
        if isinstance(process, BaseException):
            raise process
        return process

    # --------------------------------------------------------------------------------- messages

    def send(self, message: object, fds: Sequence[int] = ()) -> None:
        """Send a message, and after it descriptors for `receive_fds`; a worker that has ended is
        noticed by `receive`.
        """
        try:
            self._connection.send(message)
            if fds:
                with _socket(self._connection) as end:
                    socket.send_fds(end, [b"f"], list(fds))
        except (BrokenPipeError, ConnectionResetError):
            pass
        except OSError:
            if self._lifeline >= 0:  # else another thread has closed it
                raise

    def receive(self, timeout_s: float | None = None) -> Any:
        """Return the worker's next message. Raises Ended, TimeoutError.

        A worker that has said all and ends slowly has not ended yet.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not ready([self], until):
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"no message within {timeout_s:g} s")
        try:
            if not self._connection.poll(0):
                raise EOFError  # ended, and its end of the messages is held open
            return self._connection.recv()
        except BlockingIOError:
            self.kill()  # or what it has left running, which may hold its end open
            raise self.end("stopped in the middle of a message") from None
        except (EOFError, OSError):
            limit_s = _PATIENCE_S if until is None else max(0.0, until - time.monotonic())
            if not self.wait(limit_s) and until is not None:
                raise TimeoutError(f"its process has not ended within {timeout_s:g} s") from None
            raise self.end() from None
        except Exception as error:  # a pickle that a damaged process has sent
            self.kill()
            raise self.end(f"sent what cannot be read: {type(error).__name__}") from error

    def messages(self, until: float | None = None) -> Iterator[Any]:
        """Yield the messages until the worker ends. Raises TimeoutError at a monotonic time."""
        with suppress(Ended):
            while True:
                yield self.receive(None if until is None else max(0, until - time.monotonic()))

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is a message or an end."""
        return self._connection.fileno()

    # ----------------------------------------------------------------------------------- its end

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """True once the process has ended."""
        return has_ended(self._process)

    def errors(self) -> str:
        """Return what the worker has written to its stderr, or the end of it."""
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), 1 << 20, max(0, size - (1 << 20))).decode(
            errors="replace"
        )

    def trim_errors(self) -> None:
        """Forget what the worker has written to its stderr if that is more than 1 MiB."""
        if os.fstat(self._errors.fileno()).st_size > 1 << 20:
            os.ftruncate(self._errors.fileno(), 0)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the worker to end by itself; return whether it has."""
        until = time.monotonic() + timeout_s
        while not self.has_ended:
            if time.monotonic() >= until:
                return False
            time.sleep(0.01)
        return True

    def finish(self) -> None:
        """Wait for a worker that was told to end, and wake it where it is stopped.

        One that has not freed what it holds after a minute has hung: `close` ends it.
        """
        with suppress(ProcessLookupError):
            self.signal(signal.SIGCONT)
        self.wait(_FREE_S)

    def leave(self) -> None:
        """Let a worker that has said all end by itself, and free what belongs to it then.

        Does not wait: runtimes may take long to end. One that has not ended after ten minutes has
        hung and is killed; the end of this process ends it, too.
        """
        if not self.has_ended:
            thread = threading.Thread(target=self._see_off, name="engine-worker-end", daemon=True)
            try:
                undisturbed(thread.start)
            except RuntimeError as error:  # no thread can be started
                pass_interrupt(error)
            else:
                return
        self.close()

    def _see_off(self) -> None:
        self.wait(_PATIENCE_S)
        self.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the worker's process alone."""
        if not self.has_ended:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """End the worker and all that it has started, now; twice does nothing."""
        kill(self._process)

    def close(self) -> None:
        """End the worker and free what belongs to it; twice does nothing."""
        if self._lifeline >= 0:
            for process in self._started:
                if not isinstance(process, BaseException):
                    kill(process)
            self._let_go()

    def end(self, how: str = "") -> Ended:
        """Return how a worker has ended that is seen to end; any thread may call it."""
        if not self.wait(_END_S):
            how = how or f"did not end within {_END_S:g} s of its last message"
        self.kill()  # what it has left running too
        return Ended(self._process.returncode, last_words(self.errors()), how)

    def _let_go(self) -> None:
        lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            os.close(lifeline)
        if not gc.is_finalized(self._connection):  # else it is closed, and its number another's
            self._connection.close()
        self._errors.close()

    def _abandon(self) -> None:
        """In a forked child: let go of the parent's worker, so that it ends with the parent."""
        if self._lifeline >= 0:
            self._process.returncode = 0  # not this process's to end
            self._let_go()


def ready(workers: Iterable[Worker], until: float | None = None) -> list[Worker]:
    """Return the workers that have a message or have ended, as soon as there is one.

    until: a time of the monotonic clock at which [] is the answer; None waits on.
    """
    chosen = list(workers)
    while True:
        left = _LOOK_S if until is None else min(_LOOK_S, max(0, until - time.monotonic()))
        readable = set(map(id, connection.wait(chosen, left)))  # type: ignore[arg-type]
        found = [worker for worker in chosen if id(worker) in readable or worker.has_ended]
        if found or (until is not None and time.monotonic() >= until):
            return found


def receive_fds(messages: Connection, count: int) -> list[int]:
    """Return the descriptors that `Worker.send` sent after the message that was received last."""
    with _socket(messages) as end:
        _, fds, _, _ = socket.recv_fds(end, 1, count)
    for descriptor in fds:
        os.set_inheritable(descriptor, False)
    return fds


def _start_in_a_thread(
    start_child: Callable[[], subprocess.Popen[bytes]],
    started: list[subprocess.Popen[bytes] | BaseException],
) -> None:
    """Start a child in another thread, and wait until it, or the error, is in `started`.

    Signal handlers run in the main thread, and an exception out of one would lose a child that has
    just been started.
    """

    def run() -> None:
        try:
            started.append(start_child())
        except BaseException as error:
            started.append(error)

    thread = threading.Thread(target=run, name="engine-start", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        thread.join()
        raise
    for outcome in started:
        if isinstance(outcome, BaseException):
            try:
                raise outcome
            finally:
                del outcome  # the traceback of an error has this frame: no cycle


def _socket(messages: Connection) -> socket.socket:
    return socket.socket(fileno=os.dup(messages.fileno()))


def _nameless_file() -> IO[bytes]:
    """Return a file without a name, in memory where the system has such."""
    try:
        descriptor = os.memfd_create("engine-worker-stderr")
    except (AttributeError, OSError) as error:
        if lack_of(error):
            raise
        return tempfile.TemporaryFile()
    # Appending, so that it may be emptied while the worker writes to it.
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
    return os.fdopen(descriptor, "r+b", 0)
