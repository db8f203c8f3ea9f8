"""An emulated libnccl.so.2, over the core's communicator of ranks on one machine.

It is a Python object with the functions of NCCL's header, which takes what ctypes would pass: its
callers must have declared each function as the header has it, and it enforces what NCCL demands:

* the CUDA context of the communicator's device is current; streams and addresses are that device's;
* every rank has a device of its own; a communicator that works on something takes nothing else;
* nothing is used after it was destroyed or aborted.

As on a device, queued work goes on by itself: each piece has a thread that brings its stream to it.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from emulated_gpu.machine import MACHINE, Crash, Device, Queue
from engine.distributed.local import LocalCommunicator
from engine.distributed.store import GroupStore, StoreServer, connect
from engine.errors import CommunicatorError
from engine.types import CommunicatorOptions, ReduceOp

TABLE = json.loads((Path(__file__).parents[2] / "nccl.json").read_text())
SUCCESS, UNHANDLED, SYSTEM, INTERNAL, ARGUMENT, USAGE, REMOTE, IN_PROGRESS = range(8)
_OPS = [ReduceOp.SUM, ReduceOp.PROD, ReduceOp.MAX, ReduceOp.MIN, ReduceOp.MEAN]
_TYPES = [
    np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32,
    np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
]  # fmt: skip
_INSIDE = {"sum": ReduceOp.SUM, "prod": ReduceOp.PROD, "max": ReduceOp.MAX, "min": ReduceOp.MIN,
           "avg": ReduceOp.MEAN}  # fmt: skip
_ALONE_S = 60.0
_KEY_BYTES = 32


class Ended(Exception):
    """The communicator was aborted under a kernel."""


class _Comm:
    """A communicator: what joins, and what it is at."""

    def __init__(self, device: Device, world_size: int, rank: int) -> None:
        self.device = device
        self.world_size = world_size
        self.rank = rank
        self.is_blocking = False
        self.state = IN_PROGRESS
        self.local: Any = None
        self.aborted = False
        self.pieces = 0  # of work that are queued and not done
        self.dropped = False

    def leave(self) -> None:
        """Leave the group, once nothing works in it any more."""
        if self.dropped and not self.pieces and self.local is not None:
            self.local.close()


class Library:
    """The library, as ctypes.CDLL gives it; one in this process."""

    def __init__(self) -> None:
        self._comms: dict[int, _Comm] = {}
        self._numbers = itertools.count(0x6CC10000, 0x40)
        self._servers: list[StoreServer] = []
        self._said = b""
        self._own: list[np.ndarray[Any, Any]] = []  # what a rank sends to itself
        self._group = threading.local()
        for name, types in TABLE["functions"].items():
            setattr(self, name, _Function(name, types, getattr(self, f"_{name}")))

    def _ncclGetVersion(self, version: Any) -> int:
        version.value = int(os.environ.get("ENGINE_EMULATED_NCCL", TABLE["version"]))
        return SUCCESS

    def _ncclGetUniqueId(self, unique_id: Any) -> int:
        """As the real one does: a socket is opened, and the id says where."""
        server = StoreServer()
        self._servers.append(server)
        data = server.key + server.address.encode()
        ctypes.memmove(ctypes.byref(unique_id), data, len(data))
        return SUCCESS

    def _ncclGetErrorString(self, result: int) -> bytes:
        names = {value: name for name, value in TABLE["enums"]["ncclResult_t"].items()}
        return f"{names[result].removeprefix('nccl')} (emulated)".encode()

    def _ncclGetLastError(self, comm: int | None) -> bytes:
        return self._said

    def _refuse(self, result: int, text: str) -> int:
        self._said = text.encode()
        return result

    def _ncclCommInitRankConfig(
        self, comm: Any, world_size: int, unique_id: Any, rank: int, config: Any
    ) -> int:
        device = _current("ncclCommInitRankConfig")
        if config.magic != TABLE["config_magic"] or config.size < 20:
            return self._refuse(ARGUMENT, "ncclConfig_t argument not initialized")
        if config.blocking not in (0, 1) or not 0 <= rank < world_size:
            return self._refuse(ARGUMENT, f"Invalid rank requested : {rank}/{world_size}")
        made = _Comm(device, world_size, rank)
        made.is_blocking = bool(config.blocking)
        comm.value = next(self._numbers)
        self._comms[comm.value] = made
        MACHINE.live["communicators"] += 1
        data = bytes(unique_id)
        thread = threading.Thread(target=self._join, args=(made, data), daemon=True)
        thread.start()
        if config.blocking:
            thread.join()
        return made.state

    def _join(self, comm: _Comm, unique_id: bytes) -> None:
        key, address = unique_id[:_KEY_BYTES], unique_id[_KEY_BYTES:].rstrip(b"\0").decode()
        try:
            store = GroupStore(connect(address, key), "nccl")
            store.set(f"device {comm.rank}", str(comm.device.id).encode())
            devices = [store.get(f"device {rank}", _ALONE_S) for rank in range(comm.world_size)]
            if len(set(devices)) < len(devices):
                self._refuse(USAGE, "Duplicate GPU detected")
                comm.state = USAGE
                return
            local = LocalCommunicator(
                CommunicatorOptions(
                    rank=comm.rank, world_size=comm.world_size, store=store, timeout_s=_ALONE_S
                )
            )
        except CommunicatorError as error:
            self._refuse(SYSTEM, str(error))
            comm.state = SYSTEM
            return
        comm.local = local
        comm.state = SUCCESS
        if comm.aborted:
            local.abort()

    def _ncclCommGetAsyncError(self, comm: int, state: Any) -> int:
        state.value = self._comm(comm, works=False).state
        return SUCCESS

    def _ncclCommFinalize(self, comm: int) -> int:
        """The state is in progress until all ranks have come here, their work being done."""
        found = self._comm(comm)
        if found.state != SUCCESS:
            return self._refuse(USAGE, "the communicator is not ready")
        found.state = IN_PROGRESS

        def finish() -> None:
            while found.pieces and not found.aborted:
                time.sleep(0.001)
            mine = np.zeros(1, np.int8)
            every = np.zeros(found.world_size, np.int8)
            try:
                found.local.allgather(mine, every, None)
                found.state = SUCCESS
            except CommunicatorError as error:
                found.state = self._refuse(REMOTE, str(error))

        threading.Thread(target=finish, daemon=True).start()
        return IN_PROGRESS

    def _ncclCommDestroy(self, comm: int) -> int:
        found = self._comm(comm)
        if found.pieces:
            raise Crash("ncclCommDestroy would wait for ever: work is under way")
        self._drop(comm)
        return SUCCESS

    def _ncclCommAbort(self, comm: int) -> int:
        """Ends what runs; unlike the others it may come from any thread at any time."""
        found = self._comm(comm)
        found.aborted = True
        MACHINE.counted["aborted communicators"] += 1
        if found.local is not None:
            found.local.abort()
        self._drop(comm)
        return SUCCESS

    def _drop(self, comm: int) -> None:
        found = self._comms.pop(comm)
        MACHINE.live["communicators"] -= 1
        found.dropped = True
        found.leave()
        if not self._comms:
            while self._servers:
                self._servers.pop().close()

    def _comm(self, comm: int, works: bool = True) -> _Comm:
        if not comm or comm not in self._comms:
            raise Crash(f"NCCL's communicator {comm or 0:#x} does not exist, or no longer")
        found = self._comms[comm]
        if works and MACHINE.current is not found.device:
            raise Crash(f"NCCL is called in the context of {MACHINE.current}, not {found.device}")
        return found

    def _ncclGroupStart(self) -> int:
        self._group.calls = []
        return SUCCESS

    def _ncclGroupEnd(self) -> int:
        calls, self._group.calls = self._group.calls, None
        # A receive waits for its send: all of a pair of ranks before those of the next pair, the
        # lower rank's send first.
        calls.sort(key=lambda call: call[0])
        results = [self._queue(comm, stream, work) for _, comm, stream, work in calls]
        return max(results, default=SUCCESS)

    def _ncclAllReduce(
        self, send: int, receive: int, count: int, dtype: int, op: int, comm: int, stream: int
    ) -> int:
        def work(local: Any, source: Any, target: Any) -> None:
            result = np.empty_like(source)
            local.allreduce(source, result, _OPS[op], None)
            target[:] = result

        return self._collect(comm, stream, dtype, (send, count), (receive, count), work)

    def _ncclReduce(
        self, send: int, receive: int, count: int, dtype: int, op: int, root: int, comm: int,
        stream: int,
    ) -> int:  # fmt: skip
        is_root = self._comm(comm).rank == root

        def work(local: Any, source: Any, target: Any) -> None:
            result = np.empty_like(source)
            local.allreduce(source, result, _OPS[op], None)
            if is_root:
                target[:] = result

        into = (receive, count) if is_root else None
        return self._collect(comm, stream, dtype, (send, count), into, work, (root, root, 0))

    def _ncclBroadcast(
        self, send: int, receive: int, count: int, dtype: int, root: int, comm: int, stream: int
    ) -> int:
        found = self._comm(comm)

        def work(local: Any, source: Any, target: Any) -> None:
            every = np.empty(count * found.world_size, target.dtype)
            local.allgather(target.copy() if source is None else source, every, None)
            target[:] = every[root * count : (root + 1) * count]

        given = (send, count) if found.rank == root else None
        return self._collect(comm, stream, dtype, given, (receive, count), work)

    def _ncclAllGather(
        self, send: int, receive: int, count: int, dtype: int, comm: int, stream: int
    ) -> int:
        def work(local: Any, source: Any, target: Any) -> None:
            local.allgather(source, target, None)

        size = self._comm(comm).world_size * count
        return self._collect(comm, stream, dtype, (send, count), (receive, size), work)

    def _ncclReduceScatter(
        self, send: int, receive: int, count: int, dtype: int, op: int, comm: int, stream: int
    ) -> int:
        found = self._comm(comm)

        def work(local: Any, source: Any, target: Any) -> None:
            result = np.empty_like(source)
            local.allreduce(source, result, _OPS[op], None)
            target[:] = result[found.rank * count : (found.rank + 1) * count]

        given = send, found.world_size * count
        return self._collect(comm, stream, dtype, given, (receive, count), work)

    def _ncclSend(
        self, send: int, count: int, dtype: int, peer: int, comm: int, stream: int
    ) -> int:
        mine = self._comm(comm).rank

        def work(local: Any, source: Any, target: Any) -> None:
            if peer == mine:
                self._own.append(source.copy())
            else:
                local.send(source, peer, None)

        order = (min(mine, peer), max(mine, peer), int(mine > peer))
        return self._collect(comm, stream, dtype, (send, count), None, work, order)

    def _ncclRecv(
        self, receive: int, count: int, dtype: int, peer: int, comm: int, stream: int
    ) -> int:
        mine = self._comm(comm).rank

        def work(local: Any, source: Any, target: Any) -> None:
            if peer == mine:
                target[:] = self._own.pop(0)
            else:
                result = np.empty_like(target)
                local.receive(result, peer, None)
                target[:] = result

        order = (min(mine, peer), max(mine, peer), int(peer > mine))
        return self._collect(comm, stream, dtype, None, (receive, count), work, order)

    def _collect(
        self,
        comm: int,
        stream: int,
        dtype: int,
        source: tuple[int, int] | None,
        target: tuple[int, int] | None,
        work: Callable[[Any, Any, Any], None],
        order: tuple[int, int, int] = (0, 0, 0),
    ) -> int:
        found = self._comm(comm)
        if found.state == IN_PROGRESS:
            text = "Attempt to use communicator before the previous operation returned ncclSuccess"
            return self._refuse(ARGUMENT, text)
        if found.state != SUCCESS:
            return found.state  # the asynchronous error, whatever is asked for
        queue = MACHINE.queue(stream or 0)
        if queue is None or queue.device is not found.device:
            raise Crash(f"NCCL is given stream {stream or 0:#x}, which is none of {found.device}")
        kind = np.dtype(_TYPES[dtype])
        sides = [
            None if side is None else (side[0], side[1] * kind.itemsize)
            for side in (source, target)
        ]
        for side in sides:
            if side is not None and side[1]:
                found.device.bytes(*side)  # the addresses are checked when they are queued

        def run() -> None:
            views = [
                None if side is None or not side[1] else found.device.bytes(*side).view(kind)
                for side in sides
            ]
            filled = [
                np.empty(0, kind) if view is None and side is not None else view
                for view, side in zip(views, sides, strict=True)
            ]
            try:
                self._kernel(found, lambda: work(found.local, *filled))
            except Ended:
                pass
            finally:
                found.pieces -= 1
                found.leave()

        if getattr(self._group, "calls", None) is not None:
            self._group.calls.append((order, found, queue, run))
            return SUCCESS
        return self._queue(found, queue, run)

    def _kernel(self, found: _Comm, work: Callable[[], None]) -> None:
        """Run a kernel; Ended where it does not come to its end before the communicator does."""
        try:
            if MACHINE.faulty("NCCL's kernel"):
                found.state = self._refuse(REMOTE, "Connection closed by remote peer")
                raise CommunicatorError("its network has failed")
            if MACHINE.faulty("NCCL's kernel, silently"):
                raise CommunicatorError("it hangs")
            work()
        except CommunicatorError:
            while not found.aborted:  # a kernel that waits for a rank that is gone goes on so
                time.sleep(0.001)
            raise Ended from None

    def found(self, comm: int) -> _Comm:
        """Return a communicator that is there, and this thread's device's."""
        return self._comm(comm)

    def inside(
        self, found: _Comm, operation: str, reduction: str, root: int, x: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """Do a collective of an engine's; Ended where it comes to nothing.

        Ranks that do not do the same on as much of one type are a violation: a real device waits
        for ever, or mixes up their bytes.
        """
        source, count, local = np.ascontiguousarray(x).reshape(-1), found.world_size, found.local
        result: list[np.ndarray[Any, Any]] = []

        def work() -> None:
            text = f"{operation} {reduction} {root} {x.dtype} {x.size}".encode()
            every = np.empty(count, np.uint32)
            local.allgather(np.array([zlib.crc32(text)], np.uint32), every, None)
            if len(set(every.tolist())) > 1:
                MACHINE.violation(f"ranks differ in what they exchange, here: {text.decode()}")
                raise CommunicatorError("ranks differ")
            if operation in ("all_reduce", "reduce_scatter"):
                made = np.empty_like(source)
                local.allreduce(source, made, _INSIDE[reduction], None)
            else:
                made = np.empty(count * source.size, source.dtype)
                local.allgather(source, made, None)
            result.append(made)

        self._kernel(found, work)
        parts = np.split(result[0], count) if operation != "all_reduce" else []
        if operation == "reduce_scatter":
            return parts[found.rank].reshape(x.shape[0] // count, *x.shape[1:])
        if operation == "broadcast":
            return parts[root].reshape(x.shape)
        if operation == "all_gather":
            return result[0].reshape(count * x.shape[0], *x.shape[1:])
        return result[0].reshape(x.shape)

    def launch(self, found: _Comm, queue: Queue, run: Callable[[], None]) -> None:
        """Queue an engine with collectives inside, which goes on by itself."""

        def counted() -> None:
            try:
                run()
            except Ended:
                pass  # what it has written is anything
            finally:
                found.pieces -= 1
                found.leave()

        self._queue(found, queue, counted)

    def _queue(self, comm: _Comm, queue: Queue, run: Callable[[], None]) -> int:
        comm.pieces += 1
        queue.put(run)
        threading.Thread(target=queue.run, args=(queue.queued,), daemon=True).start()
        return SUCCESS


class _Function:
    """A function of the library; a call fails unless it was declared as the header has it."""

    def __init__(self, name: str, types: list[str], call: Callable[..., Any]) -> None:
        self.argtypes: Any = None
        self.restype: Any = ctypes.c_int
        self._name = name
        self._types = types
        self._call = call

    def __call__(self, *given: Any) -> Any:
        returned, *taken = self._types
        if self.argtypes is None or [spelt(each) for each in self.argtypes] != taken:
            declared = self.argtypes and [spelt(each) for each in self.argtypes]
            raise Crash(f"{self._name} takes {taken}, but is declared with {declared}")
        if spelt(self.restype) != returned or len(given) != len(taken):
            raise Crash(f"{self._name} returns {returned} and takes {len(taken)} arguments")
        return self._call(*map(_passed, given, self.argtypes))


_SPELT = {
    ctypes.c_int: "int",
    ctypes.c_size_t: "size_t",
    ctypes.c_void_p: "void *",
    ctypes.c_char_p: "char *",
}
_SAME = {
    "ncclResult_t": "int", "ncclRedOp_t": "int", "ncclDataType_t": "int",
    "ncclComm_t": "void *", "cudaStream_t": "void *", "ncclComm_t *": "void * *",
    "ncclResult_t *": "int *",
}  # fmt: skip


def spelt(kind: Any) -> str:
    """Return a ctypes type as the table spells C types (see `plain`)."""
    if kind in _SPELT:
        return _SPELT[kind]
    if issubclass(kind, ctypes.Structure):
        return str(kind.__name__)
    return f"{spelt(kind._type_)} *"


def plain(table: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the functions of a header, its own names of plain types replaced by these."""
    structures = {"ncclUniqueId": "UniqueId", "ncclConfig_t *": "Config *",
                  "ncclUniqueId *": "UniqueId *"}  # fmt: skip
    return {
        name: [structures.get(kind, _SAME.get(kind, kind)) for kind in types]
        for name, types in table.items()
    }


TABLE["functions"] = plain(TABLE["functions"])


def _passed(value: Any, kind: Any) -> Any:
    """Return what the function gets: the object behind a reference, the value of a number."""
    if hasattr(value, "_obj"):  # ctypes.byref
        return value._obj
    if isinstance(value, ctypes.c_void_p | ctypes.c_int | ctypes.c_size_t):
        return value.value
    kind.from_param(value)  # raises where ctypes would
    return value


def _current(call: str) -> Device:
    device = MACHINE.current
    if device is None:
        raise Crash(f"{call} without a current CUDA context")
    return device
