"""Compile: a session as an executable, and what it tells of itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from engine.errors import ModelError
from engine.host.interrupts import pass_interrupt, undisturbed
from engine.types import (
    CompileOptions,
    MemoryReport,
    ModelSource,
    NodeInfo,
    NodeState,
    Placement,
)
from engine_cpu.layout import Layout
from engine_cpu.options import session_options
from engine_cpu.risk import may_saturate
from engine_cpu.run import CpuContext
from engine_cpu.session import (
    CpuModel,
    give_files,
    graph_of,
    look_in,
    session_from,
    stopping,
)

if TYPE_CHECKING:
    from engine.types import KernelTime
    from engine_cpu.mapped import MappedWeights
    from engine_cpu.node_states import NodeStates, OptimisedGraph
    from engine_cpu.rewrites import Pattern
    from engine_cpu.runtime import ort


T = TypeVar("T")


def compile_model(loaded: CpuModel, options: CompileOptions) -> CpuExecutable:
    """Make the executable of a loaded model; ModelError for one with nodes that cannot run."""
    source = loaded.source
    if loaded.session is None:
        index, reason = next(iter(loaded.unsupported.items()))
        node = graph_of(source).nodes[index]
        raise ModelError(f"{source.name}: {node.op_type} {node.name!r}: {reason}", source.name)
    notes = _notes(loaded, options)
    if options.progress is not None:
        options.progress("compile", 1, 1)
    return CpuExecutable(loaded, options, notes)


def _notes(loaded: CpuModel, options: CompileOptions) -> Mapping[int, str]:
    """Return what else placement says of nodes, with those whose products may saturate here."""
    if not may_saturate(graph_of(loaded.source)):
        return loaded.notes
    from engine_cpu import saturation  # rare

    if not saturation.saturates():
        return loaded.notes
    observed = Observed.now(loaded.read, options, loaded.leads, loaded.patterns)
    is_exact = options.options.get(saturation.EXACT) == "1"
    found = saturation.notes_of(loaded, partial(observed.read, has_weights=True), is_exact)
    if options.cancel is not None:
        options.cancel.check()
    return {
        index: "; ".join(filter(None, (loaded.notes.get(index), found.get(index))))
        for index in loaded.notes.keys() | found.keys()
    }


class CpuExecutable:
    """A session: weights and kernels, shared by the threads that run it."""

    concurrency = 0  # any number of threads may run a session at once

    def __init__(self, loaded: CpuModel, options: CompileOptions, notes: Mapping[int, str]) -> None:
        self.inputs = loaded.inputs
        self.outputs = loaded.outputs
        self._graph_info = graph_of(loaded.source)
        self._reason = "onnxruntime runs every node of an ONNX model on the host"
        if options.precision == "preferred_fp16":
            self._reason += "; in fp32, because it has no faster fp16 kernels here"
        self._rewritten, self._leads = loaded.rewritten, loaded.leads
        self._notes = notes
        self._session = loaded.session
        self._arena = loaded.arena
        self._form = loaded.form
        self._mapped: MappedWeights | None = None
        if loaded.form is not None:
            from engine_cpu.mapped import MappedWeights

            self._mapped = MappedWeights(loaded.form.graph.parent, loaded.form.named)
            self._inside_bytes = loaded.form.named.inside_bytes
        self._observed: Observed | None = None
        if loaded.form is None:
            self._observed = Observed.of(loaded.read, options, loaded.leads, loaded.patterns)
        self._layout = Layout(self.inputs, self.outputs)
        self._context = CpuContext
        if not self._layout.is_plain:
            from engine_cpu.values import ValueContext

            self._context = ValueContext
        if loaded.ranks is not None:
            from engine_cpu.ranks import checked

            self._context = checked(self._context, loaded.ranks)

    @property
    def session(self) -> ort.InferenceSession | None:
        """ONNX Runtime's session, for what the contract has no words for; None after close."""
        return self._session

    def open_context(self) -> CpuContext:
        """Open a context of its own for one thread at a time; cheap."""
        assert self._session is not None, "open_context after close"
        return self._context(self._session, self._layout)

    def placement(self) -> Sequence[Placement]:
        """Place every node on the host: ONNX Runtime has no other device here.

        Of a model without a compiled form, the first call has ONNX Runtime read the model once
        more, to see what its optimised graph leaves of each node.
        """
        states: NodeStates | None = None
        if self._form is not None:
            states = self._form.states
        elif self._observed is not None:
            states = self._observed.states()
        if states is None and self._leads:
            from engine_cpu.node_states import grouped

            runs: NodeStates = [(NodeState.RUNS, None) for _ in self._graph_info.nodes]
            states = grouped(runs, self._leads)
        return [
            self._placed(node, *(states[node.index] if states else (NodeState.RUNS, None)))
            for node in self._graph_info.nodes
        ]

    def _placed(self, node: NodeInfo, state: NodeState, fused_into: int | None) -> Placement:
        reasons = [self._rewritten[node.index]] if node.index in self._rewritten else []
        reasons += [self._notes[node.index]] if node.index in self._notes else []
        if state is not NodeState.RUNS:
            text = _STATE_REASONS[state]
            if fused_into is not None:
                other = self._graph_info.nodes[fused_into]
                text += f" into {other.op_type} {other.name!r}"
            reasons.append(text)
        return Placement(
            index=node.index,
            node=node.name,
            op_type=node.op_type,
            backend="cpu",
            device="cpu:0",
            provider="onnxruntime:CPUExecutionProvider",
            reason="; ".join([*reasons, self._reason]),
            state=state,
            fused_into=fused_into,
        )

    def profile(self) -> Sequence[KernelTime]:
        """See Executable; the kernels are those of ONNX Runtime's optimised graph."""
        from engine_cpu.profile import kernel_times  # rare

        assert self._session is not None, "profile after close"
        optimised = None if self._observed is None else self._observed.optimised()
        return kernel_times(
            self._session, self._graph_info, optimised, self._rewritten, self._leads
        )

    def memory(self) -> MemoryReport:
        """Report what the session has mapped of a compiled form, else the weights as the file has.

        ONNX Runtime says neither what packing adds to the latter, nor what its arena holds.
        """
        if self._mapped is not None:
            shared, mapped = self._mapped.measure()
            return MemoryReport(
                weights_bytes=self._inside_bytes, shared_bytes=shared, mapped_bytes=mapped
            )
        return MemoryReport(weights_bytes=sum(p.nbytes for p in self._graph_info.parameters))

    def close(self) -> None:
        """Let the session go; contexts that still run keep it until they end."""
        self._session = self._arena = None
        self._observed = None
        if self._mapped is not None:
            self._mapped.close()


