"""Collectives composed of the required ones, between ranks that are threads of this process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from engine.distributed.compose import Collectives, complete, parts
from engine.types import Device, DeviceBuffer, DType, ReduceOp

Array = np.ndarray[Any, Any]


@dataclass
class ThreadComm:
    """One rank of a world of threads; a send waits until its receive has come."""

    rank: int
    world_size: int
    wires: dict[tuple[int, int], queue.Queue[Any]]
    taken: dict[tuple[int, int], queue.Queue[Any]]

    def send(self, buffer: Array, peer: int) -> None:
        self.wires[self.rank, peer].put(buffer.copy())
        self.taken[self.rank, peer].get(timeout=10)

    def receive(self, buffer: Array, peer: int) -> None:
        buffer[...] = self.wires[peer, self.rank].get(timeout=10)
        self.taken[peer, self.rank].put(True)


def _send(comm: Any, buffer: Any, peer: int, stream: Any, deadline_s: Any) -> bool:
    comm.send(buffer, peer)
    return True


def _receive(comm: Any, buffer: Any, peer: int, stream: Any, deadline_s: Any) -> bool:
    comm.receive(buffer, peer)
    return True


def _allgather(comm: Any, send: Any, receive: Any, stream: Any, deadline_s: Any) -> bool:
    length = send.shape[0]
    for root in range(comm.world_size):
        place = receive[root * length : (root + 1) * length]
        if comm.rank == root:
            place[...] = send
            for peer in range(comm.world_size):
                if peer != root:
                    comm.send(send, peer)
        else:
            comm.receive(place, root)
    return True


def _allreduce(
    comm: Any, send: Any, receive: Any, op: ReduceOp, stream: Any, exact: Any, deadline_s: Any
) -> bool:
    gathered = np.empty((comm.world_size, *send.shape), send.dtype)
    _allgather(comm, send[None], gathered, stream, deadline_s)
    receive[...] = {ReduceOp.SUM: np.sum, ReduceOp.MAX: np.max}[op](gathered, axis=0)
    return True


def _copy(source: Any, target: Any, stream: Any) -> None:
    target[...] = source


COMPOSED = complete(
    _allreduce,
    _allgather,
    _send,
    _receive,
    allocate=lambda dtype, shape: np.empty(shape, dtype.numpy),
    copy=_copy,
)


def run_ranks(size: int, work: Callable[[Any], Array]) -> list[Array]:
    """Run `work` in every rank of a new world; its results in rank order."""
    pairs = [(a, b) for a in range(size) for b in range(size)]
    wires: dict[Any, Any] = {pair: queue.Queue() for pair in pairs}
    taken: dict[Any, Any] = {pair: queue.Queue() for pair in pairs}
    results: dict[int, Array] = {}

    def rank_main(rank: int) -> None:
        results[rank] = work(ThreadComm(rank, size, wires, taken))

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(results) == list(range(size)), "a rank hangs or failed"
    return [results[rank] for rank in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("root", [0, 1])
def test_broadcast_gives_every_rank_the_roots_values(size: int, root: int) -> None:
    root %= size

    def work(comm: Any) -> Array:
        buffer = np.full((3, 2), comm.rank, np.float32)
        COMPOSED.broadcast(comm, buffer, root, None, None)
        return buffer

    for result in run_ranks(size, work):
        np.testing.assert_array_equal(result, np.full((3, 2), root, np.float32))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_reduce_scatter_leaves_each_rank_its_part_of_the_sum(size: int) -> None:
    sent = [np.arange(2 * size * 3).reshape(2 * size, 3) * (rank + 1) for rank in range(size)]

    def work(comm: Any) -> Array:
        receive = np.empty((2, 3), np.int64)
        COMPOSED.reduce_scatter(comm, sent[comm.rank], receive, ReduceOp.SUM, None, True, None)
        return receive

    total = sum(sent)
    for rank, result in enumerate(run_ranks(size, work)):
        np.testing.assert_array_equal(result, total[2 * rank : 2 * rank + 2])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
def test_alltoall_gives_the_part_of_each_rank_in_rank_order(size: int) -> None:
    def work(comm: Any) -> Array:
        send = np.array([[100 * comm.rank + peer] for peer in range(size)])
        receive = np.empty_like(send)
        COMPOSED.alltoall(comm, send, receive, None, None)
        return receive

    for rank, result in enumerate(run_ranks(size, work)):
        np.testing.assert_array_equal(result, [[100 * peer + rank] for peer in range(size)])


def test_a_backends_own_hooks_are_used_where_it_has_them() -> None:
    calls: list[str] = []

    def hook(name: str) -> Callable[..., bool]:
        return lambda *arguments: calls.append(name) or True

    own: Collectives = complete(
        *map(hook, ("allreduce", "allgather", "send", "receive")),
        allocate=hook("allocate"),
        copy=hook("copy"),
        broadcast=hook("broadcast"),
        reduce_scatter=hook("reduce_scatter"),
        alltoall=hook("alltoall"),
    )
    own.broadcast()
    own.reduce_scatter()
    own.alltoall()
    assert calls == ["broadcast", "reduce_scatter", "alltoall"]


def test_parts_of_an_array_share_its_memory() -> None:
    array = np.zeros((4, 2), np.float32)
    parts(array, 2)[1][...] = 1
    np.testing.assert_array_equal(array, [[0, 0], [0, 0], [1, 1], [1, 1]])


def test_parts_of_a_device_buffer_begin_where_the_bytes_say_and_keep_it_alive() -> None:
    whole = DeviceBuffer(4096, (6, 2), DType.FLOAT16, Device("gpu"), stream=7)
    found = parts(whole, 3)
    assert [part.pointer for part in found] == [4096, 4104, 4112]
    assert [part.shape for part in found] == [(2, 2)] * 3
    assert all(part.stream == 7 and part.owner is whole for part in found)


def test_an_axis_that_is_not_divisible_is_refused() -> None:
    with pytest.raises(ValueError, match=r"axis 0 of shape \[5\] is not divisible by 2 ranks"):
        parts(np.zeros(5), 2)


def test_a_part_that_would_begin_inside_a_byte_is_refused() -> None:
    buffer = DeviceBuffer(0, (2, 1), DType.INT4, Device("gpu"))
    with pytest.raises(ValueError, match="does not begin at a whole byte"):
        parts(buffer, 2)


def test_what_a_queued_copy_reads_outlives_the_call() -> None:
    copied: list[Any] = []
    allocated: list[Any] = []

    def allocate(dtype: DType, shape: tuple[int, ...]) -> Array:
        allocated.append(np.zeros(shape, dtype.numpy))
        return allocated[-1]

    def work(comm: Any) -> Array:
        queued = complete(
            _allreduce, _allgather, _send, _receive, allocate, lambda *copy: copied.append(copy)
        )
        receive = np.empty((2,), np.int64)
        for _ in range(2):
            queued.reduce_scatter(comm, np.arange(2), receive, ReduceOp.SUM, 7, True, None)
        return receive

    run_ranks(1, work)
    assert len(allocated) == 1, "one scratch buffer for a stream and shape"
    assert [source.base is allocated[0] for source, _, _ in copied] == [True, True]
