"""onnx's reference evaluator behind the contract's classes: slow, exact, and all of ONNX.

Runs for the null backend, and the backend `reference` of the cpu distribution. Imported when the
first model is loaded, because it imports onnx. Every class here stands for one that a real backend
has: the model as read, the executable with the weights, the context.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto
from onnx.external_data_helper import ExternalDataInfo, uses_external_data
from onnx.inliner import inline_local_functions
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_25

from engine.errors import (
    BackendUnavailable,
    Cancelled,
    DeadlineExceeded,
    EngineError,
    InputError,
    ModelError,
    one_line,
)
from engine.formats.onnx.graphs import tensors
from engine.formats.onnx.safe_inference import infer_shapes
from engine.formats.opened import open_external
from engine.host import deadlines
from engine.host.interrupts import pass_interrupt, raised_by_handler
from engine.reference.global_max_pool import GlobalMaxPool
from engine.reference.loop import Loop
from engine.reference.lrn import LRN
from engine.reference.older import implementation
from engine.reference.optional import Optional
from engine.reference.stopping import Stopped, Stopper
from engine.reference.timing import Stopwatch
from engine.types import (
    CompileOptions,
    Device,
    DType,
    KernelTime,
    MemoryReport,
    ModelSource,
    Placement,
    TensorSpec,
    Value,
    ValueKind,
    Values,
)

PROVIDER = "reference"

# The context that the calling thread runs: the evaluator passes nothing of ours to its nodes.
_running: ContextVar[EvaluatorContext | None] = ContextVar("running", default=None)


@dataclass(frozen=True, slots=True)
class Host:
    """Whose runtime this is.

    name: the backend's. device: the one it has. unsupported_ops: operators that it refuses.
    delay_s: how long a predict takes at least.
    """

    name: str
    device: Device
    unsupported_ops: frozenset[str] = frozenset()
    delay_s: float = 0.0


_OWN = {"GlobalMaxPool": GlobalMaxPool, "LRN": LRN, "Loop": Loop, "Optional": Optional}


class Evaluator(ReferenceEvaluator):
    """onnx's evaluator, which can be stopped at every node, also inside subgraphs."""

    def _load_impl(self, node: NodeProto, input_types: Any = None) -> Any:
        if node.op_type in _OWN and not node.domain:
            return _OWN[node.op_type]
        if (node.op_type, node.domain) == ("DequantizeLinear", "") and self.opsets[""] < 19:
            return DequantizeLinear_25  # onnx 1.23 has none for these, of which it is a superset
        if not node.domain and (older := implementation(node, self.opsets[""])) is not None:
            return older
        return super()._load_impl(node, input_types)

    def _log(self, level: int, pattern: str, *args: Any) -> None:
        _check_stop()


def load(source: ModelSource, host: Host) -> EvaluatorModel:
    """Read and check an ONNX model. Raises ModelError naming it and what is wrong."""
    path = source.path
    try:
        data = source.data
        if data is None:
            assert path is not None  # the contract: one of the two is there
            data = path.read_bytes()
        proto = onnx.load_model_from_string(data)
        _normalise(proto)
        _require_known(proto)
        _read_external(proto, source)
        infer_shapes(proto, check_type=True, strict_mode=True)
    except ModelError:
        raise
    except Exception as error:  # protobuf, the checker and shape inference share no base
        pass_interrupt(error)
        raise ModelError(
            f"{source.name}: not a valid ONNX model: {one_line(error)}", str(path or "")
        ) from error
    return EvaluatorModel(source, proto, host)


