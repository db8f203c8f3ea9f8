"""A model that OpenVINO has compiled, its inference requests, and its compiled form."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from engine import errors
from engine.hookspecs import hookimpl
from engine.types import CompileOptions, MemoryReport, Placement, TensorSpec, Values
from engine_openvino.loading import OpenVINOModel, refused
from engine_openvino.manifest import DEVICE, core, settings
from engine_openvino.nodes import bits, limits

FORM = "compiled.blob"  # its first 32 bytes are the SHA-256 of the rest


@hookimpl
def engine_compile(loaded: OpenVINOModel, options: CompileOptions) -> OpenVINOExecutable:
    """Compile a model, or import its compiled form."""
    source = loaded.source
    if options.device != DEVICE:
        raise errors.BackendUnavailable(f"no device {options.device}; found: {DEVICE}", "openvino")
    for index, why in loaded.unsupported.items():
        raise refused(source, f"node {index} cannot run on backend 'openvino': {why}")
    if source.compiled is not None:
        return OpenVINOExecutable(loaded, _imported(source.compiled / FORM, options))
    try:
        compiled = core().compile_model(loaded.model, "CPU", settings(options))
    except RuntimeError as error:
        raise refused(source, error) from error
    if options.save_to is not None and not source.is_secret:
        form = compiled.export_model().getvalue()
        (options.save_to / FORM).write_bytes(hashlib.sha256(form).digest() + form)
    return OpenVINOExecutable(loaded, compiled)


def _imported(file: Path, options: CompileOptions) -> Any:
    try:
        content = file.read_bytes()
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            raise OSError("it is not what was written")
        return core().import_model(content[32:], "CPU", settings(options))
    except (OSError, RuntimeError) as error:
        raise errors.CompiledFormError(f"{file}: {errors.one_line(error)}") from error


class OpenVINOExecutable:
    """An Executable: a compiled model."""

    def __init__(self, loaded: OpenVINOModel, compiled: Any) -> None:
        self.inputs = loaded.inputs
        self.outputs = loaded.outputs
        self.source = loaded.source
        self.compiled = compiled
        self.concurrency = int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        self.limits = limits(loaded.graph)
        self.read = list(_matched(loaded, compiled.inputs))
        self.written = list(compiled.outputs)
        self._graph = loaded.graph
        if len(self.written) != len(self.outputs):
            raise refused(self.source, "OpenVINO's model has other outputs")

    def open_context(self) -> OpenVINOContext:
        return OpenVINOContext(self)

    def placement(self) -> Sequence[Placement]:
        return [
            Placement(
                index=node.index,
                node=node.name,
                op_type=node.op_type,
                backend="openvino",
                device=str(DEVICE),
                provider="cpu",
                reason="OpenVINO computes it exactly",
            )
            for node in self._graph.nodes
        ]

    def memory(self) -> MemoryReport:
        return MemoryReport(weights_bytes=sum(each.nbytes for each in self._graph.parameters))

    def close(self) -> None:
        self.compiled = None


def _matched(loaded: OpenVINOModel, ports: list[Any]) -> Iterator[tuple[int, Any]]:
    """Yield OpenVINO's inputs, each with the position that it has among the model's.

    It leaves out inputs that no node reads, and renames one that a node passes on unchanged.
    """
    names = [spec.name for spec in loaded.inputs]
    for at, port in enumerate(ports):
        name = port.node.friendly_name
        if name not in names and len(ports) != len(names):
            raise refused(loaded.source, f"OpenVINO's input {name!r} is none of {names}")
        yield names.index(name) if name in names else at, port


class OpenVINOContext:
    """An ExecutionContext: one inference request."""

    def __init__(self, executable: OpenVINOExecutable) -> None:
        self.executable = executable
        self.request = executable.compiled.create_infer_request()
        self.is_cancelled = False

    def cancel(self) -> None:
        """Stop the predict at the end of the operator that runs."""
        self.is_cancelled = True
        self.request.cancel()

    def close(self) -> None:
        self.request = None


@hookimpl
def engine_predict(
    context: OpenVINOContext, inputs: Values, outputs: Values | None, deadline_s: float | None
) -> Values:
    import openvino

    executable, request, is_late = context.executable, context.request, False
    for index, most in executable.limits.items():
        _check(executable.inputs[index].name, inputs[index], most)
    try:
        for index, port in executable.read:  # copied: OpenVINO may write to shared memory
            dtype = executable.inputs[index].dtype.numpy  # numpy has two int64s
            request.set_tensor(port, openvino.Tensor(np.asarray(inputs[index]).view(dtype)))
        request.start_async()
        if deadline_s is not None and not context.is_cancelled:
            is_late = not request.wait_for(int(1000 * max(0.0, deadline_s - time.monotonic())))
        if is_late or context.is_cancelled:  # OpenVINO forgets a cancel before the start
            request.cancel()
        request.wait()
    except BaseException as error:
        with suppress(RuntimeError):  # after a signal handler's exception it may still run
            request.cancel()
            request.wait()
        if not isinstance(error, RuntimeError):
            raise
        if context.is_cancelled:
            raise errors.Cancelled("a predict was cancelled") from error
        if is_late:
            raise errors.DeadlineExceeded("a predict was stopped at its deadline") from error
        raise refused(executable.source, error) from error
    if context.is_cancelled:  # too late to stop it
        raise errors.Cancelled("a predict was cancelled")
    buffers = outputs or [None] * len(executable.outputs)
    tensors = map(request.get_tensor, executable.written)
    values = [_result(*each) for each in zip(tensors, executable.outputs, buffers)]
    return values if outputs is None or any(each is None for each in outputs) else outputs


def _check(name: str, value: Any, most: int) -> None:
    if bits(value) > most:
        expected = f"expected numbers of at most {most} bits, as OpenVINO computes int64"
        got = f"got {value.min()} to {value.max()}; use target 'cpu'"
        raise errors.InputError(f"input {name!r}: {expected}, {got}", name)


def _result(tensor: Any, spec: TensorSpec, buffer: Any) -> Any:
    """Copy a result: the request's next run writes its memory again."""
    if buffer is None:
        return np.array(tensor.data)
    if buffer.shape != tensor.data.shape:
        shapes = f"expected a buffer of shape {tensor.data.shape}, got {buffer.shape}"
        raise errors.InputError(f"output {spec.name!r}: {shapes}", spec.name)
    np.copyto(buffer, tensor.data)
    return buffer
