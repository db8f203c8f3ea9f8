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

from engine.backends import Backend, find_target, warn_once
from engine.errors import BackendError, BackendUnavailable, ModelError
from engine.formats.collectives import is_collective
from engine.formats.opened import digest_of, state_of, variables_of
from engine.host.interrupts import raised_by_handler
from engine.plan.compile import compile_whole
from engine.plan.options import Request
from engine.plan.plan import Candidate, CompiledForms, Plan
from engine.types import CancelToken, Capability, Device, GraphInfo, ModelSource, Progress

if TYPE_CHECKING:
    from pathlib import Path

    from engine.context import Context
    from engine.plan.ranks import OpenRanks


def build_plan(
    file: Callable[[Mapping[str, str]], ModelSource],
    context: Context,
    config: Mapping[str, Mapping[str, str]],
    progress: Progress | None = None,
    cancel: CancelToken | None = None,
    *,
    device: Device | None = None,
    variable_weights: Sequence[str] = (),
    forms: CompiledForms | None = None,
    open_ranks: OpenRanks | None = None,
    share_workspace: bool = False,
    place: tuple[int, int] | None = None,
    profile_to: Path | None = None,
) -> Plan:
    """Compile a model for the first of the context's targets that can be had.

    file: gives the validated model, told which file suffixes the backend reads itself: a ModelFile;
        it is called once a target. device: where to compile it, over what the context says of that
        type of device. variable_weights: names that the source must have among its `variables`, to
        be exchanged later through `Plan.weights`. forms: where compiled forms are kept.
        open_ranks: what a model with collectives gets the other ranks from; None where it cannot
        run. share_workspace: with other models of this process, where the backend can. place: this
        process's rank, and how many there are; None for those of the launch. profile_to: an empty
        folder, for a plan whose predicts are measured (`Plan.profile`); None for any other.
    A later target is tried only because the user listed it; the plan then says so. It also gets
    the nodes that an earlier one reports as unsupported, as do the backends that complete one
    (`BackendInfo.completed_by`). Raises BackendError with the reasons of all targets, ModelError,
    ValueError for a setting, InputError for a weight that cannot vary, or Cancelled.
    """
    targets, why, is_override = targets_of(context)
    watched = _Watched(progress)
    request = Request(
        context,
        config,
        watched if progress else None,
        cancel,
        device,
        share_workspace,
        place,
        profile_to,
    )
    passed_over: list[str] = []
    for index, text in enumerate(targets):
        is_last = index == len(targets) - 1
        try:
            target = find_target(text)
            backend = request.opened(target.backend)
        except BackendError as error:
            if raised_by_handler(error):
                raise
            if is_last and not passed_over:
                if not is_override:
                    raise
                raise _restated(error, f"{why}: {error}") from error
            passed_over.append(f"{text!r} passed over: {error}")
            if is_last:
                raise _restated(error, "; ".join(passed_over)) from error
            continue
        source = file(backend.info.suffixes)
        if variable_weights or variables_of(source):
            from engine.plan.weights import check_declared  # rare

            check_declared(source, variable_weights)
        if cancel is not None:
            cancel.check()
        try:
            if unreadable := _unreadable(backend, source):
                raise ModelError(f"{source.name}: {unreadable}", source.name)
            first = Candidate(backend, request.options(backend, target, source), forms=forms)
            further = _further(first, targets[index + 1 :], request, source)
            if _needs_ranks(source.graph):
                from engine.plan.ranks import compile_rank  # rare

                plan = compile_rank(first, source, further, open_ranks)
            else:
                plan = compile_plan(first, source, further)
            try:
                if variables_of(source):
                    from engine.plan.weighted import with_weights  # rare

                    plan = with_weights(plan)
                if state_of(source):
                    from engine.plan.state import with_state  # rare

                    plan = with_state(plan)
            except BaseException:
                plan.pool.close()
                raise
        except (BackendError, ModelError) as error:
            if raised_by_handler(error):
                raise
            if watched.error is not None:  # the user's own, out of the progress callback
                raise watched.error from None
            if is_last and not passed_over:
                raise
            if is_last:
                raise _restated(error, "; ".join([*passed_over, str(error)])) from error
            passed_over.append(f"{text!r} passed over: {error}")
            continue
        if cancel is not None and cancel.cancelled:  # a backend that cannot stop half-way
            plan.pool.close()
            cancel.check()
        reason = "; ".join([why, *passed_over])
        if passed_over:
            import logging  # rare

            logging.getLogger("engine").warning("target %r is used: %s", text, reason)
        return replace(plan, why=reason, rank=request.rank, world_size=request.world_size)
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
    """Return the same error with another text; its attributes stay."""
    restated = copy(error)
    restated.args = (text,)
    return restated


def _further(
    first: Candidate, later: Sequence[str], request: Request, source: ModelSource
) -> Iterator[Candidate | BackendError]:
    """Yield who may run the nodes that `first` cannot: later targets, then what completes these.

    Opened one by one, as they are asked for; one that cannot be had gives its error.
    """
    asked = {(first.backend.name, first.options.provider)}
    completing = list(first.backend.info.completed_by)
    for names, are_listed in ((later, True), (completing, False)):
        for name in names:
            try:
                target = find_target(name)
                backend = request.opened(target.backend)
                if unreadable := _unreadable(backend, source):
                    raise BackendUnavailable(unreadable, backend.name)
                options = request.options(backend, target, source, are_listed)
            except BackendError as error:
                if raised_by_handler(error):
                    raise
                yield error
                continue
            if (backend.name, options.provider) in asked:
                continue
            asked.add((backend.name, options.provider))
            completing += backend.info.completed_by
            yield Candidate(backend, options, are_listed, first.forms)


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


def _needs_ranks(graph: GraphInfo | None) -> bool:
    """Return whether a graph holds collectives, for which the core brings the ranks together."""
    return graph is not None and any(is_collective(n.op_type, n.domain) for n in graph.nodes)


def _unreadable(backend: Backend, source: ModelSource) -> str:
    """Return why a backend cannot be given a model of this format; "" where it can."""
    if source.format in backend.info.formats:
        return ""
    return (
        f"backend {backend.name!r} reads {', '.join(backend.info.formats)}, but the model is in "
        f"format {source.format}; choose a target that reads that"
    )


def targets_of(context: Context) -> tuple[Sequence[str], str, bool]:
    """Return the targets to try, why these, and whether ENGINE_TARGET overrides the context's."""
    override = [part.strip() for part in os.environ.get("ENGINE_TARGET", "").split(",")]
    override = [part for part in override if part]
    if not override:
        return context.target, f"target {context.target}", False
    if override != context.target:
        warn_once(f"ENGINE_TARGET={','.join(override)} overrides the target {context.target}")
    return override, f"ENGINE_TARGET={','.join(override)} instead of target {context.target}", True
