"""Checkpoints of N ranks made into those of M: bit-equal to slices of the full tensors."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from sliced_jobs import Array, Job, arrays, assert_equal

from engine import sharding
from engine.sharding import Layout

COUNTS = (1, 2, 4, 8)


def full_tensors() -> dict[str, Array]:
    random = np.random.default_rng(0)

    def draw(*shape: int) -> Array:
        return random.standard_normal(shape).astype(np.float32)

    return {
        "embedding": draw(64, 8),
        "column": draw(16, 48),
        "row": draw(32, 24).astype(np.float16),
        "both": draw(16, 64).astype(ml_dtypes.bfloat16),
        "conv": draw(16, 8, 3, 3),
        "bias": draw(48),
        "step": np.array(7, np.int64),
        "experts": draw(8, 16, 4),
    }


def layouts_for(devices: int) -> dict[str, Layout]:
    """Layouts over so many devices: each kind that a training job has."""
    half = max(1, devices // 2)
    wide = (devices // half, half)  # replicas, model parallel
    square = (2, devices // 2) if devices > 1 else (1, 1)
    cube = {1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 1, 2), 8: (2, 2, 2)}[devices]
    return {
        # Split by rows, and each replica keeps a part only: the optimizer's sharding.
        "embedding": Layout(wide, (0, -1), (), 0, half, wide[0]),
        "column": Layout((devices,), (-1, 0)),
        "row": Layout(wide, (0, -1)),
        # Dimensions over devices in the other order, and both split.
        "both": Layout(square, (0, 1)),
        "conv": Layout(cube, (2, 0, -1, -1)),
        # Whole for the model, and sharded by the optimizer over all devices.
        "bias": Layout((devices,), (-1,), (), 0, 1, -1),
        "step": Layout((devices,), ()),
        "experts": Layout(cube, (1, -1, 0)),
    }


def job(ranks: int, stages: int) -> Job:
    layouts = layouts_for(ranks // stages)
    if stages == 1:
        return Job(ranks, [layouts])
    first = ("embedding", "column", "row", "step")
    # The embedding is tied: both stages have it, laid out as each needs it.
    second = {name: layout for name, layout in layouts.items() if name not in first[1:]}
    second["embedding"] = Layout((ranks // stages,), (-1, 0))
    return Job(ranks // stages, [{name: layouts[name] for name in first}, second])


JOBS = [(ranks, stages) for ranks in COUNTS for stages in (1, 2) if stages <= ranks]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints and strategy of each job."""
    folder = tmp_path_factory.mktemp("trained")
    for number, (ranks, stages) in enumerate(JOBS):
        of = job(ranks, stages)
        of.write(full_tensors(), folder / f"{ranks}x{stages}", ("ckpt", "safetensors")[number % 2])
        of.write_strategy(folder / f"{ranks}x{stages}{('.ckpt', '.json')[number % 2]}")
    return folder


def strategy_of(trained: Path, ranks: int, stages: int) -> Path:
    [path] = (p for p in trained.glob(f"{ranks}x{stages}.*") if p.is_file())
    return path


@pytest.mark.parametrize("target", JOBS, ids=lambda pair: f"to-{pair[0]}-in-{pair[1]}")
@pytest.mark.parametrize("source", JOBS, ids=lambda pair: f"from-{pair[0]}-in-{pair[1]}")
def test_checkpoints_of_one_job_become_those_of_another(
    source: tuple[int, int], target: tuple[int, int], trained: Path, tmp_path: Path
) -> None:
    form = ("ckpt", "safetensors")[sum(target) % 2]
    sharding.transform_checkpoints(
        str(trained / f"{source[0]}x{source[1]}"),
        str(tmp_path / "out"),
        "net",
        str(strategy_of(trained, *source)),
        str(strategy_of(trained, *target)),
        output_format=form,
    )
    wanted = job(*target)
    assert len(list((tmp_path / "out").iterdir())) == wanted.ranks
    for rank in range(wanted.ranks):
        got = arrays(tmp_path / "out" / f"rank_{rank}" / f"net{rank}.{form}")
        assert_equal(got, wanted.expected(full_tensors(), rank))


@pytest.mark.parametrize("ranks", JOBS, ids=lambda pair: f"{pair[0]}-in-{pair[1]}")
def test_without_a_strategy_the_weights_are_whole(
    ranks: tuple[int, int], trained: Path, tmp_path: Path
) -> None:
    strategy = strategy_of(trained, *ranks)
    sharding.transform_checkpoints(
        trained / f"{ranks[0]}x{ranks[1]}", tmp_path / "whole", "net", strategy, None
    )
    assert_equal(arrays(tmp_path / "whole" / "rank_0" / "net0.ckpt"), full_tensors())
    sharding.transform_checkpoints(tmp_path / "whole", tmp_path / "again", "", None, strategy)
    of = job(*ranks)
    for rank in range(of.ranks):
        got = arrays(tmp_path / "again" / f"rank_{rank}" / f"{rank}.ckpt")
        assert_equal(got, of.expected(full_tensors(), rank))


