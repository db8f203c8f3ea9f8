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


def ranks(
    scenario: str, count: int, folder: Path, awaited: int = 0, *words: str
) -> list[list[dict[str, Any]]]:
    """Run a scenario on some ranks; return what each tells, {"status": ...} at the end.

    awaited: how many of the first ranks have to end before the others' input does. words: more
    arguments of the ranks' program.
    """
    with StoreServer() as server:
        children = [
            subprocess.Popen(
                [sys.executable, str(STEPS), scenario, str(folder), *words],
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
    return [
        [*map(json.loads, out.splitlines()), {"status": child.returncode, "said": errors[-2000:]}]
        for child, (out, errors) in zip(children, outputs, strict=True)
    ]


def fact(lines: list[dict[str, Any]], key: str) -> Any:
    found = [line[key] for line in lines if key in line]
    assert found, f"it does not tell of {key!r}: {lines}"
    return found[0]


def test_two_ranks_give_what_arithmetic_gives(tmp_path: Path) -> None:
    for rank, lines in enumerate(ranks("results", 2, tmp_path)):
        assert lines[-1]["status"] == 0, lines[-1]["said"]
        places = dict(fact(lines, "placed"))
        assert set(places) == {"AllReduce", "AllGather", "ReduceScatter", "Broadcast"}
        assert places["AllReduce"] == f"gpu:{rank}"
        summed = {line["summed"]: line["rounds"] for line in lines if "summed" in line}
        assert summed == dict.fromkeys(("float32", "float16", "bfloat16", "int32"), True)
        assert fact(lines, "stages") == "equal"
        assert fact(lines, "left") == {}


def test_four_ranks_also_exchange_in_groups(tmp_path: Path) -> None:
    found = ranks("results", 4, tmp_path)
    for lines in found:
        assert lines[-1]["status"] == 0, lines[-1]["said"]
        assert fact(lines, "left") == {}
        assert fact(lines, "highest") == [5.0, 19.0]
    # Sums of pairs: 0+1, 10+9 and 2+3, 8+7.
    low, high = [1.0, 19.0], [5.0, 15.0]
    assert [fact(lines, "pair") for lines in found] == [low, low, high, high]


def test_only_the_first_input_and_the_last_output_cross_the_bus(tmp_path: Path) -> None:
    for lines in ranks("stays", 2, tmp_path):
        assert lines[-1]["status"] == 0, lines[-1]["said"]
        [plain, on_device] = [line for line in lines if "up" in line]
        assert plain == {"up": 1, "down": 1}
        assert on_device == {"up": 0, "down": 0}
        assert fact(lines, "left") == {}


def test_a_chain_of_segments_and_collectives_is_waited_for_once(tmp_path: Path) -> None:
    for lines in ranks("once", 2, tmp_path):
        assert lines[-1]["status"] == 0, lines[-1]["said"]
        waits = [line["waits"] for line in lines if "waits" in line]
        # The last part's results are waited for; the collectives' stream as well where its last
        # marker comes a moment later. A wait for each of the collectives would be two more.
        assert len(waits) == 5
        assert set(waits[2:]) <= {1, 2}
        assert fact(lines, "left") == {}


@pytest.mark.parametrize("words", [(), ("inside",)], ids=["outside", "inside"])
def test_a_finished_predict_does_not_miss_a_rank_that_has_ended_in_good_order(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    for lines in ranks("outlived", 2, tmp_path, 0, *words):
        assert lines[-1]["status"] == 0, lines[-1]["said"]
        assert fact(lines, "summed") == [[3.0] * 3] * 2


def test_collectives_inside_one_engine_give_what_arithmetic_and_the_whole_model_give(
    tmp_path: Path,
) -> None:
    for lines in ranks("inside", 2, tmp_path, 0, "inside"):
        assert lines[-1]["status"] == 0, lines[-1]["said"]
        placed = fact(lines, "placed")
        assert {backend for _, backend in placed} == {"gpu_trt"}, "the core has run some"
        assert {op for op, _ in placed} == {
            "Neg", "AllReduce", "AllGather", "ReduceScatter", "Broadcast"
        }  # fmt: skip
        assert fact(lines, "product") == "equal"
        assert fact(lines, "left") == {}


def test_engines_whose_collectives_differ_are_found_at_the_first_predict(tmp_path: Path) -> None:
    for lines in ranks("differs", 2, tmp_path, 0, "inside"):
        assert lines[-1]["status"] == 0, lines[-1]["said"]
        assert "of float32[2, 3]" in fact(lines, "error")
        assert "of float32[3, 3]" in fact(lines, "error")
        assert fact(lines, "left") == {}


def test_ranks_of_which_one_leaves_its_collectives_to_the_core_do_not_start(tmp_path: Path) -> None:
    for lines in ranks("mixed", 2, tmp_path, 0, "inside"):
        assert lines[-1]["status"] == 0, lines[-1]["said"]
        assert "inside='gpu_trt' here, but AllReduce" in fact(lines, "error")
        assert fact(lines, "left") == {}


@pytest.mark.parametrize("words", [(), ("inside",)], ids=["between_segments", "inside"])
@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("dies", "rank 2 of 3 has ended: its process crashed or was killed"),
        ("breaks", "RemoteError (emulated); Connection closed by remote peer"),
        ("late", "rank 2 of 3 did not come in time to "),
        ("cancels", "out of coffee"),
    ],
)
def test_a_rank_that_fails_is_named_by_all_others(
    scenario: str, expected: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    *others, last = ranks(scenario, 3, tmp_path, 2, *words)
    for lines in others:
        assert lines[-1]["status"] == 0, lines[-1]["said"]
        assert expected in fact(lines, "error"), lines
        assert fact(lines, "ranks") == [2]
        assert "out of step" in fact(lines, "again"), "the next predict fails at once"
        assert fact(lines, "left") == {}
        assert fact(lines, "aborted") >= 1
        assert fact(lines, "spent_s") < 60, "not the time that ranks wait for each other"
    if scenario == "dies":
        assert last[-1]["status"] == -signal.SIGKILL
    elif scenario == "cancels":
        assert last[-1]["status"] == 1
    else:
        assert last[-1]["status"] == 0, last[-1]["said"]
        assert fact(last, "left") == {}


@pytest.mark.parametrize("words", [(), ("inside",)], ids=["between_segments", "inside"])
def test_a_device_that_never_gets_to_a_collective_ends_it_at_the_deadline(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    what = "a predict with collectives inside" if words else "all-reduce"
    for lines in ranks("stalls", 3, tmp_path, 0, *words):
        assert lines[-1]["status"] == 0, lines[-1]["said"]
        assert what in fact(lines, "error")
        assert fact(lines, "left") == {}
