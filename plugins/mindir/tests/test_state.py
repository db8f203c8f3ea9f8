"""Models that assign to a parameter, run through Model."""

from __future__ import annotations

import threading
import time
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
def counter(mindir: SimpleNamespace, null_backend: str) -> engine.Model:
    """total += x; gives total, which begins at 0."""
    add = mindir.node("AssignAdd", ["total", "x"], "y")
    data = mindir.model(
        mindir.graph(
            "G",
            [add],
            [mindir.value("x", 2)],
            [mindir.value("y", 2)],
            [mindir.tensor("total", np.zeros(2, np.float32))],
        )
    )
    model = engine.Model()
    model.build_from_buffer(data, context=_on(null_backend))
    return model


ONES = np.ones(2, np.float32)


def test_threads_share_the_state_and_lose_no_step(counter: engine.Model) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: float(counter(ONES)["y"][0]), range(100)))
    assert sorted(found) == [float(each) for each in range(1, 101)]


def test_what_a_caller_does_to_a_result_leaves_the_state_alone(counter: engine.Model) -> None:
    counter(ONES)["y"][:] = 50
    buffer = engine.Tensor(np.zeros(2, np.float32))
    counter.predict([ONES], [buffer])
    buffer.get_data_to_numpy()[:] = 50
    np.testing.assert_array_equal(counter(ONES)["y"], [3, 3])


def test_waiting_for_a_turn_ends_at_the_deadline(counter: engine.Model) -> None:
    plan = model_state(counter).plan
    assert plan is not None
    leases: list[Any] = []
    thread = threading.Thread(target=lambda: leases.append(plan.pool.borrow()))
    thread.start()
    thread.join(10)
    with pytest.raises(DeadlineExceeded, match="other predicts lasted to the deadline"):
        counter.predict([ONES], timeout_s=0.05)
    plan.pool.discard(leases.pop())
    np.testing.assert_array_equal(counter(ONES)["y"], [1, 1])


def test_waiting_for_a_turn_can_be_cancelled(counter: engine.Model) -> None:
    plan = model_state(counter).plan
    assert plan is not None
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


def test_32_threads_take_turns_in_one_context(counter: engine.Model) -> None:
    plan = model_state(counter).plan
    assert plan is not None
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
def test_a_predict_that_fails_leaves_the_state_as_it_was(way: str, counter: engine.Model) -> None:
    np.testing.assert_array_equal(counter(ONES)["y"], [1, 1])
    plan = model_state(counter).plan
    assert plan is not None
    executable: Any = plan.executable
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


def test_a_predict_inside_a_predict_is_refused_and_not_stuck(counter: engine.Model) -> None:
    plan = model_state(counter).plan
    assert plan is not None
    executable = plan.executable
    inner = executable._run  # type: ignore[attr-defined]
    raised: list[Exception] = []

    def interrupted(*arguments: object) -> object:
        try:
            counter(ONES)
        except ModelStateError as error:
            raised.append(error)
        return inner(*arguments)

    executable._run = interrupted  # type: ignore[attr-defined]
    done: list[float] = []
    thread = threading.Thread(target=lambda: done.append(float(counter(ONES)["y"][0])), daemon=True)
    thread.start()
    thread.join(20)
    assert done == [1.0]
    assert "in the middle of a predict of the same thread" in str(raised[0])


def _model(mindir: SimpleNamespace, *nodes: bytes, functions: tuple[bytes, ...] = ()) -> bytes:
    """z of x float32[2] and the parameter "total", which begins at 0."""
    names = ("Depend", "AssignAdd", "Load", "Add", "Return", "MakeTuple", "TupleGetItem")
    graph = mindir.graph(
        "G",
        nodes,
        [mindir.value("x", 2)],
        [mindir.value("z", 2)],
        [mindir.tensor("total", np.zeros(2, np.float32))],
    )
    return bytes(mindir.model(graph, functions, [mindir.primitive(each, each) for each in names]))


@pytest.mark.parametrize(
    "way", ["itself", "Depend", "tuple", "function", "MetaFuncGraph::assign_add", "PrimitivePy"]
)
def test_what_is_read_before_it_is_assigned_to_is_what_the_last_predict_left(
    way: str, mindir: SimpleNamespace, null_backend: str
) -> None:
    node, functions = mindir.node, []
    before = [node("REF::Load", ["total"], "l"), node("REF::Add", ["l", "l"], "twice")]
    operator, target = "REF::AssignAdd", "total"
    if way == "Depend":
        before.append(node("REF::Depend", ["total", "x"], target := "d"))
    elif way == "tuple":
        before += [
            node("REF::MakeTuple", ["total", "x"], "t"),
            mindir.constant("zero", 0),
            node("REF::TupleGetItem", ["t", "zero"], target := "d"),
        ]
    elif way == "function":
        given = node("REF::Return", ["total"], "f:out")
        functions = [
            mindir.graph("f", [given], [mindir.value("f:in", 2)], [mindir.value("f:out", 2)])
        ]
        before.append(node("REF::f", ["x"], target := "d"))
    elif way == "PrimitivePy":
        operator = "PrimitivePy::AssignAdd"
    elif way != "itself":
        operator = f"REF::{way}"
    data = _model(
        mindir,
        *before,
        node(operator, [target, "x"], "a"),
        node("REF::Depend", ["twice", "a"], "z"),
        functions=tuple(functions),
    )
    model = engine.Model()
    model.build_from_buffer(data, context=_on(null_backend))
    found = [model(ONES)["z"].tolist() for _ in range(3)]
    assert found == [[0, 0], [2, 2], [4, 4]]


def _on(target: str) -> engine.Context:
    context = engine.Context()
    context.target = [target]
    return context


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("threads", [0, 2])
def test_signal_handlers_that_raise_lose_no_turn_and_no_step_twice(
    threads: int, count: int, counter: engine.Model
) -> None:
    plan = model_state(counter).plan
    assert plan is not None
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
    nodes = [
        mindir.node("AssignAdd", ["total", "x"], "y"),
        mindir.node("Mul", ["y", "w"], "z"),
    ]
    tensors = [
        mindir.tensor("total", np.zeros(2, np.float32)),
        mindir.tensor("w", np.full(2, 3, np.float32)),
    ]
    graph = mindir.graph("G", nodes, [mindir.value("x", 2)], [mindir.value("z", 2)], tensors)
    path = tmp_path / "counter.mindir"
    path.write_bytes(mindir.model(graph))
    x = np.ones(2, np.float32)
    with engine.load(path, null_backend, variable_weights=["w"]) as model:
        assert model.predict([x])[0].get_data_to_numpy().tolist() == [3, 3]
        model.update_weights({"w": np.full(2, 10, np.float32)})
        assert model.predict([x])[0].get_data_to_numpy().tolist() == [
            20,
            20,
        ]  # the second one, times 10
    config = {"common_context": {"variable_weights_mode": "rebuild"}}
    with pytest.raises(engine.ModelError, match=r"is rebuild, but it has state \('total'\)"):
        engine.load(path, null_backend, variable_weights=["w"], config=config)
