"""Collectives made of others, for backends that have only the required ones.

A backend with COLLECTIVES has allreduce, allgather, send and receive; broadcast, reduce-scatter
and all-to-all are composed of them here where it has no hook of its own. All ranks go through the
same steps in the same order, so that blocking sends meet their receives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from engine.types import Communicator, DeviceBuffer, DType, ReduceOp, Value

__all__ = ["Collectives", "complete", "host_collectives"]

Hook = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Collectives:
    """All collectives of one backend, as functions of its hooks' arguments."""

    allreduce: Hook
    allgather: Hook
    send: Hook
    receive: Hook
    broadcast: Hook
    reduce_scatter: Hook
    alltoall: Hook


def complete(
    allreduce: Hook,
    allgather: Hook,
    send: Hook,
    receive: Hook,
    allocate: Callable[[DType, tuple[int, ...]], Value],
    copy: Callable[[Value, Value, int | None], Any],
    broadcast: Hook | None = None,
    reduce_scatter: Hook | None = None,
    alltoall: Hook | None = None,
) -> Collectives:
    """Give all collectives of a backend, composing those that are None.

    allocate: gives a buffer of the communicator's device. copy: see engine_copy.
    The result keeps the scratch memory of its reduce-scatters, one buffer for each stream and
    shape: what is queued may still read it when the call has returned.
    """
    scratch: dict[tuple[int | None, DType, tuple[int, ...]], Value] = {}

    def composed_broadcast(
        comm: Communicator, buffer: Value, root: int, stream: int | None, deadline_s: float | None
    ) -> bool:
        # A binomial tree: in step k, those that have the data send it 2**k ranks on.
        size, own = comm.world_size, (comm.rank - root) % comm.world_size
        step = 1
        while step < size:
            if own < step and own + step < size:
                send(comm, buffer, (own + step + root) % size, stream, deadline_s)
            elif step <= own < 2 * step:
                receive(comm, buffer, (own - step + root) % size, stream, deadline_s)
            step *= 2
        return True

    def composed_reduce_scatter(
        comm: Communicator,
        send_buffer: Value,
        receive_buffer: Value,
        op: ReduceOp,
        stream: int | None,
        deterministic: bool,
        deadline_s: float | None,
    ) -> bool:
        dtype, shape = description(send_buffer)
        key = stream, dtype, shape
        reduced = scratch.get(key)
        if reduced is None:
            reduced = scratch[key] = allocate(dtype, shape)
        allreduce(comm, send_buffer, reduced, op, stream, deterministic, deadline_s)
        copy(parts(reduced, comm.world_size)[comm.rank], receive_buffer, stream)
        return True

    def composed_alltoall(
        comm: Communicator,
        send_buffer: Value,
        receive_buffer: Value,
        stream: int | None,
        deadline_s: float | None,
    ) -> bool:
        outgoing = parts(send_buffer, comm.world_size)
        incoming = parts(receive_buffer, comm.world_size)
        for peer in _peers(comm.rank, comm.world_size):
            # Of two ranks the lower sends first: blocking sends and receives then always meet.
            if comm.rank < peer:
                send(comm, outgoing[peer], peer, stream, deadline_s)
                receive(comm, incoming[peer], peer, stream, deadline_s)
            else:
                receive(comm, incoming[peer], peer, stream, deadline_s)
                send(comm, outgoing[peer], peer, stream, deadline_s)
        copy(outgoing[comm.rank], incoming[comm.rank], stream)
        return True

    return Collectives(
        allreduce=allreduce,
        allgather=allgather,
        send=send,
        receive=receive,
        broadcast=broadcast or composed_broadcast,
        reduce_scatter=reduce_scatter or composed_reduce_scatter,
        alltoall=alltoall or composed_alltoall,
    )


def host_collectives() -> Collectives:
    """Return all collectives on host memory, for one communicator of a transport at a time."""
    return complete(
        lambda comm, own, full, op, stream, same, end_s: comm.allreduce(own, full, op, end_s),
        lambda comm, own, full, stream, end_s: comm.allgather(own, full, end_s),
        lambda comm, buffer, peer, stream, end_s: comm.send(buffer, peer, end_s),
        lambda comm, buffer, peer, stream, end_s: comm.receive(buffer, peer, end_s),
        allocate=lambda dtype, shape: np.empty(shape, dtype.numpy),
        copy=_copy,
    )


def _copy(source: Any, target: Any, stream: int | None) -> None:
    target[...] = source


def description(value: Value) -> tuple[DType, tuple[int, ...]]:
    """Give the element type and shape of a host array or a device buffer."""
    if isinstance(value, DeviceBuffer):
        return value.dtype, value.shape
    assert isinstance(value, np.ndarray), "a collective's buffer is a tensor"
    return DType.from_numpy(value.dtype), value.shape


def parts(value: Value, count: int) -> list[Any]:
    """Cut a tensor into `count` equal parts of axis 0, in place: they share its memory.

    Raises ValueError where axis 0 is not divisible, or an element is smaller than a byte and a
    part would begin inside one.
    """
    dtype, shape = description(value)
    if not shape or shape[0] % count:
        raise ValueError(f"axis 0 of shape {list(shape)} is not divisible by {count} ranks")
    length = shape[0] // count
    if not isinstance(value, DeviceBuffer):
        assert isinstance(value, np.ndarray)
        return [value[index * length : (index + 1) * length] for index in range(count)]
    bits = length * prod(shape[1:]) * dtype.bits
    if bits % 8:
        raise ValueError(f"a part of {dtype}{list(shape)} does not begin at a whole byte")
    return [
        DeviceBuffer(
            pointer=value.pointer + index * bits // 8,
            shape=(length, *shape[1:]),
            dtype=dtype,
            device=value.device,
            stream=value.stream,
            owner=value,
        )
        for index in range(count)
    ]


def _peers(rank: int, size: int) -> Iterator[int]:
    """Give the other ranks in an order that is part of one order of all pairs, so no wait closes.

    A round-robin tournament: in round r, ranks a and b meet where (a + b) % size == r.
    """
    for turn in range(size):
        peer = (turn - rank) % size
        if peer != rank:
            yield peer
