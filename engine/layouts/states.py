"""In which form the ranks of one stage hold a tensor: all of it, a part along an axis, or a term.

shard(1)                    # rank r of 2 holds columns r * n/2 to (r + 1) * n/2
shard(1, (64, 64, 64))      # three blocks (fused Q, K and V), of each of which it holds a part
shard(1, unit=1)            # 13 columns on 4 ranks: 4, 3, 3 and 3 of them
shard(1, unit=64)           # 3 heads of 64 columns on 2 ranks: 128 and 64 of them
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
    is not divided as one; their sum is the axis. unit: 0 where all ranks hold equal parts; else of
    how many elements a part is a multiple, as even as that allows, the first ranks holding more.
    """

    kind: str
    axis: int = -1
    blocks: tuple[int, ...] = ()
    unit: int = 0

    def __str__(self) -> str:
        blocks = f" in {len(self.blocks)} blocks" if self.blocks else ""
        uneven = " unevenly" if self.unit else ""
        return f"axis {self.axis}{blocks}{uneven}" if self.kind == "shard" else self.kind

    @property
    def is_shard(self) -> bool:
        """True where each rank holds a part of one axis."""
        return self.kind == "shard"

    def on(self, axis: int) -> State:
        """Return the state that divides another axis just so."""
        return self._replace(axis=axis)


WHOLE = State("whole")
PARTIAL = State("partial")


def shard(axis: int, blocks: tuple[int, ...] = (), unit: int = 0) -> State:
    """Return the state of a tensor that is divided along an axis; one block is none."""
    return State("shard", axis, blocks if len(blocks) > 1 else (), unit)


def division(
    axis: int, sizes: tuple[int, ...], count: int, unit: int = 1, *, is_even: bool = False
) -> State | None:
    """Return the state that divides blocks of these sizes among `count` ranks, evenly if it can.

    unit: of which parts are multiples. is_even: None rather than uneven parts. None, too, where
    a rank would have nothing.
    """
    if any(size % unit for size in sizes):
        return None
    if all(size and size % (unit * count) == 0 for size in sizes):
        return shard(axis, sizes)
    if is_even or any(size // unit < count for size in sizes):
        return None
    return shard(axis, sizes, unit)


def lengths(size: int, count: int, unit: int = 0) -> tuple[int, ...]:
    """Return how much of an axis, or of a block of it, each rank holds."""
    unit = unit or 1
    each, more = divmod(size // unit, count)
    return tuple((each + (rank < more)) * unit for rank in range(count))


def local_size(size: int, state: State, count: int, rank: int = 0) -> int:
    """Return how much of a divided axis a rank holds. Rank 0 holds the most."""
    if not state.unit:
        return size // count
    return sum(lengths(block, count, state.unit)[rank] for block in state.blocks or (size,))


def local_shape(shape: tuple[Any, ...], state: State, count: int, rank: int = 0) -> tuple[Any, ...]:
    """Return the shape of what a rank holds of a tensor."""
    if not state.is_shard:
        return shape
    own = local_size(shape[state.axis], state, count, rank)
    return (*shape[: state.axis], own, *shape[state.axis + 1 :])


def ranges(size: int, state: State, rank: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield where along its axis the parts lie that a rank holds, in order."""
    start = 0
    for block in state.blocks or (size,):
        sizes = lengths(block, count, state.unit)
        before = start + sum(sizes[:rank])
        yield before, before + sizes[rank]
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
    own = [lengths(block, count, state.unit) for block in state.blocks]
    cut = [
        np.split(part, np.cumsum([sizes[rank] for sizes in own])[:-1], axis)
        for rank, part in enumerate(parts)
    ]
    return np.concatenate(
        [cut[rank][block] for block in range(len(state.blocks)) for rank in range(count)], axis
    )
