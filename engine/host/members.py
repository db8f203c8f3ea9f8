"""The other ranks of a group, as a backend sees them: who has joined, whose process has ended.

For a backend whose library says neither. Ranks tell each other their machine and process by the
core's store; a rank of this machine whose process has ended is known at once, by its pidfd.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from engine.errors import CommunicatorError
from engine.host.peers import HAS_PEERS, has_ended
from engine.types import Store


class Members:
    """The ranks of one group. By one thread at a time until `join` returns; then by any."""

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._processes: dict[int, int] = {}  # rank -> pidfd, of ranks on this machine
        self._gone: list[int] = []  # ranks whose processes had ended before they were looked at

    def join(self, end_s: float) -> list[int]:
        """Say that this rank is here, and wait for the others; return those that do not come.

        end_s: on the monotonic clock. Raises the store's CommunicatorError but for its time-outs.
        """
        machine, own = _machine(), os.getpid()
        self._store.set(f"here {self._rank}", json.dumps([machine, own]).encode())
        missing = []
        for rank in range(self._world_size):
            if rank == self._rank:
                continue
            try:
                data = self._store.get(f"here {rank}", max(0.0, end_s - time.monotonic()))
            except CommunicatorError as error:
                if not error.timed_out:
                    raise
                missing.append(rank)
                continue
            where, pid = json.loads(data)
            if where == machine and pid != own and HAS_PEERS:
                try:
                    self._processes[rank] = os.pidfd_open(pid)
                except ProcessLookupError:
                    self._gone.append(rank)
                except OSError:
                    pass  # no descriptor is left: it is missed at the next collective's time-out
        return missing

    def has_ended(self, rank: int) -> bool:
        """Return whether the process of a rank on this machine has ended."""
        return rank in self._ended((rank,))

    def ended(self) -> list[int]:
        """Return the ranks whose processes on this machine have ended."""
        return self._ended(range(self._world_size))

    def _ended(self, ranks: Iterable[int]) -> list[int]:
        processes = self._processes  # another thread may call `close` meanwhile
        found = [
            rank
            for rank in ranks
            if rank in self._gone or (rank in processes and has_ended(processes[rank]))
        ]
        return found if self._processes is processes else []  # of what is closed nobody knows

    def close(self) -> None:
        """Let go of the processes; twice does nothing."""
        processes, self._processes, self._gone = self._processes, {}, []
        for process in processes.values():
            os.close(process)


def _machine() -> str:
    """Return what is the same for processes that see each other's pids, and for no others."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return f"unknown {os.urandom(8).hex()}"
