"""Strategy files that MindSpore 2.10 has written, with the nets that they are of.

tests/data/mindir/strategies has a folder a net: `full.mindir`, and what semi_auto_parallel saved
for a rank, as protobuf and as JSON. The layouts in a file are MindSpore's own answer to the splits
of its operators.
"""

from __future__ import annotations

import logging
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from engine import sharding
from engine.errors import InputError, ModelError
from engine.sharding import Layout, NodeStrategy, Strategy
from engine.sharding.slicing.slice import slice_model

needs_cpu = pytest.mark.skipif(
    find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)

FOLDER = Path(__file__).parents[1] / "data" / "mindir" / "strategies"
FILES = sorted(FOLDER.glob("*/strategy*"))
NO_PARAMETER_LEFT = {"BiasAdd_conv.bias"}  # reading the MindIR computes this bias anew


def boxes(layout: Layout, shape: tuple[int, ...], ranks: int) -> list[object]:
    return [layout.box(rank, shape) for rank in range(ranks)]


def name_of(path: Path) -> str:
    return str(path.relative_to(FOLDER))


def test_there_are_files_of_each_kind() -> None:
    assert {path.suffix for path in FILES} == {".ckpt", ".json"}
    assert len(FILES) > 30


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_layouts_that_follow_from_the_operators_are_those_that_mindspore_wrote(path: Path) -> None:
    strategy = Strategy.load(path)
    ranks = max(layout.device_count for layout in strategy.layouts.values())
    nodes = {key: node for key, node in strategy.nodes.items() if key not in NO_PARAMETER_LEFT}
    followed = sharding.infer_predict_layout(
        path.parent / "full.mindir", strategy=nodes, device_num=ranks
    )
    whole_file = sharding.infer_predict_layout(path.parent / "full.mindir", strategy=path)
    for name, wanted in strategy.layouts.items():
        shape = followed[name].tensor_shape
        expected = boxes(wanted, shape, ranks)
        assert boxes(whole_file[name], shape, ranks) == expected
        if not any(key.endswith(f"_{name}") for key in NO_PARAMETER_LEFT):
            assert boxes(followed[name], shape, ranks) == expected


@needs_cpu
@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_the_slices_of_a_file_compute_what_the_whole_model_does(path: Path, tmp_path: Path) -> None:
    strategy = Strategy.load(path)
    tp = max(layout.device_count for layout in strategy.layouts.values())
    report = slice_model(path.parent / "full.mindir", tmp_path, tp=tp, strategy=path, replicas=True)
    assert report.differences
    assert all(one.is_equal or one.difference <= 1e-6 * one.largest for one in report.differences)
    split = any(not layout.is_whole for layout in strategy.layouts.values())
    assert (report.divided_bytes > 0) == split


@needs_cpu
def test_weights_are_divided_along_the_axes_of_the_file(tmp_path: Path) -> None:
    slice_model(FOLDER / "col_row_tb/full.mindir", tmp_path, tp=2,
                strategy=FOLDER / "col_row_tb/strategy_rank0.ckpt")  # fmt: skip
    done = Strategy.load(tmp_path / "full.strategy.json").layouts
    assert boxes(done["fc1.weight"], (16, 8), 2) == [((0, 8), (0, 8)), ((8, 16), (0, 8))]
    assert boxes(done["fc2.weight"], (4, 16), 2) == [((0, 4), (0, 8)), ((0, 4), (8, 16))]


@needs_cpu
def test_the_merged_strategies_of_all_stages_serve_as_one(tmp_path: Path) -> None:
    (tmp_path / "stages").mkdir()
    for rank in (0, 2):
        shutil.copy(FOLDER / f"staged/strategy_rank{rank}.ckpt", tmp_path / "stages")
    merged = tmp_path / "merged.ckpt"
    sharding.merge_pipeline_strategys(tmp_path / "stages", merged)
    report = slice_model(
        FOLDER / "staged/full.mindir", tmp_path / "out", tp=2, pp=2, strategy=merged
    )
    assert report.ranks[-1].stage == 1
    assert report.divided_bytes == 4 * (8 * 16 + 16 + 16 * 4 + 4 * 6)  # all but the bias of rows
    layouts = sharding.infer_predict_layout(FOLDER / "staged/full.mindir", strategy=merged)
    assert boxes(layouts["b.w"], (4, 6), 2) == [((0, 2), (0, 6)), ((2, 4), (0, 6))]


@needs_cpu
def test_an_operator_that_cannot_be_split_so_is_divided_otherwise_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = FOLDER / "conv_in"
    with caplog.at_level(logging.WARNING, "engine"):
        slice_model(folder / "full.mindir", tmp_path, tp=2, strategy=folder / "strategy_rank0.json")
    assert "Conv 'Default/Conv2D-op0' is divided otherwise than by" in caplog.text


@pytest.mark.parametrize("key", ["MatMul_fc9.weight", "Conv2D_fc1.weight", "fc1.weight", "_"])
def test_a_key_that_means_no_operator_is_refused(key: str, tmp_path: Path) -> None:
    path = FOLDER / "col_row/full.mindir"
    splits = {key: NodeStrategy(((1, 1), (1, 2)))}
    with pytest.raises(InputError, match=f"the model has no node '{key}'"):
        sharding.infer_predict_layout(path, strategy=splits)
    with pytest.raises(ModelError, match=f"node '{key}' is not in"):
        slice_model(path, tmp_path / "out", tp=2, strategy=Strategy(splits))
    assert not os.listdir(tmp_path)
