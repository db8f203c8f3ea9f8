"""Models that assign to a parameter, run through Model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import engine
from engine.errors import DeadlineExceeded, ModelStateError
from engine.model.model import model_state
from engine_testing.interrupts import Interrupter


@pytest.fixture
def built(null_context: engine.Context) -> Callable[[bytes], engine.Model]:
    def build(data: bytes) -> engine.Model:
        model = engine.Model()
        model.build_from_buffer(data, context=null_context)
        return model

    return build


TOTAL = {"total": np.zeros(2, np.float32)}


@pytest.fixture
def counter(mindir: SimpleNamespace, built: Any) -> Any:
    """total += x; gives total, which begins at 0."""
    add = mindir.node("AssignAdd", ["total", "x"], "y")
    return built(mindir.net([add], {"x": (2,)}, {"y": (2,)}, parameters=TOTAL))


@pytest.fixture
def plan(counter: engine.Model) -> Any:
    return model_state(counter).plan


ONES = np.ones(2, np.float32)


def test_what_a_caller_does_to_a_result_leaves_the_state_alone(counter: engine.Model) -> None:
    counter(ONES)["y"][:] = 50
    buffer = engine.Tensor(np.zeros(2, np.float32))
    counter.predict([ONES], [buffer])
    buffer.get_data_to_numpy()[:] = 50
    np.testing.assert_array_equal(counter(ONES)["y"], [3, 3])


def test_waiting_for_a_turn_ends_at_the_deadline(counter: engine.Model, plan: Any) -> None:
    leases: list[Any] = []
    thread = threading.Thread(target=lambda: leases.append(plan.pool.borrow()))
    thread.start()
    thread.join(10)
    with pytest.raises(DeadlineExceeded, match="other predicts lasted to the deadline"):
        counter.predict([ONES], timeout_s=0.05)
    plan.pool.discard(leases.pop())
    np.testing.assert_array_equal(counter(ONES)["y"], [1, 1])


def test_waiting_for_a_turn_can_be_cancelled(counter: engine.Model, plan: Any) -> None:
    token, ended = engine.CancelToken(), threading.Event()

    def work() -> None:
        with pytest.raises(engine.Cancelled):
            counter.predict([ONES], cancel=token)
        ended.set()

    lease = plan.pool.borrow()
    thread = threading.Thread(target=work)
    thread.start()
    assert not ended.wait(0.1)
    token.cancel()
    assert ended.wait(5)
    thread.join()
    plan.pool.give_back(lease)
    np.testing.assert_array_equal(counter(ONES)["y"], [1, 1])


def test_32_threads_take_turns_in_one_context(counter: engine.Model, plan: Any) -> None:
    opened, ready = [], threading.Barrier(32)

    def work(_: int) -> float:
        ready.wait(10)
        found = float(counter(ONES)["y"][0])
        opened.append(plan.pool.open_count)
        return found

    with ThreadPoolExecutor(32) as pool:
        assert sorted(pool.map(work, range(32))) == list(range(1, 33))
    assert max(opened) == 1


@pytest.mark.parametrize("way", ["error", "cancelled", "too few"])
def test_a_predict_that_fails_leaves_the_state_as_it_was(
    way: str, counter: engine.Model, plan: Any
) -> None:
    np.testing.assert_array_equal(counter(ONES)["y"], [1, 1])
    executable = plan.executable
    inner = executable._run

    def fail(*arguments: object) -> Any:
        results = inner(*arguments)
        if way == "too few":
            return results[:-1]
        raise engine.Cancelled("stopped") if way == "cancelled" else ValueError("no")

    executable._run = fail
    with pytest.raises(engine.Cancelled if way == "cancelled" else engine.ModelError):
        counter.predict([ONES])
    executable._run = inner
    np.testing.assert_array_equal(counter(ONES)["y"], [2, 2])


def test_a_predict_inside_a_predict_is_refused_and_not_stuck(
    counter: engine.Model, plan: Any
) -> None:
    executable = plan.executable
    inner = executable._run
    raised: list[Exception] = []

    def interrupted(*arguments: object) -> object:
        try:
            counter(ONES)
        except ModelStateError as error:
            raised.append(error)
        return inner(*arguments)

    executable._run = interrupted
    done: list[float] = []
    thread = threading.Thread(target=lambda: done.append(float(counter(ONES)["y"][0])), daemon=True)
    thread.start()
    thread.join(20)
    assert done == [1.0]
    assert "in the middle of a predict of the same thread" in str(raised[0])


@pytest.mark.parametrize("way", ["itself", "Depend", "tuple", "function", "assign_add", "py"])
def test_what_is_read_before_it_is_assigned_to_is_what_the_last_predict_left(
    way: str, mindir: SimpleNamespace, built: Any
) -> None:
    node = mindir.node
    operator = {"assign_add": "REF::MetaFuncGraph::assign_add", "py": "PrimitivePy::AssignAdd"}
    alias = {
        "Depend": [node("REF::Depend", ["total", "x"], "d")],
        "tuple": [
            node("REF::MakeTuple", ["total", "x"], "t"), mindir.constant("zero", 0),
            node("REF::TupleGetItem", ["t", "zero"], "d"),
        ],
        "function": [node("REF::f", ["x"], "d")],
    }.get(way, [])  # fmt: skip
    nodes = [
        node("REF::Load", ["total"], "l"), node("REF::Add", ["l", "l"], "twice"), *alias,
        node(operator.get(way, "REF::AssignAdd"), ["d" if alias else "total", "x"], "a"),
        node("REF::Depend", ["twice", "a"], "z"),
    ]  # fmt: skip
    given = [node("REF::Return", ["total"], "f:y")]
    model = built(
        mindir.net(
            nodes, {"x": (2,)}, {"z": (2,)}, parameters=TOTAL,
            functions=[mindir.function("f", given)] if way == "function" else (),
            primitives=(
                "Depend", "AssignAdd", "Load", "Add", "Return", "MakeTuple", "TupleGetItem",
            ),
        )
    )  # fmt: skip
    found = [model(ONES)["z"].tolist() for _ in range(3)]
    assert found == [[0, 0], [2, 2], [4, 4]]


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("threads", [0, 2])
def test_signal_handlers_that_raise_lose_no_turn_and_no_step_twice(
    threads: int, count: int, counter: engine.Model, plan: Any
) -> None:
    is_over, wrong = threading.Event(), []

    def work() -> float:
        return float(counter.predict([ONES], timeout_s=100)[0].get_data_to_numpy()[0])

    def beside() -> None:
        last = 0.0
        while not is_over.is_set():
            before, last = last, work()
            if last <= before:
                wrong.append((before, last))
            time.sleep(0.0001)

    helpers = [threading.Thread(target=beside) for _ in range(threads)]
    for helper in helpers:
        helper.start()
    interrupter, last = Interrupter(seed=count), work()
    with interrupter.installed():
        for _ in interrupter.calls(work, count):
            before, last = last, work()
            assert before < last
    is_over.set()
    for helper in helpers:
        helper.join(30)
    assert (wrong, interrupter.lost, interrupter.unraisable) == ([], [], [])
    assert interrupter.raised > count / 50  # most, but on a busy machine the moments fall late
    semaphore = plan.pool.semaphore
    assert semaphore is not None
    assert (semaphore._holders, semaphore._waiting, semaphore._threads) == ({}, {}, {})
    assert plan.pool.open_count == 1


def test_weights_are_updated_beside_state_but_not_by_a_rebuild(
    mindir: SimpleNamespace, null_backend: str, tmp_path: Path
) -> None:
    nodes = [mindir.node("AssignAdd", ["total", "x"], "y"), mindir.node("Mul", ["y", "w"], "z")]
    tensors = {**TOTAL, "w": np.full(2, 3, np.float32)}
    path = tmp_path / "counter.mindir"
    path.write_bytes(mindir.net(nodes, {"x": (2,)}, {"z": (2,)}, parameters=tensors))
    with engine.load(path, null_backend, variable_weights=["w"]) as model:
        assert model(ONES)["z"].tolist() == [3, 3]
        model.update_weights({"w": np.full(2, 10, np.float32)})
        assert model(ONES)["z"].tolist() == [20, 20], "the second one, times 10"
    config = {"common_context": {"variable_weights_mode": "rebuild"}}
    with pytest.raises(engine.ModelError, match=r"is rebuild, but it has state \('total'\)"):
        engine.load(path, null_backend, variable_weights=["w"], config=config)