_STATE_REASONS = {
    NodeState.FUSED: "fused, by onnxruntime's optimised graph",
    NodeState.FOLDED: "folded to a constant, by onnxruntime's optimised graph",
    NodeState.UNUSED: "no output depends on it",
}


def _is_stored(source: ModelSource) -> bool:
    """Return whether a model in memory is what its file has, byte for byte."""
    try:
        return source.path is not None and source.path.read_bytes() == source.data
    except OSError:
        return False


class Observed:
    """The states of a model's nodes, found out when somebody asks.

    model: its file, or its bytes where these are few enough to be kept. patterns: those that it is
    rewritten by.
    """

    KEPT_BYTES = 1 << 20

    def __init__(
        self,
        source: ModelSource,
        options: CompileOptions,
        leads: Mapping[int, int],
        patterns: Sequence[Pattern],
    ) -> None:
        self._graph, self._leads, self._patterns = graph_of(source), leads, patterns
        self._source = source if leads else None
        self._model: bytes | str = str(source.path) if source.data is None else source.data
        self._folder = source.folder if source.data is not None else None
        self._identity = self._identify()
        self._is_secret = source.is_secret
        self._given: ModelSource | None = None  # one with files in memory
        self._options = options
        self._lock = threading.RLock()  # reentrant: a signal handler may ask too
        self._states: NodeStates | None = None
        self._is_known = False

    @classmethod
    def of(
        cls,
        source: ModelSource,
        options: CompileOptions,
        leads: Mapping[int, int],
        patterns: Sequence[Pattern],
    ) -> Observed | None:
        """Prepare for the question; None for a model that is no longer there when it is asked."""
        if source.files:
            return None
        if source.data is not None and len(source.data) > cls.KEPT_BYTES:
            if source.is_secret or not _is_stored(source):
                return None
            source = replace(source, data=None)
        if source.is_secret and source.data is None:
            return None
        return cls.now(source, replace(options, cancel=None), leads, patterns)

    @classmethod
    def now(
        cls,
        source: ModelSource,
        options: CompileOptions,
        leads: Mapping[int, int],
        patterns: Sequence[Pattern],
    ) -> Observed:
        """Prepare for a question that is asked while the model is here.

        The token of `options` stops the session that is made.
        """
        # Of the options only what decides on the graph; what is shared is not asked for again.
        others = ("thread_pool", "workspace", "session.enable_profiling")
        settings = {key: text for key, text in options.options.items() if key not in others}
        few = CompileOptions(device=options.device, options=settings, cancel=options.cancel)
        observed = cls(source, few, leads, patterns)
        observed._given = source if source.files else None
        return observed

    def states(self) -> NodeStates | None:
        """Return the states, from a session made for the purpose; None where there is none."""
        from engine_cpu.node_states import node_states

        with self._lock:
            if not self._is_known:
                optimised = self.optimised()
                if optimised is not None:
                    self._states = node_states(self._graph, optimised, self._leads)
                self._is_known = True
            return self._states

    def optimised(self) -> OptimisedGraph | None:
        """Return the graph of a session made for the purpose; None where there is none."""
        from engine_cpu.node_states import read_optimised

        return self.read(read_optimised)

    def read(self, read: Callable[[Path], T], has_weights: bool = False) -> T | None:
        """Return what `read` finds in that graph's file, with its weights beside it or without."""
        from engine_cpu.node_states import observed

        if self._identity != self._identify():  # the file is another model's now
            return None
        # Writing files and removing them is not to be cut off half-way.
        return undisturbed(lambda: observed(self._write, self._is_secret, read, has_weights))

    def _identify(self) -> tuple[int, ...] | None:
        if not isinstance(self._model, str):
            return None
        try:
            status = os.stat(self._model)
        except OSError as error:
            pass_interrupt(error)
            return ()
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def _write(self, path: str, weights: str) -> None:
        settings = session_options(self._options)
        model, folder = self._model, self._folder
        if self._source is not None:
            from engine_cpu.rewrites.apply import rewrite

            prepared = rewrite(self._source, self._patterns)
            model = prepared.data
            folder = prepared.folder if self._source.data is None else folder
        if self._given is not None:
            given = give_files(self._given, settings)
            model = model if self._source is not None else given.data or model
        look_in(folder, settings)
        settings.optimized_model_filepath = path
        for key, value in {
            "session.optimized_model_external_initializers_file_name": weights,
            "session.optimized_model_external_initializers_min_size_in_bytes": "0",
            "session.disable_prepacking": "1",
        }.items():
            settings.add_session_config_entry(key, value)
        with stopping(settings, self._options.cancel):
            session_from(model, settings)
