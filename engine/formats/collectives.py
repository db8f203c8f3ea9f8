"""Collective operators: nodes by which the ranks of a sliced model exchange values."""

from __future__ import annotations

DOMAIN = "com.microsoft"
COLLECTIVES = frozenset(
    ("AllGather", "AllReduce", "AllToAll", "Barrier", "Broadcast", "Receive", "ReduceScatter",
     "Send")
)  # fmt: skip


def is_collective(op_type: str, domain: str) -> bool:
    """Return whether such a node waits for other ranks."""
    return domain == DOMAIN and op_type in COLLECTIVES
