"""What a backend makes of a model, and whose fault it is where that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from engine.backends import Backend
from engine.errors import BackendError, BackendUnavailable, EngineError, one_line
from engine.plan.contexts import ContextPool, close
from engine.types import (
    Capability,
    CompileOptions,
    Device,
    Executable,
    ExecutionContext,
    LoadedModel,
    ModelSource,
    Placement,
    Values,
)

Predict = Callable[..., Values]


@dataclass(frozen=True, slots=True)
class Plan:
    """A model ready to run.

    backend: that of the target; others: those that run what it cannot. predict: the backend's own
    function, or that of `segments`: (context, inputs, outputs, deadline_s) -> values.
    pool: lends it contexts. why: how this target came to be chosen.
    fallback_reasons: why nodes, by index, are not where the target would have them.
    devices: those whose DeviceBuffers predict takes and gives; () for host arrays alone.
    """

    backend: Backend
    source: ModelSource
    executable: Executable
    predict: Predict
    pool: ContextPool
    why: str = ""
    others: tuple[Backend, ...] = ()
    fallback_reasons: Mapping[int, str] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()

    def placement(self) -> list[Placement]:
        """Where each node runs, and why."""
        with attribute_errors_to(self.backend, "placement"):
            placed = self.executable.placement()
        reasons = (
            (self.fallback_reasons.get(each.index), each.reason, self.why) for each in placed
        )
        return [
            replace(each, reason="; ".join(filter(None, parts)))
            for each, parts in zip(placed, reasons, strict=True)
        ]

    def lacks(self, capability: str) -> str:
        """The name of a backend in this plan that does not announce `capability`; "" for none."""
        backends = (self.backend, *self.others)
        return next((each.name for each in backends if not each.can(capability)), "")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend that may run a model or a part of it. is_listed: the user named it as a target."""

    backend: Backend
    options: CompileOptions
    is_listed: bool = True


def compile_plan(
    first: Candidate, source: ModelSource, further: Iterator[Candidate | BackendError]
) -> Plan:
    """Compile a model for `first`, and what that reports as unsupported for others.

    further: the candidates for such nodes, in the order in which they are to be asked, opened
        when they are taken; an error is one that cannot be had.
    """
    plan, unsupported = compile_whole(first, source)
    if plan is not None:
        return plan
    from engine.plan.mixed import compile_mixed  # rare

    return compile_mixed(first, source, unsupported, further)


def compile_whole(candidate: Candidate, source: ModelSource) -> tuple[Plan | None, dict[int, str]]:
    """The plan of a model that one backend runs whole; None where there are nodes it cannot run.

    Returns these too, by index, each with the backend's reason.
    """
    backend = candidate.backend
    loaded, unsupported = load(backend, source, candidate.options)
    with ExitStack() as on_failure:
        with ExitStack() as closing:
            closing.callback(close, loaded)
            if unsupported:
                return None, unsupported
            executable = compile_loaded(backend, loaded, candidate.options)
            on_failure.callback(close, executable)  # an interrupt while the model is closed
        on_failure.pop_all()
    # The file's bytes are the backend's business now: a model does not hold them twice.
    source = replace(source, data=None, files={})
    pool = ContextPool(Opener(backend, executable))
    can_take = backend.can(Capability.DEVICE_BUFFERS)
    devices = (candidate.options.device,) if can_take else ()
    return Plan(backend, source, executable, backend.predict, pool, devices=devices), {}


def load(
    backend: Backend, source: ModelSource, options: CompileOptions
) -> tuple[LoadedModel, dict[int, str]]:
    """The model as the backend reads it, for the caller to close, and what it cannot run."""
    if source.files and not backend.can(Capability.FILES_IN_MEMORY):
        from engine.formats.onnx.inline import inlined  # rare

        source = inlined(source)
    with attribute_errors_to(backend, "engine_load"):
        loaded = backend.load(source, options)
        try:
            return loaded, dict(loaded.unsupported)
        except BaseException:
            close(loaded)
            raise


def compile_loaded(backend: Backend, loaded: LoadedModel, options: CompileOptions) -> Executable:
    """The executable of a loaded model, for the caller to close."""
    with attribute_errors_to(backend, "engine_compile"):
        executable = backend.compile(loaded, options)
        try:
            _ = (*executable.inputs, *executable.outputs)
        except BaseException:
            close(executable)
            raise
    return executable


class Opener:
    """An executable whose contexts are opened with the blame where it belongs."""

    def __init__(self, backend: Backend, executable: Executable) -> None:
        self._backend = backend
        self._executable = executable
        self.close = executable.close
        self.concurrency: int = getattr(executable, "concurrency", 0)

    def open_context(self) -> ExecutionContext:
        """See Executable."""
        with attribute_errors_to(self._backend, "open_context"):
            context = self._executable.open_context()
            if not hasattr(context, "close"):
                raise TypeError(f"it returned {context!r}, which is no execution context")
            return context


@contextmanager
def attribute_errors_to(backend: Backend, hook: str) -> Iterator[None]:
    """Report what no hook may raise as the backend's fault, in one line."""
    try:
        yield
    except (EngineError, ValueError, MemoryError, KeyboardInterrupt):
        raise  # ValueError: what an option's value may raise
    except BaseException as error:  # SystemExit, or a panic of a compiled extension
        raise BackendUnavailable(
            f"backend {backend.name!r} is at fault: its {hook} raised {one_line(error)}; "
            f"report it to the authors of {backend.name!r} {backend.info.version}",
            backend.name,
        ) from error
