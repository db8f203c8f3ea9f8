"""The hooks of collectives, by HCCL, on memory of one device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import InputError
from engine.hookspecs import hookimpl
from engine.types import DeviceBuffer, DType, ReduceOp, Value
from engine_ascend_ge import hccl, streams

if TYPE_CHECKING:
    from engine_ascend_ge.communicator import HcclCommunicator


@hookimpl
def engine_allreduce(
    comm: HcclCommunicator,
    send: Value,
    receive: Value,
    op: ReduceOp,
    stream: int | None,
    deadline_s: float | None,
) -> bool:
    source, target = _buffers(comm, send, receive, stream=stream)
    call = "HcclAllReduce", source.pointer, target.pointer, math.prod(source.shape)
    return _reduce(comm, "all-reduce", call, op, stream, (source, target), deadline_s)


@hookimpl
def engine_reduce_scatter(
    comm: HcclCommunicator,
    send: Value,
    receive: Value,
    op: ReduceOp,
    stream: int | None,
    deadline_s: float | None,
) -> bool:
    source, target = _buffers(comm, send, receive, stream=stream)
    call = "HcclReduceScatter", source.pointer, target.pointer, math.prod(target.shape)
    return _reduce(comm, "reduce-scatter", call, op, stream, (source, target), deadline_s)


@hookimpl
def engine_allgather(
    comm: HcclCommunicator,
    send: Value,
    receive: Value,
    stream: int | None,
    deadline_s: float | None,
) -> bool:
    source, target = _buffers(comm, send, receive, stream=stream)
    call = "HcclAllGather", source.pointer, target.pointer, source.nbytes, hccl.BYTES
    return _run(comm, "all-gather", call, stream, (source, target), deadline_s)


@hookimpl
def engine_broadcast(
    comm: HcclCommunicator,
    buffer: Value,
    root: int,
    stream: int | None,
    deadline_s: float | None,
) -> bool:
    [value] = _buffers(comm, buffer, stream=stream)
    call = "HcclBroadcast", value.pointer, value.nbytes, hccl.BYTES, root
    return _run(comm, "broadcast", call, stream, (value,), deadline_s)


@hookimpl
def engine_alltoall(
    comm: HcclCommunicator,
    send: Value,
    receive: Value,
    stream: int | None,
    deadline_s: float | None,
) -> bool:
    source, target = _buffers(comm, send, receive, stream=stream)
    part = source.nbytes // comm.world_size, hccl.BYTES
    call = "HcclAlltoAll", source.pointer, *part, target.pointer, *part
    return _run(comm, "all-to-all", call, stream, (source, target), deadline_s)


@hookimpl
def engine_send(
    comm: HcclCommunicator, buffer: Value, peer: int, stream: int | None, deadline_s: float | None
) -> bool:
    [value] = _buffers(comm, buffer, stream=stream)
    call = "HcclSend", value.pointer, value.nbytes, hccl.BYTES, peer
    return _run(comm, f"send to rank {peer}", call, stream, (value,), deadline_s)


@hookimpl
def engine_receive(
    comm: HcclCommunicator, buffer: Value, peer: int, stream: int | None, deadline_s: float | None
) -> bool:
    [value] = _buffers(comm, buffer, stream=stream)
    call = "HcclRecv", value.pointer, value.nbytes, hccl.BYTES, peer
    return _run(comm, f"receive from rank {peer}", call, stream, (value,), deadline_s)


def _run(
    comm: HcclCommunicator,
    doing: str,
    call: tuple[Any, ...],
    stream: int | None,
    used: tuple[DeviceBuffer, ...],
    deadline_s: float | None,
) -> bool:
    """Queue it, unless there is nothing in the buffers: their sizes are equal on all ranks.

    call: HCCL's function by name, and its arguments but the communicator and the stream.
    """
    name, *arguments = call
    if used[0].nbytes:
        function = getattr(comm.hccl, name)
        comm.queue(doing, lambda *where: function(*arguments, *where), stream, used, deadline_s)
    else:
        comm.check()
    return True


def _reduce(
    comm: HcclCommunicator,
    doing: str,
    call: tuple[Any, ...],
    op: ReduceOp,
    stream: int | None,
    used: tuple[DeviceBuffer, ...],
    deadline_s: float | None,
) -> bool:
    """Queue a reduction into the last of the buffers. call: without the element type and `op`."""
    number = _reducible(used[0].dtype)
    _run(comm, doing, (*call, number, _op(op)), stream, used, deadline_s)
    if op is ReduceOp.MEAN:
        _divide(used[-1], comm.world_size, stream)
    return True


def _buffers(
    comm: HcclCommunicator, *values: Value, stream: int | None
) -> tuple[DeviceBuffer, ...]:
    """Return buffers on the device, and order `stream` (or HCCL's own) after their streams."""
    where = comm.stream if stream is None else stream
    buffers = []
    for value in values:
        assert isinstance(value, DeviceBuffer), "the contract: values of the communicator's device"
        if value.stream is not None:
            streams.order(comm.device.id, value.stream, where)
        buffers.append(value)
    return tuple(buffers)


def _reducible(dtype: DType) -> int:
    number = hccl.DTYPES.get(dtype)
    if number is None:
        raise InputError(
            f"HCCL does not reduce {dtype} tensors; it reduces {', '.join(sorted(hccl.DTYPES))}"
        )
    return number


def _op(op: ReduceOp) -> int:
    return hccl.OPS[ReduceOp.SUM if op is ReduceOp.MEAN else op]


def _divide(target: DeviceBuffer, count: int, stream: int | None) -> None:
    """Divide a sum by the number of ranks. HCCL cannot: it goes by way of the host, and waits."""
    if stream is not None:
        streams.order(target.device.id, stream, None)
    here = DeviceBuffer(target.pointer, target.shape, target.dtype, target.device)
    values = np.empty(target.shape, target.dtype.numpy)
    streams.copy(here, values, None)
    wide = np.float32 if target.dtype.bits == 16 else values.dtype  # numpy's float16 is slow, too
    streams.copy((values.astype(wide) / count).astype(values.dtype), here, None)
