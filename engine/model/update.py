"""Resize a built model, or give it other weights.

The new one is built beside the old, which goes on; where that fails, nothing has changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from engine.config.wording import followed, own_text, prefixed
from engine.errors import (
    BackendError,
    EngineError,
    ExtensionError,
    InputError,
    ModelError,
    ModelStateError,
)
from engine.formats.collectives import part_of
from engine.host.interrupts import raise_interrupt
from engine.model.recipe import Built, Recipe, build, open_targets
from engine.model.state import ModelState
from engine.plan.preparing import prepare_resized
from engine.plan.weights import PlanWeights
from engine.runtime import resizing
from engine.runtime.inputs import ThreadInputs, check_owner
from engine.runtime.resizing import OPEN, check_resize
from engine.types import Capability

if TYPE_CHECKING:
    from pathlib import Path

    from engine.formats.opened import Array, OpenedSource
    from engine.plan import Plan, Targets
    from engine.runtime.signature import Signature
    from engine.tensor import Tensor
    from engine.types import Value
    from engine.weights.variables import Update


_UNBUILDABLE = BackendError, ExtensionError, InputError, ModelError, ValueError


class Change(NamedTuple):
    """An update of weights that is prepared. One of the two; neither can fail.

    Except for weights that a backend holds: `switch` may raise, and then nothing has changed.
    built: takes the place of what the model is. switch: has what the model is take other weights.
    weights: the names of those that it changes, in the order of the update.
    """

    built: Built | None = None
    switch: Callable[[], None] | None = None
    weights: tuple[str, ...] = ()


def resize(state: ModelState, inputs: Sequence[Tensor], dims: Sequence[Sequence[int]]) -> None:
    """Fix the shapes of a model's inputs; see `Model.resize`."""
    check_resize(inputs, dims)
    declared = state.declared
    if state.built is None or declared is None:
        raise ModelStateError(f"resize failed! Error is {state.why_not}")
    if len(inputs) != len(declared.inputs):
        raise InputError(
            f"resize failed! Error is model input len:{len(declared.inputs)} not equal "
            f"input len:{len(inputs)}"
        )
    check_owner(inputs, state)
    signature = resizing.resized(declared, dims)
    change = resizing.fixed_axis_changed(declared, dims)
    if change and any(OPEN in shape for shape in dims):
        raise InputError(
            f"resize failed! Error is {change}, and an axis of {OPEN} beside it; give every axis "
            "a size where one that the file fixes gets another"
        )
    graph = state.built.plan.source.graph
    if change and graph is not None and (part := part_of(graph.metadata)):
        # Its nodes cut what was divided by numbers: other sizes would be computed in part.
        raise InputError(
            f"resize failed! Error is {change}, and the file is rank {part.rank}'s of "
            f"{part.world_size}, whose sizes are divided among the ranks; slice the model again "
            "for other sizes, or with open ones"
        )
    old = None
    with state.lock:  # one after the other
        if change or state.is_reshaped:
            old = _rebuild(state, dims, change)
        elif (built := state.built) is not None:
            try:
                with built.plan.pool.kept_open():  # a close frees it only afterwards
                    prepare_resized(built.plan, signature.inputs)
            except EngineError as error:
                prefixed(error, "resize failed! Error is ")
                raise
            state.replace(built._replace(signature=signature), "resize failed! Error is ")
        state.dims = [tuple(map(int, shape)) for shape in dims]
    given = getattr(state.inputs, "given", None) or ThreadInputs()
    given.reshape(inputs, dims)
    # Every thread makes a new state at its next call; a running predict keeps its old one.
    state.inputs = threading.local()
    state.inputs.given = given
    state.threads = threading.local()
    if old is not None:
        old.pool.close()


