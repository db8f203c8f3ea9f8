"""Compile a model with one backend, and attribute what goes wrong to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from engine.backends import Backend
from engine.errors import (
    BackendError,
    BackendUnavailable,
    CompiledFormError,
    EngineError,
    ModelError,
    one_line,
)
from engine.formats.opened import check_unchanged, digest_of
from engine.host.interrupts import raised_by_handler
from engine.host.lack import lack_of
from engine.plan.contexts import ContextPool, close
from engine.types import (
    Capability,
    CompileOptions,
    Device,
    Executable,
    ExecutionContext,
    KernelTime,
    LoadedModel,
    MemoryReport,
    ModelSource,
    Placement,
    Predict,
)
from engine.value import value

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from engine.plan.weights import PlanWeights

T = TypeVar("T")


PartReports: TypeAlias = list[tuple[str, Device, MemoryReport]]
"""See Plan.memory."""


KernelTimes: TypeAlias = list[tuple[str, Device, KernelTime]]
"""See Plan.profile."""


@runtime_checkable
class InParts(Protocol):
    """An executable of plan/, which knows what its parts take."""

    def memory_by_part(self) -> PartReports:
        """See Plan.memory."""

    def profile_by_part(self) -> KernelTimes:
        """See Plan.profile."""


@value(eq=False)
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
    rank, world_size: this process among those that run one sliced model. refuse: tells the others
    why a predict does not begin here; None where there are none.
    entries: the names of the models in the file, where it is a compiled form of several.
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
    refuse: Callable[[str], None] | None = None
    entries: tuple[str, ...] = ()

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

    def memory(self) -> PartReports:
        """Return what each part takes: its backend, "" for what the core holds itself, and where.

        In running order, parts of one backend on one device as one.
        """
        if isinstance(self.executable, InParts):
            return self.executable.memory_by_part()
        with attribute_errors_to(self.backend, "memory"):
            return [(self.backend.name, self.device, self.executable.memory())]

    def profile(self) -> KernelTimes:
        """Return the times of all predicts of a plan that was built to be measured.

        With the backend and the device that ran each kernel; only of backends that can tell.
        """
        if isinstance(self.executable, InParts):
            return self.executable.profile_by_part()
        return part_profile(self.backend, self.executable, self.device)

    def lacks(self, capability: str) -> tuple[str, str]:
        """Return a backend of this plan that lacks `capability`, and why; "" for none."""
        for part, device in self.parts:
            if reason := part.lacks(capability, device):
                return part.name, reason if part.can(capability) else ""
        return "", ""

    @property
    def others(self) -> tuple[tuple[Backend, Device], ...]:
        """Return those of `parts` that are not the target's."""
        return tuple(part for part in self.parts if part != (self.backend, self.device))


def part_profile(backend: Backend, executable: Any, device: Device) -> KernelTimes:
    """Return the times of one executable's kernels; none of a backend that cannot tell."""
    if backend.lacks(Capability.PROFILE, device):
        return []
    with attribute_errors_to(backend, "profile"):
        return [(backend.name, device, time) for time in executable.profile()]


class CompiledForms(Protocol):
    """A place in which the compiled forms of models are kept."""

    def use(
        self,
        backend: Backend,
        source: ModelSource,
        options: CompileOptions,
        build: Callable[[ModelSource, CompileOptions], T],
    ) -> T:
        """Return what `build` makes, with `source.compiled` or `options.save_to` where these help.

        A form that turns out to be of no use (CompiledFormError) is replaced.
        """

    def identified(self, source: ModelSource) -> ModelSource:
        """Return the model with its digest, where something of it may be kept."""

    def has(self, source: ModelSource, key: Mapping[str, str]) -> bool:
        """Return whether something was given to `keep` for this model and key; cheap."""

    def find(
        self, source: ModelSource, key: Mapping[str, str], read: Callable[[Path], T]
    ) -> T | None:
        """Return what `read` makes of a folder that `keep` was given for this model and key.

        None where there is none, or where `read` raises ValueError: it is of no use any more.
        """

    def keep(
        self, source: ModelSource, key: Mapping[str, str], write: Callable[[Path], None]
    ) -> None:
        """Keep what `write` writes into a folder, in place of what was kept before, or nothing."""


class KeepsNoPartition:
    """The part of CompiledForms that is about partitions, where none is kept."""

    def has(self, source: ModelSource, key: Mapping[str, str]) -> bool:
        """See CompiledForms."""
        return False

    def find(
        self, source: ModelSource, key: Mapping[str, str], read: Callable[[Path], T]
    ) -> T | None:
        """See CompiledForms."""
        return None

    def keep(
        self, source: ModelSource, key: Mapping[str, str], write: Callable[[Path], None]
    ) -> None:
        """See CompiledForms."""


class _Nowhere(KeepsNoPartition):
    """A place in which nothing is kept."""

    def use(
        self,
        backend: Backend,
        source: ModelSource,
        options: CompileOptions,
        build: Callable[[ModelSource, CompileOptions], T],
    ) -> T:
        return with_compiled_form(source, lambda source: build(source, options))

    def identified(self, source: ModelSource) -> ModelSource:
        return source


NOWHERE: CompiledForms = _Nowhere()


