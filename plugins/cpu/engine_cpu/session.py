"""Load and compile: from a validated model to an ONNX Runtime session.

ONNX Runtime reads and compiles in one step, so engine_load makes the session and engine_compile
hands it on. Only a model that ONNX Runtime refuses, or runs with kernels that are not to be
trusted, is prepared for it (prepare/), and only that costs more than the session.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnxruntime as ort

from engine.errors import BackendUnavailable, ModelError
from engine.types import (
    CompileOptions,
    GraphInfo,
    MemoryReport,
    ModelSource,
    Placement,
    TensorSpec,
    ValueKind,
)
from engine_cpu.errors import explained
from engine_cpu.options import session_options
from engine_cpu.prescreen import may_have_known_issues
from engine_cpu.run import PLAIN, CpuContext, Layout

if TYPE_CHECKING:
    from engine_cpu.prepare import Prepared

_FOLDER = "session.model_external_initializers_file_folder_path"
_GIVE_FILES = "add_external_initializers_from_files_in_memory"
_PROVIDERS = ["CPUExecutionProvider"]
_OUT_OF_MEMORY = "out of memory while compiling"

if os.environ.get("ORT_DISABLE_TELEMETRY") != "0":
    ort.disable_telemetry_events()  # for a process that imported onnxruntime before this backend


class CpuModel:
    """A model and, where ONNX Runtime can run all of it, the session made for it.

    unsupported: the nodes that it cannot run, and why; then there is no session.
    rewritten: nodes that are computed otherwise than by a kernel of their own, and how.
    """

    def __init__(
        self,
        source: ModelSource,
        session: ort.InferenceSession | None,
        unsupported: Mapping[int, str] | None = None,
        rewritten: Mapping[int, str] | None = None,
    ) -> None:
        self.source = source
        self.session = session
        self.unsupported = unsupported or {}
        self.rewritten = rewritten or {}

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """As the file declares them."""
        return graph_of(self.source).inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """As the file declares them."""
        return graph_of(self.source).outputs

    def close(self) -> None:
        """Let the session go; an executable that was made of it keeps it."""
        self.session = None


class CpuExecutable:
    """A session: weights and kernels, shared by the threads that run it."""

    def __init__(self, loaded: CpuModel, options: CompileOptions) -> None:
        self.inputs = loaded.inputs
        self.outputs = loaded.outputs
        self._graph_info = graph_of(loaded.source)
        self._provider = "onnxruntime:CPUExecutionProvider"
        self._reason = "onnxruntime runs every node of an ONNX model on the host"
        if options.precision == "preferred_fp16":
            self._reason += "; in fp32, because it has no faster fp16 kernels here"
        self._rewritten = loaded.rewritten
        self._session = loaded.session
        self._layout = Layout(self.inputs, self.outputs)
        self._context = CpuContext
        if not self._layout.is_plain:
            from engine_cpu.values import ValueContext

            self._context = ValueContext

    def open_context(self) -> CpuContext:
        """A context of its own for one thread at a time; cheap."""
        assert self._session is not None, "open_context after close"
        return self._context(self._session, self._layout)

    def placement(self) -> Sequence[Placement]:
        """Every node on the host: ONNX Runtime has no other device here."""
        return [
            Placement(
                node.index,
                node.name,
                node.op_type,
                "cpu",
                "cpu:0",
                self._provider,
                f"{self._rewritten[node.index]}; {self._reason}"
                if node.index in self._rewritten
                else self._reason,
            )
            for node in self._graph_info.nodes
        ]

    def memory(self) -> MemoryReport:
        """The weights, as the file sizes them; ONNX Runtime does not say what packing adds."""
        return MemoryReport(weights_bytes=sum(p.nbytes for p in self._graph_info.parameters))

    def save(self, folder: object) -> str:
        """Not announced, so the core does not ask for it."""
        raise BackendUnavailable("backend 'cpu' has no compiled form to save", "cpu")

    def close(self) -> None:
        """Let the session go; contexts that still run keep it until they end."""
        self._session = None


def load_model(source: ModelSource, options: CompileOptions) -> CpuModel:
    """A session for `source`, or the nodes that keep ONNX Runtime from making one.

    Raises ModelError with what ONNX Runtime refused where that is not a matter of nodes.
    """
    if options.cancel is not None:
        options.cancel.check()
    if options.device.id != 0:
        raise BackendUnavailable(
            f"device {str(options.device)!r} is not there: the host is the one device 'cpu:0'",
            "cpu",
        )
    settings = session_options(options)
    source = _give_files(source, settings)
    if options.progress is not None:
        options.progress("compile", 0, 1)
    carried, unpassable = _odd_values(graph_of(source))
    if unpassable:
        return CpuModel(source, None, unpassable)
    session = refusal = None
    try:
        if source.data is None:
            session = _session(source, str(source.path), settings)
        else:
            _look_in(source.folder, settings)
            session = _session(source, source.data, settings)
        if not carried and not may_have_known_issues(source):
            return CpuModel(source, session)
    except ModelError as error:
        if _is_out_of_memory(error.__cause__):
            raise
        refusal = error
    if options.cancel is not None:
        options.cancel.check()
    prepared = _prepared(source, refusal, carried)
    if prepared.unsupported:
        return CpuModel(source, None, prepared.unsupported)
    if prepared.data:
        if source.data is None:
            _look_in(prepared.folder, settings)
        session = _session(source, prepared.data, settings)
    return CpuModel(source, session, rewritten=prepared.rewritten)


def compile_model(loaded: CpuModel, options: CompileOptions) -> CpuExecutable:
    """The executable of a loaded model; ModelError for one with nodes that cannot run."""
    source = loaded.source
    if loaded.session is None:
        index, reason = next(iter(loaded.unsupported.items()))
        node = graph_of(source).nodes[index]
        raise ModelError(f"{source.name}: {node.op_type} {node.name!r}: {reason}", source.name)
    if options.progress is not None:
        options.progress("compile", 1, 1)
    return CpuExecutable(loaded, options)


def graph_of(source: ModelSource) -> GraphInfo:
    """What the core has read of a model."""
    assert source.graph is not None, "the core reads every ONNX file before a backend does"
    return source.graph


def _look_in(folder: Path | None, settings: ort.SessionOptions) -> None:
    """Say where the external data of a model that is given as bytes lies."""
    if folder is not None:
        settings.add_session_config_entry(_FOLDER, str(folder))


def _give_files(source: ModelSource, settings: ort.SessionOptions) -> ModelSource:
    """Hand over external data that is in memory; the source as it is to be read then.

    ONNX Runtime copies of it what a session needs, and remembers where it was: no session is to be
    made with these settings later.
    """
    if not source.files:
        return source
    # ONNX Runtime looks for all external data in memory where there is some.
    is_mixed = any(each.location for each in graph_of(source).parameters)
    if is_mixed or not hasattr(settings, _GIVE_FILES):  # which came after 1.23
        from engine.model_bytes import inlined

        return inlined(source)
    contents = list(source.files.values())
    getattr(settings, _GIVE_FILES)([*source.files], contents, [*map(len, contents)])
    return source


def _session(
    source: ModelSource, model: bytes | str, settings: ort.SessionOptions
) -> ort.InferenceSession:
    try:
        # Without its own fallback: that prints to stdout, and tries the same once more.
        session = ort.InferenceSession(model, settings, _PROVIDERS, enable_fallback=0)
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        reason = _OUT_OF_MEMORY if _is_out_of_memory(error) else explained(str(error))
        raise ModelError(f"{source.name}: {reason}", source.name) from error
    # It keeps the file's bytes for that fallback, as long as it lives.
    session._model_bytes = None
    return session


def _prepared(source: ModelSource, refusal: ModelError | None, carried: Sequence[str]) -> Prepared:
    try:
        from engine_cpu.prepare import prepare

        return prepare(source, refusal is None, carried)
    except Exception as error:  # onnx's and protobuf's have no common base
        if _is_out_of_memory(error):
            raise ModelError(f"{source.name}: {_OUT_OF_MEMORY}", source.name) from error
        if refusal is not None:
            raise refusal from error
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise ModelError(f"{source.name}: {text}", source.name) from error


def _is_out_of_memory(error: BaseException | None) -> bool:
    return isinstance(error, MemoryError) or "std::bad_alloc" in str(error)


def _odd_values(graph: GraphInfo) -> tuple[list[str], dict[int, str]]:
    """Outputs to be given in a carrier's type, and nodes whose values cannot be passed at all."""
    specs = (*graph.inputs, *graph.outputs)
    odd = [spec for spec in specs if spec.dtype not in PLAIN]
    if not odd:
        return [], {}
    from engine_cpu.values import carried

    nested = {spec.name: spec for spec in odd if spec.kind is not ValueKind.TENSOR}
    unpassable = {
        node.index: f"{name!r} is {nested[name]}, which onnxruntime takes and gives no values of"
        for node in graph.nodes
        for name in (*node.inputs, *node.outputs)
        if name in nested
    }
    return [spec.name for spec in carried(graph.inputs, graph.outputs)], unpassable
