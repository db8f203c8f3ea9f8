"""Backends with one fault each: the proof that the conformance kit catches it.

Each is the null backend behind `Faulty`, with one method changed. `@caught_by` says which tests
of the kit must fail, and what the failure says, so that none fails for another reason. The entry
point of a faulty backend is "faulty:<name>".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from engine.hookspecs import hookimpl
from engine.types import (
    BackendInfo,
    Capability,
    Check,
    CompileOptions,
    Devices,
    Done,
    DType,
    KernelTime,
    MemoryReport,
    ModelSource,
    Placement,
    PredictOptions,
    Values,
)
from engine_testing import null_device as null
from faulty import lending

CONTROL = "test_predict_matches_the_closed_form"
QUIET = "test_the_manifest_does_not_change"


@dataclass(frozen=True, slots=True)
class Fault:
    """A faulty backend's name, and the way in which the kit is to catch it.

    tests: every one of these must fail (for a parametrised one: with any parameter).
    says: a piece of each failure's text. control: a test that must pass all the same.
    target: its entry point. source: the text of its module, if that is written for it.
    """

    name: str
    tests: tuple[str, ...]
    says: str
    control: str = CONTROL
    target: str = ""
    source: str | None = None


FAULTS: dict[str, Fault] = {}
_plugins: dict[str, Faulty] = {}
_Class = TypeVar("_Class", bound="type[Faulty]")


def caught_by(*tests: str, says: str, control: str = CONTROL) -> Callable[[_Class], _Class]:
    """Register a class of faulty backend under its name in snake case."""

    def register(cls: _Class) -> _Class:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        assert name not in FAULTS, f"two faults are called {name!r}"
        FAULTS[name] = Fault(name, tests, says, control, f"faulty:{name}")
        _plugins[name] = cls(name)
        return cls

    return register


def __getattr__(name: str) -> Any:
    if name in _plugins:
        return _plugins[name]
    raise AttributeError(name)


@dataclass(eq=False)
class Context:
    """A context of the null backend, and whatever the fault wants to remember in it."""

    executable: Executable
    inner: Any
    notes: dict[str, Any] = field(default_factory=dict)

    def close(self) -> None:
        self.executable.backend.close_context(self)

    def cancel(self) -> None:
        self.executable.backend.cancel(self)

    def reset(self) -> None:
        self.executable.backend.reset(self)


@dataclass(eq=False)
class Executable:
    """An executable of the null backend, whose methods are the faulty backend's to change."""

    backend: Faulty
    inner: Any
    notes: dict[str, Any] = field(default_factory=dict)
    options: CompileOptions | None = None

    @property
    def inputs(self) -> Any:
        return self.backend.describe(self.inner.inputs)

    @property
    def outputs(self) -> Any:
        return self.backend.describe(self.inner.outputs)

    @property
    def concurrency(self) -> Any:
        return self.backend.concurrency(self)

    def open_context(self, beside: Context | None = None) -> Context:
        if beside is not None:
            return self.backend.open_beside(self, beside)
        return self.backend.open_context(self)

    def placement(self) -> Sequence[Placement]:
        return self.backend.place(self.inner.placement())

    def memory(self) -> MemoryReport:
        memory = self.inner.memory()
        if self.options is not None:
            memory = lending.report(memory, self.options)
        return self.backend.report(memory)

    def profile(self) -> Sequence[KernelTime]:
        return self.backend.profile(self)

    def prepare(self, shapes: Any, progress: Any, cancel: Any) -> None:
        self.backend.prepare(self, shapes, progress, cancel)

    def close(self) -> None:
        self.backend.close_executable(self)


