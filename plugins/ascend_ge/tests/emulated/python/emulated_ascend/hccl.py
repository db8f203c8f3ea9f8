"""The emulated libhccl.so, over the core's communicator of one machine.

Strict as the real one is, or more: a device must be set before a group is joined; of groups by
rank table there is one at a time; a group in which something runs is not destroyed; nothing says
that a rank has ended, and what waits for it goes on until HCCL_EXEC_TIMEOUT or an abort.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_int32, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from emulated_ascend.device import Stream
from emulated_ascend.libraries import Library, libraries
from emulated_ascend.machine import OK, machine
from engine.distributed.compose import host_collectives
from engine.distributed.local import LocalCommunicator
from engine.distributed.store import ConnectedStore, GroupStore, StoreServer, connect
from engine.errors import CommunicatorError
from engine.types import CommunicatorOptions, ReduceOp

PARA, NOT_SUPPORT = 1, 5
TIMEOUT, OPEN_FILE, RUNTIME, AGAIN = 9, 10, 15, 20
TASK_TIMEOUT = 507035  # what a stream ends with where a collective did
ROOT_INFO_BYTES = 4108

DTYPES = [np.int8, np.int16, np.int32, np.float16, np.float32, np.int64, np.uint64, np.uint8,
          np.uint16, np.uint32, np.float64, ml_dtypes.bfloat16]  # fmt: skip
OPS = [ReduceOp.SUM, ReduceOp.PROD, ReduceOp.MAX, ReduceOp.MIN]

_library = libraries["libhccl.so"] = Library()
_function = _library.function
_servers: dict[str, list[Any]] = {}  # of this process's invitations, by the store's address
_do = host_collectives()


class ConfigValue(ctypes.Structure):
    """HcclConfigValue."""

    _fields_ = (("value", c_int32),)


@dataclass(eq=False)
class Comm:
    """A joined group. running: collectives that are queued or run."""

    local: LocalCommunicator
    store: ConnectedStore
    by_table: bool = False
    held: list[Any] = field(default_factory=list)
    running: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)
    turn: threading.Lock = field(default_factory=threading.Lock)


def _seconds(name: str, default: float) -> float:
    return float(os.environ.get(name) or default)


@_function(c_void_p)
def HcclGetRootInfo(info: int) -> int:
    if not machine.current:
        return RUNTIME
    server = StoreServer()
    _servers[server.address] = [server]
    text = json.dumps([server.address, server.key.hex()]).encode()
    ctypes.memmove(info, text.ljust(ROOT_INFO_BYTES, b"\0"), ROOT_INFO_BYTES)
    return OK


@_function(c_uint32, c_void_p, c_uint32, POINTER(c_void_p))
def HcclCommInitRootInfo(count: int, info: int, rank: int, comm: Any) -> int:
    if not machine.current:
        return RUNTIME
    address, key = json.loads(ctypes.string_at(info, ROOT_INFO_BYTES).rstrip(b"\0"))
    return _join(address, key, count, rank, comm)


@_function(c_char_p, c_uint32, POINTER(c_void_p))
def HcclCommInitClusterInfo(path: bytes, rank: int, comm: Any) -> int:
    if not machine.current:
        return RUNTIME
    if any(isinstance(thing, Comm) and thing.by_table for thing in machine.objects.values()):
        machine.say("EI0004: the world group is initialised already")
        return PARA
    try:
        text = Path(os.fsdecode(path)).read_text()
    except OSError as error:
        machine.say(f"EI0004: {error}")
        return OPEN_FILE
    try:
        servers = json.loads(text)["server_list"]
        ranks = [int(device["rank_id"]) for server in servers for device in server["device"]]
    except (ValueError, LookupError, TypeError) as error:
        machine.say(f"EI0004: the ranktable is invalid: {error!r}")
        return PARA
    if sorted(ranks) != list(range(len(ranks))) or rank not in ranks:
        machine.say(f"EI0004: the ranktable has ranks {sorted(ranks)}, this is {rank}")
        return PARA
    met = _meet(text, rank)
    return _join(*met, len(ranks), rank, comm, by_table=True) if met else TIMEOUT


def _meet(text: str, rank: int) -> tuple[str, str] | None:
    """Find rank 0 by what the table says; rank 0 waits for the others to ask."""
    name = "\0emulated-hccl-" + hashlib.sha256(text.encode()).hexdigest()[:32]
    if rank == 0:
        server = StoreServer()
        listener = Listener(name, "AF_UNIX", backlog=64)
        _servers[server.address] = [server, _Door(listener)]

        def answer() -> None:
            while True:
                try:
                    with listener.accept() as asking:
                        asking.send([server.address, server.key.hex()])
                except OSError:
                    return

        threading.Thread(target=answer, daemon=True).start()
        return server.address, server.key.hex()
    end_s = time.monotonic() + _seconds("HCCL_CONNECT_TIMEOUT", 120)
    while time.monotonic() < end_s:
        try:
            with Client(name, "AF_UNIX") as asking:
                address, key = asking.recv()
                return address, key
        except (OSError, EOFError):
            time.sleep(0.02)
    machine.say("EI0006: getting socket times out")
    return None


class _Door:
    """A listener that a thread accepts at, which is not ended by closing it."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def close(self) -> None:
        """Let the thread end."""
        inner: Any = self._listener
        inner._listener._socket.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _join(
    address: str, key: str, count: int, rank: int, handle: Any, by_table: bool = False
) -> int:
    store = None
    try:
        store = connect(address, bytes.fromhex(key))
        options = CommunicatorOptions(
            rank=rank, world_size=count, ranks=tuple(range(count)), store=GroupStore(store, "hccl"),
            timeout_s=_seconds("HCCL_CONNECT_TIMEOUT", 120),
        )  # fmt: skip
        local = LocalCommunicator(options)
    except CommunicatorError as error:
        machine.say(f"EI0006: getting socket times out: {error}")
        if store is not None:
            store.close()
        for server in _servers.pop(address, []):
            server.close()
        return TIMEOUT
    with machine.lock:
        held = _servers.pop(address, [])
        handle[0] = machine.new(Comm(local, store, by_table, held))
    return OK


