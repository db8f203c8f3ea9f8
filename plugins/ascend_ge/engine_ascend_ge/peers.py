"""The other ranks of a group: who has joined, whose process has ended, who waits for what.

HCCL tells none of it: a collective that a rank does not come to ends after HCCL_EXEC_TIMEOUT, half
an hour by default, with an error that names nobody. Ranks tell each other by the core's store.
"""

from __future__ import annotations

import contextlib
import time

from engine.errors import CommunicatorError
from engine.host.members import Members
from engine.types import CommunicatorOptions, Store

GRACE_S = 0.7
"""Time that ranks have to say that they wait, too, when one of them gives up waiting."""


class Peers:
    """The other ranks of one group. Joining is over when this is made."""

    def __init__(self, options: CommunicatorOptions) -> None:
        """Wait for all ranks; CommunicatorError naming those that do not come in time."""
        self._options = options
        self._store: Store = options.store
        self._members = Members(options.store, options.rank, options.world_size)
        self._told = 0  # the last collective of which others know that this rank waits in it
        try:
            missing = self._members.join(time.monotonic() + options.timeout_s)
            if missing:
                raise self.failure(f"did not join within {options.timeout_s:g} s", missing)
        except BaseException:
            self.close()
            raise

    def ended(self) -> list[int]:
        """Return the ranks whose processes on this machine have ended."""
        return self._members.ended()

    def tell(self, step: int) -> None:
        """Let the others know that this rank waits in a collective. Once is enough."""
        if step > self._told:
            self._told = step
            with contextlib.suppress(CommunicatorError):  # the store may be gone by now
                self._store.set(f"at {step} {self._options.rank}", b"")

    def absent(self, step: int) -> list[int]:
        """Return the ranks that do not say that they wait in a collective."""
        self.tell(step)
        end_s = time.monotonic() + GRACE_S
        found = []
        for rank in range(self._options.world_size):
            if rank != self._options.rank:
                try:
                    self._store.get(f"at {step} {rank}", max(0.0, end_s - time.monotonic()))
                except CommunicatorError:
                    found.append(rank)
        return found

    def failure(self, text: str, ranks: list[int]) -> CommunicatorError:
        """Return an error that says what these ranks did not do."""
        options = self._options
        numbers = tuple(options.ranks[rank] if options.ranks else rank for rank in ranks)
        listed = ", ".join(map(str, numbers))
        return CommunicatorError(
            f"group {options.group!r}, rank {options.rank} of {options.world_size}: rank {listed} "
            f"{text}; look at its own messages",
            numbers,
        )

    def close(self) -> None:
        """Let go of the processes; twice does nothing."""
        self._members.close()
