"""From a model and a list of targets to something that runs.

A plan has one segment today: the whole model, compiled by the first target that can be had.
Models cut at collectives, and nodes that fall to the next target, become further segments here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.backends import OFFICIAL, Backend, find_target, open_backend
from engine.errors import BackendError, BackendUnavailable, EngineError, InputError, ModelError
from engine.threads import preferred_cores, threads_per_worker, usable_cpus
from engine.types import (
    CancelToken,
    CompileOptions,
    Device,
    Executable,
    ExecutionContext,
    ModelSource,
    Placement,
    Progress,
    Threads,
    ValueKind,
    Values,
)

if TYPE_CHECKING:
    from engine.backends import Target
    from engine.context import Context
    from engine.plan.contexts import ContextPool

Predict = Callable[..., Values]


@dataclass(frozen=True, slots=True)
class Plan:
    """A model ready to run.

    predict: the backend's own function (context, inputs, outputs, deadline_s) -> values.
    pool: lends it contexts. why: how this target came to be chosen.
    """

    backend: Backend
    source: ModelSource
    executable: Executable
    predict: Predict
    pool: ContextPool
    why: str

    def placement(self) -> list[Placement]:
        """Where each node runs, and why."""
        with _blamed_on(self.backend, "placement"):
            return [
                replace(each, reason=f"{each.reason}; {self.why}" if each.reason else self.why)
                for each in self.executable.placement()
            ]


def build_plan(
    open_source: Callable[[Mapping[str, str]], ModelSource],
    context: Context,
    config: Mapping[str, Mapping[str, str]],
    progress: Progress | None = None,
    cancel: CancelToken | None = None,
) -> Plan:
    """Compile a model for the first of the context's targets that can be had.

    open_source: gives the validated model, told which file suffixes the backend reads itself.
    A later target is tried only because the user listed it; the plan then says so. Raises
    BackendError with the reasons of all targets, ModelError, or Cancelled.
    """
    targets, why, is_override = _targets(context)
    watched = _Watched(progress)
    passed_over: list[str] = []
    for place, text in enumerate(targets):
        last = place == len(targets) - 1
        try:
            target = find_target(text)
            backend = open_backend(target.backend)
        except BackendError as error:
            if last and not passed_over:
                if not is_override:
                    raise
                raise _restated(error, f"{why}: {error}") from error
            passed_over.append(f"{text!r} passed over: {error}")
            if last:
                raise _restated(error, "; ".join(passed_over)) from error
            continue
        source = open_source(backend.info.suffixes)
        options = _options(target, context, config, watched if progress else None, cancel)
        if cancel is not None:
            cancel.check()
        try:
            plan = _compile(backend, source, options)
        except (BackendError, ModelError) as error:
            if watched.error is not None:  # the user's own, out of the progress callback
                raise watched.error from None
            if last and not passed_over:
                raise
            if last:
                raise _restated(error, "; ".join([*passed_over, str(error)])) from error
            passed_over.append(f"{text!r} passed over: {error}")
            continue
        if cancel is not None and cancel.cancelled:  # a backend that cannot stop half-way
            plan.pool.close()
            cancel.check()
        reason = "; ".join([why, *passed_over])
        if passed_over:
            _log(f"target {text!r} is used: {reason}")
        return replace(plan, why=reason)
    raise AssertionError("a context has at least one target")


class _Watched:
    """A progress callback that remembers its own exception: no backend is to blame for that."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self.error: Exception | None = None

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        assert self._progress is not None
        try:
            self._progress(phase, done, total)
        except Exception as error:
            self.error = error
            raise


def _restated(error: BackendError | ModelError, text: str) -> BackendError | ModelError:
    """The same error with another text; what it knows it keeps."""
    restated = copy(error)
    restated.args = (text,)
    return restated


def _compile(backend: Backend, source: ModelSource, options: CompileOptions) -> Plan:
    from engine.plan.contexts import ContextPool

    with _blamed_on(backend, "engine_load"):
        loaded = backend.load(source, options)
        unsupported = dict(loaded.unsupported)
    try:
        if unsupported:
            raise _unsupported(backend, source, unsupported)
        with _blamed_on(backend, "engine_compile"):
            executable = backend.compile(loaded, options)
            specs = (*executable.inputs, *executable.outputs)
    finally:
        with _blamed_on(backend, "LoadedModel.close"):
            loaded.close()
    for spec in specs:
        if spec.kind is not ValueKind.TENSOR:
            executable.close()
            raise ModelError(
                f"{source.name}: {spec.name!r} is a {spec.kind}; this version runs models "
                "whose inputs and outputs are tensors",
                source.name,
            )
    # The file's bytes are the backend's business now: a model does not hold them twice.
    source = replace(source, data=None)
    opened = _Opened(backend, executable)
    return Plan(backend, source, executable, backend.predict, ContextPool(opened), "")