def _rebuild(state: ModelState, dims: Sequence[Sequence[int]], change: str) -> Plan:
    """Build the model for other sizes than its file fixes, or for the file's own again.

    change: says what is other than in the file. Returns the plan that it had, to be closed.
    Raises InputError; then nothing has changed.
    """
    with state.lock:
        old, declared, recipe = state.built, state.declared, state.recipe
        if old is None or declared is None or recipe is None:
            raise ModelStateError(f"resize failed! Error is {state.why_not}")
        try:
            shapes = _by_name(declared, dims) if change else None
            built = _resized(_built_anew(recipe, old, shapes), dims, declared, try_it=bool(change))
        except _UNBUILDABLE as error:
            raise InputError(
                "resize failed! Error is The given input shape's value != original input "
                f"shape's value. {change or 'the file has other sizes'}, and the model cannot "
                f"be built for that: {own_text(error)}; export it with that axis open"
            ) from error
        state.replace(built, "resize failed! Error is ")
        state.is_reshaped = bool(change)
        return old.plan


def reopen(state: ModelState) -> None:
    """Have a model run from its entry of the compile cache, which was written after its build.

    Nothing else of it changes. Raises ModelStateError where another thread closes it meanwhile;
    ModelError, BackendError where it cannot be opened, and then it goes on as it is.
    """
    with state.lock:
        built, recipe, declared = state.built, state.recipe, state.declared
        if built is None or recipe is None or declared is None or state.why_not:
            return
        if state.is_reshaped:  # the entry is of other sizes
            return
        anew = _resized(_built_anew(recipe, built, None), state.dims, declared)
        _make_update(state, Change(anew))


def retarget(state: ModelState, targets: Targets) -> None:
    """Have a model run where it was measured to be the fastest; its placement says so.

    Raises ModelStateError where another thread closes it meanwhile. Where it cannot be built so it
    goes on as it is, and its placement says why.
    """
    with state.lock:
        built, recipe, declared = state.built, state.recipe, state.declared
        if built is None or recipe is None or declared is None or state.why_not:
            return
        before = recipe.context, recipe.config, recipe.chosen
        after = targets.options.context, targets.options.config, targets.choice
        why = targets.choice[1]
        is_there = before[2] is not None and after[2][0] == before[2][0] and after[1] == before[1]
        if not is_there or after[0].cpu.thread_num != before[0].cpu.thread_num:
            recipe.context, recipe.config, recipe.chosen = after
            try:
                anew = _resized(_built_anew(recipe, built, _shapes(state)), state.dims, declared)
                _check_stops(state, anew.plan)
                _make_update(state, Change(anew))
                return
            except BaseException as error:
                recipe.context, recipe.config, recipe.chosen = before
                if not isinstance(error, _UNBUILDABLE):
                    raise
                raise_interrupt(error)
                why = f"{why}, but it cannot be built so: {own_text(error)}"
        restate(state, why)


def _check_stops(state: ModelState, plan: Plan) -> None:
    """Raise ModelError, and close a plan, where it cannot stop predicts as its model has to.

    A queue of requests has both: its model decides once who sees to deadlines.
    """
    both = {Capability.DEADLINES, Capability.CANCEL_PREDICT}
    for capability in both & state.stops if state.queue is None else both:
        backend, _ = plan.lacks(capability)
        if backend and state.built is not None and not state.built.plan.lacks(capability)[0]:
            plan.pool.close()
            raise ModelError(f"backend {backend!r} cannot stop a running model, and this one may")


def restate(state: ModelState, why: str) -> None:
    """Have a model's placement say otherwise why it is where it is. Raises ModelStateError."""
    with state.lock:
        built, recipe = state.built, state.recipe
        if built is not None and recipe is not None and recipe.chosen is not None:
            recipe.chosen = (recipe.chosen[0], why, recipe.chosen[2])
            state.replace(built._replace(plan=replace(built.plan, why=why)), "")


def measured_copy(state: ModelState, folder: Path) -> ModelState:
    """Build what a model is by now once more, with predicts that are measured: `Plan.profile`.

    folder: for the runtime's files, an empty one; to be removed after the copy is closed.
    Raises ModelStateError, ModelError, BackendError.
    """
    with state.lock:
        built, recipe, declared = state.built, state.recipe, state.declared
        if built is None or recipe is None or declared is None or state.why_not:
            raise ModelStateError(f"profile failed! Error is {state.why_not}")
        try:
            anew = _built_anew(recipe, built, _shapes(state), profile_to=folder)
            anew = _resized(anew, state.dims, declared)
        except EngineError as error:
            prefixed(error, "profile failed! Error is ")
            raise
    copy = ModelState()
    copy.built, copy.declared, copy.why_not = anew, anew.signature, ""
    return copy


