"""A model that OpenVINO has compiled, its inference requests, and its compiled form."""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from engine import errors
from engine.hookspecs import hookimpl
from engine.host import deadlines
from engine.types import CompileOptions, Done, MemoryReport, Placement, Values
from engine_openvino.loading import Loaded, refused
from engine_openvino.manifest import DEVICE, core, settings
from engine_openvino.nodes import bits, limits

LOOK_S = 0.02
FORM = "compiled.blob"  # its first 32 bytes are the SHA-256 of the rest


@hookimpl
def engine_compile(loaded: Loaded, options: CompileOptions) -> Compiled:
    """Compile a model, or import its compiled form."""
    source = loaded.source
    if options.device != DEVICE:
        raise errors.BackendUnavailable(f"no device {options.device}; found: {DEVICE}", "openvino")
    for index, why in loaded.unsupported.items():
        raise refused(source, f"node {index} cannot run on backend 'openvino': {why}")
    if source.compiled is not None:
        return Compiled(loaded, _imported(source.compiled / FORM, options))
    try:
        compiled = core().compile_model(loaded.model, "CPU", settings(options))
    except RuntimeError as error:
        raise refused(source, errors.one_line(error)) from error
    if options.save_to is not None and not source.is_secret:
        form = compiled.export_model().getvalue()
        (options.save_to / FORM).write_bytes(hashlib.sha256(form).digest() + form)
    return Compiled(loaded, compiled)


def _imported(file: Path, options: CompileOptions) -> Any:
    try:
        content = file.read_bytes()
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            raise OSError("it is not what was written")
        return core().import_model(content[32:], "CPU", settings(options))
    except (OSError, RuntimeError) as error:
        raise errors.CompiledFormError(f"{file}: {errors.one_line(error)}") from error


