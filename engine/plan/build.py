"""From a model and a list of targets to something that runs.

The whole model goes to the first target that can be had; what that cannot run of it, to the next
that the user has listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.backends import Backend, find_target
from engine.errors import BackendError, BackendUnavailable, ModelError
from engine.formats.collectives import is_collective
from engine.formats.opened import digest_of, state_of, variables_of
from engine.host.interrupts import pass_interrupt
from engine.plan.compile import compile_whole
from engine.plan.options import BuildOptions
from engine.plan.plan import Candidate, CompiledForms, Plan
from engine.plan.targets import OpenTarget, Targets
from engine.types import Capability, GraphInfo, ModelSource
from engine.wings import wing


def build_plan(
    source: ModelSource,
    targets: Targets,
    *,
    variable_weights: Sequence[str] = (),
    in_place: bool = False,
    forms: CompiledForms | None = None,
) -> Plan:
    """Compile a model for the first of the targets that can be had and can run it.

    source: validated, and opened with `targets.suffixes`. variable_weights: names that it must
        have among its `variables`, to be exchanged later through `Plan.weights`. in_place:
        a backend that can exchange them holds them itself, where the model is one executable.
        forms: where compiled forms are kept.
    A later target is tried only because the user listed it; the plan then says so. It also gets
    the nodes that an earlier one reports as unsupported, as do the backends that complete one
    (`BackendInfo.completed_by`). Raises BackendError with the reasons of all targets, ModelError,
    ValueError for a setting, InputError for a weight that cannot vary, or Cancelled.
    """
    if variable_weights or variables_of(source):
        from engine.plan.weights import check_declared  # rare

        check_declared(source, variable_weights)
    for target in targets:
        targets.options.check_cancelled()
        try:
            plan = _plan_for(target, targets.options, source, forms, in_place)
        except (BackendError, ModelError) as error:
            targets.pass_over(target, error)
            continue
        try:
            targets.options.check_cancelled()  # of a backend that cannot stop half-way
        except BaseException:
            plan.pool.close()
            raise
        return targets.chosen(target, plan)
    raise AssertionError("the last target gives a plan or raises")


def _plan_for(
    target: OpenTarget,
    options: BuildOptions,
    source: ModelSource,
    forms: CompiledForms | None,
    in_place: bool,
) -> Plan:
    """Compile a model for one target, and for what completes it."""
    backend = target.backend
    if unreadable := _unreadable(backend, source):
        raise ModelError(f"{source.name}: {unreadable}", source.name)
    first = Candidate(backend, options.of(backend, target.target, source), forms=forms)
    further = _further(first, target.later, options, source)
    if _needs_ranks(source.graph):
        plan: Plan = wing("compile_rank")(first, source, further, options.open_ranks)
        return _with_held_values(plan)
    if in_place and _can_update(first, source):
        updatable: Plan | None = wing("compile_in_place")(first, source)
        if updatable is not None:
            return updatable
    return _with_held_values(compile_plan(first, source, further))


def _can_update(candidate: Candidate, source: ModelSource) -> bool:
    """Return whether a model has variable weights, which the backend may hold itself."""
    if not variables_of(source) or state_of(source):
        return False
    return not candidate.backend.lacks(Capability.UPDATE_WEIGHTS, candidate.options.device)


def _with_held_values(plan: Plan) -> Plan:
    """Return a plan whose variable weights and state the core holds, if it has any."""
    try:
        if variables_of(plan.source) or state_of(plan.source):
            from engine.plan.held import with_held_values  # rare

            plan = with_held_values(plan)
    except BaseException:
        plan.pool.close()
        raise
    return plan


def compile_plan(
    first: Candidate, source: ModelSource, further: Iterator[Candidate | BackendError]
) -> Plan:
    """Compile a model for `first`, and for others the nodes which that reports as unsupported.

    further: the candidates for such nodes, in the order in which they are to be asked, opened
        when they are taken; an error is one that cannot be had.
    """
    forms = first.forms
    if first.backend.lacks(Capability.MIXED_PLACEMENT, first.options.device):
        forms = None
    if forms is not None:
        source = forms.identified(source)
        if digest_of(source) and forms.has(source, first.key()):
            plan: Plan | None
            plan, further = wing("compile_cached_partition")(first, source, further)
            if plan is not None:
                return plan
    whole, unsupported = compile_whole(first, source)
    if whole is not None:
        return whole
    if forms is not None:
        source = forms.identified(source)  # by now, if its weights had not been hashed yet
    mixed: Plan = wing("compile_with_fallback")(first, source, unsupported, further)
    return mixed


def _further(
    first: Candidate, later: Sequence[str], options: BuildOptions, source: ModelSource
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
                backend = options.opened(target.backend)
                if unreadable := _unreadable(backend, source):
                    raise BackendUnavailable(unreadable, backend.name)
                own = options.of(backend, target, source, are_listed)
            except BackendError as error:
                pass_interrupt(error)
                yield error
                continue
            if (backend.name, own.provider) in asked:
                continue
            asked.add((backend.name, own.provider))
            completing += backend.info.completed_by
            yield Candidate(backend, own, are_listed, first.forms)


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
