"""The result of compile: an engine, and contexts to run it in."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence

from engine.errors import BackendUnavailable, InputError
from engine.types import (
    CompileOptions,
    ExecutionContext,
    GraphInfo,
    KernelTime,
    MemoryReport,
    ModelSource,
    Placement,
    SharedWeights,
    Value,
)
from engine_gpu_trt.communicator import NcclCommunicator
from engine_gpu_trt.engines import Engine
from engine_gpu_trt.extras import Extras
from engine_gpu_trt.form import Form
from engine_gpu_trt.graph_group import GraphGroup
from engine_gpu_trt.layers import Layer, layers_of
from engine_gpu_trt.lending import Outside, lend
from engine_gpu_trt.options import Settings
from engine_gpu_trt.refit import Refit
from engine_gpu_trt.run import Run
from engine_gpu_trt.turns import Turns

_LOG = logging.getLogger("engine.gpu_trt")


class TrtExecutable:
    """A compiled model. Any thread may open contexts; each context runs one predict at a time.

    inputs, outputs: in the model's order, the inputs with the bounds they were compiled for.
    concurrency: how many predicts at once are worth having; see Settings.
    """

    def __init__(
        self,
        engine: Engine,
        form: Form,
        options: CompileOptions,
        settings: Settings,
        outside: Outside | None = None,
    ) -> None:
        self.inputs = form.inputs
        self.outputs = form.outputs
        self.concurrency = settings.concurrency
        self._engine = engine
        self._names = form.names
        self._placement = form.placement
        self._resident = options.resident
        self._refit: Refit | None = None
        self._outside = outside
        self._collectives = form.collectives
        self._communicators = options.communicators
        self._group: GraphGroup | None = None
        if form.collectives:
            self.concurrency = 1  # ranks meet by the order of their predicts alone
        self._extras = Extras(settings, engine.trt, options.profile_to is not None)
        self._layers: tuple[Layer, ...] = ()
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
        if self._collectives and self._group is None:
            self._group = self._join()
        run = Run(
            self._engine,
            self.inputs,
            self.outputs,
            self._names,
            self._resident,
            other,
            self._extras,
            self._outside,
            self._group,
        )
        return TrtContext(self, run)

    def _join(self) -> GraphGroup:
        comm = self._communicators.get("")
        if not isinstance(comm, NcclCommunicator):
            raise BackendUnavailable(
                "the engine has collectives inside, and there is no group of all ranks on "
                f"{self._engine.gpu.name} for them; set in_graph_collectives = off",
                "gpu_trt",
            )
        return GraphGroup(comm, self._collectives)

    def share(self) -> SharedWeights:
        """Lend the weights to other processes; see engine_share_weights."""
        if not self._free.alive:
            raise BackendUnavailable("the executable is closed; compile the model again", "gpu_trt")
        if self._outside is None:
            raise BackendUnavailable(
                "the weights are inside the engine, where no other process can have them; compile "
                "the model to be lent",
                "gpu_trt",
            )
        inside = self._engine.weights_bytes
        if inside > self._outside.nbytes:
            _LOG.warning(
                "%d bytes of weights are not shared: they are inside the engine, so each process "
                "has its own there; %d bytes are shared",
                inside,
                self._outside.nbytes,
            )
        return lend(self._engine.gpu, self._outside)

    def allow_updates(self, names: tuple[str, ...], source: ModelSource) -> None:
        """Make weights variable that the engine was built to have so."""
        self._engine.turns = Turns()
        self._refit = Refit(self._engine, names, source)

    def update_weights(self, weights: Mapping[str, Value], additive: bool) -> bool:
        """See engine_update_weights."""
        if not self._free.alive:
            raise BackendUnavailable("the executable is closed; compile the model again", "gpu_trt")
        if self._refit is None:
            raise InputError(f"no weight of this model is variable, but got {sorted(weights)}")
        self._refit.update(weights, additive)
        return True

    def name_layers(self, graph: GraphInfo) -> None:
        """Learn which nodes of the graph the engine's layers compute, for `profile`."""
        self._layers = tuple(layers_of(graph, self._engine))

    def profile(self) -> Sequence[KernelTime]:
        """Return the time of each layer in each predict; see Executable."""
        assert self._extras.kernel_times is not None, "compiled without profile_to"
        return self._extras.kernel_times.times(self._layers)

    def placement(self) -> Sequence[Placement]:
        """Return every node, on this device; none for an engine file, which has no nodes."""
        return self._placement

    def memory(self) -> MemoryReport:
        """Report the engine's weights, and what its open contexts hold on the device."""
        runs = list(self._engine.runs.values())
        weights_bytes = self._engine.weights_bytes if self._free.alive else 0
        outside = self._outside if self._free.alive else None
        bytes_outside = outside.nbytes if outside is not None else 0
        is_lent = outside is not None and outside.is_shared
        is_shared = self._engine.is_shared
        return MemoryReport(
            weights_bytes=(0 if is_shared else weights_bytes) + (0 if is_lent else bytes_outside),
            shared_bytes=(weights_bytes if is_shared else 0) + (bytes_outside if is_lent else 0),
            workspace_bytes=sum(run.device_bytes for run in runs),
        )

    def close(self) -> None:
        """Free the engine and every context of it; twice does nothing."""
        self._free()
        self._outside = None  # the memory goes with the last model that has it
        self._extras.close()


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
