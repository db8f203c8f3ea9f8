"""Groups of ranks: what all have in common, and those on one machine, who wait by counters.

A rank that waits looks at another's counter for a short while, then sleeps until a control
socket wakes it.
"""

from __future__ import annotations

import os
import platform
import select
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from engine.distributed.control_sockets import ControlSocket, connect_all
from engine.distributed.shared_segment import (
    ABORTED,
    ASLEEP,
    BLAMED,
    JOINED,
    LEFT,
    REFUSED,
    ROUND,
    STATE,
    SharedSegment,
    fence,
    new_file,
)
from engine.errors import CommunicatorError
from engine.host.cpus import usable_cpus
from engine.types import CommunicatorOptions

Array: TypeAlias = "np.ndarray[Any, Any]"

_SPINS = 400
"""Looks at a counter before the core is offered to others: some 20 us."""
_SPIN_S = 200e-6
"""Time for which a rank looks at all before it sleeps; to be woken takes some 30 us."""
_LOOK_S = 0.05  # a sleeper looks again, whatever happens
_FIRST_LOOK_S = 0.001
"""A sleeper's first look. Where stores keep their order, who writes a counter looks without a fence
whether anybody sleeps, and may so miss one that is just going to: it finds the counter now."""

ORDERED = platform.machine() in ("x86_64", "AMD64", "i686")
"""True where stores become visible in the order in which they are made: then a counter needs no
fence before it is written or after it is read."""


class RankGroup:
    """A group as one of its ranks has it: who the others are, and why it has ended.

    numbers: the ranks' in the job. ended: why this rank takes part in no collective any more.
    """

    deterministic = True  # contributions are combined in the order of the ranks

    def __init__(self, rank: int, world_size: int, group: str, numbers: tuple[int, ...]) -> None:
        self.rank, self.world_size, self.group = rank, world_size, group
        self.ended = ""
        self._numbers = numbers
        self._blamed: tuple[int, ...] = ()  # the ranks because of which it has ended, by these
        self._leaving = threading.RLock()

    def refuse_ended(self) -> None:
        """Raise why the group has ended, if it has."""
        if self.ended:
            raise self._failure(self.ended)

    def abort(self, why: str = "the communicator was aborted") -> None:
        """Make what runs and what comes fail, here and at the others, who are told why."""
        self._leave(ABORTED, why)

    def _leave(self, state: int, why: str, blamed: int = -1) -> None:
        """End the group here, once, and tell the others: LEFT or ABORTED, because of a rank."""
        raise NotImplementedError

    def _fail(self, text: str, *ranks: int, timed_out: bool = False) -> CommunicatorError:
        """End the group because of other ranks of it; returns the error to raise."""
        self._blamed = tuple(self._numbers[rank] for rank in ranks)
        self._leave(ABORTED, text, ranks[0] if ranks else -1)
        return self._failure(text, timed_out=timed_out)

    def _failure(self, text: str, *, timed_out: bool = False) -> CommunicatorError:
        own = self._numbers[self.rank]
        return CommunicatorError(
            f"group {self.group!r}, rank {own}: {text}", self._blamed, timed_out=timed_out
        )

    def _too_late(self, late: Sequence[int], what: str) -> CommunicatorError:
        return self._fail(
            f"{self._named(*late)} did not come in time to {what}", *late, timed_out=True
        )

    def _not_begun(self, rank: int, what: str, why: str) -> CommunicatorError:
        """Return the error for a rank that has refused a predict which this one is in."""
        return self._fail(
            f"{self._named(rank)} did not begin its predict, and does not come to {what}: {why}",
            rank,
        )

    def mismatch(self, rank: int, own: str, theirs: str) -> CommunicatorError:
        """Return the error for two ranks in different collectives, ending the group."""
        return self._fail(
            f"the ranks are out of step: rank {self._numbers[self.rank]} is in {own}, rank "
            f"{self._numbers[rank]} in {theirs or 'nothing'}; give every rank the same inputs and "
            "its part of one model",
            rank,
        )

    def _named(self, *ranks: int) -> str:
        """Name ranks of the group by their numbers in the job."""
        numbers = ", ".join(str(self._numbers[rank]) for rank in ranks)
        if self._numbers == tuple(range(self.world_size)):
            return f"rank {numbers} of {self.world_size}"
        return f"rank {numbers} of ranks {', '.join(map(str, self._numbers))}"

    def require_other(self, rank: int) -> None:
        """Raise CommunicatorError unless that is another rank of the group."""
        if rank == self.rank or not 0 <= rank < self.world_size:
            raise CommunicatorError(
                f"group {self.group!r}: rank {rank} is none of the others of its {self.world_size} "
                "ranks"
            )