class EvaluatorModel:
    """A model that has been read: what goes in, what comes out, which nodes cannot run."""

    def __init__(self, source: ModelSource, proto: ModelProto, host: Host) -> None:
        assert source.graph is not None  # the core reads every ONNX file before a backend does
        self.graph = source.graph
        self.inputs = source.graph.inputs
        self.outputs = source.graph.outputs
        self.source_name = source.name
        self.host = host
        self.proto: ModelProto | None = proto
        self.unsupported: dict[int, str] = _missing(proto)
        for index, node in enumerate(proto.graph.node):
            if node.op_type in host.unsupported_ops:
                self.unsupported[index] = "option 'unsupported_ops' names its operator"

    def compile(self, options: CompileOptions) -> EvaluatorExecutable:
        """Make it runnable, a node at a time, so that progress is seen and cancel obeyed."""
        assert self.proto is not None, "compile after close"
        if options.device != self.host.device:
            raise BackendUnavailable(
                f"device {options.device} is not there; found: {self.host.device}", self.host.name
            )
        nodes = self.proto.graph.node
        for index, node in enumerate(nodes):
            if options.cancel is not None:
                options.cancel.check()
            if options.progress is not None:
                options.progress("check nodes", index, len(nodes))
            if index in self.unsupported:
                raise ModelError(
                    f"{self.source_name}: node {index} {node.name!r} ({_operator(node)}) cannot "
                    f"run on backend {self.host.name!r}: {self.unsupported[index]}"
                )
        try:
            # Inlined, because the evaluator loses a function's attributes on the way to most nodes.
            evaluator = Evaluator(inline_local_functions(self.proto))
        except Exception as error:  # a type or an attribute that nobody thought of
            pass_interrupt(error)
            raise ModelError(f"{self.source_name}: {one_line(error)}") from error
        if options.progress is not None:
            options.progress("check nodes", len(nodes), len(nodes))
        executable = EvaluatorExecutable(self, evaluator)
        if options.profile_to is not None:
            ran = evaluator.rt_nodes_
            executable.stopwatch = Stopwatch(ran, is_as_in_file=len(ran) == len(nodes))
        return executable

    def close(self) -> None:
        """Let the file's contents go; the executable has what it needs."""
        self.proto = None


class EvaluatorExecutable:
    """The weights and the graph, for any number of threads: running changes nothing here."""

    def __init__(self, model: EvaluatorModel, evaluator: Evaluator) -> None:
        self.inputs: tuple[TensorSpec, ...] = model.inputs
        self.outputs: tuple[TensorSpec, ...] = model.outputs
        self.name = model.source_name
        self.host = model.host
        self.evaluator: Evaluator | None = evaluator
        self._weights_bytes = sum(p.nbytes for p in model.graph.parameters)
        self._nodes = model.graph.nodes
        self.stopwatch: Stopwatch | None = None

    def open_context(self) -> EvaluatorContext:
        """Open a context; there is nothing to allocate, so any number is cheap."""
        return EvaluatorContext(self)

    def placement(self) -> Sequence[Placement]:
        """Place every node in the one provider that there is."""
        return [
            Placement(
                index=node.index,
                node=node.name,
                op_type=node.op_type,
                backend=self.host.name,
                device=str(self.host.device),
                provider=PROVIDER,
                reason="the only provider",
            )
            for node in self._nodes
        ]

    def profile(self) -> Sequence[KernelTime]:
        """See Executable."""
        assert self.stopwatch is not None, "it was not compiled to be measured"
        return self.stopwatch.times

    def memory(self) -> MemoryReport:
        """Return the weights, as the file stores them."""
        return MemoryReport(weights_bytes=self._weights_bytes)

    def close(self) -> None:
        """Free the weights."""
        self.evaluator = None


