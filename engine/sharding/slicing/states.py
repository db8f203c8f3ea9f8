"""In which form the ranks of one stage hold a tensor: all of it, a part along an axis, or a term.

Shard(1)                    # rank r of 2 holds columns r * n/2 to (r + 1) * n/2
Shard(1, (64, 64, 64))      # three blocks (fused Q, K and V), of each of which it holds a part
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"


class State(NamedTuple):
    """The form of one tensor on the ranks of a stage; equal on all of them.

    kind: "whole" on each rank, a "shard" of one axis, or "partial": the tensor is the sum over
    the ranks. axis: of a shard. blocks: sizes along it that are divided one by one, where the axis
    is not divided as one; their sum is the axis.
    """

    kind: str
    axis: int = -1
    blocks: tuple[int, ...] = ()

    def __str__(self) -> str:
        blocks = f" in {len(self.blocks)} blocks" if self.blocks else ""
        return f"axis {self.axis}{blocks}" if self.kind == "shard" else self.kind

    @property
    def is_shard(self) -> bool:
        """True where each rank holds a part of one axis."""
        return self.kind == "shard"


WHOLE = State("whole")
PARTIAL = State("partial")


def shard(axis: int, blocks: tuple[int, ...] = ()) -> State:
    """Return the state of a tensor that is divided along an axis; one block is none."""
    return State("shard", axis, blocks if len(blocks) > 1 else ())


def local_shape(shape: tuple[Any, ...], state: State, count: int) -> tuple[Any, ...]:
    """Return the shape of what each of `count` ranks holds of a tensor."""
    if not state.is_shard:
        return shape
    return (*shape[: state.axis], shape[state.axis] // count, *shape[state.axis + 1 :])


def ranges(size: int, state: State, rank: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield where along its axis the parts lie that a rank holds, in order."""
    start = 0
    for block in state.blocks or (size,):
        each = block // count
        yield start + rank * each, start + (rank + 1) * each
        start += block


def part(array: Array, state: State, rank: int, count: int) -> Array:
    """Return what a rank holds of a tensor: a view, but for blocks, and for terms of a sum.

    The term of rank 0 is the whole value, that of any other is zero.
    """
    if state == PARTIAL and rank:
        return np.zeros_like(array)
    if not state.is_shard:
        return array
    lead = (slice(None),) * state.axis
    pieces = [
        array[(*lead, slice(start, end))]
        for start, end in ranges(array.shape[state.axis], state, rank, count)
    ]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, state.axis)


def joined(parts: list[Array], state: State) -> Array:
    """Return the tensor of which each rank holds one of `parts`: the opposite of `part`."""
    if state == PARTIAL:
        total = parts[0].copy()
        for term in parts[1:]:
            np.add(total, term, out=total)
        return total
    if not state.is_shard:
        return parts[0]
    if not state.blocks:
        return np.concatenate(parts, state.axis)
    count, axis = len(parts), state.axis
    ends = np.cumsum([block // count for block in state.blocks])[:-1]
    cut = [np.split(part, ends, axis) for part in parts]
    return np.concatenate(
        [cut[rank][block] for block in range(len(state.blocks)) for rank in range(count)], axis
    )
