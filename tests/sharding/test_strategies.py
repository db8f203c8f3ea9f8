"""Strategy files: MindSpore's protobuf, against Google's implementation of it, and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sliced_jobs import messages

from engine import sharding
from engine.errors import InputError, ModelError
from engine.sharding import Layout, NodeStrategy, Parameter, Strategy

STRATEGY = Strategy(
    {"fc1": NodeStrategy(((1, 1), (1, 4)), 0), "fc2": NodeStrategy(((1, 4), (4, 1)), 0)},
    {
        "fc1.weight": Layout((2, 4), (-1, 0), (), 0, 4, 2),
        "fc2.weight": Layout((2, 4), (0, -1), (), 0, 4, -1),
        "table": Layout((2, 4), (0, -1), (3, 2, 4, 1), 0, 0, 0, indices_offset=(0, 3, 5, 9)),
    },
    1,
)


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """The messages of node_strategy.proto, as Google's protobuf makes them."""
    return messages({
        "Dims": [("dim", 1, "uint32*")],
        "Map": [("dim", 1, "int32*")],
        "Long": [("dim", 1, "int64*")],
        "Node": [("stage", 1, "uint32"), ("parallel_strategy", 2, "Dims*")],
        "StrategyItem": [("node_name", 1, "string"), ("parallel_strategys", 2, "Node")],
        "ParallelLayouts": [
            ("dev_matrix", 1, "Dims*"), ("tensor_map", 2, "Map*"),
            ("param_split_shape", 3, "Long*"), ("indices_offset", 4, "Long*"),
            ("field", 5, "int32"),
            ("opt_weight_shard_step", 6, "int32"), ("opt_weight_shard_size", 7, "int32"),
        ],
        "LayoutItem": [("param_name", 1, "string"), ("parallel_layouts", 2, "ParallelLayouts")],
        "StrategyMap": [
            ("current_stage", 1, "uint32"), ("parallel_strategy_item", 2, "StrategyItem*"),
            ("parallel_layout_item", 3, "LayoutItem*"),
        ],
        "GroupItem": [("group_name", 1, "string"), ("parallel_group_ranks", 2, "Dims")],
        "GroupMap": [
            ("parallel_group_item", 1, "GroupItem*"), ("ckpt_restore_rank_list", 2, "Dims"),
        ],
    })  # fmt: skip


def test_a_strategy_reads_back_as_it_was_written(tmp_path: Path) -> None:
    for name in ("s.ckpt", "s.json"):
        STRATEGY.save(tmp_path / name)
        got = Strategy.load(tmp_path / name)
        assert (got.nodes, got.layouts, got.current_stage) == (STRATEGY.nodes, STRATEGY.layouts, 1)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_what_is_written_is_what_protobuf_reads(tmp_path: Path, schema: dict[str, Any]) -> None:
    STRATEGY.save(tmp_path / "s.ckpt")
    whole = schema["StrategyMap"].FromString((tmp_path / "s.ckpt").read_bytes())
    assert whole.current_stage == 1
    [first, _] = whole.parallel_strategy_item
    assert first.node_name == "fc1"
    assert [list(part.dim) for part in first.parallel_strategys.parallel_strategy] == [
        [1, 1],
        [1, 4],
    ]
    [column, _, table] = whole.parallel_layout_item
    layout = column.parallel_layouts
    assert column.param_name == "fc1.weight"
    assert (list(layout.dev_matrix[0].dim), list(layout.tensor_map[0].dim)) == ([2, 4], [-1, 0])
    assert (layout.opt_weight_shard_step, layout.opt_weight_shard_size) == (4, 2)
    assert list(table.parallel_layouts.param_split_shape[0].dim) == [3, 2, 4, 1]


def test_what_protobuf_writes_is_read(tmp_path: Path, schema: dict[str, Any]) -> None:
    whole = schema["StrategyMap"]()
    item = whole.parallel_layout_item.add(param_name="w")
    item.parallel_layouts.dev_matrix.add(dim=[8, 300])
    item.parallel_layouts.tensor_map.add(dim=[-1, 1])
    item.parallel_layouts.opt_weight_shard_size = -1
    (tmp_path / "s.ckpt").write_bytes(whole.SerializeToString())
    layouts = sharding.build_searched_strategy(tmp_path / "s.ckpt")
    assert layouts == {"w": Layout((8, 300), (-1, 1), opt_weight_shard_size=-1)}


