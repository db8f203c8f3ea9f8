"""One rank of scenarios: `python -m engine_testing.rank BACKEND RANK WORLD STORE SCENARIO...`.

Started by `ranks.py`, once for each rank. Every rank knows what all contribute, so each compares
what it gets with numpy's result. Of each scenario that ends well it prints a line of JSON, with
the scenario's name and result; the first that does not ends the process.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.backends import Backend, open_backend
from engine.distributed.compose import Collectives, complete
from engine.distributed.store import GroupStore, connect
from engine.errors import CommunicatorError
from engine.types import (
    Communicator,
    CommunicatorOptions,
    CompileOptions,
    Device,
    DeviceBuffer,
    DType,
    ReduceOp,
    ShapeRange,
    Value,
)

Array = npt.NDArray[Any]
LIMIT_S = 60.0
SOON_S = 8.0  # "soon" for an abort and for a deadline, on a busy machine

_NUMPY = {
    ReduceOp.SUM: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}


class Rank:
    """A rank that has joined a group, and its device's memory."""

    def __init__(self, backend: Backend, rank: int, world_size: int, address: str) -> None:
        self.backend = backend
        self.rank = rank
        self.world_size = world_size
        self.store = connect(address, bytes.fromhex(os.environ["KIT_STORE_KEY"]))
        found = backend.devices().found
        self.device: Device = found[rank % len(found)].device
        self.scenario = ""
        self._allocate = backend.bind("engine_buffer")
        self._copy = backend.bind("engine_copy")
        self.order = backend.bind("engine_order")

    def join(self, group: str = "world", timeout_s: float = LIMIT_S) -> Communicator:
        """Join a group of all ranks."""
        comm: Communicator = self.backend.bind("engine_communicator")(
            CommunicatorOptions(
                rank=self.rank,
                world_size=self.world_size,
                store=GroupStore(self.store, f"{self.scenario}/{group}"),
                group=group,
                ranks=tuple(range(self.world_size)),
                device=self.device,
                timeout_s=timeout_s,
            )
        )
        assert (comm.rank, comm.world_size) == (self.rank, self.world_size)
        assert isinstance(comm.deterministic, bool), f"deterministic is {comm.deterministic!r}"
        comm.check()
        return comm

    def meet(self, where: str) -> None:
        """Wait until every rank has come to this place of the scenario."""
        self.store.set(f"{self.scenario}/{where}/{self.rank}", b"")
        for other in range(self.world_size):
            self.store.get(f"{self.scenario}/{where}/{other}", LIMIT_S)

    def collectives(self) -> Collectives:
        """Return all collectives: the backend's own, and those that the core composes."""

        def own(hook: str) -> Callable[..., Any] | None:
            return self.backend.bind(hook) if self.backend.has(hook) else None

        bind = self.backend.bind
        return complete(
            bind("engine_allreduce"),
            bind("engine_allgather"),
            bind("engine_send"),
            bind("engine_receive"),
            allocate=lambda dtype, shape: self._allocate(self.device, dtype, shape, False),
            copy=self._copy,
            broadcast=own("engine_broadcast"),
            reduce_scatter=own("engine_reduce_scatter"),
            alltoall=own("engine_alltoall"),
        )

    def put(self, array: Array) -> DeviceBuffer:
        """Return a complete buffer with the array's contents."""
        dtype = DType.from_numpy(array.dtype)
        buffer: DeviceBuffer = self._allocate(self.device, dtype, array.shape, False)
        self._copy(array, buffer, None)
        return buffer

    def like(self, shape: tuple[int, ...], dtype: Any = np.float32) -> DeviceBuffer:
        """Return a buffer whose contents are not what any collective here gives."""
        return self.put(np.full(shape, 77, dtype))

    def expect(self, buffer: Value, expected: Array) -> None:
        """Compare a buffer with what numpy gives."""
        array = np.zeros(expected.shape, expected.dtype)
        self._copy(buffer, array, None)
        np.testing.assert_allclose(array, expected, rtol=1e-5)

    def parts(self, shape: tuple[int, ...], dtype: Any = np.float32) -> list[Array]:
        """Return what each rank contributes: small numbers, different in each."""
        size = int(np.prod(shape))
        return [
            ((np.arange(size) * (rank + 2) + 3 * rank) % 7 + 1).reshape(shape).astype(dtype)
            for rank in range(self.world_size)
        ]


def _deadline() -> float:
    return time.monotonic() + LIMIT_S


def _reduced(rank: Rank, op: ReduceOp, parts: list[Array]) -> Array:
    if op is ReduceOp.MEAN:
        return np.asarray(sum(parts) / rank.world_size).astype(parts[0].dtype)
    return np.asarray(reduce(_NUMPY[op], parts))


