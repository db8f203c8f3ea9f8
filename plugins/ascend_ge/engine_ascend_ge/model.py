"""Models of this backend: read, and compiled; contexts of an executable share its weights."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any, Protocol

from engine.errors import (
    BackendUnavailable,
    CompiledFormError,
    ModelError,
    ModelStateError,
)
from engine.types import (
    CompileOptions,
    Device,
    ExecutionContext,
    GraphInfo,
    KernelTime,
    LoadedModel,
    MemoryReport,
    ModelSource,
    Placement,
    SharedWeights,
    TensorSpec,
    ValueKind,
)
from engine_ascend_ge import (
    atc,
    compiled,
    devices,
    external,
    layout,
    lending,
    options,
    runtime,
    shapes,
)
from engine_ascend_ge.acl_call import NUMBERS
from engine_ascend_ge.bundle import BundleLoader, is_bundle, opened
from engine_ascend_ge.external import ExternalLoader
from engine_ascend_ge.loading import Loader, OmLoader
from engine_ascend_ge.om import Om
from engine_ascend_ge.profiling import Stopwatch
from engine_ascend_ge.run import AscendContext


class AscendModel(LoadedModel, Protocol):
    """A model that engine_load has read."""

    def compile(self, wish: CompileOptions) -> AscendExecutable:
        """Compile it for the device, once."""


def load(source: ModelSource, wish: CompileOptions) -> AscendModel:
    """Read a model; engine_load says how."""
    if source.format == "om":
        return OmModel(source, wish)
    assert source.graph is not None  # the core reads every ONNX file before a backend does
    options.read(wish)
    if source.compiled is not None:
        return WarmModel(source, source.graph)
    return OnnxModel(source, source.graph)


class OnnxModel:
    """An ONNX model on its way to ATC, checked for what no Ascend device can take."""

    def __init__(self, source: ModelSource, graph: GraphInfo) -> None:
        self.source = source
        self.graph = graph
        self.inputs = graph.inputs
        self.outputs = graph.outputs
        self.unsupported: Mapping[int, str] = {}  # ATC finds them, and names them, as it compiles
        for kind, specs in (("input", self.inputs), ("output", self.outputs)):
            for spec in specs:
                if spec.kind is not ValueKind.TENSOR or spec.dtype not in NUMBERS:
                    raise ModelError(
                        f"{source.name}: {kind} {spec.name!r} is {spec}, which Ascend devices do "
                        f"not have; they have tensors of {', '.join(sorted(NUMBERS))}",
                        source.name,
                    )

    def compile(self, wish: CompileOptions) -> AscendExecutable:
        """Compile with ATC for the device and load the result."""
        settings = options.read(wish)
        name = self.source.name
        resolved = shapes.resolve(self.inputs, wish.shapes, wish.profiles, name)
        acl, _ = runtime.use_device(wish.device.id)
        soc = settings.soc_version or compiled.soc_name(acl)
        if not soc:
            raise BackendUnavailable(
                "CANN does not say which SoC the device has; set option soc_version, for example "
                "'Ascend910B3' (npu-smi info shows it)",
                "ascend_ge",
            )
        with atc.compiled(
            self.source,
            atc.find_compiler(settings.atc),
            soc,
            resolved,
            {**atc.kernel_cache(wish.cache_folder), **settings.flags},
            settings.timeout_s,
            wish.progress,
            wish.cancel,
            external.is_wanted(wish),
        ) as made:
            # A secret model stays in memory only: nothing made from it may reach the disk.
            is_kept = wish.save_to is not None and not self.source.is_secret
            path = made
            if wish.save_to is not None and is_kept:
                path = compiled.write(made, wish.save_to, self.graph, resolved)
            om = Om(path, name)  # mapped, so it stays when the temporary folder goes
            weights = external.opened(path.parent)  # so do these
        if wish.progress is not None:
            wish.progress("load", 0, 1)
        executable = AscendExecutable(om, wish, self.graph, resolved, weights)
        if wish.progress is not None:
            wish.progress("load", 1, 1)
        return executable

    def close(self) -> None:
        """Do nothing: nothing was opened."""


class WarmModel:
    """A compiled form of an ONNX model: ATC has been here before."""

    def __init__(self, source: ModelSource, graph: GraphInfo) -> None:
        assert source.compiled is not None  # `load` looks
        self.graph = graph
        self.inputs = graph.inputs
        self.outputs = graph.outputs
        self.unsupported: Mapping[int, str] = {}
        self._name = source.name
        self._folder = source.compiled
        om, self._shapes = compiled.read(source.compiled, graph, source.name)
        self._om: Om | None = om

    def compile(self, wish: CompileOptions) -> AscendExecutable:
        """Load it on the device."""
        om, self._om = self._om, None
        assert om is not None, "compile after compile or close"
        try:
            weights = external.opened(self._folder)
            return AscendExecutable(om, wish, self.graph, self._shapes, weights)
        except ModelError as error:  # a full or lost device is another error, and no fault of it
            raise CompiledFormError(
                f"{self._name}: the compiled form in {self._folder} cannot be loaded: {error}",
                self._name,
            ) from error

    def close(self) -> None:
        """Close the file, unless compile handed it over."""
        om, self._om = self._om, None
        if om is not None:
            om.close()


class OmModel:
    """An .om file. To know what goes in and out it must be loaded, so it is the executable."""

    def __init__(self, source: ModelSource, wish: CompileOptions) -> None:
        data = source.data if source.data is not None else source.path
        assert data is not None  # the contract: one of the two is there
        options.read(wish)
        self.entries: tuple[str, ...] = ()
        loader: Loader | None = None
        if is_bundle(data):
            loader = self._loader_of(source, wish)
        executable = AscendExecutable(Om(data, source.name), wish, loader=loader)
        self._executable: AscendExecutable | None = executable
        self.inputs = executable.inputs
        self.outputs = executable.outputs
        self.unsupported: Mapping[int, str] = {}

    def _loader_of(self, source: ModelSource, wish: CompileOptions) -> Loader:
        """Return what loads the model of a bundle that is meant; names are their numbers."""
        if source.path is None or source.data is not None:  # in memory, or inside a MindIR
            raise ModelError(
                f"{source.name}: is a bundle of models, which pyACL loads from files only; pass "
                "the path of the .om file",
                source.name,
            )
        acl, home = runtime.use_device(wish.device.id)
        bundle = opened(acl, home, source.path)
        self.entries = tuple(map(str, range(len(bundle.models))))
        entry = source.entry or "0"
        if entry not in self.entries:
            bundle.leave()
            raise ModelError(
                f"{source.name}: has no model {entry!r}; it has: {', '.join(self.entries)}",
                source.name,
            )
        return BundleLoader(bundle, int(entry))

    def compile(self, wish: CompileOptions) -> AscendExecutable:
        """Hand over what was loaded."""
        executable, self._executable = self._executable, None
        assert executable is not None, "compile after compile or close"
        return executable

    def close(self) -> None:
        """Unload it, unless compile handed it over."""
        executable, self._executable = self._executable, None
        if executable is not None:
            executable.close()


class AscendExecutable:
    """A compiled model on one device: its weights, once, and as many contexts as are opened.

    om: owned from here on. graph, resolved: of the ONNX model that it was made from. weights: those
    that are in files, with their contents. loader: owned from here on; None where it is to be made.
    The weights lie in memory of our own that every context's load of the model shares; CANN only
    reads it while models run.
    """

    def __init__(
        self,
        om: Om,
        wish: CompileOptions,
        graph: GraphInfo | None = None,
        resolved: shapes.Shapes | None = None,
        weights: Mapping[str, external.Bytes] = MappingProxyType({}),
        loader: Loader | None = None,
    ) -> None:
        self.om = om
        self.name = om.name
        self.device_id = wish.device.id
        self.concurrency = options.read(wish).concurrency
        self.resident = wish.resident
        self.is_part = wish.plan != ""
        self._graph = graph
        self._lock = threading.Lock()
        self._contexts: set[AscendContext] = set()
        with ExitStack() as stack:
            stack.callback(om.close)
            if loader is not None:
                stack.callback(loader.close)
            acl, home = runtime.use_device(self.device_id)
            # Between collectives nobody waits, where all that is queued can be taken back.
            self.is_queued = (
                self.is_part
                and wish.world_size > 1
                and wish.profile_to is None
                and not devices.cannot_abort(acl)
            )
            if loader is None:
                loader = _loader(acl, home, om, wish, weights)
                stack.callback(loader.close)
            self.loader: Loader = loader
            self.concurrency = loader.most or self.concurrency
            self.stopwatch: Stopwatch | None = None
            if wish.profile_to is not None:
                self.stopwatch = Stopwatch(acl, graph, self.name)
            # The first load says what goes in and out. It is the first context that is lent.
            first = AscendContext(self)
            stack.callback(first.close)
            if graph is not None and resolved is not None:
                self.layout = layout.of_graph(first.description, graph, resolved, self.name)
            else:
                self.layout = layout.of_om(first.description)
            first.prepare(self.layout)
            self._contexts.add(first)
            self._spare: AscendContext | None = first
            self._closing: ExitStack | None = stack.pop_all()
        self.inputs: tuple[TensorSpec, ...] = self.layout.inputs
        self.outputs: tuple[TensorSpec, ...] = self.layout.outputs
        runtime.keep(self)

    def share(self, pids: Sequence[int] | None) -> SharedWeights:
        """Lend the weights to other compiles; engine_share_weights says how."""
        if not isinstance(self.loader, ExternalLoader):
            raise BackendUnavailable(
                f"{self.name}: its weights are inside its .om file, where no other process can "
                "have them; give the ONNX or MindIR model",
                "ascend_ge",
            )
        acl, home = runtime.use_device(self.device_id)
        device = Device("ascend", self.device_id)
        return lending.lend(acl, home, device, self.loader.blocks, pids)

    def open_context(self, beside: ExecutionContext | None = None) -> AscendContext:
        """Load the model once more, with the weights that are there; thread-safe.

        beside: the context of this backend and device whose stream and scratch memory it shares.
        """
        with self._lock:
            if self._closing is None:
                raise ModelStateError(f"{self.name}: a closed executable opens no context")
            spare, self._spare = self._spare, None
        if spare is not None:
            if beside is None:
                return spare
            spare.close()  # it has a stream and scratch memory of its own
        assert beside is None or isinstance(beside, AscendContext)
        context = AscendContext(self, beside)
        try:
            context.prepare(self.layout)
        except BaseException:
            context.close()
            raise
        with self._lock:
            self._contexts.add(context)
        return context

    def forget(self, context: AscendContext) -> None:
        """Drop a context that is closed, or as far closed as it could be."""
        with self._lock:
            self._contexts.discard(context)
        if context.is_stuck:
            self.loader.abandon()  # a model that could not be unloaded may still read them

    def placement(self) -> Sequence[Placement]:
        """Every node is in the one .om; which unit of the NPU runs it is CANN's business."""
        nodes = self._graph.nodes if self._graph is not None else ()
        device = f"ascend:{self.device_id}"
        why = "compiled by ATC into one model"
        return [
            Placement(node.index, node.name, node.op_type, "ascend_ge", device, "ge", why)
            for node in nodes
        ]

    def profile(self) -> Sequence[KernelTime]:
        """Return the operators' times in all predicts; see Executable."""
        assert self.stopwatch is not None, "it was not compiled to be measured"
        return self.stopwatch.times()

    def memory(self) -> MemoryReport:
        """Count the one copy of the weights, and what the open contexts hold."""
        with self._lock:
            workspace = sum(context.workspace_bytes for context in self._contexts)
            is_open = self._closing is not None
        return MemoryReport(
            weights_bytes=self.loader.weight_bytes if is_open else 0,
            shared_bytes=self.loader.shared_bytes if is_open else 0,
            workspace_bytes=workspace,
        )

    def close(self) -> None:
        """Unload everything; twice does nothing. In a forked process only the file is let go."""
        with self._lock:
            closing, self._closing = self._closing, None
            contexts = list(self._contexts)
        if closing is None:
            return
        if not runtime.is_started():
            closing.pop_all()
            self.om.close()
            return
        with closing:
            for context in contexts:
                closing.callback(context.close)


def _loader(
    acl: Any, home: int, om: Om, wish: CompileOptions, weights: Mapping[str, external.Bytes]
) -> Loader:
    """Return what loads the model, with its weights on the device."""
    device, shared = str(wish.device), wish.shared_weights
    if not weights:
        return OmLoader(acl, home, om, device)
    if shared is not None and shared.token:
        blocks = lending.borrow(acl, home, shared)
    else:
        what = f"weights on {device}"
        blocks = external.put(acl, home, weights, what, om.name, wish.lend == "process")
    is_shared = shared is not None or wish.lend == "process"
    return ExternalLoader(acl, home, om, device, blocks, weights, is_shared)
