"""The places of a group's ranks, as they tell each other by the core's store.

here <rank>               when it joins: engine.host.members
at <place> <rank>         that it has come to a collective which takes long
left <rank>               why it takes part in nothing any more, and where it has been
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from engine.errors import CommunicatorError
from engine.host.members import Members
from engine.types import CommunicatorOptions

_ASK_S = 0.25  # between two looks whether ranks have left: each costs a message a rank


class Membership:
    """The ranks of one group and what is known of them. numbers: the ranks' own, in the job."""

    def __init__(self, options: CommunicatorOptions) -> None:
        self.rank = options.rank
        self.numbers = options.ranks or tuple(range(options.world_size))
        self._store = options.store
        self._members = Members(options.store, options.rank, options.world_size)
        self._places: Counter[str] = Counter()
        self._ask_s = 0.0

    def join(self, end_s: float) -> list[int]:
        """Say that this rank is here; return the ranks that are not by `end_s`."""
        return self._members.join(end_s)

    def share(self, key: str, make: Callable[[], bytes], end_s: float) -> bytes:
        """Return what rank 0 makes."""
        if self.rank == 0:
            self._store.set(key, make())
        return self._store.get(key, max(0.0, end_s - time.monotonic()))

    def exchange(self, key: str, text: str, end_s: float) -> list[str]:
        """Return what every rank gives, in their order."""
        self._store.set(f"{key} {self.rank}", text.encode())
        return [
            self._store.get(f"{key} {rank}", max(0.0, end_s - time.monotonic())).decode()
            for rank in range(len(self.numbers))
        ]

    def place(self, between: tuple[int, int] | None) -> str:
        """Return the name of the next collective, the same at all ranks that take part in it."""
        kind = "all" if between is None else f"{between[0]} to {between[1]}"
        self._places[kind] += 1
        return f"{kind} {self._places[kind]}"

    def tell(self, place: str) -> None:
        """Say that this rank has come to a place."""
        with suppress(CommunicatorError):  # without the store nobody is named, and no more
            self._store.set(f"at {place} {self.rank}", b"")

    def absent(self, place: str, ranks: Sequence[int]) -> list[int]:
        """Return those of the ranks that have not come to a place where this one waits."""
        self.tell(place)
        return [rank for rank in ranks if not self._is_set(f"at {place} {rank}")]

    def leave(self, why: str, *, is_good: bool) -> None:
        """Say that this rank takes part in nothing any more. is_good: it has done all it began."""
        places = dict(self._places) if is_good else None
        with suppress(CommunicatorError):
            self._store.set(f"left {self.rank}", json.dumps([why, places]).encode())

    def gone(self, place: str) -> tuple[int, str] | None:
        """Return a rank that is gone, and how; None where none is known to be.

        One that left in good order is missed only where this rank waits at a `place` to which that
        one has not been.
        """
        now_s = time.monotonic()
        is_time = now_s >= self._ask_s
        if is_time:
            self._ask_s = now_s + _ASK_S
        for rank in range(len(self.numbers)):
            is_dead = self._members.has_ended(rank)
            if rank == self.rank or not (is_dead or is_time):
                continue
            left = self._left(rank)
            if left is None:
                if is_dead:
                    return rank, "has ended: its process crashed or was killed"
            elif not _has_been(left[1], place):
                return rank, f"has left: {left[0]}"
        return None

    def named(self, ranks: Sequence[int]) -> str:
        """Name ranks of the group by their numbers in the job."""
        numbers = ", ".join(str(self.numbers[rank]) for rank in ranks)
        return f"rank {numbers} of {len(self.numbers)}"

    def close(self) -> None:
        """Let go of the processes; twice does nothing."""
        self._members.close()

    def _left(self, rank: int) -> tuple[str, Mapping[str, int] | None] | None:
        """Return why a rank has left, and its places if it did so in good order."""
        try:
            why, places = json.loads(self._store.get(f"left {rank}", 0))
        except CommunicatorError:
            return None
        return why, places

    def _is_set(self, key: str) -> bool:
        try:
            self._store.get(key, 0)
        except CommunicatorError:
            return False
        return True


def _has_been(places: Mapping[str, int] | None, place: str) -> bool:
    """Return whether a rank that has left was done with a place; "" is one that needs nobody."""
    if places is None:
        return False
    kind, _, number = place.rpartition(" ")
    return not number.isdigit() or places.get(kind, 0) >= int(number)
