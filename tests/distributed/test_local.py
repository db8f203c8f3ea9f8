"""Collectives of the local communicator against numpy, and what happens when one rank fails.

The ranks are threads here; tests that need processes are in test_processes.py.
"""

from __future__ import annotations

import threading
import time
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from threads import joined, run_ranks, soon

from engine.distributed.local import LocalCommunicator
from engine.distributed.shared_segment import PEER_SLOT_BYTES, SLOT_BYTES
from engine.distributed.store import StoreServer
from engine.errors import CommunicatorError, InputError
from engine.types import ReduceOp

Array = np.ndarray[Any, Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")] + [BFLOAT16]
INTS = [np.dtype(name) for name in ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")]
SIZES = [0, 1, 3, 1001]
# More than a slot, divisible by neither its elements nor the ranks.
LARGE = 2 * SLOT_BYTES // 4 + 13


def parts(world_size: int, size: int, dtype: np.dtype[Any], seed: int = 0) -> list[Array]:
    """Return each rank's input: for reals values of which the order of adding shows."""
    random = np.random.default_rng(seed)
    if dtype.kind in "iu":
        low, high = (-5, 6) if dtype.kind == "i" else (0, 6)
        return [random.integers(low, high, size).astype(dtype) for _ in range(world_size)]
    return [random.standard_normal(size).astype(dtype) for _ in range(world_size)]


def expected(op: ReduceOp, contributions: list[Array]) -> Array:
    """The result of a reduction in rank order, from its definition."""
    dtype, count = contributions[0].dtype, len(contributions)
    if op in (ReduceOp.MIN, ReduceOp.MAX):
        both = np.minimum if op is ReduceOp.MIN else np.maximum
        return np.asarray(reduce(both, contributions))
    is_integer = dtype.kind in "iu"
    wide = np.dtype(np.float32) if dtype.itemsize < 4 and not is_integer else dtype
    if op is ReduceOp.MEAN and is_integer:
        wide = np.dtype(np.int64)
    both = np.multiply if op is ReduceOp.PROD else np.add
    total = np.asarray(reduce(both, [part.astype(wide) for part in contributions]))
    if op is ReduceOp.MEAN:
        # Small integers: their quotients are exact enough for truncation.
        total = np.trunc(total / count) if is_integer else total / wide.type(count)
    return total.astype(dtype)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_an_allreduce_gives_every_rank_what_numpy_gives_in_rank_order(world_size: int) -> None:
    cases = [
        (op, dtype, size)
        for op in ReduceOp
        for dtype in (*FLOATS, *INTS)
        for size in (SIZES if dtype in (np.dtype("float32"), BFLOAT16) else [3])
    ]

    def main(comm: LocalCommunicator) -> list[Array]:
        results = []
        for op, dtype, size in cases:
            receive = np.full(size, 77, dtype)
            comm.allreduce(parts(world_size, size, dtype)[comm.rank], receive, op, soon())
            results.append(receive)
        return results

    for results in run_ranks(world_size, main):
        for (op, dtype, size), result in zip(cases, results, strict=True):
            wanted = expected(op, parts(world_size, size, dtype))
            assert result.tobytes() == wanted.tobytes(), (op, dtype, size)


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("dtype", [np.dtype("float32"), np.dtype("float16")], ids=str)
def test_a_tensor_larger_than_the_slots_is_reduced_to_the_same_bits(
    world_size: int, dtype: np.dtype[Any]
) -> None:
    contributions = parts(world_size, LARGE, dtype)

    def main(comm: LocalCommunicator) -> list[bytes]:
        send = contributions[comm.rank].reshape(1, LARGE)
        apart, again = np.empty_like(send), send.copy()
        comm.allreduce(send, apart, ReduceOp.SUM, soon())
        comm.allreduce(again, again, ReduceOp.SUM, soon())  # in place
        return [apart.tobytes(), again.tobytes()]

    wanted = expected(ReduceOp.SUM, contributions).tobytes()
    assert run_ranks(world_size, main) == [[wanted, wanted]] * world_size


def test_float16_is_rounded_once_at_the_end() -> None:
    """2048 + 1 is 2048 in float16, where it is 2050 when added in float32: 2048 + 1 + 1."""
    contributions = [np.full(3, value, np.float16) for value in (2048, 1, 1)]

    def main(comm: LocalCommunicator) -> float:
        receive = np.empty(3, np.float16)
        comm.allreduce(contributions[comm.rank], receive, ReduceOp.SUM, soon())
        return float(receive[0])

    assert run_ranks(3, main) == [2050.0] * 3


def test_a_nan_of_any_rank_reaches_all() -> None:
    def main(comm: LocalCommunicator) -> list[bool]:
        send = np.array([np.nan if comm.rank == 1 else 1, 2], np.float32)
        results = []
        for op in ReduceOp:
            receive = np.empty(2, np.float32)
            comm.allreduce(send, receive, op, soon())
            results.append(bool(np.isnan(receive[0]) and not np.isnan(receive[1])))
        return results

    assert run_ranks(3, main) == [[True] * len(ReduceOp)] * 3


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("dtype", [np.dtype("float16"), np.dtype("float32")], ids=str)
def test_an_overflow_is_infinite_and_no_warning_whatever_numpy_is_set_to(
    world_size: int, dtype: np.dtype[Any]
) -> None:
    most = np.full(3, np.finfo(dtype).max)

    def main(comm: LocalCommunicator) -> list[list[float]]:
        results = []
        with np.errstate(all="raise"):
            for op in (ReduceOp.SUM, ReduceOp.PROD):
                receive = np.empty_like(most)
                comm.allreduce(most, receive, op, soon())
                results.append(receive.tolist())
            with pytest.raises(FloatingPointError):
                np.add(most, most)  # as it was set
        return results

    assert run_ranks(world_size, main) == [[[np.inf] * 3] * 2] * world_size


def test_bool_is_reduced_to_all_and_any() -> None:
    send = [np.array([False, False, True, True]), np.array([False, True, False, True])]

    def main(comm: LocalCommunicator) -> list[list[bool]]:
        results = []
        for op in (ReduceOp.MIN, ReduceOp.PROD, ReduceOp.MAX):
            receive = np.empty(4, bool)
            comm.allreduce(send[comm.rank], receive, op, soon())
            results.append(receive.tolist())
        return results

    every = [False, False, False, True]
    assert run_ranks(2, main) == [[every, every, [False, True, True, True]]] * 2


@pytest.mark.parametrize(
    ("op", "dtype"),
    [(ReduceOp.SUM, bool), (ReduceOp.MEAN, bool), (ReduceOp.MIN, np.complex64),
     (ReduceOp.SUM, ml_dtypes.int4)],
)  # fmt: skip
def test_what_has_no_meaning_is_refused_and_the_group_goes_on(op: ReduceOp, dtype: Any) -> None:
    def main(comm: LocalCommunicator) -> float:
        buffer = np.zeros(2, dtype)
        with pytest.raises(InputError, match=f"elements of type {np.dtype(dtype)}"):
            comm.allreduce(buffer, buffer, op, soon())
        total = np.ones(1)
        comm.allreduce(total, total, ReduceOp.SUM, soon())
        return float(total[0])

    assert run_ranks(2, main) == [2.0, 2.0]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_an_allgather_joins_the_parts_in_rank_order(world_size: int) -> None:
    cases = [
        (shape, dtype)
        for shape in ((0, 2), (1,), (3, 5))
        for dtype in (np.dtype("float32"), BFLOAT16, np.dtype(bool), np.dtype("complex64"))
    ]
    cases.append(((SLOT_BYTES // 5 + 1, 5), np.dtype(bool)))  # more than a slot

    sent = [
        [(np.arange(np.prod(shape)) * (rank + 3) % 7).reshape(shape).astype(dtype)
         for rank in range(world_size)]
        for shape, dtype in cases
    ]  # fmt: skip

    def main(comm: LocalCommunicator) -> list[Array]:
        results = []
        for (shape, dtype), parts_of_ranks in zip(cases, sent, strict=True):
            receive = np.zeros((world_size * shape[0], *shape[1:]), dtype)
            comm.allgather(parts_of_ranks[comm.rank], receive, soon())
            results.append(receive)
        return results

    for results in run_ranks(world_size, main):
        for case, parts_of_ranks, result in zip(cases, sent, results, strict=True):
            assert result.tobytes() == np.concatenate(parts_of_ranks).tobytes(), case


@pytest.mark.parametrize("size", [0, 1, 3, PEER_SLOT_BYTES // 2, 5 * PEER_SLOT_BYTES + 3])
def test_what_is_sent_around_a_ring_arrives_in_order(size: int) -> None:
    def main(comm: LocalCommunicator) -> list[int]:
        before, after = (comm.rank - 1) % 3, (comm.rank + 1) % 3
        seen = []
        for turn in range(4):
            outgoing = np.full(size, 10 * turn + comm.rank, np.uint8)
            incoming = np.zeros(size, np.uint8)
            if comm.rank == 0:
                comm.send(outgoing, after, soon())
                comm.receive(incoming, before, soon())
            else:
                comm.receive(incoming, before, soon())
                comm.send(outgoing, after, soon())
            assert (incoming == 10 * turn + before).all()
            seen.append(turn)
        return seen

    assert run_ranks(3, main) == [[0, 1, 2, 3]] * 3


def test_two_small_sends_need_no_receiver_that_waits() -> None:
    """Ranks that both send first, as models sliced into stages do."""

    def main(comm: LocalCommunicator) -> list[float]:
        peer, received = 1 - comm.rank, np.zeros(2)
        for value in (1.0, 2.0):
            comm.send(np.array([value]), peer, soon())
        for place in (0, 1):
            comm.receive(received[place : place + 1], peer, soon())
        return received.tolist()

    assert run_ranks(2, main) == [[1.0, 2.0]] * 2


def test_two_groups_do_not_mix() -> None:
    def main(comm: LocalCommunicator) -> list[float]:
        other = joined(server, comm.rank, 2, "other")
        sums = []
        for scale in (1.0, 10.0, 100.0):
            for factor, group in ((1, comm), (2, other)):
                total = np.array([scale * factor * (comm.rank + 1)])
                group.allreduce(total, total, ReduceOp.SUM, soon())
                sums.append(float(total[0]))
        other.close()
        return sums

    with StoreServer() as server:
        assert run_ranks(2, main) == [[3.0, 6.0, 30.0, 60.0, 300.0, 600.0]] * 2


def test_a_rank_that_is_ahead_never_overwrites_what_others_still_read() -> None:
    """Ranks of random speed: each sum is the one of its own step."""

    def main(comm: LocalCommunicator) -> None:
        random = np.random.default_rng(comm.rank)
        for step in range(200):
            if random.integers(20) == 0:
                time.sleep(0.002)
            total = np.full(2000, step * (comm.rank + 1), np.int64)
            comm.allreduce(total, total, ReduceOp.SUM, soon())
            assert (total == step * 6).all()

    assert run_ranks(3, main) == [None] * 3


def test_where_the_machine_reorders_stores_fences_keep_the_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not a proof on this machine: the path that others take gives the same."""
    monkeypatch.setattr("engine.distributed.group.ORDERED", False)
    monkeypatch.setattr("engine.distributed.local.ORDERED", False)

    def main(comm: LocalCommunicator) -> list[float]:
        total, received = np.full(7, 1.0), np.zeros(1)
        for _ in range(5):
            comm.allreduce(total, total, ReduceOp.SUM, soon())
        comm.send(total[:1], 1 - comm.rank, soon())
        comm.receive(received, 1 - comm.rank, soon())
        return [*total.tolist(), float(received[0])]

    assert run_ranks(2, main) == [[32.0] * 8] * 2


def test_a_rank_that_is_late_is_named_after_the_deadline_and_the_others_fail_with_it() -> None:
    others_failed = threading.Barrier(3)

    def main(comm: LocalCommunicator) -> list[CommunicatorError]:
        buffer = np.zeros(4)
        if comm.rank == 2:
            others_failed.wait(60)
        begin_s = time.monotonic()
        with pytest.raises(CommunicatorError) as caught:
            comm.allreduce(buffer, buffer, ReduceOp.SUM, time.monotonic() + 0.3)
        assert time.monotonic() - begin_s < 25
        if comm.rank != 2:
            others_failed.wait(60)
        with pytest.raises(CommunicatorError):  # the group is out of step
            comm.allreduce(buffer, buffer, ReduceOp.SUM, soon())
        with pytest.raises(CommunicatorError):
            comm.check()
        return [caught.value]

    [first], [second], _ = run_ranks(3, main)
    # Which of the two runs out of time first is open; the other is told.
    for error in (first, second):
        assert error.ranks == (2,)
        assert "rank 2 of 3 did not come in time to all-reduce (sum) of float64[4]" in str(error)
    assert first.timed_out or second.timed_out


def test_an_abort_from_another_thread_ends_what_waits_here_and_there() -> None:
    def main(comm: LocalCommunicator) -> tuple[CommunicatorError, float]:
        begin_s = time.monotonic()
        if comm.rank == 0:
            threading.Timer(0.1, comm.abort, ["no more of this"]).start()
        with pytest.raises(CommunicatorError, match="no more of this") as caught:
            comm.receive(np.zeros(1), 1 - comm.rank, time.monotonic() + 200)
        if comm.rank == 0:
            comm.abort()  # twice does nothing
            with pytest.raises(CommunicatorError, match="no more of this"):
                comm.send(np.zeros(1), 1, None)
        return caught.value, time.monotonic() - begin_s

    (_, own_s), (error, spent_s) = run_ranks(2, main)
    assert max(own_s, spent_s) < 100
    assert error.ranks == (0,)
    assert "rank 0 of 2 has aborted during receive of float64[1]: no more of this" in str(error)


def test_two_threads_that_ask_at_once_both_hear_of_a_rank_that_has_aborted() -> None:
    aborted = threading.Event()

    def main(comm: LocalCommunicator) -> list[str]:
        if comm.rank == 1:
            comm.abort("out of coffee")
            aborted.set()
            return []
        assert aborted.wait(60)
        finding, asking = threading.Event(), threading.Event()
        end_of, refuse_ended = comm.end_of, comm.refuse_ended

        def find(*arguments: Any) -> CommunicatorError:
            finding.set()
            asking.wait(0.3)  # where the other thread may ask before this one has said it
            return end_of(*arguments)

        def refuse() -> None:
            refuse_ended()
            if finding.is_set():
                asking.set()

        comm.end_of, comm.refuse_ended = find, refuse  # type: ignore[method-assign]
        said: list[str] = []

        def ask() -> None:
            try:
                comm.check()
            except CommunicatorError as error:
                said.append(str(error))

        first = threading.Thread(target=ask)
        first.start()
        assert finding.wait(60)
        ask()
        first.join(60)
        return said

    said, _ = run_ranks(2, main)
    assert len(said) == 2
    assert all("rank 1 of 2 has aborted: out of coffee" in each for each in said)


def test_ranks_of_a_part_of_the_job_are_named_by_their_numbers_in_it() -> None:
    def main(comm: LocalCommunicator) -> list[BaseException]:
        pair = joined(server, comm.rank, 2, "pair", ranks=(3, 5))
        buffer = np.zeros(1)
        try:
            if comm.rank == 1:
                pair.abort("enough")
                return []
            with pytest.raises(CommunicatorError) as caught:
                pair.allreduce(buffer, buffer, ReduceOp.SUM, soon())
            with pytest.raises(CommunicatorError) as again:
                pair.check()
            assert again.value.ranks == caught.value.ranks
            return [caught.value]
        finally:
            pair.close()

    with StoreServer() as server:
        [[error], _] = run_ranks(2, main)
    assert error.ranks == (5,)  # type: ignore[attr-defined]
    assert "group 'pair', rank 3: rank 5 of ranks 3, 5 has aborted" in str(error)


def test_a_rank_that_has_left_is_named_and_missed_only_by_those_who_wait_for_it() -> None:
    def main(comm: LocalCommunicator) -> str:
        total = np.ones(1)
        comm.allreduce(total, total, ReduceOp.SUM, soon())
        if comm.rank == 1:
            return ""  # and leaves
        with pytest.raises(CommunicatorError, match=r"rank 1 of 2 has left the group") as caught:
            comm.allreduce(total, total, ReduceOp.SUM, soon())
        assert caught.value.ranks == (1,)
        return str(caught.value)

    assert "all-reduce (sum) of float64[1]" in run_ranks(2, main)[0]


@pytest.mark.parametrize(
    ("other", "size", "says"),
    [
        (None, 4, "all-gather of float64[4]"),
        (ReduceOp.MAX, 4, "all-reduce (max) of float64[4]"),
        (ReduceOp.SUM, 5, "all-reduce (sum) of float64[5]"),
    ],
    ids=["operation", "reduction", "shape"],
)
def test_ranks_in_different_collectives_fail_and_say_which(
    other: ReduceOp | None, size: int, says: str
) -> None:
    def main(comm: LocalCommunicator) -> str:
        count, op = (4, ReduceOp.SUM) if comm.rank == 0 else (size, other)
        call = comm.allgather if op is None else comm.allreduce
        receive = np.zeros(2 * count if op is None else count)
        with pytest.raises(CommunicatorError) as caught:
            call(np.zeros(count), receive, *([] if op is None else [op]), soon())
        return str(caught.value)

    for error in run_ranks(2, main):
        assert "all-reduce (sum) of float64[4]" in error
        assert says in error
        assert "out of step" in error


def test_a_receive_of_another_tensor_than_was_sent_is_refused() -> None:
    def main(comm: LocalCommunicator) -> str:
        if comm.rank == 0:
            comm.send(np.zeros(3, np.float32), 1, soon())
            return ""
        with pytest.raises(CommunicatorError) as caught:
            comm.receive(np.zeros(3, np.int32), 0, soon())
        return str(caught.value)

    error = run_ranks(2, main)[1]
    assert "receive of int32[3]" in error
    assert "send of float32[3]" in error


def test_a_rank_that_does_not_join_is_named() -> None:
    with StoreServer() as server, pytest.raises(CommunicatorError, match=r"rank 1 of 2") as caught:
        joined(server, 0, 2, timeout_s=0.2)
    assert caught.value.ranks == (1,)
    assert caught.value.timed_out


def test_a_peer_outside_the_group_is_refused_by_name() -> None:
    def main(comm: LocalCommunicator) -> None:
        for peer in (comm.rank, 2, -1):
            with pytest.raises(CommunicatorError, match=f"rank {peer} is none of the others"):
                comm.send(np.zeros(1), peer, soon())

    run_ranks(2, main)


def test_a_closed_communicator_says_so_and_closes_again() -> None:
    both = threading.Barrier(2)

    def main(comm: LocalCommunicator) -> None:
        comm.check()
        both.wait(30)
        comm.close()
        comm.close()
        comm.abort()
        with pytest.raises(CommunicatorError, match="the communicator is closed"):
            comm.check()
        with pytest.raises(CommunicatorError, match="the communicator is closed"):
            comm.allreduce(np.zeros(1), np.zeros(1), ReduceOp.SUM, soon())

    run_ranks(2, main)