class Faulty:
    """The null backend under another name, as methods that a subclass puts its fault into."""

    def __init__(self, name: str) -> None:
        self.name = name

    # Hooks that the core calls.

    @hookimpl
    def engine_backend(self) -> BackendInfo:
        return self.manifest()

    @hookimpl
    def engine_devices(self) -> Devices:
        return self.devices()

    @hookimpl
    def engine_diagnose(self) -> Sequence[Check]:
        return self.diagnose()

    @hookimpl
    def engine_load(self, source: ModelSource, options: CompileOptions) -> Any:
        return self.load(source, options)

    @hookimpl
    def engine_compile(self, loaded: Any, options: CompileOptions) -> Executable:
        return self.compile(loaded, options)

    @hookimpl
    def engine_predict(
        self,
        context: Context,
        inputs: Values,
        outputs: Values | None,
        deadline_s: float | None,
        options: PredictOptions | None = None,
    ) -> Values:
        return self.predict_with(context, inputs, outputs, deadline_s, options)

    @hookimpl
    def engine_predict_async(
        self,
        context: Any,
        inputs: Values,
        outputs: Any,
        deadline_s: float | None,
        done: Done,
        options: PredictOptions | None = None,
    ) -> bool:
        return self.begin_with(context, inputs, outputs, deadline_s, done, options)

    @hookimpl
    def engine_compiled_key(self, options: CompileOptions) -> Any:
        return self.compiled_key(options)

    @hookimpl
    def engine_share_weights(self, executable: Executable, pids: Any) -> Any:
        return self.share(executable, pids)

    @hookimpl
    def engine_update_weights(self, executable: Executable, weights: Any, additive: bool) -> bool:
        return self.update_weights(executable, weights, additive)

    @hookimpl
    def engine_buffer(self, device: Any, dtype: Any, shape: Any, on_host: bool) -> Any:
        return self.buffer(device, dtype, shape, on_host)

    @hookimpl
    def engine_copy(self, source: Any, target: Any, stream: int | None) -> bool:
        return self.copy(source, target, stream)

    @hookimpl
    def engine_order(self, device: Any, earlier: int, later: int | None) -> bool:
        return self.order(device, earlier, later)

    @hookimpl
    def engine_memory(self, device: Any) -> Any:
        return self.memory(device)

    @hookimpl
    def engine_communicator(self, options: Any) -> Any:
        return self.communicator(options)

    @hookimpl
    def engine_allreduce(
        self, comm: Any, send: Any, receive: Any, op: Any, stream: Any, deadline_s: Any
    ) -> bool:
        return self.allreduce(comm, send, receive, op, stream, deadline_s)

    @hookimpl
    def engine_allgather(
        self, comm: Any, send: Any, receive: Any, stream: Any, deadline_s: Any
    ) -> bool:
        return self.allgather(comm, send, receive, stream, deadline_s)

    @hookimpl
    def engine_send(self, comm: Any, buffer: Any, peer: int, stream: Any) -> bool:
        return self.send(comm, buffer, peer, stream)

    @hookimpl
    def engine_receive(
        self, comm: Any, buffer: Any, peer: int, stream: Any, deadline_s: Any
    ) -> bool:
        return self.receive(comm, buffer, peer, stream, deadline_s)

    # Methods that a fault changes.

    def manifest(self) -> BackendInfo:
        info = null.engine_backend()
        capabilities = info.capabilities | {Capability.SHARE_WEIGHTS}
        return replace(info, name=self.name, capabilities=capabilities)

    def devices(self) -> Devices:
        return null.engine_devices()

    def diagnose(self) -> Sequence[Check]:
        return null.engine_diagnose()

    def load(self, source: ModelSource, options: CompileOptions) -> Any:
        return null.engine_load(source, options)

    def compile(self, loaded: Any, options: CompileOptions) -> Executable:
        plain = replace(options, lend="", shared_weights=None)
        inner: Any = null.engine_compile(loaded, plain)
        try:
            lending.prepare(inner, options)
        except BaseException:
            inner.close()
            raise
        return Executable(self, inner, options=options)

    def describe(self, specs: Any) -> Any:
        return specs

    def open_context(self, executable: Executable) -> Context:
        return Context(executable, executable.inner.open_context())

    def open_beside(self, executable: Executable, beside: Context) -> Context:
        return Context(executable, executable.inner.open_context(beside.inner))

    def concurrency(self, executable: Executable) -> Any:
        return executable.inner.concurrency

    def cancel(self, context: Context) -> None:
        context.inner.cancel()

    def reset(self, context: Context) -> None:
        """Nothing is kept between calls."""

    def profile(self, executable: Executable) -> Sequence[KernelTime]:
        times: Sequence[KernelTime] = executable.inner.profile()
        return times

    def prepare(self, executable: Executable, shapes: Any, progress: Any, cancel: Any) -> None:
        executable.inner.prepare(shapes, progress, cancel)

    def predict_with(self, context, inputs, outputs, deadline_s, options) -> Values:
        return self.predict(context, inputs, outputs, deadline_s)

    def begin_with(self, context, inputs, outputs, deadline_s, done, options) -> bool:
        return self.predict_async(context, inputs, outputs, deadline_s, done)

    def compiled_key(self, options: CompileOptions) -> Any:
        return null.engine_compiled_key(options)

    def share(self, executable: Executable, pids: Any) -> Any:
        weights = executable.inner.inner.evaluator.rt_inits_
        return replace(lending.lend(weights, null.DEVICE), backend=self.name)

    def update_weights(self, executable: Executable, weights: Any, additive: bool) -> bool:
        return null.engine_update_weights(executable.inner, weights, additive)

    def buffer(self, device: Any, dtype: Any, shape: Any, on_host: bool) -> Any:
        return null.engine_buffer(device, dtype, shape, on_host)

    def copy(self, source: Any, target: Any, stream: int | None) -> bool:
        return null.engine_copy(source, target, stream)

    def order(self, device: Any, earlier: int, later: int | None) -> bool:
        return null.engine_order(device, earlier, later)

    def memory(self, device: Any) -> Any:
        return null.engine_memory()

    def communicator(self, options: Any) -> Any:
        return null.engine_communicator(options)

    def allreduce(self, comm, send, receive, op, stream, deadline_s) -> bool:
        return null.engine_allreduce(comm, send, receive, op, stream, deadline_s)

    def allgather(self, comm, send, receive, stream, deadline_s) -> bool:
        return null.engine_allgather(comm, send, receive, stream, deadline_s)

    def send(self, comm, buffer, peer, stream) -> bool:
        return null.engine_send(comm, buffer, peer, stream)

    def receive(self, comm, buffer, peer, stream, deadline_s) -> bool:
        return null.engine_receive(comm, buffer, peer, stream, deadline_s)

    def close_context(self, context: Context) -> None:
        context.inner.close()

    def close_executable(self, executable: Executable) -> None:
        executable.inner.close()

    def place(self, placement: Sequence[Placement]) -> Sequence[Placement]:
        return [replace(node, backend=self.name) for node in placement]

    def report(self, memory: MemoryReport) -> MemoryReport:
        return memory

    def predict(
        self, context: Context, inputs: Values, outputs: Values | None, deadline_s: float | None
    ) -> Values:
        """Run, change the answer, and put it where the caller wants it."""
        return null.engine_predict(context.inner, inputs, outputs, deadline_s)

    def predict_async(
        self, context: Any, inputs: Values, outputs: Any, deadline_s: float | None, done: Done
    ) -> bool:
        return null.engine_predict_async(context.inner, inputs, outputs, deadline_s, done)


@caught_by(says="")
class Faultless(Faulty):
    """No fault: the whole kit passes, so what fails elsewhere is the fault and not `Faulty`."""

    def devices(self) -> Devices:
        [found] = super().devices().found
        return Devices((replace(found, dtypes=frozenset(DType)),))


# Each registers its faults.
from faulty import (  # noqa: E402
    answers,
    begun,
    compiled,
    contexts,
    device,
    facts,
    groups,
    life,
    meanings,
    numbers,
    ownership,
    predict_options,
    prepared,
    process,
    profile,
    ranks,
    refusals,
    settings,
    several,
    sharing,
    strided,
    workers,
)

__all__ = [
    "FAULTS",
    "Fault",
    "Faulty",
    "answers",
    "begun",
    "compiled",
    "contexts",
    "device",
    "facts",
    "groups",
    "life",
    "meanings",
    "numbers",
    "ownership",
    "predict_options",
    "prepared",
    "process",
    "profile",
    "ranks",
    "refusals",
    "settings",
    "several",
    "sharing",
    "strided",
    "workers",
]
