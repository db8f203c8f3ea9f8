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
    number = _reducible(source.dtype)
    _run(
        comm,
        "all-reduce",
        lambda handle, where: comm.hccl.HcclAllReduce(
            source.pointer, target.pointer, math.prod(source.shape), number, _op(op), handle, where
        ),
        stream,
        (source, target),
        deadline_s,
    )
    if op is ReduceOp.MEAN:
        _divide(target, comm.world_size, stream)
    return True


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
    number = _reducible(source.dtype)
    _run(
        comm,
        "reduce-scatter",
        lambda handle, where: comm.hccl.HcclReduceScatter(
            source.pointer, target.pointer, math.prod(target.shape), number, _op(op), handle, where
        ),
        stream,
        (source, target),
        deadline_s,
    )
    if op is ReduceOp.MEAN:
        _divide(target, comm.world_size, stream)
    return True


@hookimpl
def engine_allgather(
    comm: HcclCommunicator,
    send: Value,
    receive: Value,
    stream: int | None,
    deadline_s: float | None,
) -> bool:
    source, target = _buffers(comm, send, receive, stream=stream)
    _run(
        comm,
        "all-gather",
        lambda handle, where: comm.hccl.HcclAllGather(
            source.pointer, target.pointer, source.nbytes, hccl.BYTES, handle, where
        ),
        stream,
        (source, target),
        deadline_s,
    )
    return True


@hookimpl
def engine_broadcast(
    comm: HcclCommunicator,
    buffer: Value,
    root: int,
    stream: int | None,
    deadline_s: float | None,
) -> bool:
    [value] = _buffers(comm, buffer, stream=stream)
    _run(
        comm,
        "broadcast",
        lambda handle, where: comm.hccl.HcclBroadcast(
            value.pointer, value.nbytes, hccl.BYTES, root, handle, where
        ),
        stream,
        (value,),
        deadline_s,
    )
    return True


@hookimpl
def engine_alltoall(
    comm: HcclCommunicator,
    send: Value,
    receive: Value,
    stream: int | None,
    deadline_s: float | None,
) -> bool:
    source, target = _buffers(comm, send, receive, stream=stream)
    count = source.nbytes // comm.world_size
    _run(
        comm,
        "all-to-all",
        lambda handle, where: comm.hccl.HcclAlltoAll(
            source.pointer, count, hccl.BYTES, target.pointer, count, hccl.BYTES, handle, where
        ),
        stream,
        (source, target),
        deadline_s,
    )
    return True


@hookimpl
def engine_send(
    comm: HcclCommunicator, buffer: Value, peer: int, stream: int | None, deadline_s: float | None
) -> bool:
    [value] = _buffers(comm, buffer, stream=stream)
    _run(
        comm,
        f"send to rank {peer}",
        lambda handle, where: comm.hccl.HcclSend(
            value.pointer, value.nbytes, hccl.BYTES, peer, handle, where
        ),
        stream,
        (value,),
        deadline_s,
    )
    return True


@hookimpl
def engine_receive(
    comm: HcclCommunicator, buffer: Value, peer: int, stream: int | None, deadline_s: float | None
) -> bool:
    [value] = _buffers(comm, buffer, stream=stream)
    _run(
        comm,
        f"receive from rank {peer}",
        lambda handle, where: comm.hccl.HcclRecv(
            value.pointer, value.nbytes, hccl.BYTES, peer, handle, where
        ),
        stream,
        (value,),
        deadline_s,
    )
    return True


def _run(
    comm: HcclCommunicator,
    doing: str,
    call: Any,
    stream: int | None,
    used: tuple[DeviceBuffer, ...],
    deadline_s: float | None,
) -> None:
    """Queue it, unless there is nothing in the buffers: their sizes are equal on all ranks."""
    if used[0].nbytes:
        comm.queue(doing, call, stream, used, deadline_s)
    else:
        comm.check()


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
