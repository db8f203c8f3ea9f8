"""Models of this backend: read, and compiled; contexts of an executable share its weights."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from engine.errors import BackendUnavailable, ModelError, ModelStateError
from engine.types import (
    CompileOptions,
    GraphInfo,
    MemoryReport,
    ModelSource,
    Placement,
    ValueKind,
)
from engine_ascend_ge import atc, layout, options, runtime, shapes
from engine_ascend_ge.acl_call import HUGE_FIRST, NUMBERS, done, got
from engine_ascend_ge.om import Om
from engine_ascend_ge.run import AscendContext


class OnnxModel:
    """An ONNX model on its way to ATC, checked for what no Ascend device can take."""

    def __init__(self, source: ModelSource, wish: CompileOptions) -> None:
        assert source.graph is not None  # the core reads every ONNX file before a backend does
        options.read(wish)
        self.source = source
        self.graph = source.graph
        self.inputs = source.graph.inputs
        self.outputs = source.graph.outputs
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
        plan = shapes.resolve(
            self.inputs, wish.shapes, settings.input_shape, settings.dynamic_dims, name
        )
        acl = runtime.use_device(wish.device.id)
        soc = settings.soc_version or acl.get_soc_name()
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
            plan,
            settings.flags,
            settings.timeout_s,
            wish.progress,
            wish.cancel,
        ) as path:
            compiled = Om(path, name)  # mapped, so it stays when the folder goes
        if wish.progress is not None:
            wish.progress("load", 0, 1)
        executable = AscendExecutable(compiled, wish.device.id, self.graph, plan)
        if wish.progress is not None:
            wish.progress("load", 1, 1)
        return executable

    def close(self) -> None:
        """Nothing was opened."""


class OmModel:
    """An .om file. To know what goes in and out it must be loaded, so it is the executable."""

    def __init__(self, source: ModelSource, wish: CompileOptions) -> None:
        data = source.data if source.data is not None else source.path
        assert data is not None  # the contract: one of the two is there
        options.read(wish)
        executable = AscendExecutable(Om(data, source.name), wish.device.id)
        self._executable: AscendExecutable | None = executable
        self.inputs = executable.inputs
        self.outputs = executable.outputs
        self.unsupported: Mapping[int, str] = {}

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

    compiled: the .om, owned from here on. graph, plan: of the ONNX model that it was made from.
    The weights lie in memory of our own that every context's load of the model shares; CANN only
    reads it while models run. It belongs to an ACL context that lives as long as it does.
    """

    def __init__(
        self,
        compiled: Om,
        device_id: int,
        graph: GraphInfo | None = None,
        plan: shapes.Shapes | None = None,
    ) -> None:
        self.om = compiled
        self.name = compiled.name
        self.device_id = device_id
        self.weight_pointer = 0
        self._graph = graph
        self._lock = threading.Lock()
        self._contexts: set[AscendContext] = set()
        self._is_stuck = False
        with ExitStack() as stack:
            stack.callback(compiled.close)
            self.acl = acl = runtime.use_device(device_id)
            self._home = got(
                acl.rt.create_context(device_id),
                f"create a context on ascend:{device_id}",
                otherwise=BackendUnavailable,
            )
            stack.callback(self._destroy_home)
            work, weights, code = acl.mdl.query_size_from_mem(compiled.pointer, compiled.nbytes)
            done(code, "read the sizes of the compiled model", self.name)
            self.work_bytes: int = work
            self.weight_bytes: int = weights
            if weights:
                self.weight_pointer = got(
                    acl.rt.malloc(weights, HUGE_FIRST),
                    f"allocate {weights} bytes for weights on ascend:{device_id}",
                    self.name,
                )
                stack.callback(self._free_weights)
            # The first load says what goes in and out. It is the first context that is lent.
            first = AscendContext(self)
            stack.callback(first.close)
            if graph is not None and plan is not None:
                self.layout = layout.of_graph(first.description, graph, plan, self.name)
            else:
                self.layout = layout.of_om(first.description)
            first.prepare(self.layout)
            self._contexts.add(first)
            self._spare: AscendContext | None = first
            self._closing: ExitStack | None = stack.pop_all()
        self.inputs = self.layout.inputs
        self.outputs = self.layout.outputs
        runtime.keep(self)

    def open_context(self) -> AscendContext:
        """Load the model once more, with the weights that are there; thread-safe."""
        with self._lock:
            if self._closing is None:
                raise ModelStateError(f"{self.name}: a closed executable opens no context")
            spare, self._spare = self._spare, None
        if spare is not None:
            return spare
        context = AscendContext(self)
        try:
            context.prepare(self.layout)
        except BaseException:
            context.close()
            raise
        with self._lock:
            self._contexts.add(context)
        return context

    def forget(self, context: AscendContext) -> None:
        """A context of this executable is closed, or as far as that goes."""
        with self._lock:
            self._contexts.discard(context)
            self._is_stuck = self._is_stuck or context.is_stuck

    def placement(self) -> Sequence[Placement]:
        """Every node is in the one .om; which unit of the NPU runs it is CANN's business."""
        nodes = self._graph.nodes if self._graph is not None else ()
        device = f"ascend:{self.device_id}"
        why = "compiled by ATC into one model"
        return [
            Placement(node.index, node.name, node.op_type, "ascend_ge", device, "ge", why)
            for node in nodes
        ]

    def memory(self) -> MemoryReport:
        """The one copy of the weights, and what the open contexts hold."""
        with self._lock:
            workspace = sum(context.workspace_bytes for context in self._contexts)
            weights = self.weight_bytes if self._closing is not None else 0
        return MemoryReport(weights_bytes=weights, workspace_bytes=workspace)

    def save(self, folder: Path) -> str:
        """Not announced, so the core does not ask for it."""
        raise BackendUnavailable(
            "backend 'ascend_ge' does not save compiled models yet", "ascend_ge"
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

    def _free_weights(self) -> None:
        if self._is_stuck:
            return  # a model that could not be unloaded may still read them
        done(self.acl.rt.set_context(self._home), "use the weights' context", self.name)
        done(self.acl.rt.free(self.weight_pointer), "free the weights", self.name)

    def _destroy_home(self) -> None:
        done(self.acl.rt.destroy_context(self._home), "destroy the weights' context", self.name)
