"""Models in several ranks: the nodes by which they exchange values, and whose part a file is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DOMAIN = "com.microsoft"
COLLECTIVES = frozenset(
    ("AllGather", "AllReduce", "AllToAll", "Barrier", "Broadcast", "Receive", "ReduceScatter",
     "Send")
)  # fmt: skip

AFTERWARDS = "after_micro_batches"
"""Attribute of a collective that runs once in a predict, on what all micro-batches have made."""

WITH_SHAPE = "with_shape"
"""Attribute of a Send, Receive or Broadcast of a tensor whose sizes no file says: its shape goes
before it. Where a rank has nothing to give to such a Broadcast, `to` is the element type."""


def is_collective(op_type: str, domain: str) -> bool:
    """Return whether such a node waits for other ranks."""
    return domain == DOMAIN and op_type in COLLECTIVES


@dataclass(frozen=True, slots=True)
class Part:
    """The rank that a file of a sliced model was written for, as its metadata says.

    slicing: the same in all files of one slicing, and another one's in no other.
    """

    rank: int
    world_size: int
    slicing: str

    def metadata(self) -> dict[str, str]:
        """Return it as a file's metadata."""
        return {_RANK: str(self.rank), _WORLD_SIZE: str(self.world_size), _SLICING: self.slicing}


_RANK, _WORLD_SIZE, _SLICING = "engine.rank", "engine.world_size", "engine.slicing"


def part_of(metadata: Mapping[str, str]) -> Part | None:
    """Read whose part a model is; None where its metadata says nothing, or nothing legible."""
    rank, world_size = metadata.get(_RANK, ""), metadata.get(_WORLD_SIZE, "")
    if not (rank.isdecimal() and world_size.isdecimal()):
        return None
    return Part(int(rank), int(world_size), metadata.get(_SLICING, ""))
