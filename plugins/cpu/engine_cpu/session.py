"""Load and compile: from a validated model to an ONNX Runtime session."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import onnxruntime as ort

from engine.errors import BackendUnavailable, ModelError
from engine.types import (
    CompileOptions,
    DType,
    GraphInfo,
    MemoryReport,
    ModelSource,
    Placement,
    TensorSpec,
)
from engine_cpu.options import session_options
from engine_cpu.run import CpuContext, Layout

_FOLDER = "session.model_external_initializers_file_folder_path"
# onnxruntime computes with more types than its Python interface takes and gives arrays of.
_ARRAYS = frozenset(
    {DType.BOOL, DType.STRING, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64}
    | {DType.INT8, DType.INT16, DType.INT32, DType.INT64}
    | {DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64}
)
_PROVIDERS = ["CPUExecutionProvider"]


class CpuModel:
    """A model on its way to a session: ONNX Runtime reads and compiles in one step."""

    unsupported: Mapping[int, str] = {}

    def __init__(self, source: ModelSource) -> None:
        self.source = source

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """As the file declares them."""
        return _graph(self.source).inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """As the file declares them."""
        return _graph(self.source).outputs

    def close(self) -> None:
        """Hold nothing: there is nothing to free."""


class CpuExecutable:
    """A session: weights and kernels, shared by the threads that run it."""

    def __init__(
        self, session: ort.InferenceSession, source: ModelSource, options: CompileOptions
    ) -> None:
        graph = _graph(source)
        self.inputs = graph.inputs
        self.outputs = graph.outputs
        self._graph_info = graph
        self._provider = "onnxruntime:CPUExecutionProvider"
        self._reason = "onnxruntime runs every node of an ONNX model on the host"
        if options.precision == "preferred_fp16":
            self._reason += "; in fp32, because it has no faster fp16 kernels here"
        self._session: ort.InferenceSession | None = session
        self._layout = Layout(self.inputs, self.outputs)

    def open_context(self) -> CpuContext:
        """A context of its own for one thread at a time; cheap."""
        assert self._session is not None, "open_context after close"
        return CpuContext(self._session, self._layout)

    def placement(self) -> Sequence[Placement]:
        """Every node on the host: ONNX Runtime has no other device here."""
        return [
            Placement(
                node.index, node.name, node.op_type, "cpu", "cpu:0", self._provider, self._reason
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


def compile_model(source: ModelSource, options: CompileOptions) -> CpuExecutable:
    """A session for `source`; ModelError names what ONNX Runtime refused."""
    if options.cancel is not None:
        options.cancel.check()
    if options.device.id != 0:
        raise BackendUnavailable(
            f"device {str(options.device)!r} is not there: the host is the one device 'cpu:0'",
            "cpu",
        )
    graph = _graph(source)
    for spec in (*graph.inputs, *graph.outputs):
        if spec.dtype not in _ARRAYS:
            raise ModelError(
                f"{source.name}: {spec.name!r} is {spec}, which onnxruntime's Python interface "
                "cannot pass; export the model with a Cast to float32 there",
                source.name,
            )
    settings = session_options(options)
    if source.data is not None and source.folder is not None:
        settings.add_session_config_entry(_FOLDER, str(source.folder))
    model = source.data if source.data is not None else str(source.path)
    if options.progress is not None:
        options.progress("compile", 0, 1)
    try:
        session = ort.InferenceSession(model, settings, providers=_PROVIDERS)
    except MemoryError as error:
        raise ModelError(f"{source.name}: out of memory while compiling", source.name) from error
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise ModelError(f"{source.name}: {_explained(str(error))}", source.name) from error
    if options.progress is not None:
        options.progress("compile", 1, 1)
    return CpuExecutable(session, source, options)


def _graph(source: ModelSource) -> GraphInfo:
    assert source.graph is not None, "the core reads every ONNX file before a backend does"
    return source.graph


def _explained(text: str) -> str:
    """ONNX Runtime's message in one line, with what it means where that is known."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", " ".join(text.split()))
    text = re.sub(r"(/[\w./-]+/)?onnxruntime/[\w./]+:\d+ ", "", text)
    missing = re.search(r"Could not find an implementation for (\w+)\((\d+)\) node", text)
    if missing:
        return (
            f"operator {missing[1]!r} (version {missing[2]}) has no CPU kernel for these types "
            f"in onnxruntime {ort.__version__}: {text}"
        )
    unknown = re.search(r"(?:Fatal error: )?([\w.]*:?[\w.]+)\(-1\) is not a registered", text)
    if unknown:
        domain, _, name = unknown[1].rpartition(":")
        where = f" of domain {domain!r}" if domain else ""
        return f"operator {name!r}{where} is unknown to onnxruntime {ort.__version__}: {text}"
    return text
