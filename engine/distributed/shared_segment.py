"""Memory of one rank that the others of its machine map, and that it alone writes.

    counters    one to a cache line: how far this rank has come, what it has sent and taken
    texts       the collective that it is in; why it takes part in none any more
    slots       two for the group, two for each other rank: what it contributes, or sends

The file has no name (memfd), so nothing is left when its processes end, however they do. Others
map it read-only, and it is sealed against being made shorter: no rank can harm another by it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from typing import Any, TypeAlias

import numpy as np

from engine.errors import CommunicatorError

Array: TypeAlias = "np.ndarray[Any, Any]"

SLOT_BYTES = 2 * 1024 * 1024
"""The most that goes from rank to rank in one step. A core's cache would like less, but each step
waits for the slowest rank, which costs most where other processes want the cores."""
PEER_SLOT_BYTES = 1024 * 1024
TEXT_BYTES = 512

_LINE = 8  # counters of 8 bytes in a cache line of 64: two ranks never write to one line

ROUND, STATE, ASLEEP, BLAMED = (number * _LINE for number in range(4))
"""Counters: steps of the group that this rank has contributed to; its State; whether it sleeps and
wants to be woken; 1 + the rank that it blames for its end, or 0."""
_SIGNATURES = 4  # and 5: of the collective whose data the even and the odd slot hold
REFUSED = 6 * _LINE
"""Counter: predicts that this rank has refused before their first step."""
_PER_PEER = 7  # sent, taken and two signatures for each rank

JOINED, LEFT, ABORTED = range(3)
"""A rank's state. One that ends without leaving stays JOINED."""

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def signature_word(parity: int) -> int:
    """Return the counter that says what the group's slot of this parity holds."""
    return (_SIGNATURES + parity) * _LINE


def sent_word(peer: int) -> int:
    """Return the counter of steps in which its owner has sent something to a rank."""
    return (_PER_PEER + 4 * peer) * _LINE


def taken_word(peer: int) -> int:
    """Return the counter of steps in which its owner has taken something from a rank."""
    return (_PER_PEER + 4 * peer + 1) * _LINE


def sent_signature_word(peer: int, parity: int) -> int:
    """Return the counter that says what the slot for a rank holds."""
    return (_PER_PEER + 4 * peer + 2 + parity) * _LINE


class SharedSegment:
    """A rank's file, mapped by itself or by another rank.

    words: its counters. Reading or writing one is a single load or store.
    """

    def __init__(self, descriptor: int, world_size: int, is_own: bool) -> None:
        self._texts_at = _page((_PER_PEER + 4 * world_size) * _LINE * 8)
        self._slots_at = _page(self._texts_at + (3 + 2 * world_size) * TEXT_BYTES)
        self._peers_at = self._slots_at + 2 * SLOT_BYTES
        size = self._peers_at + 2 * world_size * PEER_SLOT_BYTES
        if is_own:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        elif os.fstat(descriptor).st_size != size or not (
            fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        ):
            raise CommunicatorError(
                "a rank of this group shares memory of another layout; use one version of "
                "inference-engine on every rank"
            )
        access = mmap.PROT_READ | (mmap.PROT_WRITE if is_own else 0)
        self._memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED, access)
        self.words = memoryview(self._memory)[: self._texts_at].cast("q")

    def slot(self, parity: int) -> Array:
        """Return the bytes of one of the group's two slots."""
        return self._bytes(self._slots_at + parity * SLOT_BYTES, SLOT_BYTES)

    def peer_slot(self, peer: int, parity: int) -> Array:
        """Return the bytes of one of the two slots for what goes to one rank."""
        return self._bytes(self._peers_at + (2 * peer + parity) * PEER_SLOT_BYTES, PEER_SLOT_BYTES)

    def why(self) -> str:
        """Return why the owner takes part in nothing any more."""
        return self._read(0)

    def set_why(self, text: str) -> None:
        """Say why; before the state that it explains."""
        self._write(0, encoded(text))

    def said(self, word: int) -> str:
        """Return the text that explains a signature."""
        return self._read(self._place(word))

    def say(self, word: int, text: bytes, signature: int) -> None:
        """Write a signature, and the text that explains it, as `encoded` gives it."""
        self._write(self._place(word), text)
        self.words[word] = signature

    def _place(self, word: int) -> int:
        """Return which text explains a signature."""
        line = word // _LINE
        if line < _PER_PEER:
            return 1 + line - _SIGNATURES
        peer, kind = divmod(line - _PER_PEER, 4)
        return 3 + 2 * peer + kind - 2

    def _read(self, place: int) -> str:
        begin = self._texts_at + place * TEXT_BYTES
        text = self._memory[begin : begin + TEXT_BYTES].partition(b"\0")[0]
        return text.decode(errors="replace")

    def _write(self, place: int, text: bytes) -> None:
        begin = self._texts_at + place * TEXT_BYTES
        self._memory[begin : begin + TEXT_BYTES] = text

    def _bytes(self, begin: int, size: int) -> Array:
        return np.frombuffer(self._memory, np.uint8, size, begin)


def encoded(text: str) -> bytes:
    """Return a text as it stands in a segment: cut off, and filled up with zeros."""
    return text.encode()[: TEXT_BYTES - 1].ljust(TEXT_BYTES, b"\0")


def new_file() -> int:
    """Return the descriptor of a new file in memory that can be sealed."""
    return os.memfd_create("engine-rank", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def fence() -> None:
    """Order all that this thread has read and written before what it reads and writes after.

    Between taking and giving back a lock nothing moves out, and two pairs in a row leave no way
    past both: so it is on ARM; on x86 a lock's first instruction is a fence already. The lock is
    this call's own, so that a signal handler that raises in between leaves none taken.
    """
    lock = threading.Lock()
    lock.acquire()
    lock.release()
    lock.acquire()
    lock.release()


def _page(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
