"""Requests that share a run: which may, which do, and what happens when the run fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from steps import build, save
from waiting import wait_until

import engine
from engine import Cancelled, InputError, ModelError, ModelParallelRunner, ModelStateError
from engine.formats import open_source
from engine.serving import batchable
from engine.serving.batchable import best_size, why_not
from engine.types import DType, TensorSpec

ROW = np.array([1, 2, 3, 4], np.float32)
ONE = np.ones((1, 4), np.float32)
SCALE = "y = Mul(x, row)"


def write(folder: Path, nodes: str, x: str = "b, 4", opset: int = 17) -> Path:
    """Write a model of these nodes, from x to y of the same shape."""
    weights = "float[4] row = {1, 2, 3, 4}, int64[4] ids = {1, 0, 2, 3}, int64[2] shape = {-1, 4}"
    return save(folder, f"(float[{x}] x) => (float[{x}] y) <{weights}> {{{nodes}}}", opset)


def batched(path: Path, null: str, most: int | None = 8, **settings: Any) -> ModelParallelRunner:
    return build(path, null, max_batch_size=most, **settings)


GATED = """
import threading
from engine.errors import ModelError

plain, begun, go, stuck, own = engine_predict, [], threading.Event(), set(), {}
go.set()

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    begun.append(len(inputs[0]))
    assert own.get(len(begun), go).wait(60)
    for executable in opened:
        delay_s = 300.0 if stuck & {*inputs[0][:, 0].tolist()} else 0.0
        executable.host = replace(executable.host, delay_s=delay_s)
    if (inputs[0] == 13).any():
        raise ModelError("unlucky")
    return plain(context, inputs, outputs, deadline_s)
