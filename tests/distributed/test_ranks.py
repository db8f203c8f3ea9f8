"""Plans with collectives: cut, agreed, run together. Ranks are threads with the null backend."""

from __future__ import annotations

import gc
import re
import threading
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rank_models
import threads
from onnx import TensorProto
from rank_models import node, save, together
from threads import predict
from waiting import wait_until

import engine
from engine.distributed.job import Job
from engine.distributed.store import StoreServer
from engine.errors import Cancelled, CommunicatorError, InputError, ModelError
from engine.plan import Plan

Array = np.ndarray[Any, Any]


COLLECTIVES = {"where": "host"}


@pytest.fixture(params=["host", "device"], autouse=True)
def _everything_twice(request: pytest.FixtureRequest) -> None:
    """Collectives by the core in host memory, and by the null backend on its fake device."""
    COLLECTIVES["where"] = request.param


def rank_plan(
    path: Path, server: StoreServer, rank: int, world_size: int, timeout_s: float = 100.0
) -> Plan:
    """The plan of one rank, which has joined the others."""
    job = Job(rank, world_size, server.address, server.key, timeout_s)
    return threads.rank_plan(path, job, COLLECTIVES["where"] == "device")[0]


def outcomes_of(
    paths: Sequence[Path], main: Callable[[int, Plan], Any], timeout_s: float = 100.0
) -> list[Any]:
    """Build a model for each rank and call `main` with the plan; gives results or errors."""

    def rank_main(rank: int) -> Any:
        plan = rank_plan(paths[rank], server, rank, len(paths), timeout_s)
        try:
            return main(rank, plan)
        finally:
            plan.pool.close()

    with StoreServer() as server:
        return threads.outcomes(len(paths), rank_main)


def on_all(paths: Sequence[Path], main: Callable[[int, Plan], Any], **more: float) -> list[Any]:
    """Build a model for each rank and call `main` with the plan; gives results."""
    return threads.values(outcomes_of(paths, main, **more))


def x_of(rows: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, 6)).astype(np.float32)


def mlp_of(x: Array) -> Array:
    a, b, c = rank_models.weights()
    return np.asarray(np.maximum(x @ a, 0) @ b + c)


pytestmark = pytest.mark.usefixtures("null_backend")


@pytest.mark.parametrize("world_size", [2, 4])
def test_slices_give_the_whole_models_output_on_every_rank(tmp_path: Path, world_size: int) -> None:
    """Several shapes, each often enough that buffers are prepared, with and without outputs."""
    inputs = [x_of(rows, seed) for seed, rows in enumerate((3, 3, 3, 1, 1, 1, 3))]

    def main(rank: int, plan: Plan) -> list[Array]:
        results = [predict(plan, x)[0] for x in inputs]
        for x in inputs:
            buffer = np.empty((len(x), 5), np.float32)
            assert predict(plan, x, outputs=[buffer])[0] is buffer
            results.append(buffer)
        return results

    ranks = on_all(rank_models.sliced_mlp(tmp_path, world_size), main)
    for results in ranks:
        for x, y, of_rank_0 in zip(inputs * 2, results, ranks[0], strict=True):
            np.testing.assert_allclose(y, mlp_of(x), rtol=1e-4, atol=1e-5)
            assert y.tobytes() == of_rank_0.tobytes(), "ranks differ"


def test_stages_that_send_and_receive_give_the_whole_models_output(tmp_path: Path) -> None:
    def main(rank: int, plan: Plan) -> list[Array]:
        return [predict(plan, x_of(3, seed))[0] for seed in range(4)]

    for results in on_all(rank_models.staged_mlp(tmp_path), main):
        for seed, y in enumerate(results):
            np.testing.assert_allclose(y, mlp_of(x_of(3, seed)), rtol=1e-4, atol=1e-5)


