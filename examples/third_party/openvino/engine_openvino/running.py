"""A model that OpenVINO has compiled, its inference requests, and its compiled form."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from engine import errors
from engine.hookspecs import hookimpl
from engine.host import deadlines
from engine.types import CompileOptions, Done, MemoryReport, Placement, TensorSpec, Values
from engine_openvino.loading import OpenVINOModel, refused
from engine_openvino.manifest import DEVICE, core, settings
from engine_openvino.nodes import bits, limits

LOOK_S = 0.02
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
    """An ExecutionContext: one inference request. begun: the predict that nobody waits for."""

    def __init__(self, executable: OpenVINOExecutable) -> None:
        self.executable = executable
        self.request = executable.compiled.create_infer_request()
        self.is_cancelled = False
        self.begun: BegunPredict | None = None

    def cancel(self) -> None:
        """Stop the predict at the end of the operator that runs."""
        self.is_cancelled = True
        self.request.cancel()

    def start(self, inputs: Values) -> None:
        import openvino

        executable, request = self.executable, self.request
        for index, most in executable.limits.items():
            _check(executable.inputs[index].name, inputs[index], most)
        try:
            for index, port in executable.read:  # copied: OpenVINO may write to shared memory
                dtype = executable.inputs[index].dtype.numpy  # numpy has two int64s
                request.set_tensor(port, openvino.Tensor(np.asarray(inputs[index]).view(dtype)))
            request.start_async()
            if self.is_cancelled:  # OpenVINO forgets a cancel before the start
                request.cancel()
        except RuntimeError as error:
            raise self.failure(error) from error

    def failure(self, error: BaseException, is_late: bool = False) -> Exception:
        """Return what to raise for what OpenVINO raised."""
        if self.is_cancelled:
            return errors.Cancelled("a predict was cancelled")
        if is_late:
            return errors.DeadlineExceeded("a predict was stopped at its deadline")
        return refused(self.executable.source, error)

    def results(self, outputs: Values | None) -> Values:
        if self.is_cancelled:  # too late to stop it
            raise errors.Cancelled("a predict was cancelled")
        written, specs = self.executable.written, self.executable.outputs
        buffers = outputs or [None] * len(specs)
        tensors = map(self.request.get_tensor, written)
        values = [_result(*each) for each in zip(tensors, specs, buffers)]
        return values if outputs is None or any(each is None for each in outputs) else outputs

    def close(self) -> None:
        self.request = None


@hookimpl
def engine_predict(
    context: OpenVINOContext, inputs: Values, outputs: Values | None, deadline_s: float | None
) -> Values:
    request, is_late = context.request, False
    try:
        context.start(inputs)
        if deadline_s is not None and not context.is_cancelled:
            is_late = not request.wait_for(int(1000 * max(0.0, deadline_s - time.monotonic())))
        if is_late:
            request.cancel()
        request.wait()
    except BaseException as error:
        with suppress(RuntimeError):  # after a signal handler's exception it may still run
            request.cancel()
            request.wait()
        if isinstance(error, errors.EngineError) or not isinstance(error, RuntimeError):
            raise
        raise context.failure(error, is_late) from error
    return context.results(outputs)


@hookimpl
def engine_predict_async(
    context: OpenVINOContext,
    inputs: Values,
    outputs: Values | None,
    deadline_s: float | None,
    done: Done,
) -> bool:
    context.begun = begun = BegunPredict(context, outputs, deadline_s, done)
    context.request.set_callback(_ended, context)
    try:
        context.start(inputs)
    except BaseException:
        context.begun = None
        raise
    begun.expire()
    return True


def _ended(context: OpenVINOContext) -> None:
    """End what was begun: OpenVINO calls this at the end of each run, also one waited for."""
    begun, context.begun = context.begun, None
    if begun is not None:
        begun.end()


class BegunPredict:
    """A predict that OpenVINO ends by a call, unless it failed or was stopped: that is looked for.

    done, deadline_s, expire: see engine.host.deadlines, which knows the moment of the next look.
    """

    def __init__(
        self, context: OpenVINOContext, outputs: Values | None, limit_s: float | None, tell: Done
    ) -> None:
        self.context, self.outputs, self.tell = context, outputs, tell
        self.limit_s = math.inf if limit_s is None else limit_s
        self.deadline_s, self.done, self.is_late = 0.0, False, False

    def expire(self) -> None:
        request = self.context.request
        if not self.is_late and time.monotonic() >= self.limit_s:
            self.is_late = True
            request.cancel()
        try:
            if not request.wait_for(0):
                self.deadline_s = time.monotonic() + LOOK_S
                deadlines.watch(self)
        except RuntimeError as error:
            self.end(self.context.failure(error, self.is_late))

    def end(self, error: BaseException | None = None) -> None:
        values, is_first, self.done = None, not self.done, True
        try:
            values = self.context.results(self.outputs) if is_first and error is None else None
        except Exception as failure:
            error = failure
        if is_first:  # else the request runs its next predict already
            self.tell(values, error)


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
