"""What runs a model in the null backend: onnx's reference evaluator behind the contract's classes.

Imported when the first model is loaded, because it imports onnx. Every class here stands for one
that a real backend has: the model as read, the executable with the weights, the context.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.external_data_helper import load_external_data_for_model
from onnx.reference import ReferenceEvaluator

from engine.errors import BackendUnavailable, DeadlineExceeded, EngineError, InputError, ModelError
from engine.testing.null import DEVICE, Settings
from engine.types import (
    CompileOptions,
    MemoryReport,
    ModelSource,
    Placement,
    TensorSpec,
    Value,
    Values,
)

_stop_at: ContextVar[float | None] = ContextVar("stop_at", default=None)  # one for each thread


class Evaluator(ReferenceEvaluator):
    """onnx's evaluator, which looks at the clock around every node, also inside subgraphs."""

    def _log(self, level: int, pattern: str, *args: Any) -> None:
        _check_deadline()


def load(source: ModelSource, settings: Settings) -> NullModel:
    """Read and check an ONNX model. Raises ModelError naming it and what is wrong."""
    path = source.path
    try:
        data = source.data
        if data is None:
            assert path is not None  # the contract: one of the two is there
            data = path.read_bytes()
        proto = onnx.load_model_from_string(data)
        if source.folder is not None:
            load_external_data_for_model(proto, str(source.folder))
        onnx.checker.check_model(proto, full_check=True)
    except Exception as error:  # protobuf, the checker and shape inference share no base
        raise ModelError(
            f"{source.name}: not a valid ONNX model: {_one_line(error)}", str(path or "")
        ) from error
    return NullModel(source, proto, settings)


class NullModel:
    """A model that has been read: what goes in, what comes out, which nodes cannot run."""

    def __init__(self, source: ModelSource, proto: onnx.ModelProto, settings: Settings) -> None:
        assert source.graph is not None  # the core reads every ONNX file before a backend does
        self.graph = source.graph
        self.inputs = source.graph.inputs
        self.outputs = source.graph.outputs
        self.source_name = source.name
        self.settings = settings
        self.proto: onnx.ModelProto | None = proto
        functions = {(each.domain, each.name) for each in proto.functions}
        self.unsupported: dict[int, str] = {}
        for index, node in enumerate(proto.graph.node):
            if node.op_type in settings.unsupported_ops:
                self.unsupported[index] = "option 'unsupported_ops' names its operator"
            elif (node.domain, node.op_type) not in functions and not onnx.defs.has(
                node.op_type, node.domain
            ):
                self.unsupported[index] = f"onnx defines no operator {_operator(node)}"

    def compile(self, options: CompileOptions) -> NullExecutable:
        """Make it runnable, a node at a time, so that progress is seen and cancel obeyed."""
        assert self.proto is not None, "compile after close"
        nodes = self.proto.graph.node
        for index, node in enumerate(nodes):
            if options.cancel is not None:
                options.cancel.check()
            if options.progress is not None:
                options.progress("check nodes", index, len(nodes))
            if index in self.unsupported:
                raise ModelError(
                    f"{self.source_name}: node {index} {node.name!r} ({_operator(node)}) cannot "
                    f"run on backend 'null': {self.unsupported[index]}"
                )
        try:
            evaluator = Evaluator(self.proto)
        except Exception as error:  # an operator that is defined but that nobody wrote
            raise ModelError(f"{self.source_name}: {_one_line(error)}") from error
        if options.progress is not None:
            options.progress("check nodes", len(nodes), len(nodes))
        return NullExecutable(self, evaluator)

    def close(self) -> None:
        """Let the file's contents go; the executable has what it needs."""
        self.proto = None


class NullExecutable:
    """The weights and the graph, for any number of threads: running changes nothing here."""

    def __init__(self, model: NullModel, evaluator: Evaluator) -> None:
        self.inputs: tuple[TensorSpec, ...] = model.inputs
        self.outputs: tuple[TensorSpec, ...] = model.outputs
        self.name = model.source_name
        self.delay_s = model.settings.delay_s
        self.evaluator: Evaluator | None = evaluator
        self._weights_bytes = sum(each.nbytes for each in model.graph.parameters)
        self._nodes = model.graph.nodes

    def open_context(self) -> NullContext:
        """Open a context; there is nothing to allocate, so any number is cheap."""
        return NullContext(self)

    def placement(self) -> Sequence[Placement]:
        """Everything runs in the one place that there is."""
        return [
            Placement(
                index=node.index,
                node=node.name,
                op_type=node.op_type,
                backend="null",
                device=str(DEVICE),
                provider="reference",
                reason="the only provider",
            )
            for node in self._nodes
        ]

    def memory(self) -> MemoryReport:
        """The weights, as the file stores them."""
        return MemoryReport(weights_bytes=self._weights_bytes)

    def save(self, folder: Path) -> str:
        """Not announced, so the core does not ask for it."""
        raise BackendUnavailable("backend 'null' has no compiled form to save", "null")

    def close(self) -> None:
        """Free the weights."""
        self.evaluator = None


class NullContext:
    """What one predict at a time needs; here only the way to the executable."""

    def __init__(self, executable: NullExecutable) -> None:
        self._executable: NullExecutable | None = executable

    def run(self, inputs: Values, outputs: Values | None, deadline_s: float | None) -> Values:
        """Run the model once; engine_predict says how."""
        executable = self._executable
        assert executable is not None, "predict after close"
        assert executable.evaluator is not None, "predict after close"
        names = [spec.name for spec in executable.inputs]
        token = _stop_at.set(deadline_s)
        try:
            _wait(executable.delay_s)
            with np.errstate(all="ignore"):  # overflow and NaN are results in ONNX, not warnings
                results = executable.evaluator.run(None, dict(zip(names, inputs, strict=True)))
        except EngineError:
            raise
        except Exception as error:  # operators raise whatever numpy raises
            raise ModelError(
                f"{executable.name}: the model failed on this data: {_one_line(error)}"
            ) from error
        finally:
            _stop_at.reset(token)
        if outputs is None:
            return [_own(*each) for each in zip(results, executable.outputs, strict=True)]
        filled = [
            _own(result, spec) if buffer is None else _fill(buffer, result, spec)
            for result, spec, buffer in zip(results, executable.outputs, outputs, strict=True)
        ]
        return filled if any(buffer is None for buffer in outputs) else outputs

    def close(self) -> None:
        """Nothing but the reference goes."""
        self._executable = None


def _own(result: Any, spec: TensorSpec) -> Value:
    """A result for its owner to keep: the evaluator's may be a view of an input or a weight."""
    if result is None:
        return None
    if isinstance(result, list):
        return [_own(item, spec) for item in result]
    if isinstance(result, dict):
        return dict(result)
    return np.array(result, dtype=spec.dtype.numpy, order="C")


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


def _check_deadline() -> None:
    stop_at = _stop_at.get()
    if stop_at is not None and time.monotonic() >= stop_at:
        raise DeadlineExceeded("predict was stopped at its deadline")


def _wait(seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        _check_deadline()
        time.sleep(min(left, 0.005))  # short, so that a deadline in between is kept


def _operator(node: onnx.NodeProto) -> str:
    return f"{node.domain or 'ai.onnx'}.{node.op_type}"


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