def update(state: ModelState, weights: Update) -> None:
    """See Model.update_weights."""
    if state.observation is None:
        update_together([state], weights)
    else:
        state.observation.update(lambda: update_together([state], weights))


def update_together(states: Sequence[ModelState], weights: Update) -> tuple[str, ...]:
    """Exchange weights of models at once, all of them or none, and return the weights' names.

    See Model.update_weights.
    """
    with ExitStack() as held:
        for state in states:  # after a resize that runs, and before the next
            held.enter_context(state.lock)
        changes = prepare_updates(states, weights)
        make_updates(states, changes)
    return changes[0].weights


def prepare_updates(states: Sequence[ModelState], weights: Update) -> list[Change]:
    """Do all of an update that can fail. `make_updates` or `drop_updates` follows.

    With the lock of each model held, or by the one thread that changes them. Raises what
    Model.update_weights raises; then nothing has changed.
    """
    from engine.weights.variables import check_form

    check_form(weights)
    changes: list[Change] = []
    with _undone(states, changes):
        changes.extend(_prepare_update(state, weights) for state in states)
    return changes


def make_updates(states: Sequence[ModelState], changes: Sequence[Change]) -> None:
    """Switch to what was prepared. Raises ModelStateError where a model was closed meanwhile."""
    with _undone(states, changes):
        for state, change in zip(states, changes, strict=True):
            _make_update(state, change)


def drop_updates(states: Sequence[ModelState], changes: Sequence[Change]) -> None:
    """Free what was prepared, and is not to be made."""
    for state, change in zip(states, changes, strict=False):
        if change.built is not None and change.built is not state.built:
            change.built.plan.pool.close()


@contextmanager
def _undone(states: Sequence[ModelState], changes: Sequence[Change]) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        drop_updates(states, changes)
        if not isinstance(error, EngineError):
            raise
        raise_interrupt(error)
        prefixed(error, "update weight failed! Error is ")
        raise


_NO_SESSION = "Session is null, please build model first!"
"""MindSpore Lite's words for an update of a model that is not built."""


def _prepare_update(state: ModelState, weights: Update) -> Change:
    """Do all of an update that can fail, with the lock held."""
    built, recipe, declared = state.built, state.recipe, state.declared
    if built is None or recipe is None or declared is None or state.why_not:
        error = ModelStateError(state.why_not)
        raise followed(error, _NO_SESSION) if built is None else error
    change = _prepared_update(recipe, weights, built, _shapes(state))
    if change.built is not None:
        change = change._replace(built=_resized(change.built, state.dims, declared))
    return change


def _make_update(state: ModelState, change: Change) -> None:
    """Switch to what was prepared, with the lock held."""
    if change.switch is not None:
        change.switch()
    if change.built is None:
        return
    old = state.built
    state.replace(change.built, "")
    if not state.is_reshaped and state.dims is None:
        state.declared = change.built.signature
    state.threads = threading.local()
    if old is not None:
        old.plan.pool.close()


def _shapes(state: ModelState) -> dict[str, tuple[int, ...]] | None:
    """Return the sizes for which a model was built by name; None for those of its file."""
    if state.declared is None or state.dims is None or not state.is_reshaped:
        return None
    return _by_name(state.declared, state.dims)


def _by_name(declared: Signature, dims: Sequence[Sequence[int]]) -> dict[str, tuple[int, ...]]:
    return dict(zip(declared.names, (tuple(map(int, shape)) for shape in dims)))