@dataclass(slots=True)
class Peer:
    """Another rank: its control socket, and what of its segment this rank reads."""

    rank: int
    control: ControlSocket
    segment: SharedSegment
    words: memoryview


class Group(RankGroup):
    """The ranks of a group, as one of them sees the others.

    Every failure to wait ends the group: its ranks are out of step then, and each finds out at its
    next collective, with the reason.
    """

    def __init__(self, options: CommunicatorOptions) -> None:
        numbers = options.ranks or tuple(range(options.world_size))
        super().__init__(options.rank, options.world_size, options.group, numbers)
        self.peers: list[Peer] = []
        self._pid = os.getpid()
        self._spins = _SPINS if usable_cpus() >= self.world_size else 0
        self._gone: list[Peer] = []  # ranks of which this one has seen the end
        with ExitStack() as on_failure, ExitStack() as closing:  # what is mapped stays
            descriptor = new_file()
            closing.callback(os.close, descriptor)
            self.own = SharedSegment(descriptor, self.world_size, is_own=True)
            self.words = self.own.words
            connected = connect_all(options, descriptor)
            for control, given in connected.values():
                closing.callback(os.close, given)
                on_failure.callback(control.close)
            for rank, (control, given) in sorted(connected.items()):
                segment = SharedSegment(given, self.world_size, is_own=False)
                self.peers.append(Peer(rank, control, segment, segment.words))
            on_failure.pop_all()
        self._poller = select.poll()
        for peer in self.peers:
            peer.control.watch(self._poller)

    # ----------------------------------------------------------------------------------- waiting

    def tell(self, word: int, value: int, peers: Iterable[Peer]) -> None:
        """Set a counter, after all that was written before, and wake those peers that sleep."""
        if ORDERED:
            self.words[word] = value
        else:
            fence()
            self.words[word] = value
            fence()
        for peer in peers:
            if peer.words[ASLEEP]:
                peer.control.wake()

    def wait(self, peer: Peer, word: int, value: int, deadline_s: float | None, what: str) -> None:
        """Wait until a counter of another rank has come to a value."""
        words = peer.words
        for _ in range(self._spins):
            if words[word] >= value:
                break
        else:
            end_s = time.perf_counter() + _SPIN_S
            while words[word] < value:
                os.sched_yield()
                if time.perf_counter() > end_s:
                    self._sleep(peer, word, value, deadline_s, what)
        if not ORDERED:
            fence()

    def _sleep(
        self, peer: Peer, word: int, value: int, deadline_s: float | None, what: str
    ) -> None:
        """Sleep until the counter has come to the value, or it cannot any more."""
        try:
            self.words[ASLEEP] = 1
            fence()
            most_s = _FIRST_LOOK_S
            while peer.words[word] < value:
                self.refuse_ended()
                if peer.words[REFUSED] > self.words[REFUSED]:
                    self._check_begun(peer, word, value, what)
                if self._gone:
                    self._refuse_gone(peer, word, value, what)
                left_s, most_s = most_s, _LOOK_S
                if deadline_s is not None:
                    left_s = min(left_s, deadline_s - time.monotonic())
                    if left_s <= 0:
                        raise self._too_late(self._late(peer, word, value), what)
                self._look(max(1, round(left_s * 1000)))
        finally:
            self.words[ASLEEP] = 0

    def _look(self, most_ms: int) -> None:
        """Wait for somebody to wake this rank, or to end, which is noted in `_gone`."""
        for descriptor, _ in self._poller.poll(most_ms):
            for peer in self.peers:
                control = peer.control
                if descriptor == control.process or (
                    descriptor == control.socket.fileno() and not control.drain()
                ):
                    self._gone.append(peer)
                    self._poller.unregister(descriptor)  # or no poll would wait any more

    # ------------------------------------------------------------------------------------ failing

    def _check_begun(self, peer: Peer, word: int, value: int, what: str) -> None:
        """Raise the error for a rank that has refused a predict which this one is in."""
        fence()  # it may have come this far, and refused a later one
        if peer.words[word] < value:
            raise self._not_begun(peer.rank, what, peer.segment.why())

    def _refuse_gone(self, awaited: Peer, word: int, value: int, what: str) -> None:
        """Raise the error for ranks that are gone, where this rank waits for one of them in vain.

        One that has left in good order after its last step is missed by nobody.
        """
        # Those that died are the cause, those that have aborted tell of it.
        for peer in sorted(self._gone, key=lambda peer: peer.words[STATE] != JOINED):
            state = peer.words[STATE]
            is_missing = peer.words[ROUND] < value if word == ROUND else state == JOINED
            if peer is awaited or state == ABORTED or is_missing:
                raise self.end_of(peer, what)

    def end_of(self, peer: Peer, what: str) -> CommunicatorError:
        """Return the error for a rank that is gone, ending the group here."""
        state, blamed = peer.words[STATE], peer.words[BLAMED] - 1
        name = self._named(peer.rank)
        during = f" during {what}" if what else ""
        if state == ABORTED:
            is_known = 0 <= blamed < self.world_size and blamed != self.rank
            return self._fail(
                f"{name} has aborted{during}: {peer.segment.why()}",
                blamed if is_known else peer.rank,
            )
        how = "has left the group"
        if state == JOINED:
            how = "has ended: its process crashed or was killed"
        return self._fail(f"{name} {how}{during}", peer.rank)

    def _late(self, peer: Peer, word: int, value: int) -> list[int]:
        """Return the ranks that have not come to where this one waits for `peer`."""
        if word != ROUND:
            return [peer.rank]
        return [other.rank for other in self.peers if other.words[ROUND] < value] or [peer.rank]

    def peer(self, rank: int) -> Peer:
        """Return another rank; CommunicatorError where there is none of that number."""
        self.require_other(rank)
        return next(peer for peer in self.peers if peer.rank == rank)

    # --------------------------------------------------------------------------------- its life

    def refuse(self, why: str) -> None:
        """Tell the others that this rank does not begin a predict.

        Those that wait for it in that predict fail. Ranks that refuse the same one stay in step.
        """
        with self._leaving:
            if not self.ended and self._pid == os.getpid():
                self.own.set_why(why)
                self.tell(REFUSED, self.words[REFUSED] + 1, self.peers)

    def check(self, *, may_leave: bool = False) -> None:
        """Raise CommunicatorError if the group has ended or a rank is known to be gone.

        may_leave: one that has left in good order, and has been where this rank is, is not missed.
        """
        with (
            self._leaving
        ):  # no control socket is closed meanwhile, and no other thread finds it out
            self.refuse_ended()
            for peer in [p for p in self.peers if p.control.has_ended()]:
                has_been = peer.words[STATE] == LEFT and peer.words[ROUND] >= self.words[ROUND]
                if not (may_leave and has_been):
                    raise self.end_of(peer, "")

    def close(self) -> None:
        """Leave the group."""
        if self._pid != os.getpid():  # a forked child: the group is the parent's
            return
        self._leave(LEFT, "the communicator is closed")
        with self._leaving:
            for peer in self.peers:
                peer.control.close()

    def _leave(self, state: int, why: str, blamed: int = -1) -> None:
        with self._leaving:
            if self.ended or self._pid != os.getpid():
                return
            self.own.set_why(why)
            self.words[BLAMED] = blamed + 1
            fence()
            self.words[STATE] = state
            self.ended = why
            for peer in self.peers:
                peer.control.shut_down()

    def __del__(self) -> None:
        with suppress(AttributeError):  # it never joined
            self.close()


def described(array: Array) -> str:
    """Return how a collective's text has a tensor."""
    return f"{array.dtype.name}{list(array.shape)}"


def bytes_of(array: Array) -> Array:
    """Return the bytes of a C-contiguous array, in its memory."""
    return array.reshape(-1).view(np.uint8)