# -------------------------------------------------------------------------------------- scenarios


def allreduce(rank: Rank, op: ReduceOp, is_in_place: bool = False) -> None:
    """Reduce float32 and, but for the mean, int64; several times, as every rank does."""
    comm, do = rank.join(), rank.collectives()
    for dtype in (np.float32,) if op is ReduceOp.MEAN else (np.float32, np.int64):
        for shape in ((5,), (3, 4), (1,)):
            parts = rank.parts(shape, dtype)
            send = rank.put(parts[rank.rank])
            receive = send if is_in_place else rank.like(shape, dtype)
            do.allreduce(comm, send, receive, op, None, False, _deadline())
            rank.expect(receive, _reduced(rank, op, parts))
            if not is_in_place:
                rank.expect(send, parts[rank.rank])
    comm.check()
    rank.meet("checked")  # until then no rank leaves: check() may name one that has
    comm.close()
    comm.close()


def allgather(rank: Rank) -> None:
    """Join the parts along axis 0."""
    comm, do = rank.join(), rank.collectives()
    parts = rank.parts((2, 3))
    receive = rank.like((2 * rank.world_size, 3))
    do.allgather(comm, rank.put(parts[rank.rank]), receive, None, _deadline())
    rank.expect(receive, np.concatenate(parts))
    comm.close()


def send(rank: Rank) -> None:
    """Send around a ring, three times, even ranks first."""
    comm, do = rank.join(), rank.collectives()
    parts, size = rank.parts((4,)), rank.world_size
    before, after = (rank.rank - 1) % size, (rank.rank + 1) % size
    for scale in (1, 2, 3):
        outgoing, incoming = rank.put(scale * parts[rank.rank]), rank.like((4,))
        steps = [
            lambda out=outgoing: do.send(comm, out, after, None, _deadline()),
            lambda into=incoming: do.receive(comm, into, before, None, _deadline()),
        ]
        for step in steps if rank.rank % 2 == 0 else reversed(steps):
            step()
        rank.expect(incoming, scale * parts[before])
    comm.close()


def broadcast(rank: Rank) -> None:
    """Copy what each rank has in turn."""
    comm, do = rank.join(), rank.collectives()
    parts = rank.parts((3, 2))
    for root in range(rank.world_size):
        buffer = rank.put(parts[rank.rank])
        do.broadcast(comm, buffer, root, None, _deadline())
        rank.expect(buffer, parts[root])
    comm.close()


def reduce_scatter(rank: Rank) -> None:
    """Reduce, and keep one part."""
    comm, do = rank.join(), rank.collectives()
    parts = rank.parts((2 * rank.world_size, 3))
    receive = rank.like((2, 3))
    do.reduce_scatter(
        comm, rank.put(parts[rank.rank]), receive, ReduceOp.SUM, None, False, _deadline()
    )
    rank.expect(receive, np.asarray(sum(parts))[2 * rank.rank : 2 * rank.rank + 2])
    comm.close()


def alltoall(rank: Rank) -> None:
    """Exchange parts of axis 0."""
    comm, do = rank.join(), rank.collectives()
    parts = rank.parts((2 * rank.world_size, 3))
    receive = rank.like((2 * rank.world_size, 3))
    do.alltoall(comm, rank.put(parts[rank.rank]), receive, None, _deadline())
    own = slice(2 * rank.rank, 2 * rank.rank + 2)
    rank.expect(receive, np.concatenate([part[own] for part in parts]))
    comm.close()


def bits(rank: Rank) -> str:
    """Return a digest of a sum whose last bits depend on the order, in two runs."""
    comm, do = rank.join(), rank.collectives()
    results = []
    for _ in range(2):
        mine = np.random.default_rng(rank.rank).standard_normal(4096).astype(np.float32)
        receive = rank.like((4096,))
        do.allreduce(comm, rank.put(mine), receive, ReduceOp.SUM, None, True, _deadline())
        array = np.zeros(4096, np.float32)
        rank._copy(receive, array, None)
        results.append(array.tobytes())
    assert results[0] == results[1], "deterministic was asked for, and two runs gave other bits"
    comm.close()
    return hashlib.sha256(results[0]).hexdigest()


