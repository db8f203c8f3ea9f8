"""Layouts: which part of a tensor a rank holds, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine import sharding
from engine.sharding import Layout
from engine.sharding.layout import LayoutError


@pytest.mark.parametrize(
    ("layout", "shape", "boxes"),
    [
        pytest.param(
            # MindSpore's example of a tensor map: rows over the first dimension of 2 x 4 devices.
            Layout((2, 4), (1, -1)), (8, 3),
            [((0, 4), (0, 3))] * 4 + [((4, 8), (0, 3))] * 4, id="rows",
        ),
        pytest.param(
            Layout((2, 2), (0, 1)), (4, 6),
            [((0, 2), (0, 3)), ((2, 4), (0, 3)), ((0, 2), (3, 6)), ((2, 4), (3, 6))], id="crossed",
        ),
        pytest.param(
            # Ranks r and r + 2 hold one slice, and each of these four replicas a part: the two of
            # the first pair the same as those of the second.
            Layout((4, 2), (0, -1), (), 0, 2, 2), (8, 1),
            [((0, 2), (0, 1)), ((4, 6), (0, 1)), ((2, 4), (0, 1)), ((6, 8), (0, 1))] * 2,
            id="optimizer-over-some-replicas",
        ),
        pytest.param(
            Layout((4, 2), (0, -1), (), 0, -1, -1), (8, 1),
            [((start, start + 1), (0, 1)) for start in (0, 4, 1, 5, 2, 6, 3, 7)],
            id="optimizer-over-all-replicas",
        ),
        pytest.param(Layout((3,), ()), (), [(), (), ()], id="scalar"),
        pytest.param(
            Layout((3,), (0,), (4, 0, 1)), (5,), [((0, 4),), ((4, 4),), ((4, 5),)], id="uneven"
        ),
    ],
)  # fmt: skip
def test_each_rank_holds_its_part(
    layout: Layout, shape: tuple[int, ...], boxes: list[tuple[tuple[int, int], ...]]
) -> None:
    assert [layout.box(rank, shape) for rank in range(layout.device_count)] == boxes
    sizes = [end - start for start, end in boxes[0]]
    assert layout.whole_shape(sizes) == shape


@pytest.mark.parametrize(
    ("layout", "shape", "text"),
    [
        (Layout((2,), (0,)), (3,), r"dimension 0 of \[3\] cannot be split 2 ways"),
        (Layout((2,), (0,)), (2, 2), "has 1 entries, but the tensor has 2 dimensions"),
        (Layout((4,), (-1,), (), 0, 1, -1), (6,), "6 rows .* cannot be sharded 4 ways"),
        (Layout((2,), (), (), 0, 1, 2), (), "a scalar cannot be sharded 2 ways"),
    ],
)
def test_tensors_that_a_layout_cannot_split_are_refused(
    layout: Layout, shape: tuple[int, ...], text: str
) -> None:
    with pytest.raises(LayoutError, match=text):
        layout.box(0, shape)


def test_a_layout_begins_as_mindspores_list_does() -> None:
    assert list(Layout((2, 4), (1, -1), (), 0, 4, -1))[:7] == [(2, 4), (1, -1), (), 0, 4, -1, (0,)]


def test_a_transformation_holds_one_parameter_at_a_time(tmp_path: Path) -> None:
    tracemalloc = pytest.importorskip("tracemalloc")
    nbytes, count = 4 << 20, 12
    rows = Layout((2,), (0, -1))
    sharding.Strategy(layouts={f"w{n}": rows for n in range(count)}).save(tmp_path / "two.json")
    for rank in range(2):
        arrays = {f"w{n}": np.full((512, 1024), n, np.float32) for n in range(count)}
        sharding.save_checkpoint(arrays, tmp_path / "in" / f"rank_{rank}" / "net.ckpt")
    del arrays
    tracemalloc.start()
    sharding.transform_checkpoints(tmp_path / "in", tmp_path / "out", "n", tmp_path / "two.json")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert nbytes < peak < 2 * nbytes  # of 48 MiB


def test_all_that_is_public_is_there_and_says_what_it_is() -> None:
    for name in sharding.__all__:
        assert getattr(sharding, name).__doc__
    assert dir(sharding) == sharding.__all__
    with pytest.raises(AttributeError, match="has no attribute 'transform_checkpoint'"):
        sharding.transform_checkpoint  # noqa: B018
