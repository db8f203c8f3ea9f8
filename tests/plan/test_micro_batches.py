"""Micro-batches as a file states them, and their rows."""

from __future__ import annotations

import numpy as np
import pytest

from engine.distributed.micro_batches import _joined, _rows
from engine.formats.micro_batches import KEY, MicroBatches, micro_batches_of


def test_a_files_metadata_says_how_it_runs_its_batch() -> None:
    said = MicroBatches(4, ("x", "mask"))
    assert micro_batches_of({KEY: said.text()}) == said


@pytest.mark.parametrize(
    "text",
    ["", "4", "{", "[]", "{}", '{"rows": 0, "inputs": ["x"]}', '{"rows": -1, "inputs": []}',
     '{"rows": "many", "inputs": []}', '{"rows": 1e999, "inputs": []}', "[" * 100_000],
)  # fmt: skip
def test_metadata_that_is_not_legible_says_nothing(text: str) -> None:
    assert micro_batches_of({KEY: text}) is None


@pytest.mark.parametrize("total", range(10))
def test_parts_of_a_batch_are_full_and_make_it_up(total: int) -> None:
    batch = np.arange(total * 2, dtype=np.float32).reshape(total, 2) + 1
    parts = [_rows(batch, begin, 4) for begin in range(0, max(total, 1), 4)]
    assert {part.shape for part in parts} == {(4, 2)}
    np.testing.assert_array_equal(_joined(parts, total), batch, strict=True)
