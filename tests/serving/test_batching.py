"""Requests that share a run: which may, which do, and what happens when the run fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from steps import wait_until

import engine
from engine import Cancelled, Context, InputError, ModelError, ModelParallelRunner, ModelStateError
from engine.formats import open_source
from engine.serving import batchable
from engine.serving.batchable import best_size, why_not
from engine.types import DType, TensorSpec

Nodes = Sequence[Any]
ROW = np.array([1, 2, 3, 4], np.float32)


def write(
    folder: Path,
    nodes: Nodes,
    *,
    x: Sequence[Any] = ("b", 4),
    y: Sequence[Any] = ("b", 4),
    opset: int = 17,
) -> Path:
    weights = {
        "row": ROW,
        "ids": np.array([1, 0, 2, 3]),
        "shape": np.array([-1, 4]),
    }
    graph = helper.make_graph(
        list(nodes),
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    path = folder / "net.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    )
    return path


SCALE = [helper.make_node("Mul", ["x", "row"], ["y"])]


def batched(path: Path, null: str, most: int | None = 8, **settings: Any) -> ModelParallelRunner:
    context = Context()
    context.target = [null]
    context.parallel.workers_num = 1
    if "config" in settings:
        context.parallel.config_info = settings.pop("config")
    runner = ModelParallelRunner()
    runner.build_from_file(str(path), context, max_batch_size=most, **settings)
    return runner


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


# ---------------------------------------------------------------------------------------- by rule


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (SCALE, ""),
        ([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], ""),
        ([helper.make_node("Softmax", ["x"], ["y"], axis=0)], "Softmax"),
        ([helper.make_node("ReduceMean", ["x"], ["y"], axes=[1])], ""),
        ([helper.make_node("ReduceMean", ["x"], ["y"], axes=[0])], "ReduceMean"),
        ([helper.make_node("ReduceMax", ["x"], ["y"])], "ReduceMax"),
        ([helper.make_node("ArgMax", ["x"], ["y"])], "ArgMax"),
        (
            [
                helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
                helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
            ],
            "DynamicQuantizeLinear",
        ),
        ([helper.make_node("RandomNormalLike", ["x"], ["y"])], "RandomNormalLike"),
        ([helper.make_node("Gather", ["x", "ids"], ["y"])], "Gather"),
        ([helper.make_node("MeanVarianceNormalization", ["x"], ["y"])], "MeanVariance"),
        ([helper.make_node("Own", ["x"], ["y"], domain="some.where")], "Own"),
    ],
)
def test_operators_that_may_mix_samples_are_known_by_rule(
    tmp_path: Path, nodes: Nodes, reason: str
) -> None:
    source = open_source(write(tmp_path, nodes))
    assert source.graph is not None
    found = why_not(lambda: source, source.graph.inputs, source.graph.outputs)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ((1, 4), (1, 4), "input 'x' has no open first axis"),
        ((), (), "input 'x' has no open first axis"),
    ],
)
def test_the_batch_is_the_open_first_axis_of_every_input(x: Any, y: Any, reason: str) -> None:
    specs = [TensorSpec("x", DType.FLOAT32, x)], [TensorSpec("y", DType.FLOAT32, y)]
    assert batchable.without_batch_axis(*specs).startswith(reason)


def test_a_batch_is_worth_it_where_a_sample_takes_clearly_less_time() -> None:
    # The figures are of docs: a weight-bound model, a compute-bound one, a tiny one.
    assert best_size({1: 2.0e-3, 2: 2.1e-3, 4: 2.6e-3, 8: 3.7e-3}) == 8
    assert best_size({1: 4.4e-3, 2: 8.4e-3, 4: 17.6e-3}) == 1
    assert best_size({1: 5e-6, 2: 6e-6, 4: 7e-6, 8: 9e-6}) == 1  # a hand-off costs more


# --------------------------------------------------------------------------------------- in a run


def test_requests_that_wait_share_a_run_and_get_their_own_rows(
    install: Callable[..., ModuleType], tmp_path: Path
) -> None:
    gated = Gated(install, write(tmp_path, SCALE))
    inputs = [np.full((1 + i % 2, 4), i, np.float32) for i in range(12)]
    with gated as runner:
        results: dict[int, Any] = {}

        def client(number: int) -> None:
            [y] = runner.predict([inputs[number]])
            results[number] = y.get_data_to_numpy()

        threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        futures = {number: runner.submit({"x": inputs[number]}) for number in range(6, 12)}
        wait_until(lambda: runner.statistics().waiting == 12)
        gated.go()
        for number, future in futures.items():
            [y] = future.result(60)
            assert y.name == "y"
            results[number] = y.get_data_to_numpy()
        for thread in threads:
            thread.join(60)
        for number, x in enumerate(inputs):
            np.testing.assert_array_equal(results[number], x * ROW)
            results[number][:] = 0  # its own memory
        statistics = runner.statistics()
    assert statistics.completed == 13
    assert max(statistics.batch_sizes) <= 8
    assert sum(statistics.batch_sizes.values()) <= 4, "the first, and 12 requests of 18 samples"
    assert sum(size * count for size, count in statistics.batch_sizes.items()) == 19
    assert "up to 8: as asked for" in str(statistics)


def test_a_bad_request_fails_alone(install: Callable[..., ModuleType], tmp_path: Path) -> None:
    gated = Gated(install, write(tmp_path, SCALE))
    with gated as runner:
        numbers = (11, 12, 13, 14)
        futures = [runner.submit([np.full((1, 4), i, np.float32)]) for i in numbers]
        gated.go()
        with pytest.raises(ModelError, match="unlucky"):
            futures[2].result(60)
        for place in (0, 1, 3):
            [y] = futures[place].result(60)
            np.testing.assert_array_equal(y.get_data_to_numpy(), [numbers[place] * ROW])
        assert gated.module.begun == [1, 4, 1, 1, 1, 1]
        assert runner.statistics().failed == 1


def test_a_bad_request_of_a_thread_fails_alone(
    install: Callable[..., ModuleType], tmp_path: Path
) -> None:
    gated = Gated(install, write(tmp_path, SCALE))
    results: dict[int, Any] = {}

    def client(number: int) -> None:
        try:
            [y] = gated.runner.predict([np.full((1, 4), number, np.float32)])
            results[number] = y.get_data_to_numpy().tolist()
        except ModelError as error:
            results[number] = str(error)

    with gated as runner:
        threads = [threading.Thread(target=client, args=(number,)) for number in range(11, 16)]
        for thread in threads:
            thread.start()
        wait_until(lambda: runner.statistics().waiting == 5)
        gated.go()
        for thread in threads:
            thread.join(60)
        assert "unlucky" in results.pop(13)
        assert results == {i: (i * ROW[None]).tolist() for i in (11, 12, 14, 15)}
        assert gated.module.begun[:2] == [1, 5]


def test_close_finishes_requests_whose_shared_run_has_just_failed(
    install: Callable[..., ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated = Gated(install, write(tmp_path, SCALE))
    results: dict[int, Any] = {}

    def client(number: int) -> None:
        try:
            [y] = gated.runner.predict([np.full((1, 4), number, np.float32)])
            results[number] = y.get_data_to_numpy().tolist()
        except (ModelError, ModelStateError) as error:
            results[number] = str(error)

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
        threads = [threading.Thread(target=client, args=(number,)) for number in range(11, 16)]
        for thread in threads:
            thread.start()
        wait_until(lambda: runner.statistics().waiting == 5)
        gated.module.go.set()
        assert has_failed.wait(60)
        closing.start()
        for thread in (*threads, closing):
            thread.join(60)
    assert "unlucky" in results.pop(13)
    assert results == {i: (i * ROW[None]).tolist() for i in (11, 12, 14, 15)}


def test_requests_of_other_shapes_or_with_wrong_ones_do_not_share(
    install: Callable[..., ModuleType], tmp_path: Path
) -> None:
    path = write(tmp_path, [helper.make_node("Neg", ["x"], ["y"])], x=("b", "n"), y=("b", "n"))
    gated = Gated(install, path)
    with gated as runner:
        shapes = [(1, 4), (1, 5), (1, 4), (1, 5)]
        futures = [runner.submit([np.ones(shape, np.float32)]) for shape in shapes]
        with pytest.raises(InputError):
            runner.submit([np.ones((1,), np.float32)]).result(0)
        gated.go()
        for future, shape in zip(futures, shapes, strict=True):
            assert future.result(60)[0].get_data_to_numpy().tolist() == (-np.ones(shape)).tolist()
        assert runner.statistics().batch_sizes == {1: 1, 2: 2}


def test_a_cancelled_request_is_not_in_the_next_batch(
    install: Callable[..., ModuleType], tmp_path: Path
) -> None:
    gated = Gated(install, write(tmp_path, SCALE))
    with gated as runner:
        x = np.ones((1, 4), np.float32)
        futures = [runner.submit([x]) for _ in range(4)]
        futures[1].cancel()
        gated.go()
        wait(futures, 60)
        assert [future.cancelled() for future in futures] == [False, True, False, False]
        assert len(futures[3].result(0)) == 1
        assert runner.statistics().batch_sizes == {1: 1, 3: 1}


def test_a_request_that_is_cancelled_while_its_batch_runs_ends_at_once(
    install: Callable[..., ModuleType], tmp_path: Path
) -> None:
    gated = Gated(install, write(tmp_path, SCALE))
    with gated as runner:
        x = np.ones((1, 4), np.float32)
        leader, follower, third = (runner.submit([x]) for _ in range(3))
        gated.module.own[2] = threading.Event()
        gated.go()
        wait_until(lambda: gated.module.begun == [1, 3])
        assert [f.running() for f in (leader, follower, third)] == [True] * 3
        assert follower.cancel()
        with pytest.raises(Cancelled):
            follower.result(0)
        gated.module.own[2].set()
        for future in (leader, third):
            assert future.result(60)[0].get_data_to_numpy().tolist() == [ROW.tolist()]


def test_a_delay_lets_a_batch_fill(null_backend: str, tmp_path: Path) -> None:
    with batched(write(tmp_path, SCALE), null_backend, 4, max_delay_us=300_000_000) as runner:
        futures = [runner.submit([np.ones((1, 4), np.float32)]) for _ in range(4)]
        for future in futures:
            future.result(60)  # full is full
        assert runner.statistics().batch_sizes == {4: 1}


def test_the_main_thread_shares_runs_too(
    install: Callable[..., ModuleType], tmp_path: Path
) -> None:
    gated = Gated(install, write(tmp_path, SCALE))
    with gated as runner:
        x = np.ones((1, 4), np.float32)
        waiting = runner.submit([x])
        thread = threading.Thread(
            target=lambda: (wait_until(lambda: runner.statistics().waiting == 2), gated.go())
        )
        thread.start()
        runner.predict([x])
        assert waiting.result(60)
        thread.join()
        assert runner.statistics().batch_sizes == {1: 1, 2: 1}


# ------------------------------------------------------------------------------------ when it is on


def test_a_model_that_mixes_samples_is_not_batched_and_says_which_node_and_how_to_insist(
    null_backend: str, tmp_path: Path
) -> None:
    path = write(tmp_path, [helper.make_node("Softmax", ["x"], ["y"], "scores", axis=0)])
    with batched(path, null_backend, None) as runner:
        assert "off: Softmax 'scores': it works along axis 0" in runner.statistics().batching
    message = r"cannot share runs \(max_batch_size=8\): Softmax 'scores'.*batching=\"force\""
    with pytest.raises(ModelError, match=message):
        batched(path, null_backend)


def test_who_insists_has_requests_share_runs_and_reads_what_that_gives_up(
    install: Callable[..., ModuleType], tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], "most", axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    path = write(tmp_path, nodes)
    gated = Gated(install, path, batching="force")
    with gated as runner:
        futures = [runner.submit([np.full((1, 4), i, np.float32)]) for i in (1, 2)]
        gated.go()
        found = [future.result(60)[0].get_data_to_numpy()[0, 0] for future in futures]
        assert found == [-1, 0], "they did not share a run"
        said = runner.statistics().batching
    assert "forced, and a request may change others' results: ReduceMax 'most'" in said
    with pytest.raises(ValueError, match="batching must be 'auto' or 'force', but got 'yes'"):
        batched(path, "null", batching="yes")


def test_a_gate_that_a_variable_weight_may_open_is_no_proof(
    null_backend: str, tmp_path: Path
) -> None:
    # As it is loaded the weight of 0 keeps samples apart; an update would let them meet.
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], "most", axes=[0], keepdims=1),
        helper.make_node("Mul", ["m", "row"], ["g"]),
        helper.make_node("Add", ["x", "g"], ["y"]),
    ]
    config = {"common_context": {"variable_weights_list": "row"}}
    with batched(write(tmp_path, nodes), null_backend, None, config=config) as runner:
        assert "ReduceMax 'most': it reduces the batch" in runner.statistics().batching


def test_insisting_on_shared_runs_of_a_fixed_batch_is_an_error_with_the_reason(
    null_backend: str, tmp_path: Path
) -> None:
    path = write(tmp_path, [helper.make_node("Neg", ["x"], ["y"])], x=(2, 4), y=(2, 4))
    message = (
        r'runs \(batching="force"\): input \'x\' has no open first axis: .*; leave batching out$'
    )
    with pytest.raises(ModelError, match=message):
        batched(path, null_backend, None, batching="force")
    with batched(path, null_backend, None) as runner:
        assert "off: input 'x'" in runner.statistics().batching


@pytest.mark.parametrize("mode", ["swap", "rebuild"])
def test_what_a_variable_weight_holds_proves_nothing(
    null_backend: str, tmp_path: Path, mode: str
) -> None:
    # Its entries choose the samples; those it is loaded with choose none but each one's own.
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], "look")]
    path = write(tmp_path, nodes)
    with batched(path, null_backend, None) as runner:
        assert "look" not in runner.statistics().batching
    config = {
        "common_context": {
            "variable_weights_list": "shape",
            "variable_weights_mode": mode,
        }
    }
    with batched(path, null_backend, None, config=config) as runner:
        assert "Reshape 'look'" in runner.statistics().batching


def test_rows_that_a_reshape_joins_are_no_batch(null_backend: str, tmp_path: Path) -> None:
    # The rows of a batch, all in one row of 4: what no rule about one operator's axis sees.
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("Reshape", ["t", "shape"], ["y"], "join"),
    ]
    with pytest.raises(ModelError, match="Reshape 'join': it may put parts of different samples"):
        batched(write(tmp_path, nodes), null_backend)


def test_requests_whose_sizes_do_not_go_by_the_names_are_run_alone(
    install: Callable[..., ModuleType], tmp_path: Path
) -> None:
    shape = ["b", "s"]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "z"], ["y"])],
        "net",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xz"],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", "t"])],
    )
    path = tmp_path / "net.onnx"
    opsets = [helper.make_opsetid("", 17)]
    path.write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    )
    module = install("gated", extra=GATED)
    runner = batched(path, "gated")
    module.begun.clear()
    module.go.clear()
    one = np.ones((1, 3), np.float32)
    futures = [runner.submit([one, one])]
    wait_until(lambda: module.begun)
    futures += [runner.submit([one, one[:, :1]]) for _ in range(3)]
    futures += [runner.submit([one, one]) for _ in range(3)]
    module.go.set()
    for future in futures:
        np.testing.assert_array_equal(future.result(60)[0].get_data_to_numpy(), 2 * one)
    runner.close()
    assert sorted(module.begun) == [1, 1, 1, 1, 3]


def test_a_closed_runner_fails_who_waits_for_a_batch(
    install: Callable[..., ModuleType], tmp_path: Path
) -> None:
    gated = Gated(install, write(tmp_path, SCALE))
    with gated as runner:
        futures = [runner.submit([np.ones((1, 4), np.float32)]) for _ in range(12)]
        closing = threading.Thread(target=runner.close, kwargs={"finish": False})
        closing.start()
        for future in futures:
            assert isinstance(future.exception(60), ModelStateError)
        gated.go()
        closing.join(60)
        assert not closing.is_alive()


def test_the_curve_is_measured_where_nothing_is_asked_for(
    null_backend: str, tmp_path: Path
) -> None:
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
        x = np.ones((1, 4), np.float32)
        token = engine.CancelToken()
        limit = {"timeout_s": 0.5} if how == "timeout_s" else {"cancel": token}
        gated.module.stuck.add(7)
        leader = runner.submit([7 * x], **limit)
        others = [runner.submit([x]) for _ in range(3)]
        gated.go()
        if how == "timeout_s":  # on a slow machine this is over before its run begins
            wait_until(leader.done)
        else:
            wait_until(lambda: gated.module.begun[1:] == [2])
        if how == "cancel":
            token.cancel()
        elif how == "future":
            leader.cancel()
        with pytest.raises(engine.DeadlineExceeded if how == "timeout_s" else Cancelled):
            leader.result(60)
        for future in others:
            assert future.result(60)[0].get_data_to_numpy().tolist() == [ROW.tolist()]
        assert runner.statistics().batch_sizes == {1: 2, 2: 1}


def test_a_delay_leaves_time_for_the_run(null_backend: str, tmp_path: Path) -> None:
    with batched(write(tmp_path, SCALE), null_backend, max_delay_us=300_000_000) as runner:
        x = np.ones((1, 4), np.float32)
        # It waits for half of the time; a machine that stands still may need the rest and more.
        ended = (runner.submit([x], timeout_s=limit_s).exception(60) for limit_s in (2, 8, 32))
        assert None in ended
        future = runner.submit([x])
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
        futures = [runner.submit([np.full((1, 4), i, np.float32)]) for i in (10, 11, 12, 13, 14)]
        errors = [future.exception(60) for future in futures]
        assert [type(error) for error in errors] == [*3 * [type(None)], LookupError, type(None)]