def test_what_is_received_is_of_the_type_that_its_node_says(tmp_path: Path) -> None:
    """Its reader takes any type, so that nothing else tells it."""
    first = [together("Send", "x", "sent", rank=1), node("Neg", "x", "y")]
    second = [
        together("Receive", "", "r", rank=0, to=TensorProto.FLOAT, sizes=[2, 3]),
        node("Transpose", "r", "t"), node("Transpose", "t", "y"),
    ]  # fmt: skip
    shapes: Any = {"x": [2, 3]}, {"y": [2, 3]}
    paths = [save(tmp_path / f"m{i}.onnx", each, *shapes) for i, each in enumerate((first, second))]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    results = on_all(paths, lambda rank, plan: predict(plan, x)[0])
    np.testing.assert_array_equal(results, [-x, x])


def test_a_shape_goes_before_the_tensor_that_no_file_says_it_of(tmp_path: Path) -> None:
    """By Send and Receive, and by a Broadcast to which one rank alone gives something."""
    last = together("Broadcast", "z", "y", root=1, with_shape=1, to=TensorProto.FLOAT)
    first = [together("Send", "x", "sent", rank=1, with_shape=1), deepcopy(last)]
    del first[1].input[:]
    second = [
        together("Receive", "", "r", rank=0, to=TensorProto.FLOAT, with_shape=1),
        node("Neg", "r", "z"), last,
    ]  # fmt: skip
    shapes: Any = {"x": ["n", "m"]}, {"y": ["n", "m"]}
    paths = [save(tmp_path / f"m{i}.onnx", each, *shapes) for i, each in enumerate((first, second))]
    sizes = [(2, 3), (2, 3), (2, 3), (1, 4), (0, 3), (200, 300), (2, 3)]
    inputs = [np.random.default_rng(0).standard_normal(size).astype(np.float32) for size in sizes]

    def main(rank: int, plan: Plan) -> list[Array]:
        return [predict(plan, x)[0] for x in inputs]

    for results in on_all(paths, main):
        for x, y in zip(inputs, results, strict=True):
            np.testing.assert_array_equal(y, -x)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_kind_of_collective_node_gives_what_numpy_gives(
    tmp_path: Path, world_size: int
) -> None:
    path = rank_models.every_kind(tmp_path, world_size)
    rows = [4, 4, 4, 8]
    parts = [
        [np.random.default_rng(10 * turn + rank).standard_normal((count, 4)).astype(np.float32)
         for rank in range(world_size)]
        for turn, count in enumerate(rows)
    ]  # fmt: skip

    def main(rank: int, plan: Plan) -> list[list[Array]]:
        return [predict(plan, turn[rank]) for turn in parts]

    for rank, results in enumerate(on_all([path] * world_size, main)):
        for turn, arrays in zip(parts, results, strict=True):
            wanted = rank_models.of_every_kind(turn, rank)
            for (name, value), array in zip(wanted.items(), arrays, strict=True):
                np.testing.assert_allclose(array, value, rtol=1e-6, atol=1e-6, err_msg=name)


def test_groups_of_ranks_exchange_among_themselves(tmp_path: Path) -> None:
    """Four ranks: a sum over each pair, then the maximum of all."""
    paths = []
    for rank in range(4):
        pair = [0, 1] if rank < 2 else [2, 3]
        nodes = [
            together("AllReduce", "x", "p", group=f"pair {pair}", group_ranks=pair),
            together("AllReduce", "p", "y", reduction="max"),
        ]
        path = tmp_path / f"groups{rank}.onnx"
        paths.append(save(path, nodes, {"x": ["n"]}, {"p": ["n"], "y": ["n"]}))

    def main(rank: int, plan: Plan) -> list[list[float]]:
        return [array.tolist() for array in predict(plan, np.float32([rank, 10 - rank]))]

    # Sums of pairs: 0+1, 10+9 and 2+3, 8+7.
    low, high, most = [1.0, 19.0], [5.0, 15.0], [5.0, 19.0]
    assert on_all(paths, main) == [[low, most], [low, most], [high, most], [high, most]]


