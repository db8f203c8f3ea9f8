"""The stream and scratch memory that contexts can share if they never run at once."""

from __future__ import annotations

import threading

from engine.errors import BackendUnavailable
from engine_gpu_trt.cuda import DeviceMemory, Gpu


class Workspace:
    """A stream, and one piece of scratch memory as large as the largest context on it needs.

    TensorRT's own contexts each reserve their activations. These are told where to put them, so
    that the contexts of a plan's segments, which run one after another, need the memory once.

    memory: replaced when it has to grow; whoever runs in the old one keeps that alive.
    """

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.nbytes = 0
        self.memory: DeviceMemory | None = None
        self._users = 0
        self._lock = threading.Lock()
        with gpu:
            self.stream = gpu.stream()

    def enter(self, nbytes: int) -> None:
        """Join, with room for `nbytes`. Raises BackendUnavailable where memory is short."""
        with self._lock:
            if not self._users and self.memory is not None:
                raise BackendUnavailable(
                    "the context to work beside is closed; open another one", "gpu_trt"
                )
            if self.memory is None or nbytes > self.nbytes:
                with self.gpu:
                    self.memory = self.gpu.allocate(nbytes)
                self.nbytes = nbytes
            self._users += 1

    def leave(self) -> None:
        """Free everything when the last user leaves, inside `with gpu` and with nothing queued."""
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
        self.discard()

    def discard(self) -> None:
        """Free everything, inside `with gpu`."""
        memory, self.nbytes = self.memory, 0
        self.stream.close()
        if memory is not None:
            memory.close()
