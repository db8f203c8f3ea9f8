"""The hooks of collectives, on device memory, in NCCL's calls.

The contract counts the elements of tensors along axis 0; NCCL counts elements. Where a call only
moves data, any type goes as bytes.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from engine.errors import CommunicatorError
from engine.hookspecs import hookimpl
from engine.types import DeviceBuffer, ReduceOp, Value
from engine_gpu_trt import nccl

if TYPE_CHECKING:
    from engine_gpu_trt.communicator import Call, NcclCommunicator


@hookimpl
def engine_allreduce(
    comm: NcclCommunicator,
    send: Value,
    receive: Value,
    op: ReduceOp,
    stream: int | None,
    deterministic: bool,
    deadline_s: float | None,
) -> bool:
    source, target = _buffers(send, receive)
    like = prod(source.shape), _dtype(comm, source)
    ends = source.pointer, target.pointer
    steps: list[list[Call]]
    if not deterministic or comm.deterministic:
        steps = [[("ncclAllReduce", *ends, *like, nccl.OPS[op])]]
    else:  # NCCL has a ring and nothing else for these two: the same order in every run
        steps = [
            [("ncclReduce", *ends, *like, nccl.OPS[op], 0)],
            [("ncclBroadcast", target.pointer, target.pointer, *like, 0)],
        ]
    return comm.run(steps, "all-reduce", (source, target), stream, deadline_s)


@hookimpl
def engine_allgather(
    comm: NcclCommunicator,
    send: Value,
    receive: Value,
    stream: int | None,
    deadline_s: float | None,
) -> bool:
    source, target = _buffers(send, receive)
    call: Call = ("ncclAllGather", source.pointer, target.pointer, source.nbytes, nccl.BYTE)
    return comm.run([[call]], "all-gather", (source, target), stream, deadline_s)


@hookimpl
def engine_reduce_scatter(
    comm: NcclCommunicator,
    send: Value,
    receive: Value,
    op: ReduceOp,
    stream: int | None,
    deterministic: bool,
    deadline_s: float | None,
) -> bool:
    source, target = _buffers(send, receive)
    like = prod(target.shape), _dtype(comm, source), nccl.OPS[op]
    step: list[Call]
    if not deterministic or comm.deterministic:
        step = [("ncclReduceScatter", source.pointer, target.pointer, *like)]
    else:  # as in `engine_allreduce`
        step = [
            ("ncclReduce", source.pointer + root * target.nbytes, target.pointer, *like, root)
            for root in range(comm.world_size)
        ]
    return comm.run([step], "reduce-scatter", (source, target), stream, deadline_s)


@hookimpl
def engine_broadcast(
    comm: NcclCommunicator,
    buffer: Value,
    root: int,
    stream: int | None,
    deadline_s: float | None,
) -> bool:
    [data] = _buffers(buffer)
    call: Call = ("ncclBroadcast", data.pointer, data.pointer, data.nbytes, nccl.BYTE, root)
    return comm.run([[call]], "broadcast", (data,), stream, deadline_s)


@hookimpl
def engine_alltoall(
    comm: NcclCommunicator,
    send: Value,
    receive: Value,
    stream: int | None,
    deadline_s: float | None,
) -> bool:
    source, target = _buffers(send, receive)
    nbytes = source.nbytes // comm.world_size
    step: list[Call] = []
    for peer in range(comm.world_size):
        step.append(("ncclSend", source.pointer + peer * nbytes, nbytes, nccl.BYTE, peer))
        step.append(("ncclRecv", target.pointer + peer * nbytes, nbytes, nccl.BYTE, peer))
    return comm.run([step], "all-to-all", (source, target), stream, deadline_s)


@hookimpl
def engine_send(
    comm: NcclCommunicator,
    buffer: Value,
    peer: int,
    stream: int | None,
    deadline_s: float | None,
) -> bool:
    [data] = _buffers(buffer)
    call: Call = ("ncclSend", data.pointer, data.nbytes, nccl.BYTE, peer)
    return comm.run([[call]], "send", (data,), stream, deadline_s, (comm.rank, peer))


@hookimpl
def engine_receive(
    comm: NcclCommunicator,
    buffer: Value,
    peer: int,
    stream: int | None,
    deadline_s: float | None,
) -> bool:
    [data] = _buffers(buffer)
    call: Call = ("ncclRecv", data.pointer, data.nbytes, nccl.BYTE, peer)
    return comm.run([[call]], "receive", (data,), stream, deadline_s, (peer, comm.rank))


def _buffers(*values: Value) -> list[DeviceBuffer]:
    for value in values:
        if not isinstance(value, DeviceBuffer):
            raise CommunicatorError(
                f"NCCL works on device memory, but got a value of {type(value).__name__}; copy it "
                "to the device with engine_copy"
            )
    return list(values)  # type: ignore[arg-type]  # just checked


def _dtype(comm: NcclCommunicator, buffer: DeviceBuffer) -> int:
    number = nccl.DTYPES.get(buffer.dtype)
    if number is None:
        raise CommunicatorError(
            f"group {comm.group!r}: NCCL cannot reduce {buffer.dtype}; it takes "
            f"{', '.join(map(str, nccl.DTYPES))}: cast the tensor"
        )
    return number