def test_the_json_form_is_that_of_mindspore(tmp_path: Path) -> None:
    STRATEGY.save(tmp_path / "s.json")
    whole = json.loads((tmp_path / "s.json").read_text())
    assert whole["parallel_strategy_item"]["fc2"] == {
        "stage": 0,
        "parallel_strategy": [[1, 4], [4, 1]],
    }
    assert whole["parallel_layout_item"]["fc1.weight"] == {
        "dev_matrix": [2, 4],
        "tensor_map": [-1, 0],
        "field": 0,
        "opt_weight_shard_step": 4,
        "opt_weight_shard_size": 2,
    }


def test_stages_are_merged_under_their_numbers(tmp_path: Path) -> None:
    for form in ("ckpt", "json"):
        for rank in range(4):
            stage = rank // 2
            Strategy(
                {f"n{stage}": NodeStrategy(((2,),), stage)}, {"w": Layout((2,), (stage - 1,))}
            ).save(tmp_path / form / f"rank{rank}.{form}")
        sharding.merge_pipeline_strategys(tmp_path / form, tmp_path / f"merged.{form}")
        got = Strategy.load(tmp_path / f"merged.{form}")
        assert {name: layout.tensor_map for name, layout in got.layouts.items()} == {
            "0-w": (-1,),
            "1-w": (0,),
        }
        assert {name: node.stage for name, node in got.nodes.items()} == {"n0": 0, "n1": 1}


def test_a_group_file_says_from_which_ranks_to_restore(
    tmp_path: Path, schema: dict[str, Any]
) -> None:
    groups = schema["GroupMap"]()
    groups.parallel_group_item.add(group_name="4-1").parallel_group_ranks.dim.extend([0, 1, 2, 3])
    groups.ckpt_restore_rank_list.dim.extend([0, 2, 300])
    (tmp_path / "group.pb").write_bytes(groups.SerializeToString())
    assert sharding.restore_group_info_list(tmp_path / "group.pb") == [0, 2, 300]


def test_slices_are_merged_by_their_layout() -> None:
    whole = np.arange(32, dtype=np.float32).reshape(4, 8)
    # Rank r is row r // 4 and column r % 4 of the devices; rows of the tensor go by columns.
    slices = [
        Parameter(np.split(np.split(whole, 4, 0)[rank % 4], 2, 1)[rank // 4], "w")
        for rank in range(8)
    ]
    merged = sharding.merge_sliced_parameter(slices, {"w": Layout((2, 4), (0, 1))})
    assert merged.name == "w"
    np.testing.assert_array_equal(merged.asnumpy(), whole)


def test_slices_without_a_strategy_follow_each_other() -> None:
    slices = [Parameter(np.full((1, 3), rank), "w", requires_grad=False) for rank in range(3)]
    merged = sharding.merge_sliced_parameter(slices)
    np.testing.assert_array_equal(merged.data, [[0] * 3, [1] * 3, [2] * 3])
    assert not merged.requires_grad


def test_interleaved_tables_are_merged_field_by_field() -> None:
    # Two fields of 4 rows; each of two ranks has two rows of each field.
    whole = np.arange(16).reshape(8, 2)
    slices = [Parameter(whole[[0, 1, 4, 5]], "t"), Parameter(whole[[2, 3, 6, 7]], "t")]
    merged = sharding.merge_sliced_parameter(slices, {"t": Layout((2,), (0, -1), field_size=2)})
    np.testing.assert_array_equal(merged.data, whole)


@pytest.mark.parametrize(
    ("slices", "strategy", "kind", "text"),
    [
        ([], None, InputError, "is empty"),
        ([("a", (2,)), ("b", (2,))], None, InputError, r"\[1\] is called 'b', and the first 'a'"),
        ([("a", (2,))], {"b": Layout()}, KeyError, "'a' is not in the strategy"),
        ([("a", (2,))], {"a": Layout((2,), (0,))}, InputError, "got 1 slices; .* 2 devices"),
        (
            [("a", (2,)), ("a", (3,))],
            {"a": Layout((2,), (0,))},
            InputError,
            r"slice 1 has shape \[3\]; expected \[2\]",
        ),
    ],
)
def test_slices_that_do_not_fit_are_refused(
    slices: list[tuple[str, tuple[int, ...]]], strategy: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        sharding.merge_sliced_parameter(
            [Parameter(np.zeros(shape), name) for name, shape in slices], strategy
        )


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("s.ckpt", b"\xff\xff\xff", "damaged at byte 0"),
        ("s.ckpt", b"\x1a\x20abc", "damaged at byte 0: .* claims 32 bytes where 3 are left"),
        ("s.ckpt", b"\x08\x01", "has neither a strategy of an operator nor a layout"),
        ("s.ckpt", b"", "is empty; expected a strategy file"),
        ("s.json", b"\x08\x01", "is no JSON"),
        ("s.json", b"[1]", "holds list; expected an object"),
        (
            "s.json",
            b'{"parallel_layout_item": {"w": {"dev_matrix": [2]}}}',
            "'w' has no 'tensor_map'",
        ),
        (
            "s.json",
            b'{"parallel_layout_item": {"w": {"dev_matrix": [2], "tensor_map": [[0]]}}}',
            r"'w': 'tensor_map' is \[\[0\]\]; expected whole numbers",
        ),
    ],
)  # fmt: skip
def test_files_that_are_no_strategies_are_refused(
    name: str, content: bytes, text: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=text) as raised:
        sharding.build_searched_strategy(tmp_path / name)
    assert str(tmp_path / name) in str(raised.value)


def test_each_truncation_of_a_strategy_is_refused_or_says_less(tmp_path: Path) -> None:
    STRATEGY.save(tmp_path / "s.ckpt")
    content = (tmp_path / "s.ckpt").read_bytes()
    for length in range(1, len(content)):
        (tmp_path / "cut.ckpt").write_bytes(content[:length])
        try:
            got = Strategy.load(tmp_path / "cut.ckpt")
        except ModelError:
            continue
        assert len(got.layouts) < len(STRATEGY.layouts)


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout((2, 0), (0,)), "expected sizes of 1 or more"),
        (Layout((), ()), "expected sizes of 1 or more"),
        (Layout((2, 2), (2,)), "names dimension 2 of a device matrix of 2; expected -1 to 1"),
        (Layout((2, 2), (0, 0)), "splits two dimensions over the same devices"),
        (Layout((1 << 20, 1 << 20), (0,)), "at most 131,072 are expected"),
        (Layout((1 << 62,) * 64, (0,)), "at most 131,072 are expected"),
        (Layout((1,) * 10_000 + (2,) * 17, (0,)), "its device matrix has 10,017 dimensions"),
        (Layout((2,) * 17, (0, *(-1,) * 10_000)), "its tensor map 10,001; at most 64"),
        (Layout((2, 2), (0,), (), 0, 1, 2), "do not all hold the same slice"),
        (Layout((2, 2), (0,), (), 0, 2, 4), "do not all hold the same slice"),
        (Layout((4,), (-1,), (), 0, 1, -2), "expected -1 or more"),
    ],
)
def test_layouts_that_contradict_themselves_are_refused(
    layout: Layout, text: str, tmp_path: Path
) -> None:
    Strategy({}, {"fine": Layout((4,), (-1,)), "w": layout}).save(tmp_path / "s.ckpt")
    with pytest.raises(ModelError, match=text) as raised:
        sharding.rank_list_for_transform(0, tmp_path / "s.ckpt")
    assert f"{tmp_path / 's.ckpt'}: parameter 'w'" in str(raised.value)


