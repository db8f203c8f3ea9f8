"""Ranks that are started, watched and ended together: `engine launch`.

    status = supervise(ranks, output)   # a `Rank` for each, what they print goes to `output`

Each rank is a process that leads a session of its own: a terminal's Ctrl-C reaches the launcher
alone, and a rank is ended with all that it has started. The first rank that fails ends the job.
The others get a moment to end by themselves: those that wait for it fail with an error that names
it. A rank that is stopped when all others have ended is missed by nobody: it has failed when it has
been stopped for as long as ranks wait for each other. A launcher that ends, however it does, takes
its ranks along: the kernel sees to that.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from engine.distributed.job import environment, this_job
from engine.distributed.store import StoreServer
from engine.errors import CommunicatorError
from engine.host.child import ending, has_ended, is_stopped, kill
from engine.host.cpus import usable_cpus
from engine.host.serve import end_group_with

__all__ = ["Failure", "Output", "launch"]

GRACE_S = 5.0
"""Time for the other ranks to end by themselves when one has failed."""
_TERM_S = 1.5  # what follows SIGTERM; a command that is interrupted has 3 s
_LOOK_S = 0.5
_REST_S = 0.2  # for the output of a rank that has ended: what it has started may hold it open


class Output(Protocol):
    """Takes what ranks print."""

    def streams(self, rank: int) -> tuple[int, int]:
        """Return descriptors for a rank's stdout and stderr; `subprocess.PIPE` to be read here."""

    def take(self, rank: int, stream: int, data: bytes) -> None:
        """Take what a rank has printed on its stdout (1) or stderr (2); b"" when all has come."""

    def last_words(self, rank: int) -> str:
        """Return the last line that a rank has written to its stderr."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A rank that ended with an error. status: as of a shell."""

    rank: int
    status: int
    text: str


@dataclass(eq=False, slots=True)
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    lifeline: int
    is_over: bool = False
    was_ended: bool = False  # by the launcher
    stopped_s: float = 0.0  # while all others had ended
    open_streams: list[int] = field(default_factory=list)


def launch(
    command: Sequence[str],
    ranks: Sequence[int],
    world_size: int,
    output: Output,
    env: Mapping[str, str] | None = None,
) -> Failure | None:
    """Run a command once for each rank of this machine; returns the failure that ended the job.

    ranks: their numbers in the job, of `world_size` ranks. env: variables for all of them.
    Raises what a signal handler raises, when the ranks have been ended.
    """
    with StoreServer() as server, _Job(server, world_size, output) as job:
        for place, rank in enumerate(ranks):
            variables = {
                **environment(server, rank, world_size, len(ranks)),
                "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1"),
                "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")
                or str(max(1, usable_cpus(processes=len(ranks)))),
                **(env or {}),
            }
            job.patience_s = this_job(variables).timeout_s
            job.start(rank, command, variables, takes_input=place == 0)
        return job.wait()