"""


class Gated:
    """A runner on one worker whose runs begin, and go on only when the test says so.

    In its module: `own`, by the number of a run an event of its own that it waits for; `stuck`,
    first elements of samples with which a run ends only when it is stopped.
    """

    def __init__(self, install: Callable[..., ModuleType], path: Path, **settings: Any) -> None:
        self.module = install("gated", extra=GATED)
        self.runner = batched(path, "gated", **settings)

    def __enter__(self) -> ModelParallelRunner:
        self.module.begun.clear()
        self.module.go.clear()
        shape = [4 if dim == -1 else dim for dim in self.runner.get_inputs()[0].shape]
        self.first = self.runner.submit([np.zeros([1, *shape[1:]], np.float32)])
        wait_until(lambda: self.module.begun)
        return self.runner

    def go(self) -> None:
        self.module.go.set()
        self.first.result(60)

    def __exit__(self, *_: object) -> None:
        self.module.go.set()
        self.runner.close()


@pytest.fixture
def gated(install: Callable[..., ModuleType], tmp_path: Path) -> Gated:
    """A model that multiplies each row by ROW."""
    return Gated(install, write(tmp_path, SCALE))


def full(number: float) -> list[Any]:
    return [np.full((1, 4), number, np.float32)]


class Clients:
    """Threads that each send one request of a number, and what they got."""

    def __init__(self, runner: ModelParallelRunner, *numbers: int) -> None:
        self.results: dict[int, Any] = {}
        self.threads = [
            threading.Thread(target=self._ask, args=(runner, number)) for number in numbers
        ]
        for thread in self.threads:
            thread.start()
        wait_until(lambda: runner.statistics().waiting == len(numbers))

    def _ask(self, runner: ModelParallelRunner, number: int) -> None:
        try:
            [y] = runner.predict(full(number))
            self.results[number] = y.get_data_to_numpy().tolist()
        except (ModelError, ModelStateError) as error:
            self.results[number] = str(error)

    def end(self) -> dict[int, Any]:
        for thread in self.threads:
            thread.join(60)
        return self.results


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (SCALE, ""),
        ("y = Softmax<axis = -1>(x)", ""),
        ("y = Softmax<axis = 0>(x)", "Softmax"),
        ("y = ReduceMean<axes = [1]>(x)", ""),
        ("y = ReduceMean<axes = [0]>(x)", "ReduceMean"),
        ("y = ReduceMax(x)", "ReduceMax"),
        ("y = ArgMax(x)", "ArgMax"),
        ("q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z)", "DynamicQuantizeL"),
        ("y = RandomNormalLike(x)", "RandomNormalLike"),
        ("y = Gather(x, ids)", "Gather"),
        ("y = MeanVarianceNormalization(x)", "MeanVariance"),
        ("y = some.where.Own(x)", "Own"),
    ],
)
def test_operators_that_may_mix_samples_are_known_by_rule(tmp_path, nodes, reason) -> None:
    source = open_source(write(tmp_path, nodes))
    assert source.graph is not None
    found = why_not(lambda: source, source.graph.inputs, source.graph.outputs)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


@pytest.mark.parametrize("shape", [(1, 4), ()])
def test_the_batch_is_the_open_first_axis_of_every_input(shape: Any) -> None:
    specs = ([TensorSpec(name, DType.FLOAT32, shape)] for name in "xy")
    assert batchable.without_batch_axis(*specs).startswith("input 'x' has no open first axis")


def test_a_batch_is_worth_it_where_a_sample_takes_clearly_less_time() -> None:
    # The figures are of docs: a weight-bound model, a compute-bound one, a tiny one.
    assert best_size({1: 2.0e-3, 2: 2.1e-3, 4: 2.6e-3, 8: 3.7e-3}) == 8
    assert best_size({1: 4.4e-3, 2: 8.4e-3, 4: 17.6e-3}) == 1
    assert best_size({1: 5e-6, 2: 6e-6, 4: 7e-6, 8: 9e-6}) == 1  # a hand-off costs more


def test_requests_that_wait_share_a_run_and_get_their_own_rows(gated: Gated) -> None:
    inputs = [np.full((1 + i % 2, 4), i, np.float32) for i in range(12)]
    with gated as runner, ThreadPoolExecutor(6) as threads:
        asked = [threads.submit(runner.predict, [x]) for x in inputs[:6]]
        asked += [runner.submit({"x": x}) for x in inputs[6:]]
        wait_until(lambda: runner.statistics().waiting == 12)
        gated.go()
        results = [future.result(60)[0].get_data_to_numpy() for future in asked]
        for x, found in zip(inputs, results, strict=True):
            np.testing.assert_array_equal(found, x * ROW)
            found[:] = 0  # its own memory
        assert asked[-1].result()[0].name == "y"
        statistics = runner.statistics()
    assert statistics.completed == 13
    assert max(statistics.batch_sizes) <= 8
    assert sum(statistics.batch_sizes.values()) <= 4, "the first, and 12 requests of 18 samples"
    assert sum(size * count for size, count in statistics.batch_sizes.items()) == 19
    assert "up to 8: as asked for" in str(statistics)


def test_a_bad_request_fails_alone(gated: Gated) -> None:
    with gated as runner:
        futures = {number: runner.submit(full(number)) for number in (11, 12, 13, 14)}
        gated.go()
        with pytest.raises(ModelError, match="unlucky"):
            futures.pop(13).result(60)
        for number, future in futures.items():
            np.testing.assert_array_equal(future.result(60)[0], [number * ROW])
        assert gated.module.begun == [1, 4, 1, 1, 1, 1]
        assert runner.statistics().failed == 1


def test_a_bad_request_of_a_thread_fails_alone(gated: Gated) -> None:
    with gated as runner:
        clients = Clients(runner, *range(11, 16))
        gated.go()
        results = clients.end()
        assert "unlucky" in results.pop(13)
        assert results == {i: (i * ROW[None]).tolist() for i in (11, 12, 14, 15)}
        assert gated.module.begun[:2] == [1, 5]


def test_close_finishes_requests_whose_shared_run_has_just_failed(gated, monkeypatch) -> None:
    with gated as runner:
        closing = threading.Thread(target=runner.close)
        semaphore, looks, has_failed = runner._queues[0].semaphore, [], threading.Event()
        requeue, is_used = semaphore.requeue, semaphore.is_used_by_others

        def requeue_later(waiters: Any) -> None:
            has_failed.set()
            wait_until(lambda: len(looks) > 2 or (closing.ident and not closing.is_alive()))
            requeue(waiters)

        def look() -> bool:
            looks.append(is_used())
            return looks[-1]

        monkeypatch.setattr(semaphore, "requeue", requeue_later)
        monkeypatch.setattr(semaphore, "is_used_by_others", look)
        clients = Clients(runner, *range(11, 16))
        gated.module.go.set()
        assert has_failed.wait(60)
        closing.start()
        results = clients.end()
        closing.join(60)
    assert "unlucky" in results.pop(13)
    assert results == {i: (i * ROW[None]).tolist() for i in (11, 12, 14, 15)}


def test_requests_of_other_shapes_or_with_wrong_ones_do_not_share(install, tmp_path) -> None:
    gated = Gated(install, write(tmp_path, "y = Neg(x)", "b, n"))
    with gated as runner:
        shapes = [(1, 4), (1, 5), (1, 4), (1, 5)]
        futures = [runner.submit([np.ones(shape, np.float32)]) for shape in shapes]
        with pytest.raises(InputError):
            runner.submit([np.ones((1,), np.float32)]).result(0)
        gated.go()
        for future, shape in zip(futures, shapes, strict=True):
            np.testing.assert_array_equal(future.result(60)[0], -np.ones(shape))
        assert runner.statistics().batch_sizes == {1: 1, 2: 2}


def test_a_cancelled_request_is_not_in_the_next_batch(gated) -> None:
    with gated as runner:
        futures = [runner.submit([ONE]) for _ in range(4)]
        futures[1].cancel()
        gated.go()
        wait(futures, 60)
        assert [future.cancelled() for future in futures] == [False, True, False, False]
        assert len(futures[3].result(0)) == 1
        assert runner.statistics().batch_sizes == {1: 1, 3: 1}


def test_a_request_that_is_cancelled_while_its_batch_runs_ends_at_once(gated: Gated) -> None:
    with gated as runner:
        leader, follower, third = (runner.submit([ONE]) for _ in range(3))
        gated.module.own[2] = threading.Event()
        gated.go()
        wait_until(lambda: gated.module.begun == [1, 3])
        assert [f.running() for f in (leader, follower, third)] == [True] * 3
        assert follower.cancel()
        with pytest.raises(Cancelled):
            follower.result(0)
        gated.module.own[2].set()
        for future in (leader, third):
            np.testing.assert_array_equal(future.result(60)[0], [ROW])


def test_a_delay_lets_a_batch_fill(null_backend: str, tmp_path: Path) -> None:
    with batched(write(tmp_path, SCALE), null_backend, 4, max_delay_us=300_000_000) as runner:
        futures = [runner.submit([ONE]) for _ in range(4)]
        for future in futures:
            future.result(60)  # full is full
        assert runner.statistics().batch_sizes == {4: 1}


def test_the_main_thread_shares_runs_too(gated: Gated) -> None:
    with gated as runner, ThreadPoolExecutor(1) as thread:
        waiting = runner.submit([ONE])
        thread.submit(lambda: (wait_until(lambda: runner.statistics().waiting == 2), gated.go()))
        runner.predict([ONE])
        assert waiting.result(60)
        assert runner.statistics().batch_sizes == {1: 1, 2: 1}


MOST = "[most] m = ReduceMax<axes = [0], keepdims = 1>(x)"


@pytest.mark.parametrize(
    ("nodes", "x", "weight", "reason"),
    [
        ("[scores] y = Softmax<axis = 0>(x)", "b, 4", None, "off: Softmax 'scores': it works alo"),
        # As it is loaded the weight of 0 keeps samples apart; an update would let them meet.
        (f"{MOST} g = Mul(m, row) y = Add(x, g)", "b, 4", "row", "ReduceMax 'most': it reduces"),
        # The rows of a batch, all in one row of 4: no rule about one operator's axis sees it.
        ("t = Transpose<perm = [1, 0]>(x) [join] y = Reshape(t, shape)", "b, 4", None,
         "Reshape 'join': it may put parts of different samples"),
        ("y = Neg(x)", "2, 4", None, "off: input 'x'"),
    ],
)  # fmt: skip
def test_a_model_that_mixes_samples_is_not_batched_and_says_why(
    null_backend: str, tmp_path: Path, nodes: str, x: str, weight: str | None, reason: str
) -> None:
    config = {"common_context": {"variable_weights_list": weight}} if weight else None
    with batched(write(tmp_path, nodes, x), null_backend, None, config=config) as runner:
        assert reason in runner.statistics().batching


@pytest.mark.parametrize(
    ("x", "settings", "error", "says"),
    [
        ("b, 4", {}, ModelError, r"cannot share runs \(max_batch_size=8\): Softmax 'scores'.*"
                                 r'batching="force"'),
        ("2, 4", {"most": None, "batching": "force"}, ModelError,
         r'runs \(batching="force"\): input \'x\' has no open first axis: .*; leave batching out$'),
        ("b, 4", {"batching": "yes"}, ValueError, "must be 'auto' or 'force', but got 'yes'"),
    ],
)  # fmt: skip
def test_insisting_on_shared_runs_in_vain_is_an_error_with_the_reason(
    null_backend: str, tmp_path: Path, x: str, settings: Any, error: type[Exception], says: str
) -> None:
    path = write(tmp_path, "[scores] y = Softmax<axis = 0>(x)", x)
    with pytest.raises(error, match=says):
        batched(path, null_backend, **settings)


def test_who_insists_has_requests_share_runs_and_reads_what_that_gives_up(
    install: Callable[..., ModuleType], tmp_path: Path
) -> None:
    gated = Gated(install, write(tmp_path, f"{MOST} y = Sub(x, m)"), batching="force")
    with gated as runner:
        futures = [runner.submit(full(number)) for number in (1, 2)]
        gated.go()
        found = [future.result(60)[0].get_data_to_numpy()[0, 0] for future in futures]
        assert found == [-1, 0], "they did not share a run"
        said = runner.statistics().batching
    assert "forced, and a request may change others' results: ReduceMax 'most'" in said


@pytest.mark.parametrize("mode", ["swap", "rebuild"])
def test_what_a_variable_weight_holds_proves_nothing(null_backend, tmp_path, mode) -> None:
    # Its entries choose the samples; those it is loaded with choose none but each one's own.
    path = write(tmp_path, "[look] y = Reshape(x, shape)")
    with batched(path, null_backend, None) as runner:
        assert "look" not in runner.statistics().batching
    keys = {"variable_weights_list": "shape", "variable_weights_mode": mode}
    with batched(path, null_backend, None, config={"common_context": keys}) as runner:
        assert "Reshape 'look'" in runner.statistics().batching


def test_requests_whose_sizes_do_not_go_by_the_names_are_run_alone(install, tmp_path) -> None:
    graph = "(float[b, s] x, float[b, s] z) => (float[b, t] y) {y = Add(x, z)}"
    module = install("gated", extra=GATED)
    runner = batched(save(tmp_path, graph), "gated")
    module.begun.clear()
    module.go.clear()
    one = np.ones((1, 3), np.float32)
    futures = [runner.submit([one, one])]
    wait_until(lambda: module.begun)
    futures += [runner.submit([one, one[:, :1]]) for _ in range(3)]
    futures += [runner.submit([one, one]) for _ in range(3)]
    module.go.set()
    for future in futures:
        np.testing.assert_array_equal(future.result(60)[0], 2 * one)
    runner.close()
    assert sorted(module.begun) == [1, 1, 1, 1, 3]


def test_a_closed_runner_fails_who_waits_for_a_batch(gated: Gated) -> None:
    with gated as runner:
        futures = [runner.submit([ONE]) for _ in range(12)]
        closing = threading.Thread(target=runner.close, kwargs={"finish": False})
        closing.start()
        for future in futures:
            assert isinstance(future.exception(60), ModelStateError)
        gated.go()
        closing.join(60)
        assert not closing.is_alive()


def test_the_curve_is_measured_where_nothing_is_asked_for(null_backend, tmp_path) -> None:
    slow = {"null_context": {"delay_s": "0.01"}}  # however many samples are in a run
    with batched(write(tmp_path, SCALE), null_backend, None, config=slow) as runner:
        assert runner.statistics().batching.startswith("up to ")
        assert "a batch is faster: 1: " in runner.statistics().batching
    assert engine.ModelParallelRunner().statistics().batching == ""


@pytest.mark.parametrize("how", ["timeout_s", "cancel", "future"])
def test_a_request_that_leads_a_batch_is_stopped_in_time_and_the_others_run(
    install: Callable[..., ModuleType], tmp_path: Path, how: str
) -> None:
    gated = Gated(install, write(tmp_path, SCALE), most=2)
    with gated as runner:
        token = engine.CancelToken()
        limit = {"timeout_s": 0.5} if how == "timeout_s" else {"cancel": token}
        gated.module.stuck.add(7)
        leader = runner.submit([7 * ONE], **limit)
        others = [runner.submit([ONE]) for _ in range(3)]
        gated.go()
        if how == "timeout_s":  # on a slow machine this is over before its run begins
            wait_until(leader.done)
        else:
            wait_until(lambda: gated.module.begun[1:] == [2])
            (token if how == "cancel" else leader).cancel()
        with pytest.raises(engine.DeadlineExceeded if how == "timeout_s" else Cancelled):
            leader.result(60)
        for future in others:
            np.testing.assert_array_equal(future.result(60)[0], [ROW])
        assert runner.statistics().batch_sizes == {1: 2, 2: 1}


def test_a_delay_leaves_time_for_the_run(null_backend: str, tmp_path: Path) -> None:
    with batched(write(tmp_path, SCALE), null_backend, max_delay_us=300_000_000) as runner:
        # It waits for half of the time; a machine that stands still may need the rest and more.
        ended = (runner.submit([ONE], timeout_s=limit_s).exception(60) for limit_s in (2, 8, 32))
        assert None in ended
        future = runner.submit([ONE])
        wait_until(lambda: runner.statistics().running)
        future.cancel()
        with pytest.raises(Cancelled):
            future.result(60)


def test_a_batch_that_fails_in_any_way_fails_for_the_bad_request_alone(
    null_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def predict(inputs: Any, *rest: Any, **named: Any) -> Any:
        if isinstance(inputs, list) and (np.asarray(inputs[0]) == 13).any():
            raise LookupError("unlucky")
        return plain(inputs, *rest, **named)

    slow = {"null_context": {"delay_s": "0.05"}}
    with batched(write(tmp_path, SCALE), null_backend, config=slow) as runner:
        [queue] = runner._queues
        plain = queue.runnable.predict
        monkeypatch.setattr(queue.runnable, "predict", predict)
        futures = [runner.submit(full(number)) for number in (10, 11, 12, 13, 14)]
        errors = [type(future.exception(60)) for future in futures]
        assert errors == [*3 * [type(None)], LookupError, type(None)]