def test_a_stage_of_any_number_is_refused_without_counting_to_it(tmp_path: Path) -> None:
    Strategy({}, {"999999999-w": Layout((2,), (0,))}).save(tmp_path / "s.ckpt")
    with pytest.raises(ModelError, match="no parameter of stage 0"):
        sharding.rank_list_for_transform(0, tmp_path / "s.ckpt")


def test_sizes_that_python_does_not_write_out_are_refused(tmp_path: Path) -> None:
    Strategy({}, {"w": Layout((10**4000, 10**4000), (0,))}).save(tmp_path / "s.json")
    with pytest.raises(ModelError, match="at most 131,072 are expected"):
        sharding.rank_list_for_transform(0, tmp_path / "s.json")


def test_an_optimizer_shard_over_other_ranks_than_the_nearest_is_right() -> None:
    # Two replicas that are 1 apart share a slice; the model's slices are 2 apart.
    layout = Layout((2, 2), (1,), (), 0, 1, 2)
    assert [layout.box(rank, (8,)) for rank in range(4)] == [
        ((0, 2),), ((2, 4),), ((4, 6),), ((6, 8),),
    ]  # fmt: skip


def test_wrong_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="strategy_filename must be str"):
        sharding.build_searched_strategy(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="group_info_file_name must be str"):
        sharding.restore_group_info_list(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="rank_id must be int"):
        sharding.rank_list_for_transform("0")  # type: ignore[arg-type]
    with pytest.raises(NotADirectoryError, match="no such folder"):
        sharding.merge_pipeline_strategys(tmp_path / "none", tmp_path / "out.ckpt")
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "a.ckpt").write_text("{}")
    with pytest.raises(ModelError, match=r"all in \.json; got files of both forms"):
        sharding.merge_pipeline_strategys(tmp_path, tmp_path / "out.ckpt")
