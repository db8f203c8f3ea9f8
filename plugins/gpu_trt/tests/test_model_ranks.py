"""Models whose nodes exchange tensors between GPUs: the core's collectives on NCCL, emulated."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.distributed.job import environment
from engine.distributed.store import StoreServer

pytestmark = pytest.mark.slow
DEVICES = 4
STEPS = Path(__file__).with_name("model_ranks.py")
LIMIT_S = 240


Told = dict[str, Any]
"""The facts that a rank tells: a list of values for each name."""


def ranks(
    scenarios: str, count: int, folder: Path, *words: str, awaited: int = 0, last: int = 0
) -> dict[str, list[Told]]:
    """Run scenarios on some ranks; return what each rank tells in each.

    awaited: how many of the first ranks have to end before the others' input does. words: more
    arguments of the ranks' program. last: the status of the last rank.
    """
    with StoreServer() as server:
        children = [
            subprocess.Popen(
                [sys.executable, str(STEPS), scenarios, str(folder), *words],
                env=environment(server, rank, count),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(count)
        ]
        try:
            for child in children[:awaited]:
                child.wait(timeout=LIMIT_S)
            outputs = [child.communicate(timeout=LIMIT_S) for child in children]
        finally:
            for child in children:
                child.kill()
                child.wait()
    status = [child.returncode for child in children]
    assert status == [0] * (count - 1) + [last], [errors[-2000:] for _, errors in outputs]
    found: dict[str, list[Told]] = {name: [] for name in scenarios.split(",")}
    for out, _ in outputs:
        for fact in map(json.loads, out.splitlines()):
            if "scenario" in fact:
                found[fact["scenario"]].append(told := {})
            for name, value in fact.items():
                told.setdefault(name, []).append(value)
    for told in (told for each in found.values() for told in each):
        assert told.get("left", [{}]) == [{}], "left on the emulated device"
    return found


@pytest.fixture(scope="module")
def between(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Told]]:
    """Two ranks with collectives between segments."""
    return ranks("results,stays,once", 2, tmp_path_factory.mktemp("between"))


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Told]]:
    """Two ranks with collectives inside their engines."""
    return ranks("inside,differs,mixed", 2, tmp_path_factory.mktemp("inside"), "inside")


def test_two_ranks_give_what_arithmetic_gives(between: dict[str, list[Told]]) -> None:
    for rank, told in enumerate(between["results"]):
        places = dict(told["placed"][0])
        assert set(places) == {"AllReduce", "AllGather", "ReduceScatter", "Broadcast"}
        assert places["AllReduce"] == f"gpu:{rank}"
        assert told["summed"] == ["float32", "float16", "bfloat16", "int32"]
        assert told["rounds"] == [True] * 4
        assert told["stages"] == ["equal"]


def test_four_ranks_also_exchange_in_groups(tmp_path: Path) -> None:
    found = ranks("results", 4, tmp_path)["results"]
    # Sums of pairs: 0+1, 10+9 and 2+3, 8+7.
    low, high = [1.0, 19.0], [5.0, 15.0]
    assert [told["pair"] for told in found] == [[low], [low], [high], [high]]
    assert [told["highest"] for told in found] == [[[5.0, 19.0]]] * 4


def test_only_the_first_input_and_the_last_output_cross_the_bus(
    between: dict[str, list[Told]],
) -> None:
    for told in between["stays"]:
        # On the host, then on the device.
        assert (told["up"], told["down"]) == ([1, 0], [1, 0])


def test_a_chain_of_segments_and_collectives_is_waited_for_once(
    between: dict[str, list[Told]],
) -> None:
    for told in between["once"]:
        # The last part's results are waited for; the collectives' stream as well where its last
        # marker comes a moment later. A wait for each of the collectives would be two more.
        assert len(told["waits"]) == 5
        assert set(told["waits"][2:]) <= {1, 2}


def test_collectives_inside_one_engine_give_what_arithmetic_and_the_whole_model_give(
    inside: dict[str, list[Told]],
) -> None:
    for told in inside["inside"]:
        [placed] = told["placed"]
        assert {backend for _, backend in placed} == {"gpu_trt"}, "the core has run some"
        assert {op for op, _ in placed} == {
            "Neg", "AllReduce", "AllGather", "ReduceScatter", "Broadcast"
        }  # fmt: skip
        assert told["product"] == ["equal"]


def test_engines_whose_collectives_differ_are_found_at_the_first_predict(
    inside: dict[str, list[Told]],
) -> None:
    for told in inside["differs"]:
        assert "of float32[2, 3]" in told["error"][0]
        assert "of float32[3, 3]" in told["error"][0]


def test_ranks_of_which_one_leaves_its_collectives_to_the_core_do_not_start(
    inside: dict[str, list[Told]],
) -> None:
    for told in inside["mixed"]:
        assert "inside='gpu_trt' here, but AllReduce" in told["error"][0]


KINDS = pytest.mark.parametrize("words", [(), ("inside",)], ids=["between_segments", "inside"])


@KINDS
def test_a_finished_predict_does_not_miss_a_rank_that_has_ended_in_good_order(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    for told in ranks("outlived", 2, tmp_path, *words)["outlived"]:
        assert told["summed"] == [[[3.0] * 3] * 2]


@KINDS
@pytest.mark.parametrize(
    ("scenario", "expected", "last"),
    [
        ("dies", "rank 2 of 3 has ended: its process crashed or was killed", -signal.SIGKILL),
        ("breaks", "RemoteError (emulated); Connection closed by remote peer", 0),
        ("late", "rank 2 of 3 did not come in time to ", 0),
        ("cancels", "out of coffee", 1),
    ],
    ids=["dies", "breaks", "late", "cancels"],
)
def test_a_rank_that_fails_is_named_by_all_others(
    scenario: str, expected: str, last: int, words: tuple[str, ...], tmp_path: Path
) -> None:
    for told in ranks(scenario, 3, tmp_path, *words, awaited=2, last=last)[scenario][:2]:
        assert expected in told["error"][0], told
        assert told["ranks"] == [[2]]
        assert "out of step" in told["again"][0], "the next predict fails at once"
        assert told["aborted"][0] >= 1
        assert told["spent_s"][0] < 60, "not the time that ranks wait for each other"


@KINDS
def test_a_device_that_never_gets_to_a_collective_ends_it_at_the_deadline(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    what = "a predict with collectives inside" if words else "all-reduce"
    for told in ranks("stalls", 3, tmp_path, *words)["stalls"]:
        assert what in told["error"][0]
