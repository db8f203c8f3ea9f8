"""Ranks compare their collectives before the first predict."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from engine.distributed.agreement import agree
from engine.distributed.store import StoreServer, connect
from engine.errors import CommunicatorError

ONE = ["AllReduce 'a' sum world float32[4]", "AllGather 'b' world float32[2, 3]"]


def compared(*sequences: Sequence[str]) -> list[str]:
    """Let ranks with these sequences compare them; the error of each, "" for none."""
    errors = [""] * len(sequences)

    def rank_main(rank: int) -> None:
        try:
            agree(connect(server.address, server.key), rank, len(sequences), sequences[rank], 10.0)
        except CommunicatorError as error:
            errors[rank] = str(error)

    with StoreServer() as server:
        threads = [threading.Thread(target=rank_main, args=(r,)) for r in range(len(sequences))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    return errors


def test_equal_sequences_fit_together() -> None:
    assert compared(ONE, list(ONE), tuple(ONE)) == ["", "", ""]


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (ONE[::-1], "collective 0 is AllReduce 'a' .* on rank 0, but AllGather 'b' .* on rank 1"),
        (ONE[:1], r"collective 1 is AllGather .* but missing \(there are 1\) on rank 1"),
        ([*ONE, "Send 'c'"], r"collective 2 is missing \(there are 2\) on rank 0, but Send 'c' on"),
        ([ONE[0].replace("[4]", "[5]"), ONE[1]], r"float32\[4\] on rank 0, but .*\[5\] on rank 1"),
    ],
    ids=["exchanged", "removed", "added", "reshaped"],
)
def test_every_rank_is_told_of_the_first_difference(other: list[str], difference: str) -> None:
    import re

    errors = compared(ONE, other)
    assert errors[0] == errors[1]
    assert re.search(difference, errors[0]), errors[0]


def test_the_rank_that_differs_is_named() -> None:
    assert all("on rank 2;" in error for error in compared(ONE, ONE, ONE[:1], ONE))
