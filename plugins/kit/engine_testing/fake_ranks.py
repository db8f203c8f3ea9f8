"""Collectives between processes over nothing but the store that the core gives: slow and right.

Each rank writes what it contributes under a key of its own and reads the others'. A contribution
is written when a collective is called, also where its result is queued on a stream, so ranks never
wait for each other in a circle.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from typing import Any

import numpy as np

from engine.errors import CommunicatorError
from engine.types import CommunicatorOptions, DeviceBuffer, ReduceOp, Value
from engine_testing.fake_device import Array, FakeDevice

_LOOK_S = 0.05  # how often a waiting rank looks whether it was aborted, or its peer has left

_COMBINE: dict[ReduceOp, Callable[[Any, Any], Any]] = {
    ReduceOp.SUM: np.add,
    ReduceOp.MEAN: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}


class StoreCommunicator:
    """A joined group of ranks; engine.types.Communicator says who may call what."""

    deterministic = True  # contributions are combined in the order of the ranks

    def __init__(self, options: CommunicatorOptions, device: FakeDevice) -> None:
        self.rank = options.rank
        self.world_size = options.world_size
        self._group = options.group
        self._store = options.store
        self._device = device
        self._calls: Counter[str] = Counter()
        self._error: CommunicatorError | None = None
        self._ended = ""  # why this rank takes part in no collective any more
        self._join(options.timeout_s)

    def _join(self, timeout_s: float) -> None:
        end_s = time.monotonic() + timeout_s
        self._store.set(f"joined {self.rank}", b"")
        missing = []
        for rank in range(self.world_size):
            try:
                self._store.get(f"joined {rank}", max(0.0, end_s - time.monotonic()))
            except CommunicatorError as error:
                if not error.timed_out:
                    raise
                missing.append(rank)
        if missing:
            raise self._failure(f"did not join within {timeout_s:g} s", *missing)

    # --------------------------------------------------------------------------------- its life

    def abort(self) -> None:
        """Make what runs and what comes fail."""
        self._leave("the communicator was aborted")

    def check(self) -> None:
        """Raise what a queued collective ended with."""
        if self._error is not None:
            raise self._error
        if self._ended:
            raise self._failure(self._ended)

    def close(self) -> None:
        """Leave the group."""
        self._leave("the communicator is closed")

    def _leave(self, why: str) -> None:
        if not self._ended:
            self._ended = why
            with suppress(CommunicatorError):  # the store may be gone already
                self._store.set(f"left {self.rank}", b"")

    # ------------------------------------------------------------------------------- collectives

    def allreduce(
        self,
        send: Value,
        receive: Value,
        op: ReduceOp,
        stream: int | None,
        deadline_s: float | None,
    ) -> None:
        """See engine_allreduce."""

        def combine(parts: list[Array]) -> Array:
            total = reduce(_COMBINE[op], parts)
            result = total / self.world_size if op is ReduceOp.MEAN else total
            return np.asarray(result).astype(parts[0].dtype)

        self._exchange(send, receive, combine, stream, deadline_s)

    def allgather(
        self, send: Value, receive: Value, stream: int | None, deadline_s: float | None
    ) -> None:
        """See engine_allgather."""
        self._exchange(send, receive, np.concatenate, stream, deadline_s)

    def send(self, buffer: Value, peer: int, stream: int | None) -> None:
        """See engine_send; whoever sends never waits."""
        self._write(self._key(f"{self.rank} to {peer}"), buffer, stream)

    def receive(
        self, buffer: Value, peer: int, stream: int | None, deadline_s: float | None
    ) -> None:
        """See engine_receive."""
        key = self._key(f"{peer} to {self.rank}")
        self._finish(buffer, lambda: self._read(f"{key}/{peer}", peer, buffer, deadline_s), stream)

    def _exchange(
        self,
        send: Value,
        receive: Value,
        combine: Callable[[list[Array]], Array],
        stream: int | None,
        deadline_s: float | None,
    ) -> None:
        key = self._key("all")
        self._write(key, send, stream)

        def result() -> Array:
            ranks = range(self.world_size)
            return combine([self._read(f"{key}/{r}", r, send, deadline_s) for r in ranks])

        self._finish(receive, result, stream)

    def _key(self, kind: str) -> str:
        """Return the key of the next collective of a kind, the same at all ranks that take part."""
        if self._ended:
            raise self._failure(self._ended)
        self._calls[kind] += 1
        return f"{kind} {self._calls[kind]}"

    def _write(self, key: str, buffer: Value, stream: int | None) -> None:
        self._device.synchronise(stream)
        if isinstance(buffer, DeviceBuffer):
            self._device.synchronise(buffer.stream)
        self._store.set(f"{key}/{self.rank}", self._device.read(buffer).tobytes())

    def _read(self, key: str, peer: int, like: Value, deadline_s: float | None) -> Array:
        """Wait for what a rank has written: a tensor of `like`'s dtype and shape."""
        while True:
            if self._ended:
                raise self._failure(self._ended)
            try:
                data = self._store.get(key, _LOOK_S)
                break
            except CommunicatorError as error:
                if not error.timed_out:
                    raise
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise self._failure("did not arrive in time", peer)
            if self._has_left(peer):
                raise self._failure("has left the group", peer)
        mine = self._device.read(like)
        return np.frombuffer(data, mine.dtype).reshape(mine.shape)

    def _has_left(self, peer: int) -> bool:
        try:
            self._store.get(f"left {peer}", 0)
        except CommunicatorError:
            return False
        return True

    def _finish(self, target: Value, result: Callable[[], Array], stream: int | None) -> None:
        """Write the result into `target`: now, or in its turn on the stream."""
        device = self._device

        def write() -> None:
            if isinstance(target, DeviceBuffer) and target.stream != stream:
                device.synchronise(target.stream)
            device.write(target, result())

        def write_or_keep_the_error() -> None:
            try:
                write()
            except CommunicatorError as error:
                self._error = self._error or error  # for `check`

        if stream is None:
            write()
        else:
            device.queue(stream, write_or_keep_the_error)

    def _failure(self, text: str, *ranks: int) -> CommunicatorError:
        who = f"rank {', '.join(map(str, ranks))} of {self.world_size} " if ranks else ""
        return CommunicatorError(f"group {self._group!r}, rank {self.rank}: {who}{text}", ranks)
