"""The communicator of ranks on several machines: host memory, over MPI's buffer form.

MPI has no time-outs and does not say who is missing. So a step begins with a word of each rank to
every other, sent and awaited without blocking: what it is in, or why it takes part in none any
more. Only when all words have come, and say the same, do tensors follow. mpirun ends all ranks when
one of them dies.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakSet

import numpy as np

from engine.distributed.group import Array, RankGroup, bytes_of, described
from engine.distributed.job import Job
from engine.distributed.mpi_start import forget_segments, watched
from engine.distributed.reduction import Combine, reduction
from engine.distributed.shared_segment import ABORTED, LEFT
from engine.errors import CommunicatorError, one_line
from engine.types import DType, ReduceOp

__all__ = ["MpiCommunicator", "MpiExchange", "world"]

_STEP, _REFUSED = -2, -1  # and LEFT and ABORTED: what a word says
_WORD = np.dtype([("kind", "i4"), ("signature", "u4"), ("text", "S504")])
_WORDS, _PAIR, _TENSOR = range(1, 4)  # tags in a group
_VALUE = 28263  # one in the world, which the script may use too
_SPIN_S, _NAP_S = 200e-6, 100e-6
_DIRECT_BYTES = 32 * 1024
"""Up to this size more than two ranks each reduce everything: one exchange instead of two."""
_LAST_WORDS_S = 0.5
"""Time for the other ranks to say why they fail, before MPI ends them."""

_sending = threading.Lock()
_open: WeakSet[MpiCommunicator] = WeakSet()
_awaited: list[dict[int, tuple[Any, Array]]] = []
_sent: list[tuple[Any, Array]] = []
_cut_off: list[Any] = []
"""Work under way in MPI, of all groups: words that are expected, what is sent, and what a failure
has cut off. Its memory outlives the groups, for MPI reads and writes it until it has ended."""


def world(job: Job) -> Any:
    """Return MPI's communicator of all ranks that an mpirun has started, initialising MPI.

    A process that waits there for a rank that never comes is ended, with an error, when the job's
    time-out has passed. Raises CommunicatorError where there is no mpi4py, or it belongs to another
    MPI than the mpirun.
    """
    why = (
        f"rank {job.rank} of {job.world_size}: not all ranks began MPI within {job.timeout_s:g} s; "
        "look at the messages of the others, and whether each builds its model"
    )
    try:
        with watched(job.timeout_s, why):
            mpi: Any = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError, OSError) as error:
        raise CommunicatorError(
            f"ranks of several machines exchange tensors by MPI: {one_line(error)}; run: pip "
            'install "inference-engine[mpi]"'
        ) from error
    comm = mpi.COMM_WORLD
    if (comm.rank, comm.size) != (job.rank, job.world_size):
        raise CommunicatorError(
            f"this process is rank {job.rank} of {job.world_size} for the mpirun that started it, "
            f"but rank {comm.rank} of {comm.size} for mpi4py, whose MPI is another; start the "
            "ranks with the mpirun of mpi4py's MPI"
        )
    if mpi.Query_thread() != mpi.THREAD_MULTIPLE:
        raise CommunicatorError(
            "MPI was initialised for one thread at a time; leave mpi4py.rc.thread_level as it is"
        )
    atexit.unregister(_finish)
    atexit.register(_finish)
    return comm


def _finish() -> None:
    """Leave MPI nothing to do in memory that is given back before it ends, after Python has.

    Where an exception has ended this process, end all ranks: MPI's end waits for all of them.
    """
    for comm in list(_open):
        comm.close()
    if getattr(sys, "last_value", None) is not None:
        time.sleep(_LAST_WORDS_S)
        importlib.import_module("mpi4py.MPI").COMM_WORLD.Abort(1)
    _wait_for(lambda: all(request.Test() for request, _ in _sent), time.monotonic() + _LAST_WORDS_S)
    for awaited in _awaited:
        for request, _ in awaited.values():
            request.Cancel()
            request.Wait()
    for request in _cut_off:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(request))  # and with it its memory


class MpiExchange:
    """By which the ranks of one plan agree and form groups; see `store.exchange`."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def exchange(self, value: bytes, timeout_s: float) -> list[bytes]:
        """Give every rank the values of all, in rank order.

        Raises CommunicatorError naming the ranks that did not give theirs within `timeout_s`.
        """
        mpi, comm = importlib.import_module("mpi4py.MPI"), self._comm
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        own = np.frombuffer(value, np.uint8)
        sent = [comm.Isend(own, rank, _VALUE) for rank in others]
        values = {comm.rank: value}
        status = mpi.Status()

        def has_all() -> bool:
            for rank in others:
                if rank in values:
                    continue
                message = comm.Improbe(rank, _VALUE, status)
                if message is not None:
                    buffer = np.empty(status.Get_count(mpi.BYTE), np.uint8)
                    message.Recv(buffer)
                    values[rank] = buffer.tobytes()
            return len(values) == comm.size and all(request.Test() for request in sent)

        if not _wait_for(has_all, time.monotonic() + timeout_s):
            _cut_off.extend(sent)
            missing = tuple(rank for rank in others if rank not in values) or tuple(others)
            listed = ", ".join(map(str, missing))
            raise CommunicatorError(
                f"rank {comm.rank}: rank {listed} of {comm.size} did not join within "
                f"{timeout_s:g} s; look at its own messages",
                missing,
                timed_out=True,
            )
        forget_segments()
        return [values[rank] for rank in range(comm.size)]

    def group(self, members: Sequence[int]) -> Any:
        """Return MPI's communicator of some ranks; each of these calls it, and no other."""
        return self._comm.Create_group(self._comm.Get_group().Incl(list(members)))