class _Opened:
    """An executable whose contexts are opened with the blame where it belongs."""

    def __init__(self, backend: Backend, executable: Executable) -> None:
        self._backend = backend
        self._executable = executable
        self.close = executable.close

    def open_context(self) -> ExecutionContext:
        with _blamed_on(self._backend, "open_context"):
            context = self._executable.open_context()
            if not hasattr(context, "close"):
                raise TypeError(f"it returned {context!r}, which is no execution context")
            return context


@contextmanager
def _blamed_on(backend: Backend, hook: str) -> Iterator[None]:
    """Report what no hook may raise as the backend's fault, in one line."""
    try:
        yield
    except (EngineError, ValueError, MemoryError, KeyboardInterrupt):
        raise  # ValueError: what an option's value may raise
    except BaseException as error:  # SystemExit, or a panic of a compiled extension
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise BackendUnavailable(
            f"backend {backend.name!r} is at fault: its {hook} raised {text}; "
            f"report it to the authors of {backend.name!r} {backend.info.version}",
            backend.name,
        ) from error


def _unsupported(backend: Backend, source: ModelSource, nodes: Mapping[int, str]) -> ModelError:
    graph = source.graph
    lines = []
    for index, reason in list(nodes.items())[:5]:
        node = graph.nodes[index] if graph is not None else None
        called = f"{node.op_type} {node.name!r}" if node is not None else f"node {index}"
        lines.append(f"{called}: {reason}")
    more = f" and {len(nodes) - 5} more" if len(nodes) > 5 else ""
    return ModelError(
        f"{source.name}: backend {backend.name!r} cannot run {'; '.join(lines)}{more}; "
        "list a further target that can, for example ['" + backend.name + "', 'cpu']",
        source.name,
    )


def _targets(context: Context) -> tuple[Sequence[str], str, bool]:
    """The targets to try, why these, and whether ENGINE_TARGET overrides the context's."""
    override = [part.strip() for part in os.environ.get("ENGINE_TARGET", "").split(",")]
    override = [part for part in override if part]
    if not override:
        return context.target, f"target {context.target}", False
    if override != context.target:
        _say_once(f"ENGINE_TARGET={','.join(override)} overrides the target {context.target}")
    return override, f"ENGINE_TARGET={','.join(override)} instead of target {context.target}", True


def _options(
    target: Target,
    context: Context,
    config: Mapping[str, Mapping[str, str]],
    progress: Progress | None,
    cancel: CancelToken | None,
) -> CompileOptions:
    settings = getattr(context, target.device_type, None)
    # A device type's section is for this project's own backend of that type: another backend of
    # the same type has other options.
    own = OFFICIAL.get(target.device_type) == target.backend
    options = {
        **(config.get(f"{target.device_type}_context", {}) if own else {}),
        **config.get(f"{target.backend}_context", {}),
    }
    provider = target.provider or getattr(settings, "provider", "") or options.get("provider", "")
    options.pop("provider", None)
    device_id = getattr(settings, "device_id", None) or _device_id(options.get("device_id", "0"))
    options.pop("device_id", None)
    return CompileOptions(
        device=Device(target.device_type, device_id),
        provider=provider,
        precision=getattr(settings, "precision_mode", ""),
        threads=_threads(context),
        options=options,
        config=config,
        rank=getattr(settings, "rank_id", 0),
        world_size=getattr(settings, "group_size", 1),
        progress=progress,
        cancel=cancel,
    )


def _device_id(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(f"device_id must be a non-negative int, but got {text!r}")
    return int(text)


def _threads(context: Context) -> Threads:
    cpu = context.cpu
    intra_op = _bounded("cpu_thread_num", cpu.thread_num) or threads_per_worker()
    inter_op = _bounded("cpu_inter_op_parallel_num", cpu.inter_op_parallel_num) or 1
    cores = tuple(cpu.thread_affinity_core_list)
    for core in cores:
        if not 0 <= core < (os.cpu_count() or 1):
            raise InputError(
                f"cpu_thread_affinity_core_list: core {core} is outside "
                f"0..{(os.cpu_count() or 1) - 1}"
            )
    if cores and cpu.thread_num and len(cores) != cpu.thread_num:
        raise InputError(
            f"cpu_thread_affinity_core_list names {len(cores)} cores for {cpu.thread_num} threads; "
            "give one core a thread, or leave thread_num at 0"
        )
    if not cores and cpu.thread_affinity_mode:
        cores = preferred_cores(cpu.thread_affinity_mode, min(intra_op, usable_cpus()))
    return Threads(
        intra_op=len(cores) or intra_op,
        inter_op=inter_op,
        cores=cores,
        is_counted=not cores and cpu.thread_num == 0,
    )


def _bounded(name: str, count: int) -> int:
    """A number of threads that the user asked for, at most five a CPU as in MindSpore Lite."""
    most = 5 * (os.cpu_count() or 1)
    if count > most:
        _log(f"{name} {count} is more than five threads a CPU; {most} are used")
    return min(count, most)


_said: set[str] = set()


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        _log(text)


def _log(text: str) -> None:
    import logging

    logging.getLogger("engine").warning(text)
