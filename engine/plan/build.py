"""From a model and a list of targets to something that runs.

The whole model goes to the first target that can be had; what that cannot run of it, to the next
that the user has listed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.backends import OFFICIAL, find_target, installed, open_backend, warn_once
from engine.config.schema import CORE, unused_settings
from engine.errors import BackendError, InputError, ModelError
from engine.host.cpus import preferred_cores, usable_cpus
from engine.host.threads import threads_per_worker
from engine.options import is_declared
from engine.plan.compile import Candidate, Plan, compile_plan
from engine.plan.state import with_state
from engine.types import CancelToken, CompileOptions, Device, ModelSource, Progress, Threads

if TYPE_CHECKING:
    from engine.backends import Backend, Target
    from engine.context import Context


def build_plan(
    open_source: Callable[[Mapping[str, str]], ModelSource],
    context: Context,
    config: Mapping[str, Mapping[str, str]],
    progress: Progress | None = None,
    cancel: CancelToken | None = None,
) -> Plan:
    """Compile a model for the first of the context's targets that can be had.

    open_source: gives the validated model, told which file suffixes the backend reads itself.
    A later target is tried only because the user listed it; the plan then says so. It also gets
    the nodes that an earlier one reports as unsupported, as do the backends that complete one
    (`BackendInfo.completed_by`). Raises BackendError with the reasons of all targets, ModelError,
    or Cancelled.
    """
    targets, why, is_override = _targets(context)
    watched = _Watched(progress)

    def options(backend: Backend, target: Target) -> CompileOptions:
        return _options(backend, target, context, config, watched if progress else None, cancel)

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
        first = Candidate(backend, options(backend, target))
        backend.check_provider(first.options.provider)
        if cancel is not None:
            cancel.check()
        try:
            plan = with_state(
                compile_plan(first, source, _further(first, targets[place + 1 :], options))
            )
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


def _further(
    first: Candidate,
    later: Sequence[str],
    options: Callable[[Backend, Target], CompileOptions],
) -> Iterator[Candidate | BackendError]:
    """Who may run the nodes that `first` cannot: later targets, then what completes any of these.

    Opened one by one, as they are asked for; one that cannot be had gives its error.
    """
    asked = {(first.backend.name, first.options.provider)}
    completing = list(first.backend.info.completed_by)
    for names, are_listed in ((later, True), (completing, False)):
        for name in names:
            try:
                target = find_target(name)
                backend = open_backend(target.backend)
            except BackendError as error:
                yield error
                continue
            settings = options(backend, target)
            if are_listed:
                backend.check_provider(settings.provider)
            elif settings.provider not in backend.info.providers:
                settings = replace(settings, provider="")  # the user's is another backend's
            if (backend.name, settings.provider) in asked:
                continue
            asked.add((backend.name, settings.provider))
            completing += backend.info.completed_by
            yield Candidate(backend, settings, are_listed)


def _targets(context: Context) -> tuple[Sequence[str], str, bool]:
    """The targets to try, why these, and whether ENGINE_TARGET overrides the context's."""
    override = [part.strip() for part in os.environ.get("ENGINE_TARGET", "").split(",")]
    override = [part for part in override if part]
    if not override:
        return context.target, f"target {context.target}", False
    if override != context.target:
        warn_once(f"ENGINE_TARGET={','.join(override)} overrides the target {context.target}")
    return override, f"ENGINE_TARGET={','.join(override)} instead of target {context.target}", True


def _options(
    backend: Backend,
    target: Target,
    context: Context,
    config: Mapping[str, Mapping[str, str]],
    progress: Progress | None,
    cancel: CancelToken | None,
) -> CompileOptions:
    settings = getattr(context, target.device_type, None)
    options = _settings(backend, target, config)
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


def _settings(
    backend: Backend, target: Target, config: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """What the user set for a backend, and the core beside it; the rest is remarked on, once."""
    # A device type's section is for this project's own backend of that type: another backend of
    # the same type has other options.
    own = OFFICIAL.get(target.device_type) == target.backend
    types = (target.device_type,) if own and target.device_type != target.backend else ()
    read = [f"{name}_context" for name in (*types, target.backend)]
    declared = backend.info.options
    for text in unused_settings(config, target.backend, read, declared, _with_sections):
        warn_once(text)
    given = {key: value for name in read for key, value in config.get(name, {}).items()}
    if not declared:
        return given
    return {key: value for key, value in given.items() if is_declared(key, (*declared, *CORE))}


def _with_sections() -> tuple[str, ...]:
    return (*OFFICIAL, *OFFICIAL.values(), *installed())


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


def _log(text: str) -> None:
    import logging

    logging.getLogger("engine").warning(text)
