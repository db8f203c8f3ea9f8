"""Check, before the first predict, that all ranks will run collectives that fit together.

Ranks whose collectives differ exchange the wrong tensors or wait for ever. So each rank gives the
others its sequence, and compares: what a group does together must be the same on each of its
ranks, and what one rank sends another must receive.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from engine.distributed.store import exchange
from engine.errors import CommunicatorError
from engine.plan.collectives import Collective, between, difference, of_group
from engine.types import Store

__all__ = ["agree"]


def agree(
    store: Store,
    rank: int,
    world_size: int,
    collectives: Sequence[Collective],
    timeout_s: float,
) -> None:
    """Compare this rank's collectives with those of all ranks of the job; every rank calls it.

    store: its keys are this comparison's own. collectives: `engine.plan.collectives.sequence` of
        this rank's model.
    Raises CommunicatorError naming two ranks and the first collective in which they differ, or
    the ranks that did not come within `timeout_s`.
    """
    text = json.dumps([asdict(collective) for collective in collectives]).encode()
    texts = exchange(store, rank, world_size, text, timeout_s)
    sequences = [[_collective(**fields) for fields in json.loads(text)] for text in texts]
    # Every rank compares all pairs, so that all of them fail, with the same text.
    for first in range(world_size):
        for second in range(first + 1, world_size):
            problem = _difference(sequences, first, second)
            if problem:
                raise CommunicatorError(
                    f"the models of rank {first} and rank {second} do not fit together: {problem} "
                    f"(here: rank {first}, there: rank {second}); give every rank its part of one "
                    "sliced model",
                    (first, second),
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
