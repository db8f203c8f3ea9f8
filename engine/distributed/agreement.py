"""Check, before the first predict, that all ranks will run the same collectives in the same order.

Ranks whose collectives differ exchange the wrong tensors or wait for ever. Each rank describes
its sequence, one line a collective; the ranks compare digests, and only where these differ the
lines, to name what differs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from engine.distributed.store import GroupStore, exchange
from engine.errors import CommunicatorError
from engine.types import Store

__all__ = ["agree"]


def agree(
    store: Store, rank: int, world_size: int, sequence: Sequence[str], timeout_s: float
) -> None:
    """Compare this rank's collectives with those of all ranks of a group; every rank calls it.

    store: the group's own. sequence: one line a collective, in running order, equal on all ranks
        where the collectives fit together (operator, group, element type, shape, root).
    Raises CommunicatorError naming two ranks and the first collective in which they differ, or
    the ranks that did not come within `timeout_s`.
    """
    text = json.dumps(list(sequence)).encode()
    digest = hashlib.sha256(text).digest()
    digests = exchange(GroupStore(store, "digests"), rank, world_size, digest, timeout_s)
    if len(set(digests)) == 1:
        return
    texts = exchange(GroupStore(store, "sequences"), rank, world_size, text, timeout_s)
    sequences = [list(map(str, json.loads(text))) for text in texts]
    first, *others = sequences
    for other, lines in enumerate(others, 1):
        if lines != first:
            raise CommunicatorError(_difference(first, other, lines), (0, other))
    raise AssertionError("digests differ and sequences do not")


def _difference(first: Sequence[str], other: int, lines: Sequence[str]) -> str:
    """Describe the first collective in which rank 0 and rank `other` differ."""
    for index in range(max(len(first), len(lines))):
        theirs = [_line(part, index) for part in (first, lines)]
        if theirs[0] != theirs[1]:
            break
    return (
        f"the ranks' models do not fit together: collective {index} is {theirs[0]} on rank 0, but "
        f"{theirs[1]} on rank {other}; give every rank its part of one sliced model"
    )


def _line(lines: Sequence[str], index: int) -> str:
    return lines[index] if index < len(lines) else f"missing (there are {len(lines)})"