@pytest.mark.parametrize(
    ("source", "target"), [((8, 2), (4, 1)), ((4, 1), (8, 2)), ((8, 1), (8, 1)), ((2, 2), (4, 2))]
)
def test_the_ranks_that_are_listed_are_enough_for_one(
    source: tuple[int, int], target: tuple[int, int], trained: Path, tmp_path: Path
) -> None:
    strategies = strategy_of(trained, *source), strategy_of(trained, *target)
    of = job(*target)
    [suffix] = {path.suffix for path in (trained / f"{source[0]}x{source[1]}").rglob("net.*")}
    for rank in range(of.ranks):
        needed = sharding.rank_list_for_transform(rank, *strategies)
        files = {
            other: trained / f"{source[0]}x{source[1]}" / f"rank_{other}" / f"net{suffix}"
            for other in needed
        }
        path = tmp_path / f"rank{rank}.ckpt"
        sharding.transform_checkpoint_by_rank(rank, files, path, *strategies)
        assert_equal(arrays(path), of.expected(full_tensors(), rank))


def test_a_rank_needs_no_other_where_nothing_changes(trained: Path) -> None:
    strategy = strategy_of(trained, 8, 1)
    for rank in range(8):
        assert sharding.rank_list_for_transform(rank, strategy, strategy) == [rank]


def test_a_stage_needs_the_files_of_the_stage_that_has_its_parameters(tmp_path: Path) -> None:
    source = Job(2, [{"a": Layout((2,), (0,))}, {"b": Layout((2,), (0,))}])
    target = Job(1, [{"a": Layout((1,), (-1,))}, {"b": Layout((1,), (-1,))}])
    files = source.write_strategy(tmp_path / "s.ckpt"), target.write_strategy(tmp_path / "t.ckpt")
    assert sharding.rank_list_for_transform(0, *files) == [0, 1]
    assert sharding.rank_list_for_transform(1, *files) == [2, 3]
    full = {"a": np.arange(4, dtype=np.float32), "b": np.arange(6, dtype=np.float32)}
    source.write(full, tmp_path / "in")
    # Files of the other stage are not looked at, be they what they may.
    (tmp_path / "in" / "rank_0" / "net.ckpt").write_bytes(b"\xff" * 100)
    paths = {rank: tmp_path / "in" / f"rank_{rank}" / "net.ckpt" for rank in range(4)}
    sharding.transform_checkpoint_by_rank(
        1, {rank: paths[rank] for rank in (2, 3)}, tmp_path / "b.ckpt", *files
    )
    assert_equal(arrays(tmp_path / "b.ckpt"), {"b": full["b"]})


def test_numbers_of_devices_need_not_divide_each_other(tmp_path: Path) -> None:
    full = {"w": np.random.default_rng(0).standard_normal((12, 30)).astype(np.float32)}
    three, five = Job(3, [{"w": Layout((3,), (0, -1))}]), Job(5, [{"w": Layout((5,), (-1, 0))}])
    three.write(full, tmp_path / "three")
    strategies = three.write_strategy(tmp_path / "3.json"), five.write_strategy(tmp_path / "5.json")
    sharding.transform_checkpoints(tmp_path / "three", tmp_path / "five", "n", *strategies)
    for rank in range(5):
        got = arrays(tmp_path / "five" / f"rank_{rank}" / f"n{rank}.ckpt")
        assert_equal(got, five.expected(full, rank))


def test_slices_may_have_numbers_of_rows_of_their_own(tmp_path: Path) -> None:
    full = {"table": np.arange(40, dtype=np.float32).reshape(10, 4)}
    parts = [full["table"][:5], full["table"][5:6], full["table"][6:]]
    layout = Layout((3,), (0, -1), (5, 1, 4))
    strategy = sharding.Strategy({"n": sharding.NodeStrategy(((3, 1),))}, {"table": layout})
    for suffix in ("ckpt", "json"):
        strategy.save(tmp_path / f"s.{suffix}")
    for rank, part in enumerate(parts):
        sharding.save_checkpoint({"table": part}, tmp_path / "in" / f"rank_{rank}" / "a.ckpt")
    halves = Job(2, [{"table": Layout((2,), (0, -1))}])
    target = halves.write_strategy(tmp_path / "t.ckpt")
    assert sharding.rank_list_for_transform(0, tmp_path / "s.ckpt", target) == [0]
    assert sharding.rank_list_for_transform(1, tmp_path / "s.json", target) == [1, 2]
    sharding.transform_checkpoints(
        tmp_path / "in", tmp_path / "out", "n", tmp_path / "s.json", target
    )
    for rank in range(2):
        got = arrays(tmp_path / "out" / f"rank_{rank}" / f"n{rank}.ckpt")
        assert_equal(got, halves.expected(full, rank))
    sharding.transform_checkpoints(
        tmp_path / "out", tmp_path / "back", "n", target, tmp_path / "s.ckpt"
    )
    for rank, part in enumerate(parts):
        assert_equal(arrays(tmp_path / "back" / f"rank_{rank}" / f"n{rank}.ckpt"), {"table": part})


