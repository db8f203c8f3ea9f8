"""Check, before the first predict, that all ranks will run collectives that fit together.

Ranks whose collectives differ exchange the wrong tensors or wait for ever. So each rank gives the
others its sequence, and compares: what a group does together must be the same on each of its
ranks, and what one rank sends another must receive. Files that say whose part they are must be
those of one slicing, each with its own rank: two ranks with the same part agree in everything else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from engine.distributed.sequence import Collective, between, difference, of_group
from engine.errors import CommunicatorError
from engine.formats.collectives import Part

__all__ = ["agree"]


def agree(
    exchange: Callable[[bytes, float], list[bytes]],
    collectives: Sequence[Collective],
    timeout_s: float,
    part: Part | None = None,
) -> None:
    """Compare this rank's collectives with those of all ranks of the job; every rank calls it.

    exchange: see `Rendezvous.exchange`. collectives: `sequence` of this rank's model. part: whose
        part that is, where it says so.
    Raises CommunicatorError naming two ranks and the first collective in which they differ, or
    the ranks that did not come within `timeout_s`.
    """
    own = {
        "part": None if part is None else asdict(part),
        "collectives": [asdict(collective) for collective in collectives],
    }
    texts = exchange(json.dumps(own).encode(), timeout_s)
    given = [json.loads(text) for text in texts]
    _check_parts([Part(**one["part"]) if one["part"] else None for one in given])
    sequences = [[_collective(**fields) for fields in one["collectives"]] for one in given]
    # Every rank compares all pairs, so that all of them fail, with the same text.
    for first, second in combinations(range(len(given)), 2):
        problem = _difference(sequences, first, second)
        if problem:
            raise CommunicatorError(
                f"the models of rank {first} and rank {second} do not fit together: {problem} "
                f"(here: rank {first}, there: rank {second}); give every rank its part of one "
                "sliced model",
                (first, second),
            )


def _check_parts(parts: Sequence[Part | None]) -> None:
    """Raise CommunicatorError for a rank that was given another one's part, on every rank alike."""
    world_size = len(parts)
    known = [(rank, part) for rank, part in enumerate(parts) if part is not None]
    for rank, part in known:
        if (part.rank, part.world_size) != (rank, world_size):
            raise CommunicatorError(
                f"rank {rank} of {world_size} was given the part that was sliced for rank "
                f"{part.rank} of {part.world_size}; give every rank its own part of one slicing",
                (rank,),
            )
    for rank, part in known:
        first, other = known[0]
        if part.slicing != other.slicing:
            raise CommunicatorError(
                f"the models of rank {first} and rank {rank} are parts of different models, or "
                "were sliced in different ways; give every rank its part of one slicing",
                (first, rank),
            )


def _difference(sequences: Sequence[Sequence[Collective]], first: int, second: int) -> str:
    """Describe the first collective in which two ranks differ; "" where they fit together."""
    one, other = sequences[first], sequences[second]
    groups = {collective.group for collective in one} & {collective.group for collective in other}
    # The group of all ranks has no name: a rank without any of its collectives is a difference.
    for group in sorted({"", *groups}):
        problem = difference(of_group(one, group), of_group(other, group))
        if problem:
            return problem
    return difference(between(one, first, second), between(other, second, first))


def _collective(shape: list[Any] | None, attributes: list[list[Any]], **fields: Any) -> Collective:
    """Return a collective out of JSON, which has lists for tuples."""
    return Collective(
        shape=None if shape is None else tuple(shape),
        attributes=tuple(
            (name, tuple(value) if isinstance(value, list) else value) for name, value in attributes
        ),
        **fields,
    )
