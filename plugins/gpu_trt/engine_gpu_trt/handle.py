"""Objects of NCCL and CUDA that a group of ranks holds, freed whatever happens."""

from __future__ import annotations

from ctypes import c_void_p
from typing import Any

from engine_gpu_trt.cuda import Gpu


class Handle:
    """NCCL's communicator and the stream that it works on where the caller gives none.

    inside: a second communicator, which engines with collectives inside use.
    """

    def __init__(self, gpu: Gpu, library: Any) -> None:
        self.comm = c_void_p()
        self.inside = c_void_p()
        self.stream: Any = None
        self._gpu = gpu
        self._library = library

    @property
    def comms(self) -> list[c_void_p]:
        """The communicators that there are."""
        return [comm for comm in (self.comm, self.inside) if comm.value]

    def abort(self) -> None:
        """Free the communicators, whatever they are at; twice does nothing."""
        comms, self.comm, self.inside = self.comms, c_void_p(), c_void_p()
        with self._gpu:
            for comm in comms:
                self._library.ncclCommAbort(comm)

    def destroy(self) -> None:
        """Free the communicator, all of whose work is done; inside `with gpu`.

        The one inside engines is done too: their predicts wait. Its abort waits for nobody.
        """
        comm, self.comm = self.comm, c_void_p()
        self._library.ncclCommDestroy(comm)
        self.abort()

    def close(self) -> None:
        """Free what there is; twice does nothing."""
        self.abort()
        if self.stream is not None:
            with self._gpu:
                self.stream.close()
            self.stream = None