class EvaluatorContext:
    """Context of one predict at a time: the executable, and what may stop the predict."""

    def __init__(self, executable: EvaluatorExecutable) -> None:
        self._executable: EvaluatorExecutable | None = executable
        self._cancelled = False
        self._deadline_s: float | None = None
        self._stopper: Stopper | None = None

    def cancel(self) -> None:
        """See ExecutionContext; ends a node too, as soon as that is in Python."""
        self._cancelled = True
        stopper = self._stopper
        if stopper is not None:
            stopper.expire()

    def check_stop(self) -> None:
        """Raise Cancelled or DeadlineExceeded where the predict is to stop."""
        if self._cancelled:
            raise Cancelled("predict was cancelled while the model ran")
        if self._deadline_s is not None and time.monotonic() >= self._deadline_s:
            raise DeadlineExceeded("predict was stopped at its deadline")

    def run(
        self,
        inputs: Values,
        outputs: Values | None,
        deadline_s: float | None,
        delay_s: float | None = None,
    ) -> Values:
        """Run the model once; engine_predict says how. delay_s: the host's unless it is given."""
        executable = self._executable
        assert executable is not None, "predict after close"
        assert executable.evaluator is not None, "predict after close"
        names = [spec.name for spec in executable.inputs]
        feeds = dict(zip(names, inputs, strict=True))
        self._deadline_s = deadline_s
        if delay_s is None:
            delay_s = executable.host.delay_s
        try:
            results = self._stoppable(executable.evaluator, feeds, delay_s)
        except EngineError:
            raise
        except Exception as error:  # operators raise whatever numpy raises
            pass_interrupt(error)
            raise ModelError(
                f"{executable.name}: the model failed on this data: {one_line(error)}"
            ) from error
        if outputs is None:
            return [_own(*pair) for pair in zip(results, executable.outputs, strict=True)]
        # A result may be an input itself, and a buffer may lie over that input: it would be
        # overwritten before it is delivered.
        results = [
            np.array(result) if _is_overwritten(result, outputs) else result for result in results
        ]
        filled = [
            _own(result, spec) if buffer is None else _fill(buffer, result, spec)
            for result, spec, buffer in zip(results, executable.outputs, outputs, strict=True)
        ]
        return filled if any(buffer is None for buffer in outputs) else outputs

    def _stoppable(self, evaluator: Evaluator, feeds: dict[str, Value], delay_s: float) -> Any:
        """Run the evaluator; Cancelled or DeadlineExceeded also from inside of a node.

        Its operators are loops in Python, some over every element: one node may take for ever.
        """
        token = _running.set(self)
        try:
            self._stopper = stopper = Stopper(self._deadline_s or 0.0)
            try:
                if self._deadline_s is not None:
                    deadlines.watch(stopper)
                _wait(delay_s)
                if self._executable is not None and self._executable.stopwatch is not None:
                    self._executable.stopwatch.begin()
                with np.errstate(all="ignore"):  # overflow and NaN are results in ONNX
                    return evaluator.run(None, feeds)
            finally:
                stopper.done = True
                self._stopper = None
                stopper.clear()
        except Stopped as error:
            interrupt = raised_by_handler(error)
            if interrupt is not None:  # both came at once
                raise interrupt from None
            self.check_stop()
            raise AssertionError("nobody stopped it") from error
        finally:
            _running.reset(token)

    def close(self) -> None:
        """Let go of the executable."""
        self._executable = None


def _normalise(proto: ModelProto) -> None:
    """Call ONNX's own domain "", as the evaluator does; "ai.onnx" is its other name."""
    for item in (*proto.opset_import, *proto.graph.node):
        if item.domain == "ai.onnx":
            item.domain = ""


def _require_known(proto: ModelProto) -> None:
    """Refuse operator sets that the installed onnx does not know: what they mean is a guess."""
    newest = onnx.defs.onnx_opset_version()
    for item in proto.opset_import:
        if not item.domain and item.version > newest:
            raise ValueError(
                f"operator set {item.version} is newer than what onnx {onnx.__version__} knows "
                f"({newest}); run: pip install --upgrade onnx, or export with an older one"
            )


def _read_external(proto: ModelProto, source: ModelSource) -> None:
    """Put external data into the model. The core has checked where it lies; links are fine."""
    for tensor in tensors(proto):
        if not uses_external_data(tensor):
            continue
        info = ExternalDataInfo(tensor)
        first = info.offset or 0
        nbytes = (prod(tensor.dims) * DType.from_onnx(tensor.data_type).bits + 7) // 8
        held = source.files.get(info.location)
        if held is not None:
            tensor.raw_data = bytes(held[first : first + nbytes])
        elif source.folder is not None:
            with open_external(source, info.location) as file:
                file.seek(first)
                tensor.raw_data = file.read(nbytes)
        else:
            raise ValueError(f"no folder to find {info.location!r} in")
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]