def test_ranks_with_other_local_nodes_keep_the_files_order_of_collectives(tmp_path: Path) -> None:
    """C, A, B on both; rank 0 has two local nodes more before A, which once changed the order."""
    last = node("Sum", "a b c", "y")
    nodes = [
        [together("AllReduce", "x", "c"), node("Neg", "x", "p"), node("Neg", "p", "q"),
         together("AllReduce", "q", "a", reduction="max"), together("AllReduce", "c", "b"), last],
        [together("AllReduce", "x", "c"), together("AllReduce", "x", "a", reduction="max"),
         together("AllReduce", "c", "b"), last],
    ]  # fmt: skip
    paths = [
        save(tmp_path / f"order{rank}.onnx", own, {"x": ["n"]}, {"y": ["n"]})
        for rank, own in enumerate(nodes)
    ]

    def main(rank: int, plan: Plan) -> list[float]:
        for _ in range(3):
            [y] = predict(plan, np.float32([1 + rank]))
        return y.tolist()

    # c = 1 + 2, a = max(1, 2), b = c + c
    assert on_all(paths, main) == [[3 + 2 + 6.0]] * 2


def test_a_segment_whose_shapes_change_with_the_data_does_not_repeat_collectives(
    tmp_path: Path,
) -> None:
    """NonZero of what is rank 0's own gives more or fewer columns each time; on rank 1 always 6."""
    nodes = [
        together("AllReduce", "x", "t"), node("Mul", "t x", "own"), node("NonZero", "own", "where"),
        node("Neg", "where", "n"), together("AllReduce", "t", "u", reduction="max"),
        node("Neg", "u", "m"),
    ]  # fmt: skip
    path = save(
        tmp_path / "nonzero.onnx", nodes, {"x": [6]}, {"n": [1, "count"], "m": [6]},
        dtypes={"n": TensorProto.INT64},
    )  # fmt: skip
    counts = (2, 2, 2, 5, 1, 6, 6)

    def main(rank: int, plan: Plan) -> list[list[int]]:
        found = []
        for count in counts:
            x = np.ones(6, np.float32)
            x[count:] = rank
            n, m = predict(plan, x)
            assert m.tolist() == [-2.0] * count + [-1.0] * (6 - count)
            found.append((-n[0]).tolist())
        return found

    wanted = [list(range(count)) for count in counts]
    assert on_all([path] * 2, main) == [wanted, [list(range(6))] * len(counts)]


def test_placement_names_the_ranks_for_collectives_and_keeps_the_files_order(
    tmp_path: Path,
) -> None:
    def main(rank: int, plan: Plan) -> list[tuple[str, str]]:
        return [(placed.op_type, placed.backend) for placed in plan.placement()]

    for placed in on_all(rank_models.sliced_mlp(tmp_path), main):
        assert placed == [
            ("MatMul", "null"), ("Relu", "null"), ("MatMul", "null"), ("AllReduce", "ranks"),
            ("Add", "null"),
        ]  # fmt: skip


def test_predicts_of_several_threads_take_turns(tmp_path: Path) -> None:
    """Each rank's n-th predict is that of the same x, whichever thread makes it."""

    def main(rank: int, plan: Plan) -> int:
        assert plan.pool.semaphore is not None
        assert plan.pool.semaphore.slots == 1
        wrong = []

        def run() -> None:
            for _ in range(5):
                [y] = predict(plan, x_of(2))
                if not np.allclose(y, mlp_of(x_of(2)), rtol=1e-4, atol=1e-5):
                    wrong.append(y)

        runs = [threading.Thread(target=run) for _ in range(3)]
        for thread in runs:
            thread.start()
        for thread in runs:
            thread.join(60)
        return len(wrong)

    assert on_all(rank_models.sliced_mlp(tmp_path), main) == [0, 0]