class _Job:
    """The ranks that run, and what they print.

    patience_s: for a rank that is stopped when all others have ended.
    """

    patience_s = math.inf

    def __init__(self, server: StoreServer, world_size: int, output: Output) -> None:
        self._server = server
        self._world_size = world_size
        self._output = output
        self._ranks: list[_Rank] = []
        self._failures: list[Failure] = []
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> _Job:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        for rank in self._ranks:
            os.close(rank.lifeline)
        self._selector.close()

    def start(
        self, number: int, command: Sequence[str], env: Mapping[str, str], takes_input: bool
    ) -> None:
        """Start one rank. takes_input: it gets what is piped into the launcher."""
        out, err = self._output.streams(number)
        has_input = takes_input and not os.isatty(0)
        with _lifeline() as (theirs, ours):
            process = subprocess.Popen(
                command,
                stdin=None if has_input else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=env,
                pass_fds=[theirs],
                start_new_session=True,
            )
            rank = _Rank(number, process, ours.pop())
            self._ranks.append(rank)
            end_group_with(theirs, process.pid)
        for stream, pipe in ((1, process.stdout), (2, process.stderr)):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self._selector.register(pipe, selectors.EVENT_READ, (rank, stream))
                rank.open_streams.append(stream)
        watched = os.pidfd_open(process.pid)
        self._selector.register(watched, selectors.EVENT_READ, (rank, 0))

    def wait(self) -> Failure | None:
        """Wait until all ranks have ended; the first that fails ends the others."""
        end_s = None
        while any(not rank.is_over for rank in self._ranks):
            begin_s = time.monotonic()
            self._look(_LOOK_S)
            # The launcher may have been stopped together with its ranks.
            self._end_stopped(min(time.monotonic() - begin_s, 2 * _LOOK_S))
            if self._failures and end_s is None:
                first = self._failures[0]
                self._server.fail(first.text, (first.rank,))
                end_s = time.monotonic() + GRACE_S
            if end_s is not None and time.monotonic() > end_s:
                self._end()
        return _culprit(self._failures)

    def _look(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            rank, stream = key.data
            if stream == 0:
                if has_ended(rank.process):
                    self._selector.unregister(key.fd)
                    os.close(key.fd)
                    self._finish(rank)
            else:
                self._read(rank, stream, key.fileobj)

    def _end_stopped(self, passed_s: float) -> None:
        """End the ranks that have been stopped for too long since all others have ended."""
        running = [rank for rank in self._ranks if not rank.is_over]
        is_last = not self._failures and 0 < len(running) < len(self._ranks)
        if not is_last or not all(is_stopped(rank.process) for rank in running):
            for rank in running:
                rank.stopped_s = 0.0
            return
        for rank in running:
            rank.stopped_s += passed_s
            if rank.stopped_s > self.patience_s:
                text = (
                    f"rank {rank.number} of {self._world_size} was stopped by a signal for longer "
                    f"than {self.patience_s:g} s after the others had ended, and was killed"
                )
                self._failures.append(Failure(rank.number, 1, text))
                rank.was_ended = True
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(rank.process.pid, signal.SIGKILL)

    def _read(self, rank: _Rank, stream: int, pipe: object) -> bool:
        """Take what a pipe has; returns whether there was something."""
        if stream not in rank.open_streams:
            return False
        descriptor = pipe.fileno()  # type: ignore[attr-defined]
        try:
            data = os.read(descriptor, 65536)
        except BlockingIOError:
            return False
        self._output.take(rank.number, stream, data)
        if not data:
            self._selector.unregister(pipe)  # type: ignore[arg-type]
            rank.open_streams.remove(stream)
        return bool(data)

    def _finish(self, rank: _Rank) -> None:
        """Note how a rank has ended, and take the rest of what it has printed."""
        rank.is_over = True
        pipes = ((1, rank.process.stdout), (2, rank.process.stderr))
        with suppress(ProcessLookupError, PermissionError):  # what it has started, if anything
            os.killpg(rank.process.pid, signal.SIGKILL)
        end_s = time.monotonic() + _REST_S
        while rank.open_streams and time.monotonic() < end_s:
            came = [self._read(rank, stream, pipe) for stream, pipe in pipes if pipe]
            if not any(came):
                time.sleep(0.005)
        for stream, pipe in pipes:
            if pipe is not None:
                if stream in rank.open_streams:
                    self._selector.unregister(pipe)
                    rank.open_streams.remove(stream)
                    self._output.take(rank.number, stream, b"")
                pipe.close()
        status = rank.process.wait()
        if not status:
            self._server.end(rank.number)
        if status and not rank.was_ended:
            words = self._output.last_words(rank.number)
            text = f"rank {rank.number} of {self._world_size} {ending(status)}"
            self._failures.append(
                Failure(
                    rank.number,
                    status if status > 0 else 128 - status,
                    f"{text}: {words}" if words else text,
                )
            )

    def _end(self) -> None:
        """End the ranks that run: SIGTERM first, SIGKILL for those that do not listen."""
        running = [rank for rank in self._ranks if not rank.is_over]
        for rank in running:
            rank.was_ended = True
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.process.pid, signal.SIGTERM)
        end_s = time.monotonic() + _TERM_S
        while any(not rank.is_over for rank in running) and time.monotonic() < end_s:
            with suppress(OSError):  # the reader of what they print may be gone
                self._look(max(0.0, end_s - time.monotonic()))
        for rank in running:
            if not rank.is_over:
                kill(rank.process)
                rank.is_over = True


def _culprit(failures: Sequence[Failure]) -> Failure | None:
    """Return the failure that brought the others about.

    A rank that fails because another has failed says so, and may be the first to have ended.
    """
    own = [failure for failure in failures if CommunicatorError.__name__ not in failure.text]
    return next(iter(own or failures), None)


@contextmanager
def _lifeline() -> Iterator[tuple[int, list[int]]]:
    """Yield the ends of a pipe, the second in a list out of which it is taken to be kept."""
    theirs, kept = os.pipe()
    ours = [kept]
    try:
        yield theirs, ours
    finally:
        for descriptor in (theirs, *ours):
            os.close(descriptor)