class MpiCommunicator(RankGroup):
    """A group of ranks; engine.types.Communicator says who may call what.

    comm: MPI's, of the group alone. numbers: its ranks' in the job. Buffers are C-contiguous
    arrays. Every failure but that of a check of arguments ends the group.
    """

    def __init__(self, comm: Any, group: str, numbers: tuple[int, ...]) -> None:
        super().__init__(comm.rank, comm.size, group, numbers)
        self._comm = comm
        self._others = [rank for rank in range(self.world_size) if rank != self.rank]
        self._awaited = {peer: self._expect(peer) for peer in self._others}
        self._come: dict[int, Any] = {}  # words that have come, and are not taken yet
        self._refused = dict.fromkeys(range(self.world_size), 0)
        self._refusals: dict[int, Array] = {}  # the last word of each that says why
        self._reductions: dict[tuple[ReduceOp, np.dtype[Any]], Combine] = {}
        _awaited.append(self._awaited)
        _open.add(self)

    # ------------------------------------------------------------------------------- collectives

    def allreduce(
        self, send: Array, receive: Array, op: ReduceOp, deadline_s: float | None
    ) -> None:
        """See engine_allreduce."""
        combine = self._reductions.get((op, send.dtype))
        if combine is None:
            combine = reduction(op, DType.from_numpy(send.dtype))
            self._reductions[op, send.dtype] = combine
        text = f"all-reduce ({op.value}) of {described(send)}"
        self._meet(text, deadline_s)
        size = self.world_size
        flat, result = send.reshape(-1), receive.reshape(-1)
        if size <= 2 or send.nbytes <= _DIRECT_BYTES:
            parts = np.empty((size, flat.size), flat.dtype)
            self._all(self._comm.Iallgather, flat, parts, deadline_s, text)
            combine(*parts, out=result)
            return
        # Each reduces its part of the tensor, and a second exchange brings the parts to all.
        edges = [flat.size * rank // size for rank in range(size + 1)]
        counts = np.diff(edges) * flat.itemsize
        own = edges[self.rank + 1] - edges[self.rank]
        parts = np.empty((size, own), flat.dtype)
        mine = [own * flat.itemsize] * size
        self._all(self._comm.Ialltoallv, (flat, counts.tolist()), (parts, mine), deadline_s, text)
        reduced = np.empty(own, flat.dtype)
        combine(*parts, out=reduced)
        self._all(self._comm.Iallgatherv, reduced, (result, counts.tolist()), deadline_s, text)

    def allgather(self, send: Array, receive: Array, deadline_s: float | None) -> None:
        """See engine_allgather."""
        text = f"all-gather of {described(send)}"
        self._meet(text, deadline_s)
        self._all(self._comm.Iallgather, send.reshape(-1), receive.reshape(-1), deadline_s, text)

    def send(self, buffer: Array, peer: int, deadline_s: float | None) -> None:
        """See engine_send. Returns at once: what is sent is copied."""
        self.require_other(peer)
        self.refuse_ended()
        text = f"send of {described(buffer)}"
        self._post(peer, _PAIR, _word(_STEP, text, text.removeprefix("send")))
        self._post(peer, _TENSOR, bytes_of(buffer).copy())

    def receive(self, buffer: Array, peer: int, deadline_s: float | None) -> None:
        """See engine_receive."""
        self.require_other(peer)
        self.refuse_ended()
        text = f"receive of {described(buffer)}"
        word = np.zeros(1, _WORD)
        self._await(self._comm.Irecv(bytes_of(word), peer, _PAIR), [peer], deadline_s, text)
        if word["signature"][0] != _signature(text.removeprefix("receive")):
            raise self.mismatch(peer, text, _text(word))
        data = np.empty(buffer.nbytes, np.uint8)
        self._await(self._comm.Irecv(data, peer, _TENSOR), [peer], deadline_s, text)
        bytes_of(buffer)[...] = data

    def _all(self, call: Any, send: Any, receive: Any, end_s: float | None, text: str) -> None:
        """Run one of MPI's collectives on bytes; all ranks are known to be in it."""
        send, receive = (
            (bytes_of(one[0]), one[1]) if isinstance(one, tuple) else bytes_of(one)
            for one in (send, receive)
        )
        self._await(call(send, receive), self._others, end_s, text, have_met=True)

    def _meet(self, text: str, deadline_s: float | None) -> None:
        """Begin a step: wait until all ranks have said that they are in the same."""
        self.refuse_ended()
        for peer in self._others:
            self._post(peer, _WORDS, _word(_STEP, text))
        if not _wait_for(lambda: self._have_come(self._others, text), deadline_s):
            late = [peer for peer in self._others if peer not in self._come]
            raise self._too_late(late, text)
        for peer in self._others:
            word = self._come.pop(peer)
            if word["signature"][0] != _signature(text):
                raise self.mismatch(peer, text, _text(word))

    def _await(
        self,
        request: Any,
        peers: Sequence[int],
        end_s: float | None,
        text: str,
        have_met: bool = False,
    ) -> None:
        """Wait for MPI, and for a word of other ranks that they have failed.

        have_met: they have come to it, so one that leaves or refuses what comes next has done its
        part.
        """

        def is_done() -> bool:
            if request.Test():
                return True
            self._take_words()
            if request.Test():  # what a rank has sent before its last word is there with that
                return True
            self._check_words(() if have_met else peers, text)
            return False

        try:
            if not _wait_for(is_done, end_s):
                raise self._too_late(peers, text)
        except BaseException:
            _cut_off.append(request)
            raise

    # -------------------------------------------------------------------------------------- words

    def _expect(self, peer: int) -> tuple[Any, Array]:
        word = np.zeros(1, _WORD)
        return self._comm.Irecv(bytes_of(word), peer, _WORDS), word

    def _post(self, peer: int, tag: int, data: Array) -> None:
        """Send without waiting; what is sent is kept until it has gone."""
        with _sending:
            _sent[:] = [pair for pair in _sent if not pair[0].Test()]
            _sent.append((self._comm.Isend(bytes_of(data), peer, tag), data))

    def _have_come(self, peers: Sequence[int], text: str) -> bool:
        """Return whether these ranks have said which step they are in. See `_check_words`."""
        self._take_words()
        self._check_words(peers, text)
        return all(peer in self._come for peer in peers)

    def _take_words(self) -> None:
        """Take what other ranks have said: of each no more than its next step, or its end."""
        for peer in self._others:
            while peer not in self._come:
                request, word = self._awaited[peer]
                if not request.Test():
                    break
                self._awaited[peer] = self._expect(peer)
                if word["kind"][0] == _REFUSED:
                    self._refused[peer] += 1
                    self._refusals[peer] = word
                else:
                    self._come[peer] = word

    def _check_words(self, peers: Iterable[int], text: str) -> None:
        """Raise CommunicatorError where a rank has aborted, or one of `peers` does not come."""
        self.refuse_ended()
        for peer, word in self._come.items():
            kind = word["kind"][0]
            if kind == ABORTED or (kind == LEFT and peer in peers):  # others miss it not
                how = "has aborted" if kind == ABORTED else "has left the group"
                raise self._fail(f"{self._named(peer)} {how} during {text}: {_text(word)}", peer)
        for peer in peers:
            if peer not in self._come and self._refused[peer] > self._refused[self.rank]:
                raise self._not_begun(peer, text, _text(self._refusals[peer]))

    # --------------------------------------------------------------------------------- its life

    def refuse(self, why: str) -> None:
        """Tell the others that this rank does not begin a predict; see `Group.refuse`."""
        with self._leaving:
            if not self.ended:
                self._refused[self.rank] += 1
                for peer in self._others:
                    self._post(peer, _WORDS, _word(_REFUSED, why))

    def check(self) -> None:
        """Raise CommunicatorError if the group has ended."""
        self.refuse_ended()

    def close(self) -> None:
        """Leave the group; twice does nothing."""
        self._leave(LEFT, "the communicator is closed")

    def _leave(self, state: int, why: str, blamed: int = -1) -> None:
        with self._leaving:
            if self.ended:
                return
            self.ended = why
            for peer in self._others:
                self._post(peer, _WORDS, _word(state, why))


def _wait_for(is_done: Callable[[], bool], end_s: float | None) -> bool:
    """Wait until something is so, at most until `end_s`; returns whether it is."""
    spin_s = time.monotonic() + _SPIN_S
    while not is_done():
        now_s = time.monotonic()
        if end_s is not None and now_s > end_s:
            return False
        if now_s > spin_s:
            time.sleep(_NAP_S)
        else:
            os.sched_yield()
    return True


def _word(kind: int, text: str, signed: str | None = None) -> Array:
    word = np.zeros(1, _WORD)
    word["kind"], word["text"] = kind, text.encode()
    word["signature"] = _signature(text if signed is None else signed)
    return word


def _signature(text: str) -> int:
    return zlib.crc32(text.encode())


def _text(word: Array) -> str:
    return bytes(word["text"][0]).decode(errors="replace")
