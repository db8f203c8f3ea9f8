"""The ranks' group as an engine with collectives inside uses it.

TensorRT takes what NCCL's calls return for final, so it gets a communicator that blocks, beside the
group's own, which does not and by which the ranks are watched. Calls of TensorRT's wait for the
other ranks inside: a rank that fails meanwhile, or a deadline, ends them by NCCL's abort.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_void_p

from engine.errors import BackendUnavailable, CommunicatorError
from engine_gpu_trt import messages, nccl
from engine_gpu_trt.bound import Bound
from engine_gpu_trt.communicator import NcclCommunicator, Queued

WHAT = "a predict with collectives inside"
_CAPSULE = b"ncclComm_t"  # a capsule points to its name, which has to stay
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [c_void_p, ctypes.c_char_p, c_void_p]


class GraphGroup:
    """A group for one executable, whose contexts run one at a time.

    calls: its collectives with their types and shapes, which have to be every rank's.
    """

    def __init__(self, comm: NcclCommunicator, calls: Sequence[str]) -> None:
        self._comm = comm
        self._calls = "\n".join(calls)
        self._pointer: int | None = None

    @contextmanager
    def watched(self, deadline_s: float | None) -> Iterator[None]:
        """Watch the group in the block, which ends with all its work done.

        Raises CommunicatorError where it came to nothing, naming the ranks.
        """
        comm = self._comm
        comm.refuse_ended()
        if self._pointer is None:
            self._join(deadline_s)
        block = _Block()
        place = comm.membership.place(None)
        comm.watch(Queued(block, place, comm.others, WHAT, time.monotonic(), deadline_s))
        try:
            yield
        except CommunicatorError:
            raise
        except BaseException as error:
            try:
                comm.refuse_ended()  # or is it TensorRT's word for that?
            except CommunicatorError as why:
                raise why from error
            raise
        finally:
            block.is_reached = True
        comm.refuse_ended()

    def attach(self, bound: Bound) -> None:
        """Give an execution context the communicator, inside `watched`: all ranks do it at once."""
        mark = messages.mark()
        if not bound.context.set_communicator(_new_capsule(self._pointer, _CAPSULE, None)):
            raise BackendUnavailable(
                f"TensorRT does not take NCCL's communicator: {messages.since(mark)}; set "
                "in_graph_collectives = off",
                "gpu_trt",
            )

    def _join(self, deadline_s: float | None) -> None:
        """Compare the ranks' engines, and join the communicator for them."""
        comm = self._comm
        end_s = deadline_s if deadline_s is not None else time.monotonic() + comm.timeout_s
        for rank, calls in enumerate(comm.membership.exchange("calls inside", self._calls, end_s)):
            if calls != self._calls:
                comm.end(
                    f"the engine of rank {comm.membership.numbers[rank]} has other collectives"
                )
                raise comm.failure(
                    _difference(self._calls, calls, comm.membership.numbers[rank]), (rank,)
                )
        unique_id = comm.membership.share("nccl id inside", comm.unique_id, end_s)
        if len(unique_id) != nccl.UNIQUE_ID_BYTES:
            raise comm.failure(f"rank 0 has no id for the group: {unique_id.decode()}")
        result: list[int] = []
        # In a thread, because it cannot be given up while it waits for the others.
        thread = threading.Thread(target=self._init, args=(unique_id, result), daemon=True)
        thread.start()
        place = comm.membership.place(None)
        comm.wait(lambda: not thread.is_alive(), "joining", place, comm.others, end_s)
        if result != [nccl.SUCCESS]:
            comm.end(f"NCCL refused joining: {comm.said(result[0] if result else nccl.SUCCESS)}")
        comm.refuse_ended()
        self._pointer = comm.handle.inside.value

    def _init(self, unique_id: bytes, result: list[int]) -> None:
        comm, made = self._comm, c_void_p()
        with comm.gpu:
            config = nccl.Config.of(is_blocking=True)
            done = comm.library.ncclCommInitRankConfig(
                byref(made), comm.world_size, nccl.UniqueId.of(unique_id), comm.rank, byref(config)
            )
            comm.keep(made)
        result.append(int(done))


class _Block:
    """A block of a program in the place of a marker on a stream."""

    is_reached = False

    def close(self) -> None:
        """See cuda.Marker."""


def _difference(own: str, other: str, rank: int) -> str:
    mine, theirs = own.splitlines(), other.splitlines()
    for number, (one, two) in enumerate(zip(mine, theirs, strict=False)):
        if one != two:
            return f"collective {number} inside the engine is {one} here, but {two} at rank {rank}"
    return f"{len(mine)} collectives are inside the engine here, but {len(theirs)} at rank {rank}"