def _missing(proto: ModelProto) -> dict[int, str]:
    """Return the nodes that the evaluator has no implementation of, and what it says of each.

    Functions that it cannot run are dropped from `proto`: one of them would fail all of it.
    """
    alone = ModelProto(ir_version=proto.ir_version)  # without weights, which it need not read
    alone.opset_import.extend(proto.opset_import)
    alone.functions.extend(proto.functions)
    alone.graph.input.extend(proto.graph.input)
    alone.graph.value_info.extend(proto.graph.value_info)
    alone.graph.node.extend(proto.graph.node)
    if not _refusal(alone):
        return {}
    del alone.functions[:], alone.graph.node[:]
    for function in proto.functions:
        alone.functions.append(function)
        if _refusal(alone):
            alone.functions.pop()
    del proto.functions[:]
    proto.functions.extend(alone.functions)
    refused: dict[int, str] = {}
    for index, node in enumerate(proto.graph.node):
        alone.graph.node.append(node)
        if reason := _refusal(alone):
            refused[index] = f"onnx's reference evaluator does not know it: {reason}"
        alone.graph.node.pop()
    return refused


def _refusal(proto: ModelProto) -> str:
    """Return why the evaluator does not take a model; "" where it does."""
    try:
        Evaluator(proto)
    except Exception as error:  # of several kinds; what follows are lists of all that it knows
        pass_interrupt(error)
        return re.split(r", known|, schema|\. | in\n", str(error))[0].strip()
    return ""


def _fill(buffer: Value, result: Any, spec: TensorSpec) -> Value:
    assert isinstance(buffer, np.ndarray), "DEVICE_BUFFERS is not announced"
    if buffer.shape != np.shape(result):
        raise InputError(
            f"output {spec.name!r}: expected a buffer of shape {np.shape(result)}, "
            f"got {buffer.shape}",
            spec.name,
        )
    np.copyto(buffer, result)
    return buffer


def _own(result: Any, spec: TensorSpec) -> Value:
    """Copy a result for its owner: the evaluator's may be a view of an input or a weight."""
    if result is None:
        return None
    if isinstance(result, list | dict) and spec.kind is ValueKind.TENSOR:
        raise ModelError(
            f"output {spec.name!r} is declared {spec}, but onnx's reference evaluator gives it as "
            f"a {type(result).__name__}"
        )
    if isinstance(result, list):
        return [_own(item, spec) for item in result]
    if isinstance(result, dict):
        return dict(result)
    declared = spec.shape if spec.kind is ValueKind.TENSOR else None
    if declared is not None and np.ndim(result) != len(declared):
        raise ModelError(
            f"output {spec.name!r} is declared {spec}, but onnx's reference evaluator gives it "
            f"shape {list(np.shape(result))}"
        )
    dtype = spec.dtype.numpy
    # A view, because numpy keeps its other int64 where it is to copy as int64.
    return np.array(result, dtype=dtype, order="C").view(dtype)


def _is_overwritten(result: Any, buffers: Values) -> bool:
    """Return whether filling one of the buffers may change a result."""
    return isinstance(result, np.ndarray) and any(
        isinstance(buffer, np.ndarray) and np.may_share_memory(result, buffer) for buffer in buffers
    )


def _check_stop() -> None:
    context = _running.get()
    # One that does not run was left here by a signal handler that raised.
    if context is not None and context._stopper is not None:
        context.check_stop()


def _wait(seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        _check_stop()
        time.sleep(min(left, 0.005))  # short, so that a deadline in between is kept


def _operator(node: NodeProto) -> str:
    return f"{node.domain or 'ai.onnx'}.{node.op_type}"