def test_the_last_file_by_name_counts(tmp_path: Path) -> None:
    for number in (2, 9, 10):
        sharding.save_checkpoint(
            {"w": np.full(2, number, np.float32)}, tmp_path / "in" / "rank_0" / f"net-{number}.ckpt"
        )
    sharding.transform_checkpoints(tmp_path / "in", tmp_path / "out", "net")
    got = arrays(tmp_path / "out" / "rank_0" / "net0.ckpt")
    assert_equal(got, {"w": np.full(2, 9, np.float32)})  # by name, 9 comes after 10


def test_equal_copies_of_data_parallel_ranks_are_whole_weights(tmp_path: Path) -> None:
    weights = {"w": np.arange(6, dtype=np.float32), "b": np.float32([np.nan, 1])}
    for rank in range(3):
        sharding.save_checkpoint(weights, tmp_path / "in" / f"rank_{rank}" / "net.ckpt")
    phases: list[str] = []
    sharding.transform_checkpoints(
        tmp_path / "in", tmp_path / "out", "n", progress=lambda phase, *_: phases.append(phase)
    )
    assert_equal(arrays(tmp_path / "out" / "rank_0" / "n0.ckpt"), weights)
    assert phases == ["comparing rank 1"] * 2 + ["comparing rank 2"] * 2 + ["rank 0"] * 2


def test_what_no_strategy_knows_is_passed_on_where_all_ranks_have_the_same(tmp_path: Path) -> None:
    layout = Layout((2,), (0,))
    two = Job(2, [{"w": layout}])
    strategy = two.write_strategy(tmp_path / "two.ckpt")
    for rank, part in enumerate(np.split(np.arange(4, dtype=np.float32), 2)):
        sharding.save_checkpoint(
            {"w": part, "learning_rate": np.float32(0.5)}, tmp_path / f"in/rank_{rank}/a.ckpt"
        )
    sharding.transform_checkpoints(tmp_path / "in", tmp_path / "out", "n", strategy, None)
    got = arrays(tmp_path / "out/rank_0/n0.ckpt")
    expected = {"w": np.arange(4, dtype=np.float32), "learning_rate": np.array(0.5, np.float32)}
    assert_equal(got, expected)


def test_an_optimizers_state_that_the_target_does_not_know_is_left_out(tmp_path: Path) -> None:
    trained = Job(2, [{"w": Layout((2,), (0,)), "moment.w": Layout((2,), (0,))}])
    predicts = Job(1, [{"w": Layout((1,), (-1,))}])
    full = {"w": np.arange(4, dtype=np.float32), "moment.w": np.ones(4, np.float32)}
    trained.write(full, tmp_path / "in")
    files = (
        trained.write_strategy(tmp_path / "s.ckpt"),
        predicts.write_strategy(tmp_path / "t.ckpt"),
    )
    sharding.transform_checkpoints(tmp_path / "in", tmp_path / "out", "n", *files)
    assert_equal(arrays(tmp_path / "out/rank_0/n0.ckpt"), {"w": full["w"]})


def test_replicas_that_only_some_files_hold_are_found(tmp_path: Path) -> None:
    # As MindSpore writes them with remove_redundancy: each replica is in one file only.
    layout = Layout((2, 2), (0,))
    four = Job(4, [{"a": layout, "b": layout}])
    strategy = four.write_strategy(tmp_path / "s.json")
    full = {"a": np.arange(4, dtype=np.float32), "b": np.arange(4, 8, dtype=np.float32)}
    for rank in range(4):
        name = "a" if rank < 2 else "b"
        part = {name: four.expected(full, rank)[name]}
        sharding.save_checkpoint(part, tmp_path / f"in/rank_{rank}/n.safetensors")
    sharding.transform_checkpoints(tmp_path / "in", tmp_path / "out", "n", strategy, None)
    assert_equal(arrays(tmp_path / "out/rank_0/n0.ckpt"), full)


def test_results_are_the_owners_alone_and_nothing_is_left_beside_them(tmp_path: Path) -> None:
    sharding.save_checkpoint({"w": np.ones(2)}, tmp_path / "in" / "rank_0" / "a.ckpt")
    seen = []
    sharding.transform_checkpoints(
        tmp_path / "in", tmp_path / "out", "n", progress=lambda *step: seen.append(step)
    )
    [folder] = (tmp_path / "out").iterdir()
    [file] = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    assert seen == [("rank 0", 1, 1)]


def test_the_newer_names_are_the_same_functions() -> None:
    assert sharding.convert_checkpoints is sharding.transform_checkpoints
    assert sharding.convert_checkpoint_by_rank is sharding.transform_checkpoint_by_rank
    assert sharding.rank_list_for_convert is sharding.rank_list_for_transform