def test_a_rank_with_another_sequence_is_named_before_the_first_predict(tmp_path: Path) -> None:
    nodes = [together("AllReduce", "x", "a"), together("AllGather", "x", "b")]
    last = node("Neg", "a", "y")
    paths = [
        save(tmp_path / f"rank{rank}.onnx", [*own, last], {"x": [4]}, {"y": [4]})
        for rank, own in enumerate((nodes, nodes[::-1]))
    ]
    for error in outcomes_of(paths, lambda rank, plan: None):
        assert isinstance(error, CommunicatorError), error
        assert "the models of rank 0 and rank 1 do not fit together" in str(error)
        assert re.search(r"AllReduce.*here, but AllGather.*there", str(error))
        assert error.ranks == (0, 1)


def test_a_rank_with_another_shape_is_named_before_the_first_predict(tmp_path: Path) -> None:
    """The shape is known inside the graph alone: by the backend that makes it."""
    paths = [
        save(tmp_path / f"rank{rank}.onnx",
             [node("MatMul", "x w", "h"), together("AllReduce", "h", "t"), node("Neg", "t", "y")],
             {"x": [2, 3]}, {"y": [2, "k"]}, {"w": np.ones((3, 4 + rank), np.float32)})
        for rank in range(2)
    ]  # fmt: skip
    for error in outcomes_of(paths, lambda rank, plan: None):
        assert isinstance(error, CommunicatorError), error
        assert "(2, 4)" in str(error)
        assert "(2, 5)" in str(error)


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"group": "tp"}, "group 'tp' has no members; name them in attribute group_ranks"),
        ({"group": "tp", "group_ranks": [0, 1, 2]}, "its group is of ranks 0, 1, 2, but this job"),
        ({"group": "tp", "group_ranks": [1]}, "its group is of ranks 1, and this is rank 0"),
        ({"group_ranks": [0]}, "it is for all of 1 ranks, but this job has 2"),
        ({"reduction": "xor"}, "reduction 'xor' is none of sum, prod, min, max, mean"),
    ],
)
def test_a_node_that_cannot_run_is_named_with_the_reason(
    tmp_path: Path, attributes: dict[str, Any], says: str
) -> None:
    nodes = [together("AllReduce", "x", "y", **attributes)]
    path = save(tmp_path / "bad.onnx", nodes, {"x": [4]}, {"y": [4]})
    with StoreServer() as server, pytest.raises(ModelError) as caught:
        rank_plan(path, server, 0, 2, timeout_s=0.3)
    assert "AllReduce 'AllReduce y': " in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, r"not started as a rank of several: start all of them"),
        ({"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALNRANKS": "1"},
         r"no.* a rank of several: .* with mpirun -n N"),
    ],
    ids=["alone", "the only rank of mpirun"],
)  # fmt: skip
def test_a_process_that_is_no_rank_of_several_is_told_how_to_start_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], says: str
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(ModelError, match=says):
        engine.load(rank_models.sliced_mlp(tmp_path)[0], target="null")


def test_an_error_in_one_rank_ends_the_predict_of_all_with_its_reason(tmp_path: Path) -> None:
    """Rank 1's Reshape fails on what it gets; rank 0 waits for it in the second all-reduce."""
    nodes = [
        together("AllReduce", "x", "t"), node("Reshape", "t shape", "u"),
        together("AllReduce", "u", "y"),
    ]  # fmt: skip
    paths = [
        save(tmp_path / f"rank{rank}.onnx", nodes, {"x": ["n"]}, {"y": ["m"]},
             {"shape": np.int64([-1] if rank == 0 else [4])})
        for rank in range(2)
    ]  # fmt: skip

    def main(rank: int, plan: Plan) -> list[BaseException]:
        assert predict(plan, np.ones(4, np.float32))[0].tolist() == [4.0] * 4
        begin_s = time.monotonic()
        with pytest.raises((CommunicatorError, ModelError)) as caught:
            predict(plan, np.ones(3, np.float32))
        assert time.monotonic() - begin_s < 60, "the time-out was 100 s"
        with pytest.raises(CommunicatorError, match="out of step since an earlier predict failed"):
            predict(plan, np.ones(4, np.float32))
        return [caught.value]

    [waiting], [failed] = on_all(paths, main)
    assert isinstance(failed, ModelError)
    assert isinstance(waiting, CommunicatorError)
    assert waiting.ranks == (1,)
    assert "rank 1 of 2 has aborted" in str(waiting)
    assert "reshape" in str(waiting), "the reason of the other rank"


