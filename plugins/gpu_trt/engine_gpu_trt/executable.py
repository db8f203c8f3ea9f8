"""What compile returns: an engine, and contexts to run it in."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.errors import BackendUnavailable
from engine.types import MemoryReport, Placement, TensorSpec
from engine_gpu_trt.engines import Engine
from engine_gpu_trt.run import Run

PLAN_FILE = "model.plan"


class TrtExecutable:
    """A compiled model. Any thread may open contexts; each context runs one predict at a time.

    inputs, outputs: in the model's order, the inputs with the bounds they were compiled for.
    names: the engine's name of each input by the model's.
    """

    def __init__(
        self,
        engine: Engine,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        names: Mapping[str, str],
        placement: tuple[Placement, ...],
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._engine = engine
        self._names = names
        self._placement = placement
        # Frees the engine also where nobody calls close(), and before the interpreter ends.
        self._free = weakref.finalize(self, engine.close)

    def open_context(self) -> TrtContext:
        """A context with a stream and buffers of its own. Thread-safe.

        Raises BackendUnavailable where device memory is short.
        """
        if not self._free.alive:
            raise BackendUnavailable("the executable is closed; compile the model again", "gpu_trt")
        return TrtContext(self, Run(self._engine, self.inputs, self.outputs, self._names))

    def placement(self) -> Sequence[Placement]:
        """Every node, on this device; none for an engine that was compiled elsewhere."""
        return self._placement

    def memory(self) -> MemoryReport:
        """The engine's weights, and what its open contexts hold on the device."""
        runs = list(self._engine.runs.values())
        return MemoryReport(
            weights_bytes=self._engine.weights_bytes if self._free.alive else 0,
            workspace_bytes=sum(run.device_bytes for run in runs),
        )

    def save(self, folder: Path) -> str:
        """Write the engine as a file that engine_load reads on the same version and device."""
        if not self._free.alive:
            raise BackendUnavailable("the executable is closed; compile the model again", "gpu_trt")
        with self._engine.gpu:
            plan = self._engine.engine.serialize()
            (folder / PLAN_FILE).write_bytes(memoryview(plan))
        return PLAN_FILE

    def close(self) -> None:
        """Free the engine and every context of it; twice does nothing."""
        self._free()


class TrtContext:
    """One execution context: one predict at a time, from any thread."""

    def __init__(self, executable: TrtExecutable, run: Run) -> None:
        self.run = run
        self._executable = executable  # or the collector might close it, and this with it
        self._free = weakref.finalize(self, run.close)

    def close(self) -> None:
        """Free stream, buffers and activations; twice does nothing."""
        self._free()
