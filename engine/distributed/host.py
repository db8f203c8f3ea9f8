"""Collectives on host memory, with the arguments of the hooks of engine.hookspecs.

What a transport has of its own is in its communicator; the rest is composed of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.distributed.compose import Collectives, complete
from engine.distributed.transport import HostCommunicator
from engine.types import DType, ReduceOp


def host_collectives() -> Collectives:
    """Return all collectives, for one communicator at a time."""
    return complete(
        _allreduce, _allgather, _send, _receive, allocate=_allocate, copy=_copy
    )  # fmt: skip


def _allreduce(
    comm: HostCommunicator,
    send: Any,
    receive: Any,
    op: ReduceOp,
    stream: int | None,
    deterministic: bool,
    deadline_s: float | None,
) -> bool:
    comm.allreduce(send, receive, op, deadline_s)
    return True


def _allgather(
    comm: HostCommunicator, send: Any, receive: Any, stream: int | None, deadline_s: float | None
) -> bool:
    comm.allgather(send, receive, deadline_s)
    return True


def _send(
    comm: HostCommunicator, buffer: Any, peer: int, stream: int | None, deadline_s: float | None
) -> bool:
    comm.send(buffer, peer, deadline_s)
    return True


def _receive(
    comm: HostCommunicator, buffer: Any, peer: int, stream: int | None, deadline_s: float | None
) -> bool:
    comm.receive(buffer, peer, deadline_s)
    return True


def _allocate(dtype: DType, shape: tuple[int, ...]) -> Any:
    return np.empty(shape, dtype.numpy)


def _copy(source: Any, target: Any, stream: int | None) -> None:
    target[...] = source