def test_a_rank_that_refuses_a_predict_tells_those_that_are_in_it(tmp_path: Path) -> None:
    done = threading.Event()

    def main(rank: int, plan: Plan) -> list[BaseException]:
        assert plan.refuse is not None
        predict(plan, x_of(2))
        if rank == 1:
            plan.refuse("InputError: input 'x': expected float32[n, 6]")
            done.wait(100)
        begin_s = time.monotonic()
        with pytest.raises(CommunicatorError) as caught:
            predict(plan, x_of(2))
        assert time.monotonic() - begin_s < 60, "the time-out was 100 s"
        done.set()
        return [caught.value]

    [waiting], [refusing] = on_all(rank_models.sliced_mlp(tmp_path), main)
    assert waiting.ranks == (1,)
    assert not waiting.timed_out
    assert "rank 1 of 2 did not begin its predict" in str(waiting)
    assert "InputError: input 'x': expected float32[n, 6]" in str(waiting)
    assert "rank 0 of 2 has aborted" in str(refusing)


def test_ranks_that_refuse_the_same_predict_stay_in_step(tmp_path: Path) -> None:
    """Whoever is first waits in the next predict for one that has yet to refuse."""

    def main(rank: int, plan: Plan) -> Array:
        assert plan.refuse is not None
        for turn in range(6):
            predict(plan, x_of(2))
            if turn % 2 == rank:
                time.sleep(0.1)
            plan.refuse("InputError")
        return predict(plan, x_of(2))[0]

    for y in on_all(rank_models.sliced_mlp(tmp_path), main):
        np.testing.assert_allclose(y, mlp_of(x_of(2)), rtol=1e-5, atol=1e-6)


def test_a_refusal_waits_for_the_predict_that_another_thread_is_in(tmp_path: Path) -> None:
    def main(rank: int, plan: Plan) -> Array:
        assert plan.refuse is not None
        if rank == 0:
            time.sleep(0.3)  # rank 1's other thread waits for this one
            result = predict(plan, x_of(2))
            plan.refuse("InputError")
        else:
            refusal = threading.Timer(0.1, plan.refuse, ["InputError"])
            refusal.start()
            result = predict(plan, x_of(2))
            refusal.join()
        assert predict(plan, x_of(2))[0].tolist() == result[0].tolist()
        return result[0]

    for y in on_all(rank_models.sliced_mlp(tmp_path), main):
        np.testing.assert_allclose(y, mlp_of(x_of(2)), rtol=1e-5, atol=1e-6)


def test_a_rank_that_never_predicts_is_named_after_the_time_out(tmp_path: Path) -> None:
    done = threading.Event()

    def main(rank: int, plan: Plan) -> list[BaseException]:
        if rank == 1:
            done.wait(100)
            return []
        with pytest.raises(CommunicatorError) as caught:
            predict(plan, x_of(2))
        done.set()
        return [caught.value]

    paths = rank_models.sliced_mlp(tmp_path)
    [late], _ = on_all(paths, main, timeout_s=1.0)
    assert late.ranks == (1,)
    assert late.timed_out
    assert "rank 1 of 2 did not come in time to all-reduce (sum) of float32[2, 5]" in str(late)


