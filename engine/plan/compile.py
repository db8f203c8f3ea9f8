"""Compile a model with one backend, and attribute what goes wrong to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from engine.backends import Backend
from engine.errors import (
    BackendError,
    BackendUnavailable,
    CompiledFormError,
    EngineError,
    one_line,
)
from engine.formats.opened import check_unchanged
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
    Predict,
)

if TYPE_CHECKING:
    from engine.plan.weights import PlanWeights

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """A model ready to run.

    backend: that of the target.
    predict: the backend's own function, or that of `segments`: (context, inputs, outputs,
    deadline_s) -> values.
    pool: lends it contexts. device: that of the target. why: how this target came to be chosen.
    parts: the backends that run nodes of it, each with its device.
    fallback_reasons: why nodes, by index, are not where the target would have them.
    devices: those whose DeviceBuffers predict takes and gives; () for host arrays alone.
    weights: those that may be exchanged; None where there are none.
    rank, world_size: this process among those that run one sliced model.
    """

    backend: Backend
    source: ModelSource
    executable: Executable
    predict: Predict
    pool: ContextPool
    device: Device
    why: str = ""
    parts: tuple[tuple[Backend, Device], ...] = ()
    fallback_reasons: Mapping[int, str] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()
    weights: PlanWeights | None = None
    rank: int = 0
    world_size: int = 1

    def placement(self) -> list[Placement]:
        """Return where each node runs, and why."""
        with attribute_errors_to(self.backend, "placement"):
            placements = self.executable.placement()
        reasons = (
            (self.fallback_reasons.get(placement.index), placement.reason, self.why)
            for placement in placements
        )
        return [
            replace(placement, reason="; ".join(filter(None, parts)))
            for placement, parts in zip(placements, reasons, strict=True)
        ]

    def lacks(self, capability: str) -> str:
        """Return the name of a backend of this plan that lacks `capability`; "" for none."""
        lacking = (part.name for part, device in self.parts if part.lacks(capability, device))
        return next(lacking, "")

    @property
    def others(self) -> tuple[tuple[Backend, Device], ...]:
        """Return those of `parts` that are not the target's."""
        return tuple(part for part in self.parts if part != (self.backend, self.device))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend that may run a model or a part of it. is_listed: the user named it as a target."""

    backend: Backend
    options: CompileOptions
    is_listed: bool = True


def compile_plan(
    first: Candidate, source: ModelSource, further: Iterator[Candidate | BackendError]
) -> Plan:
    """Compile a model for `first`, and for others the nodes which that reports as unsupported.

    further: the candidates for such nodes, in the order in which they are to be asked, opened
        when they are taken; an error is one that cannot be had.
    """
    plan, unsupported = compile_whole(first, source)
    if plan is not None:
        return plan
    from engine.plan.mixed import compile_mixed  # rare

    return compile_mixed(first, source, unsupported, further)


def compile_whole(candidate: Candidate, source: ModelSource) -> tuple[Plan | None, dict[int, str]]:
    """Return the plan of a model that one backend runs whole; None where it cannot run all nodes.

    Returns these too, by index, each with the backend's reason. `source.compiled` and
    `options.save_to` are the caller's wish; a compiled form that is of no use is not an error.
    """
    backend, options = candidate.backend, candidate.options
    has_memory = not backend.lacks(Capability.DEVICE_BUFFERS, options.device)
    executable, unsupported = with_compiled_form(
        source, lambda source: _compile_all(backend, source, options)
    )
    if executable is None:
        return None, unsupported
    # The file's bytes are the backend's business now: a model does not hold them twice.
    source = replace(source, data=None, files={})
    plan = Plan(
        backend,
        source,
        executable,
        backend.predict,
        ContextPool(Opener(backend, executable)),
        options.device,
        parts=((backend, options.device),),
        devices=(options.device,) if has_memory else (),
    )
    return plan, {}


def with_compiled_form(source: ModelSource, use: Callable[[ModelSource], T]) -> T:
    """Return what `use` makes of a model; of the model alone if its compiled form is of no use."""
    try:
        return use(source)
    except CompiledFormError as error:
        if source.compiled is None:
            raise
        logging.getLogger("engine").warning(
            "%s: its compiled form in %s is not used, and it is compiled anew: %s",
            source.name, source.compiled, error,
        )  # fmt: skip
    return use(replace(source, compiled=None))


def _compile_all(
    backend: Backend, source: ModelSource, options: CompileOptions
) -> tuple[Executable | None, dict[int, str]]:
    loaded, unsupported = load(backend, source, options)
    with ExitStack() as on_failure:
        with ExitStack() as closing:
            closing.callback(close, loaded)
            if unsupported:
                return None, unsupported
            executable = compile_loaded(backend, loaded, options)
            on_failure.callback(close, executable)  # an interrupt while the model is closed
            check_unchanged(source)  # which some backends read only now
        on_failure.pop_all()
    return executable, {}


def load(
    backend: Backend, source: ModelSource, options: CompileOptions
) -> tuple[LoadedModel, dict[int, str]]:
    """Return the model as the backend reads it, for the caller to close, and what it cannot run."""
    if source.files and backend.lacks(Capability.FILES_IN_MEMORY, options.device):
        from engine.formats.onnx.inline import inlined  # rare

        source = inlined(source)
    with attribute_errors_to(backend, "engine_load"):
        loaded = backend.load(source, options)
        try:
            check_unchanged(source)
            return loaded, dict(loaded.unsupported)
        except BaseException:
            close(loaded)
            raise


def compile_loaded(backend: Backend, loaded: LoadedModel, options: CompileOptions) -> Executable:
    """Return the executable of a loaded model, for the caller to close."""
    with attribute_errors_to(backend, "engine_compile"):
        executable = backend.compile(loaded, options)
        try:
            _ = (*executable.inputs, *executable.outputs)
        except BaseException:
            close(executable)
            raise
    return executable


class Opener:
    """An executable that attributes what goes wrong in opening contexts to its backend."""

    def __init__(self, backend: Backend, executable: Executable) -> None:
        self._backend = backend
        self._executable = executable
        self.concurrency: int = getattr(executable, "concurrency", 0)
        self.close = executable.close

    def open_context(self, beside: ExecutionContext | None = None) -> ExecutionContext:
        """See Executable. beside: only where the backend announces SHARE_WORKSPACE."""
        with attribute_errors_to(self._backend, "open_context"):
            open_context: Callable[..., ExecutionContext] = self._executable.open_context
            context = open_context() if beside is None else open_context(beside=beside)
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
