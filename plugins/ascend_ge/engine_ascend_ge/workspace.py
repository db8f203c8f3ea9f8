"""A stream and the memory around it, which contexts that never run at once may share."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

from engine.errors import BackendUnavailable
from engine_ascend_ge import streams
from engine_ascend_ge.acl_call import done, got
from engine_ascend_ge.buffers import Stage
from engine_ascend_ge.memory import DeviceMemory


class Workspace:
    """A stream, and the memory in which the models on it work. Closed with its last user.

    pending: what runs use that may not have ended; None when all have. Whoever comes next on the
    stream waits for their end, since they share the memory for inputs and outputs too; but for a
    run that touches none of it (`may_follow`).

    The device's ACL context is the calling thread's current one in every method.
    """

    def __init__(self, acl: Any, context: int, device_id: int) -> None:
        self._acl = acl
        self._context = context
        self._device = f"ascend:{device_id}"
        self._lock = threading.Lock()
        self._users = 0
        self._blocks: list[DeviceMemory] = []
        self._stages: dict[tuple[str, int], Stage] = {}
        self.pending: tuple[object, ...] | None = None
        self.is_stuck = False  # what is pending cannot be ended
        self._queued: set[object] = set()  # contexts, where all that is pending was left queued
        self.stream: int = got(
            acl.rt.create_stream(),
            f"create a stream on {self._device}",
            otherwise=BackendUnavailable,
        )

    def hold(self, used: tuple[object, ...], queued: object = None) -> None:
        """Keep what a run uses until it has ended. queued: its context, if nobody waits for it."""
        self.pending = (*(self.pending or ()), *used)
        if queued is None:
            self._queued.clear()
        else:
            self._queued.add(queued)
            streams.watch(self.stream, self)

    def may_follow(self, context: object) -> bool:
        """Return whether a context may queue a run behind what is pending: none of it is its own.

        Such a run has all inputs elsewhere, so that the memory for them is not touched.
        """
        return bool(self._queued) and context not in self._queued

    def check(self) -> None:
        """See streams.Watched."""

    def failed(self, code: int) -> None:
        """See streams.Watched."""

    def passed(self, stream: int) -> None:
        """Let go of what runs have used: somebody has waited for the end of all of them."""
        self.pending = None
        self._queued.clear()

    def finish(self) -> bool:
        """Wait for what is pending; return False where it does not end, now and later."""
        if self.pending is None:
            return True
        if not self.is_stuck and streams.finish(self._acl, self.stream):
            self.passed(self.stream)
            return True
        self.is_stuck = True
        return False

    def left(self, stream: int) -> None:
        """See streams.Watched."""

    @property
    def nbytes(self) -> int:
        """Device memory: scratch, and stages of inputs and outputs."""
        blocks = sum(block.nbytes for block in self._blocks)
        return blocks + sum(stage.nbytes for stage in self._stages.values())

    def join(self) -> None:
        """Count one more user, who calls `leave` in the end."""
        with self._lock:
            self._users += 1

    def scratch(self, nbytes: int, path: str) -> int:
        """Return the address of `nbytes` to work in: what is there already, if it is enough.

        A block never grows, since loaded models hold its address; a larger one comes beside it.
        """
        if not nbytes:
            return 0
        with self._lock:
            block = max(self._blocks, key=lambda block: block.nbytes, default=None)
            if block is None or block.nbytes < nbytes:
                what = f"working memory on {self._device}"
                block = DeviceMemory.allocate(self._acl, self._context, nbytes, what, path)
                self._blocks.append(block)
            return block.pointer

    def stage(self, kind: str, index: int) -> Stage:
        """Return where the index-th "input" or "output" of every model here goes."""
        return self._stages.setdefault((kind, index), Stage(self._acl, self._context))

    def abandon(self) -> None:
        """Keep the memory for good: a model in it could not be unloaded."""
        for block in self._blocks:
            block.abandon()

    def leave(self) -> None:
        """Give the stream and the memory back after the last user."""
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
            streams.unwatch(self.stream, self)
            code = self._acl.rt.destroy_stream(self.stream)
            if code != 0:
                self.abandon()
            blocks, self._blocks = self._blocks, []
            stages = list(self._stages.values())
        with ExitStack() as closing:  # all of it, even where one fails
            for block in blocks:
                closing.callback(block.close)
            for stage in stages:
                closing.callback(stage.release)
            done(code, "destroy the stream", otherwise=BackendUnavailable)