def stream(rank: Rank) -> str:
    """Queue all-reduces on the stream of a result that they read, and wait once."""
    result = _queued(rank)
    comm, do = rank.join(), rank.collectives()
    if result.stream is None:
        comm.close()
        return "skip"
    first, second = rank.like((1, 3)), rank.like((1, 3))
    begin_s = time.monotonic()
    do.allreduce(comm, result, first, ReduceOp.SUM, result.stream, False, _deadline())
    queued = replace(first, stream=result.stream)
    do.allreduce(comm, queued, second, ReduceOp.MAX, result.stream, False, _deadline())
    assert time.monotonic() - begin_s < SOON_S
    rank.order(rank.device, result.stream, None)
    comm.check()
    rank.meet("checked")
    parts = [2 * np.full((1, 3), number, np.float32) + 1 for number in range(rank.world_size)]
    rank.expect(first, np.asarray(sum(parts)))
    rank.expect(second, np.asarray(sum(parts)))
    comm.close()
    return "ran"


def _affine(rank: Rank, resident: frozenset[str] = frozenset()) -> Any:
    """Return an executable of y = 2 * x + 1, for x of shape (1, 3), as a part of a rank's model."""
    from engine.formats import open_source
    from engine_testing import models

    with tempfile.TemporaryDirectory() as folder:
        source = open_source(str(models.affine(Path(folder))))
        one = (1, 3)
        options = CompileOptions(
            device=rank.device,
            shapes={"x": ShapeRange(one, one, one)},
            plan="affine",
            resident=resident,
            rank=rank.rank,
            world_size=rank.world_size,
        )
        return rank.backend.compile(rank.backend.load(source, options), options)


def _queued(rank: Rank) -> DeviceBuffer:
    """Return 2 * rank + 1 as a result that a stream may still have to bring."""
    executable = _affine(rank)
    wanted: Any = [rank.device]
    x = np.full((1, 3), rank.rank, np.float32)
    [y] = rank.backend.predict(executable.open_context(), [x], wanted, None)
    assert isinstance(y, DeviceBuffer), f"expected a DeviceBuffer, got {type(y)}"
    return y


def _resident(rank: Rank, context: Any, value: Value) -> DeviceBuffer:
    """Return a result that stays in a context's memory, where its stream may still bring it."""
    [y] = rank.backend.predict(context, [value], None, None)
    assert isinstance(y, DeviceBuffer), f"expected a DeviceBuffer, got {type(y)}"
    return y


def chain(rank: Rank) -> str:
    """Queue all-reduces between three segments as the core does, and wait once, in the end."""
    comm, do = rank.join(), rank.collectives()
    parts = [_affine(rank, frozenset({"y"})), _affine(rank, frozenset({"y"})), _affine(rank)]
    contexts = [part.open_context() for part in parts]
    for turn in range(2):
        x = np.full((1, 3), rank.rank + turn, np.float32)
        first = _resident(rank, contexts[0], x)
        stream = first.stream
        if stream is None:
            comm.close()
            return "skip"
        summed = replace(rank.like((1, 3)), stream=stream)
        do.allreduce(comm, first, summed, ReduceOp.SUM, stream, True, _deadline())
        second = _resident(rank, contexts[1], summed)
        highest = replace(rank.like((1, 3)), stream=stream)
        do.allreduce(comm, second, highest, ReduceOp.MAX, stream, True, _deadline())
        [third] = rank.backend.predict(contexts[2], [highest], None, None)
        rank.order(rank.device, stream, None)
        comm.check()
        rank.meet(f"checked {turn}")
        total = sum(2 * (number + turn) + 1 for number in range(rank.world_size))
        expected = np.full((1, 3), 2 * (2 * total + 1) + 1, np.float32)
        assert isinstance(third, np.ndarray), f"expected an array, got {type(third)}"
        np.testing.assert_allclose(third, expected, rtol=1e-5)
    comm.close()
    return "ran"


def queued_late(rank: Rank) -> str:
    """Queue a collective alone, with a deadline, and wait for its stream."""
    return _queued_alone(rank, 0.5, lambda comm: None, _expect_named)


def queued_abort(rank: Rank) -> str:
    """Abort, from another thread, a queued collective to which nobody else comes."""

    def abort_soon(comm: Communicator) -> None:
        threading.Timer(0.3, comm.abort).start()

    return _queued_alone(rank, 1.5 * SOON_S, abort_soon, lambda error: None)


def _queued_alone(
    rank: Rank,
    limit_s: float,
    begin: Callable[[Communicator], None],
    expect: Callable[[CommunicatorError], None],
) -> str:
    """Queue a collective to which nobody else comes; its stream ends, and check says why."""
    comm, said = rank.join(), "ran"
    if rank.rank == 0:
        part = _affine(rank, frozenset({"y"}))
        context = part.open_context()
        result = _resident(rank, context, np.zeros((1, 3), np.float32))
        if result.stream is None:
            said = "skip"
        else:
            receive = rank.like((1, 3))
            end_s = time.monotonic() + limit_s
            args = (ReduceOp.SUM, result.stream, False, end_s)
            begin(comm)
            rank.collectives().allreduce(comm, result, receive, *args)
            begin_s = time.monotonic()
            _error_of(lambda: rank.order(rank.device, result.stream, None))
            spent_s = time.monotonic() - begin_s
            assert spent_s < SOON_S, f"the stream was let go of only after {spent_s:.1f} s"
            error = _error_of(comm.check)
            assert error is not None, "check() says nothing of a queued collective that failed"
            expect(error)
        rank.store.set("done", b"")
    rank.store.get("done", LIMIT_S)
    comm.close()
    return said