@_function(c_void_p)
def HcclCommDestroy(handle: int) -> int:
    with machine.lock:
        comm: Comm = machine.get(handle, Comm)
        if comm.running:
            return AGAIN
        machine.drop(handle, Comm)
    comm.local.close()
    comm.store.close()
    for server in comm.held:
        server.close()
    return OK


@_function(c_void_p, POINTER(c_uint32))
def HcclGetRankSize(handle: int, size: Any) -> int:
    size[0] = machine.get(handle, Comm).local.world_size
    return OK


@_function(c_void_p, POINTER(c_uint32))
def HcclGetRankId(handle: int, rank: Any) -> int:
    rank[0] = machine.get(handle, Comm).local.rank
    return OK


@_function(c_void_p, POINTER(c_int))
def HcclGetCommAsyncError(handle: int, error: Any) -> int:
    machine.get(handle, Comm)
    error[0] = machine.link_error  # of links between devices; of nothing else
    return OK


@_function(c_int, ConfigValue)
def HcclSetConfig(config: int, value: ConfigValue) -> int:
    return OK if config == 0 and value.value in (0, 1) else PARA


def _queue(
    handle: int,
    stream: int,
    reads: tuple[int, int],
    writes: tuple[int, int],
    run: Callable[[LocalCommunicator, Any, float], Any],
) -> int:
    """Queue a collective. reads, writes: address and bytes. run(group, data, end): the result."""
    with machine.lock:
        comm: Comm = machine.get(handle, Comm)
        queue: Stream = machine.get(stream, Stream)
        if queue.context != machine.current:
            return RUNTIME
        used = [machine.memory.find(*end) for end in (reads, writes) if end[1]]
        for allocation in used:
            allocation.pins += 1
        comm.running += 1

    def work() -> Any:
        with machine.lock:
            data = machine.memory.at(*reads).copy() if reads[1] else None
        end_s = time.monotonic() + _seconds("HCCL_EXEC_TIMEOUT", 1836)
        try:
            with comm.turn:
                return run(comm.local, data, end_s)
        except CommunicatorError as error:
            comm.stopped.wait(max(0.0, end_s - time.monotonic()))
            return error

    def finish(result: Any) -> int:
        comm.running -= 1
        for allocation in used:
            allocation.pins -= 1
        if isinstance(result, CommunicatorError):
            machine.say(f"EI0002: the wait execution of the Notify register times out: {result}")
            return TASK_TIMEOUT
        if result is not None and writes[1]:
            machine.memory.at(*writes)[:] = np.ascontiguousarray(result).reshape(-1).view(np.uint8)
        return OK

    def stop() -> None:
        comm.stopped.set()
        comm.local.abort()

    with machine.lock:
        queue.put(work, finish, stop)
    return OK


