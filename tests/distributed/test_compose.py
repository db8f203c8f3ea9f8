"""Collectives composed of the required ones, between ranks that are threads of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from threads import run_ranks, soon

from engine.distributed.compose import Collectives, complete, host_collectives, parts
from engine.types import Device, DeviceBuffer, DType, ReduceOp

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize(
    ("root", "op", "reduced"), [(0, ReduceOp.SUM, np.add), (1, ReduceOp.MAX, np.maximum)]
)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
def test_composed_collectives_give_what_numpy_gives(
    size: int, root: int, op: ReduceOp, reduced: np.ufunc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With slots so small that a send waits until its receive has come."""
    for module in ("shared_segment", "local"):
        monkeypatch.setattr(f"engine.distributed.{module}.PEER_SLOT_BYTES", 64)
    root %= size
    numbers = np.arange(2 * size * 20).reshape(2 * size, 20)  # 320 bytes for each rank
    sent = [numbers * (rank + 1) for rank in range(size)]

    def main(comm: Any) -> list[Array]:
        do, own = host_collectives(), sent[comm.rank]
        buffer, scattered, turned = own.copy(), np.empty_like(own[:2]), np.empty_like(own)
        do.broadcast(comm, buffer, root, None, soon())
        do.reduce_scatter(comm, own, scattered, op, None, True, soon())
        do.alltoall(comm, own, turned, None, soon())
        return [buffer, scattered, turned]

    for rank, (buffer, scattered, turned) in enumerate(run_ranks(size, main)):
        own = slice(2 * rank, 2 * rank + 2)
        np.testing.assert_array_equal(buffer, sent[root])
        np.testing.assert_array_equal(scattered, reduced.reduce(sent)[own])
        np.testing.assert_array_equal(turned, np.concatenate([array[own] for array in sent]))


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


@pytest.mark.parametrize(
    ("buffer", "says"),
    [
        (np.zeros(5), r"axis 0 of shape \[5\] is not divisible by 2 ranks"),
        (DeviceBuffer(0, (2, 1), DType.INT4, Device("gpu")), "does not begin at a whole byte"),
    ],
)
def test_a_buffer_without_that_many_parts_is_refused(buffer: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parts(buffer, 2)


def test_what_a_queued_copy_reads_outlives_the_call() -> None:
    copied: list[Any] = []
    allocated: list[Any] = []

    def allocate(dtype: DType, shape: tuple[int, ...]) -> Array:
        allocated.append(np.zeros(shape, dtype.numpy))
        return allocated[-1]

    def main(comm: Any) -> None:
        host = host_collectives()
        hooks = (host.allreduce, host.allgather, host.send, host.receive)
        queued = complete(*hooks, allocate, lambda *copy: copied.append(copy))
        receive = np.empty((2,), np.int64)
        for _ in range(2):
            queued.reduce_scatter(comm, np.arange(2), receive, ReduceOp.SUM, 7, True, soon())

    run_ranks(1, main)
    assert len(allocated) == 1, "one scratch buffer for a stream and shape"
    assert [source.base is allocated[0] for source, _, _ in copied] == [True, True]
