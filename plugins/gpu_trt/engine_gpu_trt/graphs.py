"""CUDA graphs: an execution that is recorded once and then launched with one call.

TensorRT launches a kernel a layer; for small models that costs more than the kernels. A recorded
execution has its shapes and addresses in it, so it serves until one of them changes. pycuda cannot
record, so this goes through NVIDIA's cuda.bindings, on the same stream and context.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from engine.errors import BackendUnavailable
from engine_gpu_trt.cuda import Gpu, Stream

_LOG = logging.getLogger("engine.gpu_trt")
_MOST_PATIENCE = 1024


class Recorder:
    """Records the executions of one context. All of it is called inside `with gpu`.

    state: a number that changes with whatever a recording has in it. A recording is made when a
    state has come again `patience` times; the more often one was made in vain, the later.
    """

    def __init__(self, gpu: Gpu, driver: Any) -> None:
        self._gpu = gpu
        self._driver = driver
        self._recorded: Any = None
        self._state = -1  # of what is recorded, or came last
        self._times = 0
        self._patience = 1
        self._works = True

    def execute(self, state: int, stream: Stream, enqueue: Callable[[int], bool]) -> bool:
        """Execute on a stream: as recorded, or by `enqueue`. False where that gives False."""
        if state != self._state:
            if self._recorded is not None:
                self.drop()
                self._patience = min(2 * self._patience, _MOST_PATIENCE)
            self._state, self._times = state, 0
        self._times += 1
        if self._recorded is None and self._works and self._times > self._patience:
            self._record(stream, enqueue)
        if self._recorded is None:
            return enqueue(stream.handle)
        [result] = self._driver.cuGraphLaunch(self._recorded, self._raw(stream))
        if int(result):
            raise BackendUnavailable(
                f"{self._gpu.name}: CUDA does not launch a recorded execution: {result!r}; if it "
                "goes on, set cuda_graphs = off",
                "gpu_trt",
            )
        return True

    def drop(self) -> None:
        """Forget what is recorded; nothing of it may be under way."""
        recorded, self._recorded, self._state = self._recorded, None, -1
        if recorded is not None:
            self._driver.cuGraphExecDestroy(recorded)

    def _record(self, stream: Stream, enqueue: Callable[[int], bool]) -> None:
        """Record an execution without running it; some networks do not let themselves be."""
        driver, raw = self._driver, self._raw(stream)
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        graph = None
        try:
            self._check(driver.cuStreamBeginCapture(raw, mode))
            try:
                is_recorded = enqueue(stream.handle)
            finally:
                result, graph = driver.cuStreamEndCapture(raw)
            if is_recorded:
                self._check((result,))
                [self._recorded] = self._check(driver.cuGraphInstantiate(graph, 0))
        except _RecordingFailed as error:
            _LOG.info("CUDA graphs are not used: %s", error)
        finally:
            if graph:
                driver.cuGraphDestroy(graph)
        self._works = self._recorded is not None

    def _raw(self, stream: Stream) -> Any:
        return self._driver.CUstream(stream.handle)

    def _check(self, answer: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return what a call gives beside its result; raises where that is not good."""
        result, *values = answer
        if int(result):
            raise _RecordingFailed(f"{result!r}")
        return tuple(values)


class _RecordingFailed(Exception):
    """CUDA did not record."""
