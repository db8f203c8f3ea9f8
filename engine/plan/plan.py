"""The words of this folder: a plan, the candidates for it, and where compiled forms are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar

from engine.backends import Backend
from engine.backends.attribution import attribute_errors_to
from engine.backends.predict_options import by_context
from engine.plan.contexts import ContextPool
from engine.plan.reports import (
    InParts,
    KernelTimes,
    PartReports,
    held_by_core,
    part_memory,
    part_profile,
)
from engine.types import (
    Capability,
    CompileOptions,
    Device,
    Done,
    Executable,
    ExecutionContext,
    LoadedModel,
    ModelSource,
    Placement,
    Predict,
    Value,
    Values,
)

if TYPE_CHECKING:
    from pathlib import Path

    from engine.plan.weights import PlanWeights

T = TypeVar("T")

Begin: TypeAlias = Callable[[ExecutionContext, Values, "Values | None", "float | None", Done], bool]
"""engine_predict_async, as a function."""


class InPlaceWeights(Protocol):
    """Variable weights that a backend holds: see `engine.plan.in_place`.

    given: the last update of each weight, in host memory; nothing of one that was not updated.
    is_added: these are added to the weights as loaded.
    """

    given: Mapping[str, Value]
    is_added: bool

    def update(self, weights: Mapping[str, Value], is_added: bool) -> None:
        """Exchange weights; see `prepared` and `exchange`."""

    def prepared(self, weights: Mapping[str, Value]) -> Mapping[str, Value]:
        """Return a copy of checked values, for `exchange`. Raises ModelStateError once closed."""

    def exchange(self, prepared: Mapping[str, Value], is_added: bool) -> None:
        """Have every predict that begins from now on use what was prepared.

        Raises what engine_update_weights raises, and then nothing has changed, or the backend
        refuses each later predict; ModelStateError once the model is closed.
        """


@dataclass(frozen=True, slots=True, eq=False)
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
    weights: PlanWeights | InPlaceWeights | None = None
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
        reports = part_memory(self.backend, self.executable, self.device)
        given = getattr(self.weights, "given", {})  # by updates, of weights that the backend holds
        return [*reports, *held_by_core(given.values())]

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
    def begin(self) -> Begin | None:
        """The backend's engine_predict_async, where the plan is one executable that has it."""
        backend = self.backend
        if self.predict is not backend.predict or self.lacks(Capability.ASYNC_PREDICT)[0]:
            return None
        begin: Begin = backend.begin_with or backend.bind("engine_predict_async")
        return begin

    @property
    def predict_with(self) -> Callable[..., Values] | None:
        """`predict` with PredictOptions too, where the plan is one backend's that takes them."""
        return self.backend.predict_with if self.predict is self.backend.predict else None

    @property
    def wrappable(self) -> Predict:
        """`predict` for what stands around it, with the options that are noted for its context."""
        run = self.predict_with
        return self.predict if run is None else by_context(run)

    @property
    def run_on(self) -> tuple[Device, ...]:
        """The devices that run nodes of it; the target's first, if it does."""
        devices = dict.fromkeys(device for _, device in self.parts)
        return tuple(sorted(devices, key=lambda device: device != self.device))

    @property
    def takes_strides(self) -> bool:
        """True where predict takes DeviceBuffers with strides."""
        is_whole = self.predict is self.backend.predict
        return is_whole and not self.lacks(Capability.STRIDED_BUFFERS)[0]

    @property
    def wants_options(self) -> bool:
        """True where a backend wants PredictOptions in every predict."""
        return any(part.can(Capability.PREDICT_OPTIONS) for part, _ in self.parts)

    @property
    def takes_options(self) -> bool:
        """True where a backend takes PredictOptions."""
        return any(part.predict_with or part.begin_with for part, _ in self.parts)

    @property
    def others(self) -> tuple[tuple[Backend, Device], ...]:
        """Return those of `parts` that are not the target's."""
        return tuple(part for part in self.parts if part != (self.backend, self.device))


Compiled: TypeAlias = tuple[Executable | None, dict[int, str]]
"""A compiled model; or None and the nodes that its backend cannot run, by index."""


class CompiledForms(Protocol):
    """A place in which the compiled forms of models are kept, and partitions where it says so."""

    def compiled(
        self,
        backend: Backend,
        source: ModelSource,
        options: CompileOptions,
        loaded: LoadedModel | None = None,
    ) -> Compiled:
        """Compile a model, or open the form that is kept of it.

        A form that turns out to be of no use (CompiledFormError) is replaced. loaded: the model as
        the backend has read it already, for a model of which nothing is kept; the caller closes it.
        """

    def identified(self, source: ModelSource) -> ModelSource:
        """Return the model with its digest, where something of it may be kept."""

    def has(self, source: ModelSource, key: Mapping[str, str]) -> bool:
        """Return whether something was given to `keep` for this model and key; cheap."""
        return False

    def find(
        self, source: ModelSource, key: Mapping[str, str], read: Callable[[Path], T]
    ) -> T | None:
        """Return what `read` makes of a folder that `keep` was given for this model and key.

        None where there is none, or where `read` raises ValueError: it is of no use any more.
        """
        return None

    def keep(
        self, source: ModelSource, key: Mapping[str, str], write: Callable[[Path], None]
    ) -> None:
        """Keep what `write` writes into a folder, in place of what was kept before, or nothing."""
        return


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
            "device": ", ".join(map(str, options.devices or (options.device,))),
            "provider": options.provider,
            "precision": options.precision,
            "arithmetic": str(options.arithmetic),
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
