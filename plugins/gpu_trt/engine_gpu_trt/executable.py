"""The result of compile: an engine, and contexts to run it in."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from engine.errors import BackendUnavailable
from engine.types import CompileOptions, ExecutionContext, MemoryReport, Placement
from engine_gpu_trt.engines import Engine
from engine_gpu_trt.form import Form
from engine_gpu_trt.run import Run


class TrtExecutable:
    """A compiled model. Any thread may open contexts; each context runs one predict at a time.

    inputs, outputs: in the model's order, the inputs with the bounds they were compiled for.
    concurrency: how many predicts at once are worth having; see Settings.
    """

    def __init__(
        self, engine: Engine, form: Form, options: CompileOptions, concurrency: int
    ) -> None:
        self.inputs = form.inputs
        self.outputs = form.outputs
        self.concurrency = concurrency
        self._engine = engine
        self._names = form.names
        self._placement = form.placement
        self._resident = options.resident
        # Frees the engine also where nobody calls close(), and before the interpreter ends.
        self._free = weakref.finalize(self, engine.close)

    def open_context(self, beside: ExecutionContext | None = None) -> TrtContext:
        """Open a context with a stream and buffers of its own. Thread-safe.

        beside: a context of this backend on the same device; the new one works on its stream and
        in its scratch memory, which grows to what the larger of them needs.
        Raises BackendUnavailable where device memory is short.
        """
        if not self._free.alive:
            raise BackendUnavailable("the executable is closed; compile the model again", "gpu_trt")
        other = None
        if beside is not None:
            if not isinstance(beside, TrtContext) or beside.run.gpu is not self._engine.gpu:
                raise ValueError(
                    f"open_context(beside=...) takes a context of gpu_trt on "
                    f"{self._engine.gpu.name}, but got {beside!r}"
                )
            other = beside.run
        run = Run(self._engine, self.inputs, self.outputs, self._names, self._resident, other)
        return TrtContext(self, run)

    def placement(self) -> Sequence[Placement]:
        """Return every node, on this device; none for an engine file, which has no nodes."""
        return self._placement

    def memory(self) -> MemoryReport:
        """Report the engine's weights, and what its open contexts hold on the device."""
        runs = list(self._engine.runs.values())
        return MemoryReport(
            weights_bytes=self._engine.weights_bytes if self._free.alive else 0,
            workspace_bytes=sum(run.device_bytes for run in runs),
        )

    def close(self) -> None:
        """Free the engine and every context of it; twice does nothing."""
        self._free()


class TrtContext:
    """One execution context: one predict at a time, from any thread.

    It has no `cancel`: what is queued on a stream cannot be taken back, and a kernel that runs
    cannot be stopped short of ending the whole CUDA context, which the process shares.
    """

    def __init__(self, executable: TrtExecutable, run: Run) -> None:
        self.run = run
        self._executable = executable  # or the collector might close it, and this with it
        self._free = weakref.finalize(self, run.close)

    def reset(self) -> None:
        """Wait for what is queued, before another thread uses the context."""
        self.run.settle()

    def close(self) -> None:
        """Free stream, buffers and activations; twice does nothing."""
        self._free()
