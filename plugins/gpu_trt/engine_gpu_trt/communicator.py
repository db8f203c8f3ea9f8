"""A group of ranks that NCCL connects: joining, waiting, watching, failing together.

NCCL itself neither says who is missing nor notices that a process of this machine has ended, and
a collective that waits for such a one keeps its stream for ever. So its communicators are
non-blocking, what is queued is watched (by who waits for it, or by a thread while nobody does),
and the ranks tell each other by the core's store where they are (`membership.py`).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from ctypes import byref, c_int, c_void_p
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from engine.errors import BackendUnavailable, CommunicatorError
from engine.types import CommunicatorOptions, DeviceBuffer
from engine_gpu_trt import nccl, vendor
from engine_gpu_trt.cuda import Gpu, open_gpu
from engine_gpu_trt.handle import Handle
from engine_gpu_trt.membership import Membership

Call: TypeAlias = "tuple[Any, ...]"
"""A function of NCCL by name and its arguments but the last two, communicator and stream."""

_SPIN_S = 200e-6  # looks without a pause, at first
_PAUSE_S = 100e-6
_LOOK_S = 0.02  # between two looks at the other ranks
_SLOW_S = 0.1  # a collective that takes longer is told of in the store
_LINGER_S = 0.5  # how long an idle watcher stays
_FLUSH_S = 5.0  # for others to come to the end of what is under way when one leaves


class Reached(Protocol):
    """A place that work comes to, as cuda.Marker is one."""

    @property
    def is_reached(self) -> bool:
        """All that comes before it is done."""

    def close(self) -> None:
        """Forget it, inside `with gpu`."""


@dataclass(slots=True)
class Queued:
    """A collective that nobody waits for: reached when its marker is."""

    marker: Reached
    place: str
    peers: tuple[int, ...]
    what: str
    begin_s: float
    deadline_s: float | None
    told: bool = False


class NcclCommunicator:
    """A joined group; engine.types.Communicator says who may call what.

    deterministic: False where NCCL may reduce inside the switch between the GPUs (NVLS: compute
    capability 9.0 and newer), in an order that differs from run to run; NCCL_NVLS_ENABLE=0 turns
    that off. A call that is asked to be deterministic is so in either case.
    """

    def __init__(self, options: CommunicatorOptions) -> None:
        self.rank = options.rank
        self.world_size = options.world_size
        self.group = options.group
        self.timeout_s = options.timeout_s
        self.membership = Membership(options)
        self.gpu = gpu = open_gpu(options.device.id)
        try:
            self.library = nccl.library()
        except vendor.Missing as error:
            raise BackendUnavailable(f"{error}; {error.fix}", "gpu_trt") from error
        self.deterministic = _reduces_in_order(gpu)
        self._closing = False  # it has ended in good order
        self._ended = ""  # why this rank takes part in no collective any more
        self._blamed: tuple[int, ...] = ()
        self._timed_out = False
        self._calling = threading.RLock()  # around NCCL's calls, and what they need
        self._changed = threading.Condition()
        self._queued: list[Queued] = []
        self._watcher: threading.Thread | None = None
        self._aborting: threading.Thread | None = None
        self._next_look_s = 0.0
        self.handle = Handle(gpu, self.library)
        with gpu:
            try:
                self._stream = gpu.stream()
            except BackendUnavailable:
                self.membership.close()
                raise
            self.handle.stream = self._stream
        # Nothing of this object: it is for the case that nobody calls close().
        self._free = weakref.finalize(self, _free, self.handle, self.membership)
        try:
            self._join(options.timeout_s)
        except BaseException:
            self.end("this rank did not join")
            self.close()
            raise

    def _join(self, timeout_s: float) -> None:
        end_s = time.monotonic() + timeout_s
        missing = self.membership.join(end_s)
        if missing:
            text = f"{self.membership.named(missing)} did not join within {timeout_s:g} s"
            raise self.failure(text, missing, timed_out=True)
        unique_id = self.membership.share("nccl id", self.unique_id, end_s)
        if len(unique_id) != nccl.UNIQUE_ID_BYTES:
            raise self.failure(f"rank 0 has no id for the group: {unique_id.decode()}")
        config = nccl.Config.of(is_blocking=False)
        with self.gpu:
            result = self.library.ncclCommInitRankConfig(
                byref(self.handle.comm),
                self.world_size,
                nccl.UniqueId.of(unique_id),
                self.rank,
                byref(config),
            )
            self._settle(result, "joining", "joined", self.others, end_s)

    def unique_id(self) -> bytes:
        """Return a new id by which ranks find each other; why there is none, where NCCL fails."""
        unique_id = nccl.UniqueId()
        result = self.library.ncclGetUniqueId(byref(unique_id))
        if result != nccl.SUCCESS:
            return f"NCCL gives none: {self.said(result)}".encode()
        return bytes(unique_id)

    @property
    def others(self) -> tuple[int, ...]:
        """The other ranks of the group."""
        return tuple(rank for rank in range(self.world_size) if rank != self.rank)

    # ------------------------------------------------------------------------------- collectives

    def run(
        self,
        steps: Sequence[Sequence[Call]],
        what: str,
        buffers: Sequence[DeviceBuffer],
        stream: int | None,
        deadline_s: float | None,
        between: tuple[int, int] | None = None,
    ) -> bool:
        """Queue a collective, and wait for it where no stream is given.

        steps: one after another; calls of one step at once. between: the two ranks of a send.
        A stream that is not of this backend cannot be watched: it is waited for, and the result
        complete on return.
        """
        self.refuse_ended()
        gpu = self.gpu
        peers = self.others if between is None else tuple(r for r in between if r != self.rank)
        place = self.membership.place(between)
        with gpu:
            try:
                found = gpu.find_stream(stream) if stream else None
                on = found or self._stream
                if found is None and stream is not None:
                    gpu.order(stream, on)
                for buffer in buffers:
                    if buffer.stream is not None:
                        gpu.order(buffer.stream, on)
                for step in steps:
                    self._settle(self._call(step, on.handle), what, place, peers, deadline_s)
                if found is None:
                    self.wait(lambda: on.is_done, what, place, peers, deadline_s)
                else:
                    marker = gpu.marker(on)
                    begin_s = time.monotonic()
                    self.watch(Queued(marker, place, peers, what, begin_s, deadline_s))
            except gpu.Error as error:
                self.end(f"CUDA failed in {what}: {error}")
                raise self.failure(self._ended) from error
        return True

    def _call(self, step: Sequence[Call], stream: int) -> int:
        """Make the calls of a step; return the first result that is not good."""
        library = self.library
        with self._calling:
            self.refuse_ended()
            rest = self.handle.comm, stream
            if len(step) == 1:
                [(name, *arguments)] = step
                return int(getattr(library, name)(*arguments, *rest))
            results = [library.ncclGroupStart()]
            try:
                results += [getattr(library, name)(*given, *rest) for name, *given in step]
            finally:
                results.append(library.ncclGroupEnd())
            bad = [result for result in results if result not in (nccl.SUCCESS, nccl.IN_PROGRESS)]
            return int(bad[0] if bad else results[-1])

    def _settle(
        self, result: int, what: str, place: str, peers: tuple[int, ...], deadline_s: float | None
    ) -> None:
        """Wait until NCCL has taken a call, which another rank may have to come for."""
        if result not in (nccl.SUCCESS, nccl.IN_PROGRESS):
            self.end(f"NCCL refused {what}: {self.said(result)}")
            raise self.failure(self._ended)
        if result == nccl.IN_PROGRESS:
            self.wait(lambda: self._state() != nccl.IN_PROGRESS, what, place, peers, deadline_s)
            self._look(place)

    # ----------------------------------------------------------------------------------- waiting

    def wait(
        self,
        is_done: Callable[[], bool],
        what: str,
        place: str,
        peers: tuple[int, ...],
        deadline_s: float | None,
    ) -> None:
        """Wait until something is done; the calling thread watches the group meanwhile."""
        begin_s = time.monotonic()
        told = False
        while not is_done():
            self.refuse_ended()
            now_s = time.monotonic()
            if not told and now_s - begin_s > _SLOW_S:
                self.membership.tell(place)
                told = True
            if deadline_s is not None and now_s >= deadline_s:
                raise self._too_late(what, place, peers)
            if now_s - begin_s > _SPIN_S:
                self._look_now_and_then(place, now_s)
                time.sleep(_PAUSE_S)
        self.refuse_ended()  # what was waited for may be done because it was aborted

    def watch(self, queued: Queued) -> None:
        """Leave a collective to the watcher, which is started where there is none."""
        with self._changed:
            self._queued.append(queued)
            if self._watcher is None:
                self._watcher = threading.Thread(
                    target=self._keep_watch, name=f"nccl-{self.group}", daemon=True
                )
                self._watcher.start()
            self._changed.notify_all()

    def _keep_watch(self) -> None:
        while True:
            with self._changed:
                if not self._queued and not self._ended:
                    self._changed.wait(_LINGER_S)
                if not self._queued or self._ended:
                    self._watcher = None
                    return
            self._look_at_queued()
            time.sleep(_LOOK_S)

    def _look_at_queued(self) -> None:
        """Forget what is done; end the group for what is late, or cannot be done any more."""
        with self.gpu, self._changed:
            while self._queued and self._queued[0].marker.is_reached:
                self._queued.pop(0).marker.close()
            first = self._queued[0] if self._queued else None
        if first is None:
            return
        now_s = time.monotonic()
        if not first.told and now_s - first.begin_s > _SLOW_S:
            first.told = True
            self.membership.tell(first.place)
        try:
            self._look(first.place)
            if first.deadline_s is not None and now_s >= first.deadline_s:
                raise self._too_late(first.what, first.place, first.peers)
        except CommunicatorError:
            pass  # kept for `check`

    def _look_now_and_then(self, place: str, now_s: float) -> None:
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_S
            self._look(place)

    def _look(self, place: str = "") -> None:
        """End the group, and raise why, if NCCL has failed or a rank is gone.

        place: where this rank waits; a rank that left in good order after it is not missed.
        """
        self.refuse_ended()
        state = self._state()
        if gone := self.membership.gone(place):
            rank, how = gone
            self.end(f"{self.membership.named([rank])} {how}", (rank,))
        elif state not in (nccl.SUCCESS, nccl.IN_PROGRESS):
            self.end(f"NCCL failed: {self.said(state)}")
        self.refuse_ended()

    def _state(self) -> int:
        state = c_int()
        with self._calling:
            self.refuse_ended()
            for comm in self.handle.comms:
                result = int(self.library.ncclCommGetAsyncError(comm, byref(state)))
                if result != nccl.SUCCESS or state.value != nccl.SUCCESS:
                    return state.value if result == nccl.SUCCESS else result
        return nccl.SUCCESS

    def said(self, result: int) -> str:
        """Return NCCL's words for a result."""
        library = self.library
        texts = [library.ncclGetErrorString(result), library.ncclGetLastError(None)]
        return "; ".join(" ".join(text.decode(errors="replace").split()) for text in texts if text)

    # ----------------------------------------------------------------------------------- failing

    def _too_late(self, what: str, place: str, peers: tuple[int, ...]) -> CommunicatorError:
        late = self.membership.absent(place, peers)
        if late:
            text = f"{self.membership.named(late)} did not come in time to {what}"
        else:
            text = f"{what} was not done in time"
        self.end(text, tuple(late), timed_out=True)
        return self.failure(text, late, timed_out=True)

    def refuse_ended(self) -> None:
        """Raise CommunicatorError where this rank takes part in nothing any more."""
        if self._ended:
            raise self.failure(self._ended, self._blamed, timed_out=self._timed_out)

    def failure(
        self, text: str, ranks: Sequence[int] = (), *, timed_out: bool = False
    ) -> CommunicatorError:
        """Return the error for what happened; ranks: those to blame, by their number here."""
        numbers = tuple(self.membership.numbers[rank] for rank in ranks)
        own = self.membership.numbers[self.rank]
        return CommunicatorError(
            f"group {self.group!r}, rank {own}: {text}", numbers, timed_out=timed_out
        )

    def end(self, why: str, blamed: tuple[int, ...] = (), *, timed_out: bool = False) -> None:
        """Take part in nothing any more, and have NCCL let go of what waits."""
        with self._changed:
            if self._ended:
                return
            self._blamed, self._timed_out = blamed, timed_out
            self._ended = why
            # NCCL's abort waits for threads of its own, and the store may be slow.
            self._aborting = threading.Thread(
                target=self._abort_and_tell, name=f"nccl-abort-{self.group}", daemon=True
            )
            self._aborting.start()
            self._changed.notify_all()

    def _abort_and_tell(self) -> None:
        with self._calling:
            self.handle.abort()
        self.membership.leave(self._ended, is_good=self._closing)

    # --------------------------------------------------------------------------------- its life

    def keep(self, inside: c_void_p) -> None:
        """Take the communicator that engines use inside, to end and to free it with this one's."""
        with self._calling:
            self.handle.inside = inside
            if self._ended:
                self.handle.abort()

    def abort(self) -> None:
        """Make what runs and what comes fail, here and soon at the others."""
        self.end("the communicator was aborted")

    def check(self) -> None:
        """Raise what a queued collective ended with, or that a rank is gone while one waits.

        A rank may leave when all is done: its results are good here, too.
        """
        self.refuse_ended()
        if self._queued:
            self._look_at_queued()
            self.refuse_ended()
        # Of what is done nobody asks: a kernel that fails does not end before the group does.

    def close(self) -> None:
        """Leave the group, when what is under way is done; twice does nothing."""
        if not self._free.alive:
            return
        self._free.detach()
        if not self._ended:
            # Another rank may be slow to leave: what this one had to do is done all the same.
            self._closing = self._is_idle()
            self._closing = self._flush() or self._closing
        self.end("the communicator is closed")
        for thread in (self._aborting, self._watcher):
            if thread is not None and thread is not threading.current_thread():
                thread.join()
        with self.gpu, self._changed:
            while self._queued:
                self._queued.pop().marker.close()
        _free(self.handle, self.membership)

    def _is_idle(self) -> bool:
        """Return whether all that this rank has queued is done."""
        with self.gpu, self._changed:
            return all(queued.marker.is_reached for queued in self._queued)

    def _flush(self) -> bool:
        """Let the group come to the end of what is queued; False where that is not to be had."""
        end_s = time.monotonic() + _FLUSH_S
        with self.gpu:
            try:
                with self._calling:
                    result = int(self.library.ncclCommFinalize(self.handle.comm))
                self._settle(result, "leaving", "left", self.others, end_s)
                with self._calling:
                    self.handle.destroy()
            except CommunicatorError:
                return False  # it was aborted instead
        return True


def _free(handle: Handle, membership: Membership) -> None:
    handle.close()
    membership.close()


def _reduces_in_order(gpu: Gpu) -> bool:
    """Return whether NCCL reduces in one order in every run: not where it uses NVLS."""
    has_nvls = int(gpu.compute_capability.partition(".")[0]) >= 9
    return not has_nvls or os.environ.get("NCCL_NVLS_ENABLE") == "0"