class Candidate(NamedTuple):
    """A backend that may run a model or a part of it.

    is_listed: the user named it as a target. forms: where its compiled forms are kept.
    """

    backend: Backend
    options: CompileOptions
    is_listed: bool = True
    forms: CompiledForms | None = None

    def key(self) -> dict[str, str]:
        """Return, as text by name, all that its answers about nodes depend on beside the model."""
        backend, options = self.backend, self.options
        key = {
            "backend": backend.name,
            "version": backend.info.version,
            "capabilities": " ".join(sorted(backend.info.capabilities)),
            "device": str(options.device),
            "provider": options.provider,
            "precision": options.precision,
            "options": repr(sorted(options.options.items())),
            "shapes": repr(sorted(options.shapes.items())),
            "profiles": repr([sorted(profile.items()) for profile in options.profiles]),
            "listed": str(self.is_listed),
        }
        if backend.has("engine_compiled_key"):
            with attribute_errors_to(backend, "engine_compiled_key"):
                own: Mapping[str, str] = backend.bind("engine_compiled_key")(options)
            key |= {f"{backend.name}: {name}": text for name, text in own.items()}
        return key


def compile_plan(
    first: Candidate, source: ModelSource, further: Iterator[Candidate | BackendError]
) -> Plan:
    """Compile a model for `first`, and for others the nodes which that reports as unsupported.

    further: the candidates for such nodes, in the order in which they are to be asked, opened
        when they are taken; an error is one that cannot be had.
    """
    if first.forms is not None and not first.backend.lacks(
        Capability.MIXED_PLACEMENT, first.options.device
    ):
        source = first.forms.identified(source)
        if digest_of(source) and first.forms.has(source, first.key()):
            from engine.plan.fallback import compile_cached_partition  # rare

            plan, further = compile_cached_partition(first, source, further)
            if plan is not None:
                return plan
    plan, unsupported = compile_whole(first, source)
    if plan is not None:
        return plan
    from engine.plan.fallback import compile_with_fallback  # rare

    return compile_with_fallback(first, source, unsupported, further)


def compile_whole(candidate: Candidate, source: ModelSource) -> tuple[Plan | None, dict[int, str]]:
    """Return the plan of a model that one backend runs whole; None where it cannot run all nodes.

    Returns these too, by index, each with the backend's reason. `source.compiled` and
    `options.save_to` are the caller's wish; a compiled form that is of no use is not an error.
    """
    backend, options = candidate.backend, candidate.options
    has_memory = not backend.lacks(Capability.DEVICE_BUFFERS, options.device)
    entries: list[str] = []
    if source.graph is None:
        compiled = compile_all(
            backend,
            source,
            options,
            lambda loaded: entries.extend(getattr(loaded, "entries", ())),
        )
        if options.shapes and compiled[0] is not None:
            from engine.plan.compiled_sizes import warn_of_other_sizes  # rare

            warn_of_other_sizes(source.name, compiled[0].inputs, options.shapes)
    elif candidate.forms is not None:
        compiled = candidate.forms.use(backend, source, options, partial(compile_all, backend))
    else:
        compiled = with_compiled_form(source, lambda source: compile_all(backend, source, options))
    executable, unsupported = compiled
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
        entries=tuple(entries),
    )
    return plan, {}


def with_compiled_form(source: ModelSource, use: Callable[[ModelSource], T]) -> T:
    """Return what `use` makes of a model; of the model alone if its compiled form is of no use."""
    try:
        return use(source)
    except CompiledFormError as error:
        if source.compiled is None or raised_by_handler(error):
            raise
        import logging  # rare

        logging.getLogger("engine").warning(
            "%s: its compiled form in %s is not used, and it is compiled anew: %s",
            source.name, source.compiled, error,
        )  # fmt: skip
    return use(replace(source, compiled=None))


def compile_all(
    backend: Backend,
    source: ModelSource,
    options: CompileOptions,
    look: Callable[[LoadedModel], object] | None = None,
) -> tuple[Executable | None, dict[int, str]]:
    """Load and compile a model; without an executable, the nodes that the backend cannot run.

    look: is called with the loaded model.
    """
    loaded, unsupported = load(backend, source, options)
    with ExitStack() as on_failure:
        with ExitStack() as closing:
            closing.callback(close, loaded)
            if look is not None:
                look(loaded)
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


class attribute_errors_to:
    """Report what no hook may raise in the block as the backend's fault, in one line.

    Not what a signal handler raised, in whatever the backend has made of it.
    """

    __slots__ = ("_backend", "_hook")

    def __init__(self, backend: Backend, hook: str) -> None:
        self._backend = backend
        self._hook = hook

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            return
        interrupt = raised_by_handler(error)
        if interrupt is error:
            return
        if interrupt is not None:
            raise interrupt
        # ValueError: what an option's value may raise. Others: also SystemExit, or a panic of a
        # compiled extension.
        if isinstance(error, EngineError | ValueError | MemoryError | KeyboardInterrupt):
            return
        backend = self._backend
        if lack := lack_of(error):  # of the machine: nobody is at fault
            raise ModelError(
                f"{self._hook} of backend {backend.name!r}: {error}; {lack}"
            ) from error
        raise BackendUnavailable(
            f"backend {backend.name!r} is at fault: its {self._hook} raised {one_line(error)}; "
            f"report it to the authors of {backend.name!r} {backend.info.version}",
            backend.name,
        ) from error
