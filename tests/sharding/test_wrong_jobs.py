"""Checkpoints that do not fit their strategies: each error names file, parameter, wanted, got."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sliced_jobs import Job

from engine import sharding
from engine.errors import InputError, ModelError
from engine.sharding import Layout, NodeStrategy, Strategy

FULL = {"w": np.arange(32, dtype=np.float32).reshape(8, 4)}
FOUR = Job(4, [{"w": Layout((4,), (0, -1))}])


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    return FOUR.write(FULL, tmp_path / "in")


@pytest.fixture
def strategy(tmp_path: Path) -> Path:
    return FOUR.write_strategy(tmp_path / "four.ckpt")


def transform(trained: Path, source: Path | None, target: Path | None = None) -> None:
    out = trained.parent / "out"
    try:
        sharding.transform_checkpoints(trained, out, "n", source, target)
    finally:
        assert not out.exists() or not list(out.iterdir())  # nothing of what failed


def test_a_missing_rank_is_named(trained: Path, strategy: Path) -> None:
    (trained / "rank_2" / "net.ckpt").unlink()
    with pytest.raises(ModelError) as raised:
        transform(trained, strategy)
    assert str(raised.value) == (
        f"{trained}: the checkpoint of rank 2 is missing, which rank 0 needs; expected a .ckpt or "
        f".safetensors file in {trained / 'rank_2'}"
    )


def test_a_rank_that_is_not_in_the_map_is_named(trained: Path, strategy: Path) -> None:
    files = {rank: trained / f"rank_{rank}" / "net.ckpt" for rank in (0, 1, 3)}
    with pytest.raises(ModelError, match=r"rank 2 is missing: rank 0 needs .* parameter 'w'; got"):
        sharding.transform_checkpoint_by_rank(0, files, trained / "w.ckpt", strategy)
    files[2] = trained / "none.ckpt"
    with pytest.raises(ModelError, match=r"none\.ckpt: no such file"):
        sharding.transform_checkpoint_by_rank(0, files, trained / "w.ckpt", strategy)
    assert not (trained / "w.ckpt").exists()


UNFIT = (
    "parameter 'w': expected float32[2, 4], as {zero} and {strategy} have it, got %s; it is "
    "another rank's or another model's file"
)
NONE = (
    "has no parameter 'w', of which rank 0 needs the part of rank 1; {strategy} says that it is "
    "there: is this the file of that job?"
)


@pytest.mark.parametrize(
    ("rank", "values", "says"),
    [
        pytest.param(3, {"w": np.float32([[0] * 4] * 4)}, UNFIT % "float32[4, 4]", id="a shape"),
        pytest.param(1, {"w": np.float16([[0] * 4] * 2)}, UNFIT % "float16[2, 4]", id="a type"),
        pytest.param(1, {"v": np.float32([[0] * 4] * 2)}, NONE, id="no such parameter"),
    ],
)
def test_a_file_that_does_not_fit_is_named(
    rank: int, values: dict[str, np.ndarray], says: str, trained: Path, strategy: Path
) -> None:
    odd, zero = (trained / f"rank_{number}" / "net.ckpt" for number in (rank, 0))
    sharding.save_checkpoint(values, odd)
    with pytest.raises(ModelError) as raised:
        transform(trained, strategy)
    assert str(raised.value) == f"{odd}: {says.format(zero=zero, strategy=strategy)}"


def test_a_parameter_that_the_strategy_does_not_know_and_that_differs_is_refused(
    trained: Path, strategy: Path
) -> None:
    for rank in range(4):
        values = {"w": FOUR.expected(FULL, rank)["w"], "sliced": np.full(2, rank)}
        sharding.save_checkpoint(values, trained / f"rank_{rank}" / "net.ckpt")
    with pytest.raises(ModelError) as raised:
        transform(trained, strategy)
    one, zero = trained / "rank_1" / "net.ckpt", trained / "rank_0" / "net.ckpt"
    assert str(raised.value).startswith(
        f"{one}: parameter 'sliced': differs from that in {zero}, but the strategy {strategy} does "
        "not know it"
    )


HALVES = [{"w": half} for half in np.split(FULL["w"], 2)]


@pytest.mark.parametrize("dst_strategy", [False, True], ids=["for one", "for four"])
@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        (HALVES, "parameter 'w' of rank 1 differs from rank 0's in {zero}"),
        (
            [HALVES[0], {"w": FULL["w"][4:7]}],
            "parameter 'w' of rank 1 is float32[3, 4], and float32[4, 4] in {zero}",
        ),
        ([HALVES[0], HALVES[0] | {"v": FULL["w"]}], "parameter 'v' of rank 1 is not in rank 0's"),
    ],
    ids=["other values", "another shape", "another stage"],
)
def test_slices_of_several_ranks_are_refused_where_no_strategy_joins_them(
    ranks: list[dict[str, np.ndarray]],
    says: str,
    dst_strategy: bool,
    strategy: Path,
    tmp_path: Path,
) -> None:
    files = [tmp_path / "two" / f"rank_{rank}" / "net.ckpt" for rank in range(2)]
    for values, file in zip(ranks, files, strict=True):
        sharding.save_checkpoint(values, file)
    with pytest.raises(ModelError) as raised:
        transform(tmp_path / "two", None, strategy if dst_strategy else None)
    assert str(raised.value).startswith(f"{files[1]}: {says.format(zero=files[0])}")
    assert "give src_strategy_file" in str(raised.value)


def test_ranks_without_rank_0_are_refused_where_no_strategy_joins_them(tmp_path: Path) -> None:
    for rank in (1, 2):
        sharding.save_checkpoint(FULL, tmp_path / "two" / f"rank_{rank}" / "net.ckpt")
    with pytest.raises(ModelError, match=r"checkpoints of ranks \[1, 2\] and none of rank 0"):
        transform(tmp_path / "two", None)


def test_statistics_of_each_rank_s_own_batches_are_rank_0_s_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for rank in range(2):
        values = {"w": FULL["w"], "bn.moving_mean": np.full(3, rank, np.float32)}
        sharding.save_checkpoint(values, tmp_path / "two" / f"rank_{rank}" / "net.ckpt")
    with caplog.at_level("WARNING", "engine"):
        sharding.transform_checkpoints(tmp_path / "two", tmp_path / "out", "n", None, None)
    assert "1 statistics that each rank has of its own batches are taken from rank 0" in caplog.text
    assert "bn.moving_mean" in caplog.text


def of_rows(ranks: int) -> Strategy:
    return Strategy({"n": NodeStrategy(((ranks, 1),))}, {"w": Layout((ranks,), (0, -1))})


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (of_rows(2), r"has a checkpoint of rank 3 .* is for 2 devices \(1 st"),
        (of_rows(8), "the checkpoint of rank 4 is missing"),
        (
            Strategy({}, {"a": Layout((4,), (0,)), "b": Layout((2,), (0,))}),
            "'b' is laid out over 2 devices and 'a' over 4; expected",
        ),
        (
            Strategy({}, {"0-a": Layout((4,), (0,)), "2-b": Layout((4,), (0,))}),
            "stages up to 2, but no parameter of stage 1; merge",
        ),
        (Strategy({"n": NodeStrategy(((1,),))}), "has no layout of any parameter"),
    ],
    ids=["fewer devices", "more devices", "two numbers of them", "a missing stage", "no layouts"],
)
def test_a_strategy_of_another_job_is_refused(
    source: Strategy, says: str, trained: Path, tmp_path: Path
) -> None:
    source.save(tmp_path / "s.ckpt")
    with pytest.raises(ModelError, match=says):
        transform(trained, tmp_path / "s.ckpt")


def test_more_files_than_a_strategy_has_devices_are_refused(trained: Path, tmp_path: Path) -> None:
    of_rows(2).save(tmp_path / "two.ckpt")
    files = {rank: trained / f"rank_{rank}" / "net.ckpt" for rank in range(4)}
    with pytest.raises(ModelError, match="has a checkpoint of rank 3"):
        sharding.transform_checkpoint_by_rank(0, files, tmp_path / "w.ckpt", tmp_path / "two.ckpt")


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout((3,), (0, -1)), r"'w' is float32\[8, 4\]: dimension 0 of .* be split 3 ways"),
        (Layout((4,), (0,)), "do not fit one tensor: its tensor map .* has 1 entries"),
        (Layout((8,), (-1, -1), (), 0, 1, 3), "the optimizer|same slice"),
        (Layout((4,), (0, -1), (3, 3, 1, 5)), "gives 12 in dimension 0, but the tensor has 8"),
        (Layout((4,), (0, -1), (3, 3, 2)), "does not give one number of rows for each of 4"),
        (Layout((4,), (0, -1), field_size=2), "merge it with merge_sliced_parameter"),
    ],
)
def test_a_target_that_does_not_fit_the_tensor_is_refused(
    layout: Layout, text: str, trained: Path, strategy: Path, tmp_path: Path
) -> None:
    Strategy({}, {"w": layout}).save(tmp_path / "target.json")
    with pytest.raises(ModelError, match=text):
        transform(trained, strategy, tmp_path / "target.json")


def test_strategies_of_different_models_are_refused(
    trained: Path, strategy: Path, tmp_path: Path
) -> None:
    Strategy({}, {"other": Layout((2,), (0, -1))}).save(tmp_path / "other.json")
    with pytest.raises(ModelError, match=r"are both strategies, .* of one model"):
        transform(trained, strategy, tmp_path / "other.json")


def test_a_damaged_checkpoint_is_named(trained: Path, strategy: Path) -> None:
    path = trained / "rank_1" / "net.ckpt"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ModelError, match=r"damaged at byte 0: .*") as raised:
        transform(trained, strategy)
    assert str(raised.value).startswith(f"{path}: ")


def test_folders_are_checked_first(trained: Path, strategy: Path, tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="no such folder; expected one with a folder rank"):
        transform(tmp_path / "none", strategy)
    (tmp_path / "void").mkdir()
    with pytest.raises(ModelError, match="holds no checkpoints"):
        transform(tmp_path / "void", strategy)
    sharding.save_checkpoint(FULL, trained / "rank_1" / "x.safetensors")
    with pytest.raises(ModelError, match="holds both forms"):
        transform(trained, strategy)
    (tmp_path / "file").write_text("")
    FOUR.write(FULL, tmp_path / "again")
    with pytest.raises(NotADirectoryError, match="is a file; expected a folder to write to"):
        sharding.transform_checkpoints(tmp_path / "again", tmp_path / "file", "n", strategy)


def test_a_warning_says_that_results_come_beside_their_sources(
    trained: Path, strategy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sharding.transform_checkpoints(trained, trained.parent / "out", "n", strategy)
    assert not caplog.records
    sharding.transform_checkpoints(trained, trained / ".." / trained.name, "n", strategy)
    [record] = caplog.records
    assert "give another folder as dst_checkpoints_dir" in record.getMessage()


def test_arguments_are_checked(trained: Path, strategy: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"rank_id 4: expected 0 to 3"):
        sharding.rank_list_for_transform(4, None, strategy)
    with pytest.raises(InputError, match="without dst_strategy_file there is one device"):
        sharding.rank_list_for_transform(1, strategy)
    with pytest.raises(InputError, match="output_format must be one of ckpt, safetensors"):
        sharding.transform_checkpoints(trained, tmp_path / "o", "n", strategy, output_format="pt")
    with pytest.raises(InputError, match=r"ckpt_prefix '\.\./x'"):
        sharding.transform_checkpoints(trained, tmp_path / "o", "../x", strategy)
    with pytest.raises(InputError, match=r"ends in \.ckpt or \.safetensors"):
        sharding.transform_checkpoint_by_rank(0, {}, tmp_path / "w.bin", strategy)
    with pytest.raises(TypeError, match="checkpoint_files_map must be dict"):
        sharding.transform_checkpoint_by_rank(0, [], tmp_path / "w.ckpt")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="src_strategy_file must be str"):
        sharding.rank_list_for_transform(0, 3)  # type: ignore[arg-type]
