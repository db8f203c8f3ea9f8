"""Ranks compare their collectives before the first predict."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from threads import outcomes, values

from engine.distributed.agreement import agree
from engine.distributed.sequence import Collective
from engine.distributed.store import StoreServer, connect, exchange
from engine.errors import CommunicatorError
from engine.formats.collectives import Part, part_of


def collective(op: str, shape: Any = (4,), **fields: Any) -> Collective:
    known = {"group": "", "dtype": "float32", "peer": -1, "attributes": ()}
    return Collective(op=op, shape=shape, **{**known, **fields})


REDUCE = collective("AllReduce", attributes=(("reduction", "sum"), ("dims", (1, 2))))
GATHER = collective("AllGather", (2, 3))


def compared(*sequences: Sequence[Collective], parts: Sequence[Part | None] = ()) -> list[str]:
    """Let ranks with these sequences compare them; the error of each, "" for none."""
    parts = parts or [None] * len(sequences)

    def rank_main(rank: int) -> str:
        store = connect(server.address, server.key)
        try:
            agree(
                partial(exchange, store, rank, len(sequences)), sequences[rank], 10.0, parts[rank]
            )
        except CommunicatorError as error:
            return str(error)
        return ""

    with StoreServer() as server:
        return values(outcomes(len(sequences), rank_main))


@pytest.mark.parametrize(
    "sequences",
    [
        [(REDUCE, GATHER), [REDUCE, GATHER], [REDUCE, GATHER]],
        [[replace(REDUCE, shape=("batch", 3)), GATHER],
         [replace(REDUCE, shape=("N", 3)), replace(GATHER, dtype="", shape=None)]],
        [[REDUCE, replace(GATHER, group="0-1")], [replace(GATHER, group="0-1"), REDUCE], [REDUCE]],
    ],
    ids=["equal", "names of symbolic dims and types left open", "ranks outside of a group"],
)  # fmt: skip
def test_sequences_that_fit_together_are_no_error(sequences: list[Sequence[Collective]]) -> None:
    assert compared(*sequences) == [""] * len(sequences)


def test_what_one_rank_sends_another_receives() -> None:
    send, receive = collective("Send", peer=1), collective("Receive", peer=0)
    assert compared([send, REDUCE], [REDUCE, receive]) == ["", ""]
    errors = compared([send, REDUCE], [REDUCE])
    assert errors[0] == errors[1] != ""
    assert "1 collectives here, but 0 there" in errors[0]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ([GATHER, REDUCE], "collective 0 is AllReduce.* here, but AllGather.* there"),
        ([REDUCE], "2 collectives here, but 1 there"),
        ([REDUCE, GATHER, REDUCE], "2 collectives here, but 3 there"),
        ([replace(REDUCE, shape=(5,)), GATHER], r"collective 0 is .*\(4,\).*\(5,\)"),
        ([REDUCE, replace(GATHER, dtype="float16")], "collective 1 is .*float32.*float16"),
    ],
    ids=["exchanged", "removed", "added", "reshaped", "retyped"],
)
def test_every_rank_is_told_of_the_first_difference(other: list[Collective], says: str) -> None:
    errors = compared([REDUCE, GATHER], other)
    assert errors[0] == errors[1]
    assert re.search(says, errors[0]), errors[0]


def test_the_two_ranks_that_differ_are_named() -> None:
    errors = compared([REDUCE], [REDUCE], [GATHER], [REDUCE])
    assert all("rank 0 and rank 2" in error for error in errors)


PARTS = [Part(rank, 2, "one") for rank in range(2)]


@pytest.mark.parametrize("parts", [PARTS, [PARTS[0], None], [None, None]])
def test_each_rank_with_its_own_part_fits_and_so_does_a_file_that_does_not_say(
    parts: Sequence[Part | None],
) -> None:
    assert compared([REDUCE], [REDUCE], parts=parts) == ["", ""]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([PARTS[0], PARTS[0]],
         "rank 1 of 2 was given the part that was sliced for rank 0 of 2; give every rank its own"),
        ([PARTS[1], PARTS[0]],
         "rank 0 of 2 was given the part that was sliced for rank 1 of 2; give every rank its own"),
        ([None, Part(1, 4, "one")],
         "rank 1 of 2 was given the part that was sliced for rank 1 of 4; give every rank its own"),
        ([PARTS[0], Part(1, 2, "other")],
         "the models of rank 0 and rank 1 are parts of different models, or were sliced"),
    ],
    ids=["the same", "exchanged", "of more ranks", "of another slicing"],
)  # fmt: skip
def test_a_part_that_was_not_sliced_for_its_rank_is_named_on_every_rank(
    parts: Sequence[Part | None], says: str
) -> None:
    errors = compared([REDUCE], [REDUCE], parts=parts)
    assert errors[0] == errors[1]
    assert says in errors[0]


def test_a_part_is_read_back_and_metadata_of_others_is_none() -> None:
    part = Part(3, 4, "x")
    assert part_of({**part.metadata(), "author": "me"}) == part
    assert part_of({"author": "me"}) is None
    assert part_of({**part.metadata(), "engine.rank": "-1"}) is None