def test_a_deadline_ends_a_predict_that_waits_for_another_rank(tmp_path: Path) -> None:
    done = threading.Event()

    def main(rank: int, plan: Plan) -> list[BaseException]:
        if rank == 1:
            done.wait(100)
            return []
        lease, begin_s = plan.pool.borrow(), time.monotonic()
        with pytest.raises(CommunicatorError) as caught:
            plan.predict(lease.context, [x_of(2)], None, begin_s + 0.3)
        assert time.monotonic() - begin_s < 60, "the time-out was 100 s"
        plan.pool.give_back(lease)
        done.set()
        return [caught.value]

    [late], _ = on_all(rank_models.sliced_mlp(tmp_path), main)
    assert late.ranks == (1,)
    assert late.timed_out


def test_a_predict_that_is_cancelled_ends_here_as_that_and_there_with_the_reason(
    tmp_path: Path,
) -> None:
    cancelled = threading.Event()

    def main(rank: int, plan: Plan) -> list[BaseException]:
        predict(plan, x_of(2))
        if rank == 1:
            cancelled.wait(100)
            with pytest.raises(CommunicatorError) as caught:
                predict(plan, x_of(2))
            return [caught.value]
        lease = plan.pool.borrow()
        timer = threading.Timer(0.2, lease.context.cancel)
        timer.start()
        with pytest.raises(Cancelled):
            plan.predict(lease.context, [x_of(2)], None, None)
        plan.pool.discard(lease)
        cancelled.set()
        return []

    _, [error] = on_all(rank_models.sliced_mlp(tmp_path), main)
    assert error.ranks == (0,)
    assert "rank 0 of 2 has aborted" in str(error)
    assert "predict was cancelled by its owner" in str(error)


def test_inputs_of_other_shapes_on_one_rank_are_found_where_they_meet(tmp_path: Path) -> None:
    def main(rank: int, plan: Plan) -> list[str]:
        with pytest.raises(CommunicatorError) as caught:
            predict(plan, x_of(2 + rank))
        return [str(caught.value)]

    for [error] in on_all(rank_models.sliced_mlp(tmp_path), main):
        assert "float32[2, 5]" in error
        assert "float32[3, 5]" in error


def test_a_length_that_the_ranks_do_not_divide_is_an_input_error(tmp_path: Path) -> None:
    nodes = [together("ReduceScatter", "x", "y")]
    path = save(tmp_path / "odd.onnx", nodes, {"x": ["n"]}, {"y": ["m"]})

    def main(rank: int, plan: Plan) -> None:
        with pytest.raises(InputError, match=r"axis 0 of shape \[3\] is not divisible by the 2"):
            predict(plan, np.ones(3, np.float32))

    on_all([path] * 2, main)


def test_a_rank_that_was_given_anothers_file_is_warned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Files that do not say whose they are go by their names; the same file may be meant."""
    paths = rank_models.sliced_mlp(tmp_path)
    on_all([paths[0], paths[0]], lambda rank, plan: None)
    assert [record.getMessage() for record in caplog.records] == [
        f"rank 1 of 2 runs {paths[0]}, and there is {paths[1]}"
    ]
    caplog.clear()
    on_all(paths, lambda rank, plan: None)
    paths[1].unlink()
    on_all([paths[0], paths[0]], lambda rank, plan: None)
    assert not caplog.records


def test_values_between_segments_and_collectives_stay_on_the_device(tmp_path: Path) -> None:
    def main(rank: int, plan: Plan) -> list[set[str]]:
        for _ in range(3):
            predict(plan, x_of(2))
        return [{placed.device for placed in plan.executable.placement()}]

    for [devices] in on_all(rank_models.sliced_mlp(tmp_path), main):
        assert devices == ({"null:0"} if COLLECTIVES["where"] == "device" else {"null:0", "cpu:0"})


def test_no_thread_is_left_of_plans_that_are_closed_or_forgotten(tmp_path: Path) -> None:
    def main(rank: int, plan: Plan) -> list[int]:
        predict(plan, x_of(2))
        return []

    on_all(rank_models.sliced_mlp(tmp_path), main)
    gc.collect()
    wait_until(lambda: all(thread.name != "engine-ranks" for thread in threading.enumerate()))