def _fails_alone(rank: Rank, comm: Communicator, deadline_s: float) -> CommunicatorError:
    """Call a collective to which nobody else comes, and return what it ends with."""
    send, receive = rank.like((4,)), rank.like((4,))
    do, begin_s = rank.collectives(), time.monotonic()
    error = _error_of(
        lambda: do.allreduce(comm, send, receive, ReduceOp.SUM, None, False, deadline_s)
    )
    assert error is not None, "a collective of one of two ranks ended without an error"
    spent_s = time.monotonic() - begin_s
    assert spent_s < SOON_S, f"the collective ended only after {spent_s:.1f} s"
    return error


def abort(rank: Rank) -> None:
    """Abort, from another thread, a collective that the other rank never comes to."""
    comm = rank.join()
    if rank.rank == 0:
        threading.Timer(0.3, comm.abort).start()
        limit_s = time.monotonic() + 1.5 * SOON_S  # where abort does nothing
        _fails_alone(rank, comm, limit_s)
        _fails_alone(rank, comm, limit_s)  # those that come later too
        comm.abort()  # twice does nothing
        assert _error_of(comm.check) is not None, "check() says nothing of an aborted group"
        rank.store.set("done", b"")
    rank.store.get("done", LIMIT_S)
    comm.close()


def late(rank: Rank) -> None:
    """Come to a collective alone, with a deadline."""
    comm = rank.join()
    if rank.rank == 0:
        _expect_named(_fails_alone(rank, comm, time.monotonic() + 0.5))
        rank.store.set("done", b"")
    rank.store.get("done", LIMIT_S)
    comm.close()


def absent(rank: Rank) -> None:
    """Join a group of two alone."""
    begin_s = time.monotonic()
    error = _error_of(lambda: rank.join(timeout_s=1.0))
    assert error is not None, "a group of two was joined by one"
    assert time.monotonic() - begin_s < SOON_S, "the error came late"
    _expect_named(error)


def _expect_named(error: CommunicatorError) -> None:
    assert error.ranks == (1,), f"ranks of {error!r} are {error.ranks}, expected (1,)"
    assert "1" in str(error), f"the message does not name rank 1: {error}"


def _error_of(call: Callable[[], Any]) -> CommunicatorError | None:
    try:
        call()
    except CommunicatorError as error:
        return error
    return None


def groups(rank: Rank) -> None:
    """Use two groups in turn, with different numbers in each."""
    do = rank.collectives()
    comms = [rank.join(name) for name in ("left", "right")]
    for scale in (1, 10, 100):
        for factor, comm in enumerate(comms, 1):
            parts = [scale * factor * part for part in rank.parts((4,))]
            receive = rank.like((4,))
            do.allreduce(
                comm, rank.put(parts[rank.rank]), receive, ReduceOp.SUM, None, False, _deadline()
            )
            rank.expect(receive, np.asarray(sum(parts)))
    comms[0].close()
    receive = rank.like((4,))
    parts = rank.parts((4,))
    do.allreduce(
        comms[1], rank.put(parts[rank.rank]), receive, ReduceOp.SUM, None, False, _deadline()
    )
    rank.expect(receive, np.asarray(sum(parts)))
    comms[1].close()


SCENARIOS: dict[str, Callable[[Rank], Any]] = {
    **{op.value: lambda rank, op=op: allreduce(rank, op) for op in ReduceOp},  # type: ignore[misc]
    "in_place": lambda rank: allreduce(rank, ReduceOp.SUM, is_in_place=True),
    "allgather": allgather,
    "send": send,
    "broadcast": broadcast,
    "reduce_scatter": reduce_scatter,
    "alltoall": alltoall,
    "bits": bits,
    "stream": stream,
    "chain": chain,
    "queued_late": queued_late,
    "queued_abort": queued_abort,
    "abort": abort,
    "late": late,
    "absent": absent,
    "groups": groups,
}


if __name__ == "__main__":
    name, number, size, where, *scenarios = sys.argv[1:]
    this = Rank(open_backend(name), int(number), int(size), where)
    for scenario in scenarios:
        this.scenario = scenario
        print(json.dumps([scenario, SCENARIOS[scenario](this)]), flush=True)