def _built_anew(
    recipe: Recipe,
    old: Built,
    shapes: Mapping[str, Sequence[int]] | None,
    update: Mapping[str, Array] | None = None,
    profile_to: Path | None = None,
) -> Built:
    """Build the model anew, with the weights that `old` has by now, or with others.

    shapes: of all inputs, None for those that its file has. update: new values of weights that
    are constants. profile_to: see BuildOptions. Raises ModelError, BackendError.
    """
    if old.loan is not None and old.loan.is_vendors:
        raise ModelError("other processes use its memory: its weights are lent")
    source = _source(recipe, shapes)
    config, sharing = recipe.config, recipe.sharing
    if recipe.weights is not None and recipe.is_rebuilt:
        from engine.formats.onnx.weights import with_constants
        from engine.weights.compile_cache import without_cache

        update = old.updated if update is None else update
        source = with_constants(source, update)
        if update:  # in no file, and most likely never seen again
            config, sharing = without_cache(config), None
    targets = open_targets(
        recipe.context, config, sharing=sharing, profile_to=profile_to, chosen=recipe.chosen
    )
    built = build(
        source,
        targets,
        recipe.path,
        in_place=recipe.is_in_place and old.loan is None,
        sharing=sharing,
        is_resizable=recipe.is_resizable,
    )
    built = built._replace(loan=old.loan)
    if update is not None:
        return built._replace(updated=update)
    try:
        _hand_on(recipe, old.plan, built.plan)
    except BaseException:  # a device's memory is full
        built.plan.pool.close()
        raise
    return built


def _hand_on(recipe: Recipe, old: Plan, new: Plan) -> None:
    """Give a plan the variable weights that another has by now, whoever holds them."""
    if old.weights is None or new.weights is None:
        return
    assert recipe.weights is not None
    if isinstance(old.weights, PlanWeights):
        values: Mapping[str, Value] = old.weights.current()
        is_added = False
    else:
        values, is_added = old.weights.given, old.weights.is_added
    if isinstance(new.weights, PlanWeights):
        new.weights.update(recipe.weights.resulting(values) if is_added else values)
    elif values:
        new.weights.update(values, is_added)


def _prepared_update(
    recipe: Recipe, update: Update, old: Built, shapes: Mapping[str, Sequence[int]] | None
) -> Change:
    """Do all of an update that can fail; `old`, which is of these shapes, goes on as it is.

    Several models that are to switch together are prepared first, each, and then changed.
    Raises InputError for the update; ModelStateError, ModelError, BackendError.
    """
    from engine.weights.variables import copied

    weights, plan = recipe.weights, old.plan
    if weights is None:
        raise ModelStateError(
            "no weight of this model was declared variable; name them where it is built: "
            "variable_weights=[...], or [common_context] variable_weights_list"
        )
    new = weights.read(update, plan.devices)
    held = plan.weights
    if isinstance(held, PlanWeights):
        prepared = held.prepared(weights.resulting(new))
        return Change(switch=partial(held.exchange, prepared), weights=tuple(new))
    if held is not None:
        switch = partial(held.exchange, held.prepared(new), weights.kind == "add")
        return Change(switch=switch, weights=tuple(new))
    loaded = {}
    if weights.kind == "add":
        loaded = {slot.name: slot.initial for slot in _source(recipe, None).variables}
    values = {**old.updated, **copied(weights.resulting(new, loaded))}
    return Change(_built_anew(recipe, old, shapes, values), weights=tuple(new))


def _source(recipe: Recipe, shapes: Mapping[str, Sequence[int]] | None) -> OpenedSource:
    """Return the model as it is in its file, its variable weights as inputs."""
    if recipe.compiled is not None and shapes is None:
        return recipe.compiled()
    if recipe.original is None:
        raise ModelError("it is in a form compiled for these sizes")
    return recipe.original.declared() if shapes is None else recipe.original.reshaped(shapes)


def _resized(
    built: Built, dims: Sequence[Sequence[int]] | None, declared: Signature, try_it: bool = False
) -> Built:
    """Return what was built with shapes fixed, if `dims` has some; closed where it cannot.

    declared: as in the model's file. try_it: run it on zeros. Raises InputError, ModelError.
    """
    if dims is None:
        return built
    try:
        signature = resizing.resized(built.signature, dims, declared.inputs)
        if try_it:
            from engine.plan.trial import try_run

            try_run(built.plan)
    except BaseException:
        built.plan.pool.close()
        raise
    return built._replace(signature=signature)
