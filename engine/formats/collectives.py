"""What the ranks of a sliced model do together, as nodes of an ONNX model."""

from __future__ import annotations

DOMAIN = "com.microsoft"
COLLECTIVES = frozenset(
    ("AllGather", "AllReduce", "AllToAll", "Barrier", "Broadcast", "Receive", "ReduceScatter",
     "Send")
)  # fmt: skip


def is_collective(op_type: str, domain: str) -> bool:
    """Whether such a node waits for other ranks."""
    return domain == DOMAIN and op_type in COLLECTIVES