def _kind(dtype: int, op: int = 0) -> Any:
    """Return the numpy type; None for what HCCL does not reduce."""
    return np.dtype(DTYPES[dtype]) if dtype < len(DTYPES) and op < len(OPS) else None


def _size(comm: int) -> int:
    size: int = machine.get(comm, Comm).local.world_size
    return size


_REDUCING = (c_void_p, c_void_p, c_uint64, c_int, c_int, c_void_p, c_void_p)
_BETWEEN_TWO = (c_void_p, c_uint64, c_int, c_uint32, c_void_p, c_void_p)


@_function(*_REDUCING)
def HcclAllReduce(send: int, to: int, count: int, dtype: int, op: int, comm: int, at: int) -> int:
    kind = _kind(dtype, op)
    if kind is None:
        return NOT_SUPPORT

    def run(local: LocalCommunicator, data: Any, end_s: float) -> Any:
        result = np.empty(count, kind)
        local.allreduce(data.view(kind), result, OPS[op], end_s)
        return result

    nbytes = count * kind.itemsize
    return _queue(comm, at, (send, nbytes), (to, nbytes), run)


@_function(*_REDUCING)
def HcclReduceScatter(
    send: int, to: int, count: int, dtype: int, op: int, comm: int, at: int
) -> int:
    kind, size = _kind(dtype, op), _size(comm)
    if kind is None:
        return NOT_SUPPORT

    def run(local: LocalCommunicator, data: Any, end_s: float) -> Any:
        result = np.empty(size * count, kind)
        local.allreduce(data.view(kind), result, OPS[op], end_s)
        return result[local.rank * count :][:count]

    nbytes = count * kind.itemsize
    return _queue(comm, at, (send, size * nbytes), (to, nbytes), run)


@_function(c_void_p, c_void_p, c_uint64, c_int, c_void_p, c_void_p)
def HcclAllGather(send: int, to: int, count: int, dtype: int, comm: int, at: int) -> int:
    nbytes, size = count * _kind(dtype).itemsize, _size(comm)

    def run(local: LocalCommunicator, data: Any, end_s: float) -> Any:
        result = np.empty(size * nbytes, np.uint8)
        local.allgather(data, result, end_s)
        return result

    return _queue(comm, at, (send, nbytes), (to, size * nbytes), run)


@_function(*_BETWEEN_TWO)
def HcclBroadcast(buffer: int, count: int, dtype: int, root: int, comm: int, at: int) -> int:
    def run(local: LocalCommunicator, data: Any, end_s: float) -> Any:
        _do.broadcast(local, data, root, None, end_s)
        return data

    end = buffer, count * _kind(dtype).itemsize
    return _queue(comm, at, end, end, run)


@_function(*_BETWEEN_TWO)
def HcclSend(buffer: int, count: int, dtype: int, peer: int, comm: int, at: int) -> int:
    def run(local: LocalCommunicator, data: Any, end_s: float) -> None:
        local.send(data, peer, end_s)

    return _queue(comm, at, (buffer, count * _kind(dtype).itemsize), (0, 0), run)


@_function(*_BETWEEN_TWO)
def HcclRecv(buffer: int, count: int, dtype: int, peer: int, comm: int, at: int) -> int:
    nbytes = count * _kind(dtype).itemsize

    def run(local: LocalCommunicator, data: Any, end_s: float) -> Any:
        result = np.empty(nbytes, np.uint8)
        local.receive(result, peer, end_s)
        return result

    return _queue(comm, at, (0, 0), (buffer, nbytes), run)


@_function(c_void_p, c_uint64, c_int, c_void_p, c_uint64, c_int, c_void_p, c_void_p)
def HcclAlltoAll(
    send: int, count: int, dtype: int, to: int, to_count: int, to_dtype: int, comm: int, at: int
) -> int:
    if (count, dtype) != (to_count, to_dtype):
        return PARA
    size = _size(comm)
    nbytes = size * count * _kind(dtype).itemsize

    def run(local: LocalCommunicator, data: Any, end_s: float) -> Any:
        outgoing = data.reshape(size, -1)
        result = np.empty_like(outgoing)
        _do.alltoall(local, outgoing, result, None, end_s)
        return result

    return _queue(comm, at, (send, nbytes), (to, nbytes), run)