class Compiled:
    """An Executable: a compiled model. ports: of OpenVINO's inputs, with the model's positions."""

    def __init__(self, loaded: Loaded, model: Any) -> None:
        self.source, self.graph, self.model = loaded.source, loaded.graph, model
        self.inputs, self.outputs, self.written = loaded.inputs, loaded.outputs, model.outputs
        self.concurrency = int(model.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        self.limits = limits(loaded.graph)
        names = [spec.name for spec in self.inputs]
        found = [port.node.friendly_name for port in model.inputs]
        if len(found) == len(names):  # one that a node passes on unchanged has another name
            found = names
        if not {*found} <= {*names} or len(self.written) != len(self.outputs):
            raise refused(self.source, f"OpenVINO's model has other inputs or outputs: {found}")
        self.ports = list(zip(map(names.index, found), model.inputs))  # without those never read

    def open_context(self) -> Request:
        return Request(self)

    def placement(self) -> list[Placement]:
        return [
            Placement(
                index=node.index, node=node.name, op_type=node.op_type, backend="openvino",
                device=str(DEVICE), provider="cpu", reason="OpenVINO computes it exactly",
            )
            for node in self.graph.nodes
        ]  # fmt: skip

    def memory(self) -> MemoryReport:
        return MemoryReport(weights_bytes=sum(each.nbytes for each in self.graph.parameters))

    def close(self) -> None:
        self.model = None


class Request:
    """An ExecutionContext: one inference request."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled, self.is_cancelled = compiled, False
        self.request = compiled.model.create_infer_request()

    def cancel(self) -> None:
        """Stop the predict at the end of the operator that runs."""
        self.is_cancelled = True
        self.request.cancel()

    def start(self, inputs: Values) -> None:
        for spec, value in zip(self.compiled.inputs, inputs):
            most, got = self.compiled.limits.get(spec.name, 64), bits(value)
            if got > most:
                why = f"expected numbers of at most {most} bits, got {got}; use target 'cpu'"
                raise errors.InputError(f"input {spec.name!r}: {why}", spec.name)
        for index, port in self.compiled.ports:  # copied: OpenVINO may write to shared memory
            tensor, value = self.request.get_tensor(port), np.asarray(inputs[index])
            tensor.shape = value.shape
            np.copyto(tensor.data, value)
        self.request.start_async()
        if self.is_cancelled:  # OpenVINO forgets a cancel before the start
            self.request.cancel()

    def failure(self, error: BaseException, deadline_s: float | None) -> BaseException:
        """Return what to raise for what OpenVINO raised; another exception itself."""
        if isinstance(error, errors.EngineError) or not isinstance(error, RuntimeError):
            return error
        if self.is_cancelled:
            return errors.Cancelled("a predict was cancelled")
        if deadline_s is not None and time.monotonic() >= deadline_s:
            return errors.DeadlineExceeded("a predict was stopped at its deadline")
        return refused(self.compiled.source, errors.one_line(error))

    def results(self, outputs: Values | None) -> Values:
        """Return copies: the next run writes OpenVINO's own memory again."""
        if self.is_cancelled:  # too late to stop it
            raise errors.Cancelled("a predict was cancelled")
        specs, ports, values = self.compiled.outputs, self.compiled.written, []
        buffers: Any = outputs or [None] * len(specs)
        for spec, port, buffer in zip(specs, ports, buffers):
            data = self.request.get_tensor(port).data
            if buffer is not None and buffer.shape != data.shape:
                shapes = f"expected a buffer of shape {data.shape}, got {buffer.shape}"
                raise errors.InputError(f"output {spec.name!r}: {shapes}", spec.name)
            values.append(np.empty_like(data) if buffer is None else buffer)
            np.copyto(values[-1], data)
        return values if outputs is None or any(each is None for each in outputs) else outputs

    def close(self) -> None:
        self.request = None


@hookimpl
def engine_predict(
    context: Request, inputs: Values, outputs: Values | None, deadline_s: float | None
) -> Values:
    request = context.request
    try:
        context.start(inputs)
        if deadline_s is not None:
            left_s = max(0.0, deadline_s - time.monotonic())
            if not request.wait_for(1 + int(1000 * left_s)):  # not a moment before it
                request.cancel()
        request.wait()
    except BaseException as error:
        with suppress(RuntimeError):  # after a signal handler's exception it may still run
            request.cancel()
            request.wait()
        raise context.failure(error, deadline_s)  # noqa: B904 - it may be the error itself
    return context.results(outputs)


@hookimpl
def engine_predict_async(
    context: Request, inputs: Values, outputs: Values | None, deadline_s: float | None, done: Done
) -> bool:
    begun = Begun(context, outputs, deadline_s, done)
    context.request.set_callback(Begun.end, begun)
    try:
        context.start(inputs)
    except BaseException as error:
        begun.done = True  # the end of the request's next run is not its own
        raise context.failure(error, None)  # noqa: B904 - as above
    begun.expire()
    return True


class Begun:
    """A predict that OpenVINO ends by a call, unless it failed or was stopped: that is looked for.

    done, deadline_s, expire: see engine.host.deadlines, which knows the moment of the next look.
    """

    def __init__(self, context: Request, outputs: Values | None, limit_s: float | None, tell: Done):
        self.context, self.outputs, self.limit_s, self.tell = context, outputs, limit_s, tell
        self.deadline_s, self.done = 0.0, False

    def expire(self) -> None:
        request, now = self.context.request, time.monotonic()
        try:
            if self.limit_s is not None and now >= self.limit_s:
                request.cancel()
            if not request.wait_for(0):
                self.deadline_s = now + LOOK_S
                deadlines.watch(self)
        except RuntimeError as error:
            self.end(self.context.failure(error, self.limit_s))

    def end(self, error: BaseException | None = None) -> None:
        """Tell the end, once: OpenVINO also calls at the end of later runs that are waited for."""
        if self.done:
            return
        self.done, values = True, None
        try:
            values = self.context.results(self.outputs) if error is None else None
        except Exception as failure:
            error = failure
        tell = self.tell
        del self.tell, self.outputs  # the request keeps this object until another is begun
        tell(values, error)
