"""A group of ranks, joined by HCCL: its life, and waiting for what is queued in it.

A collective is queued on a stream. Whoever waits for that does so in short turns, between which
this looks whether the group was aborted, a rank's process has ended, or the time is over. HCCL
cannot take a queued collective back: the stream is aborted, where CANN and the SoC can, and the
group is of no use then.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from engine.errors import BackendUnavailable, CommunicatorError
from engine.types import CommunicatorOptions
from engine_ascend_ge import hccl, runtime, streams
from engine_ascend_ge.acl_call import (
    RECORD_COMPLETE,
    SYNC_TIMEOUT,
    done,
    error,
    got,
)
from engine_ascend_ge.peers import Peers

_TELL_S = 0.3  # of waiting, after which a rank says that it does
_BY_TABLE = b"rank table"
_FAILED = b"failed: "

_tables: weakref.WeakValueDictionary[str, HcclCommunicator] = weakref.WeakValueDictionary()
"""Groups that were joined by a rank table: HCCL has one such at a time in a process."""


@dataclass(slots=True)
class _Queued:
    """A collective on a stream. event: comes when it is over. used: is to live until then."""

    event: int
    used: tuple[object, ...]
    step: int
    doing: str
    begin_s: float
    deadline_s: float | None


class HcclCommunicator:
    """A joined group; engine.types.Communicator says who may call what."""

    def __init__(self, options: CommunicatorOptions) -> None:
        self.rank = options.rank
        self.world_size = options.world_size
        self.group = options.group
        self.device = options.device
        self._peers = Peers(options)
        self._lock = threading.Lock()
        self._error: CommunicatorError | None = None
        self._step = 0
        self._queued: dict[int, list[_Queued]] = {}  # by stream
        self._comm = 0
        self.stream = 0
        try:
            self.acl, self.home = runtime.use_device(options.device.id)
            self.hccl = hccl.Hccl()
            self.deterministic = self._ask_for_determinism()
            self.stream = got(
                self.acl.rt.create_stream(),
                f"create a stream on {options.device}",
                otherwise=BackendUnavailable,
            )
            self._join(options)
        except BaseException:
            self.close()
            raise
        runtime.keep(self)

    def _ask_for_determinism(self) -> bool:
        """Have all-reduces give equal bits in every run: a setting of the process, not of a call.

        The user's HCCL_DETERMINISTIC stands.
        """
        if os.environ.get("HCCL_DETERMINISTIC"):
            return os.environ["HCCL_DETERMINISTIC"].lower() in ("true", "strict")
        if self.hccl.HcclSetConfig is None:
            return False
        code = self.hccl.HcclSetConfig(hccl.SET_DETERMINISTIC, hccl.ConfigValue(1))
        return bool(code == 0)

    def _join(self, options: CommunicatorOptions) -> None:
        """Let rank 0 say how: by the rank table, or by what HCCL has told it."""
        comm = ctypes.c_void_p()
        table = str(options.rank_table or "") if options.group == "world" else ""
        if options.rank == 0:
            info = self._invite(table)
            options.store.set("root", info)
        else:
            info = options.store.get("root", options.timeout_s)
        if info.startswith(_FAILED):
            raise CommunicatorError(
                f"group {options.group!r}: rank 0 could not begin: {info[len(_FAILED) :].decode()}",
                (options.ranks[0] if options.ranks else 0,),
            )
        doing = f"join group {options.group!r} as rank {options.rank} of {options.world_size}"
        if info == _BY_TABLE:
            doing += f" by rank table {table!r}"
            code = self.hccl.HcclCommInitClusterInfo(
                os.fsencode(table), options.rank, ctypes.byref(comm)
            )
        else:
            code = self.hccl.HcclCommInitRootInfo(
                options.world_size, info, options.rank, ctypes.byref(comm)
            )
        hccl.done(code, doing)
        self._comm = comm.value or 0
        if info == _BY_TABLE:
            _tables[table] = self
            size = ctypes.c_uint32()
            hccl.done(self.hccl.HcclGetRankSize(self._comm, ctypes.byref(size)), doing)
            if size.value != options.world_size:
                raise CommunicatorError(
                    f"rank table {table!r} has {size.value} ranks, and {options.world_size} have "
                    "joined; start as many ranks as it has"
                )

    def _invite(self, table: str) -> bytes:
        """Return how the other ranks find this one; what failed, so that they do not wait."""
        if table and table not in _tables:
            return _BY_TABLE
        info = ctypes.create_string_buffer(hccl.ROOT_INFO_BYTES)
        code = self.hccl.HcclGetRootInfo(info)
        return info.raw if code == 0 else _FAILED + str(hccl.error(code, "give root info")).encode()

    # --------------------------------------------------------------------------- collectives

    def queue(
        self,
        doing: str,
        call: Callable[[int, int], int],
        stream: int | None,
        used: tuple[object, ...],
        deadline_s: float | None,
    ) -> None:
        """Queue a collective, and wait for it where no stream is named.

        call(comm, stream) queues it and gives HCCL's code. used: what is to live until it is over.
        """
        self.check()
        rt = self.acl.rt
        with self._lock:
            self._step += 1
        step, where = self._step, self.stream if stream is None else stream
        done(rt.set_context(self.home), "use the context", otherwise=BackendUnavailable)
        event = got(rt.create_event(), f"queue {doing}", otherwise=BackendUnavailable)
        code = call(self._comm, where)
        if code != 0:
            failure = hccl.error(code, f"{doing} in group {self.group!r}")
            rt.destroy_event(event)
            raise self._fail(failure)
        code = rt.record_event(event, where)
        with self._lock:
            queued = _Queued(event, used, step, doing, time.monotonic(), deadline_s)
            self._queued.setdefault(where, []).append(queued)
        if code != 0:
            why = error(code, f"queue {doing}", otherwise=CommunicatorError)
            raise self._fail(CommunicatorError(f"group {self.group!r}: {why}"))
        streams.watch(where, self)
        if stream is None:
            streams.synchronize(self.acl, where)

    def passed(self, stream: int) -> None:
        """Let go of what was queued on a stream: somebody has waited for its end."""
        with self._lock:
            over = self._queued.pop(stream, [])
        for queued in over:
            self.acl.rt.destroy_event(queued.event)

    def left(self, stream: int) -> None:
        """Keep what was queued on a stream, where it may run on."""
        with self._lock:
            runtime.abandon(self._queued.pop(stream, []))

    def failed(self, code: int) -> None:
        """Raise that a stream with collectives of this group has ended with an error."""
        why = error(code, "run what is queued", otherwise=CommunicatorError)
        text = f"group {self.group!r}: {why}"
        raise self._fail(CommunicatorError(text, tuple(self._peers.ended())))

    def _oldest(self) -> _Queued | None:
        """Let go of the collectives that are over; return the first of those that are not."""
        rt = self.acl.rt
        with self._lock, runtime.borrowed(self.acl, self.home):
            for queued in self._queued.values():
                while queued and rt.query_event_status(queued[0].event) == (RECORD_COMPLETE, 0):
                    rt.destroy_event(queued.pop(0).event)
            left = [queued[0] for queued in self._queued.values() if queued]
        return min(left, key=lambda queued: queued.step, default=None)

    def _too_late(self, queued: _Queued) -> CommunicatorError:
        absent = self._peers.absent(queued.step)
        text = f"did not come to collective {queued.step} ({queued.doing}) in time"
        if not absent:
            absent = [rank for rank in range(self.world_size) if rank != self.rank]
            text = f"came to collective {queued.step} ({queued.doing}), and it did not end in time"
        return self._fail(self._peers.failure(text, absent))

    # ------------------------------------------------------------------------------ its life

    def check(self) -> None:
        """Raise what is known to have gone wrong; see Communicator."""
        if self._error is not None:
            raise self._error
        first = self._oldest() if self._queued else None
        gone = self._peers.ended() if first is not None else []
        if gone:
            text = "has ended: its process crashed, was killed or failed"
            raise self._fail(self._peers.failure(text, gone))
        if first is not None:
            now_s = time.monotonic()
            if first.deadline_s is not None and now_s >= first.deadline_s:
                raise self._too_late(first)
            if now_s - first.begin_s > _TELL_S:
                self._peers.tell(first.step)
        if self._comm:
            code = ctypes.c_int()
            answer = self.hccl.HcclGetCommAsyncError(self._comm, ctypes.byref(code))
            if answer == 0 and code.value != 0:
                raise self._fail(hccl.error(code.value, f"go on in group {self.group!r}"))

    def abort(self) -> None:
        """Make what runs and what comes fail; any thread."""
        self._fail(CommunicatorError(f"group {self.group!r}: it was aborted"))

    def _fail(self, failure: CommunicatorError) -> CommunicatorError:
        """End the group with an error, the first that comes; return that one."""
        with self._lock:
            if self._error is not None:
                return self._error
            self._error = failure
        stop = getattr(self.acl.rt, "stream_abort", None)
        if stop is not None and runtime.is_started():
            with runtime.borrowed(self.acl, self.home):
                for stream in list(self._queued):
                    stop(stream)  # where it fails, the stream ends by HCCL's own time-out
        return failure

    def close(self) -> None:
        """Leave the group; twice does nothing."""
        self._peers.close()
        comm, self._comm = self._comm, 0
        stream, self.stream = self.stream, 0
        if (comm or stream) and runtime.is_started():
            with runtime.borrowed(self.acl, self.home):
                if stream and self._has_work(stream):
                    self.left(stream)
                    streams.unwatch(stream, self)
                    stream = 0
                for queued in list(self._queued):
                    self.passed(queued)
                    streams.unwatch(queued, self)
                if comm:
                    self._destroy(comm)
                if stream:
                    self.acl.rt.destroy_stream(stream)
        self._queued = {}
        self._error = self._error or CommunicatorError(f"group {self.group!r}: it is closed")

    def _has_work(self, stream: int) -> bool:
        """Return whether a collective is still queued there that cannot be ended."""
        if stream not in self._queued:
            return False
        code = self.acl.rt.synchronize_stream_with_timeout(stream, int(streams.LEAVE_S * 1000))
        return bool(code == SYNC_TIMEOUT)

    def _destroy(self, comm: int) -> None:
        end_s = time.monotonic() + streams.LEAVE_S
        while (code := self.hccl.HcclCommDestroy(comm)) == hccl.AGAIN:
            if time.monotonic() > end_s:
                break
            time.sleep(0.01)
        if code != 0:
            logging.getLogger("engine").warning(
                "group %r is not left cleanly: %s", self.group, hccl.error(code, "leave it")
            )
