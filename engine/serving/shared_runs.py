"""Have requests share runs where that pays and changes no result, by the build that allows it.

A backend may be able to compute each sample's results with the same bits in a batch of any size, at
some cost: it declares an option `batch_invariant`. Where a trial shows that only the rounding
depends on the batch's size, the model is built once more with it, and tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.errors import Cancelled, EngineError, ModelError
from engine.formats.opened import state_of
from engine.host.interrupts import raised_by_handler
from engine.model.model import Model, model_state
from engine.serving import batchable
from engine.serving.batchable import Batching
from engine.serving.lane import BuiltModel, Lane

if TYPE_CHECKING:
    from engine.cancel import CancelToken

Config = Mapping[str, Mapping[str, str]]

INVARIANT = "batch_invariant"
"""The option by which a backend rounds alike in a batch of any size."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """The user's wishes; see ModelParallelRunner.build_from_file."""

    path: str
    most: int | None
    delay_us: int | None
    is_forced: bool
    cancel: CancelToken | None


def share_runs(
    lanes: list[Lane[BuiltModel]], wishes: Wishes, build: Callable[[Config], list[Lane[BuiltModel]]]
) -> tuple[list[Lane[BuiltModel]], str]:
    """Let requests share runs where that pays, or as asked for; return why so.

    lanes: one a device. build: makes them once more, with further settings. Returns those that are
    to be used too: `lanes`, or others in their place, and `lanes` are closed then.
    """
    if wishes.most == 1:
        return lanes, "off"
    model = lanes[0].runnable.model
    state = model_state(model)
    built = state.require_built()
    inputs, outputs = built.signature.inputs, built.signature.outputs
    is_forced = wishes.is_forced
    is_possible = not is_forced or not batchable.without_batch_axis(inputs, outputs)
    if state_of(built.plan.source):
        reason, is_possible = "it keeps state from one predict to the next", False
    else:
        recipe = state.recipe
        assert recipe is not None, "it is built"
        reason = batchable.why_not(recipe.opened_again, inputs, outputs)
    advice = batchable.INSIST
    if not reason or (is_forced and is_possible):
        batching = batchable.tried(_run_of(model, wishes.cancel), inputs, wishes.most)
        if not reason:
            advice = batchable.INSIST_ON_ROUNDING
            lanes, batching = _rounded_alike(lanes, batching, wishes, build)
        if is_forced:
            batching = batchable.forced(batching, wishes.most, reason)
        reason = batching.reason
        if batching.most > 1:
            if wishes.delay_us is not None:
                batching = Batching(batching.most, reason, wishes.delay_us / 1e6)
            same = () if is_forced else batchable.same_sizes(inputs)
            for lane in lanes:
                lane.batch(replace(batching, same=same))
            return lanes, str(batching)
    asked = {} if wishes.most is None else {"max_batch_size": f"max_batch_size={wishes.most}"}
    if is_forced:
        asked["batching"] = 'batching="force"'
    if asked:
        insist = "" if is_forced or not is_possible else advice
        raise ModelError(
            f"{wishes.path}: its requests cannot share runs ({', '.join(asked.values())}): "
            f"{reason}; leave {' and '.join(asked)} out{insist}",
            wishes.path,
        )
    return lanes, f"off: {reason}"


def _rounded_alike(
    lanes: list[Lane[BuiltModel]],
    found: Batching,
    wishes: Wishes,
    build: Callable[[Config], list[Lane[BuiltModel]]],
) -> tuple[list[Lane[BuiltModel]], Batching]:
    """Return lanes whose results do not depend on the batch's size, if there are such.

    found: by a trial of `lanes`; returned with them where there are no others. A request alone must
    get the bits that it gets from `lanes`.
    """
    config = _invariant(lanes[0].runnable.model) if found.rounded else {}
    if not config:
        return lanes, found
    try:
        others = build(config)
    except (EngineError, MemoryError) as error:
        if isinstance(error, Cancelled) or raised_by_handler(error):
            raise
        return lanes, found
    unused = others
    try:
        model = others[0].runnable.model
        run, original = (
            _run_of(lane.runnable.model, wishes.cancel) for lane in (others[0], lanes[0])
        )
        inputs = model_state(model).require_built().signature.inputs
        batching = batchable.tried(run, inputs, found.rounded, original)
        if batching.most > 1:
            names = ", ".join(f"[{section}]" for section in config)
            reason = f"{found.pays}; built with {INVARIANT} = on in {names}"
            found, lanes, unused = replace(batching, reason=reason), others, lanes
    finally:
        for lane in unused:
            lane.runnable.model.close()
    return lanes, found


def _invariant(model: Model) -> dict[str, dict[str, str]]:
    """Return the settings that have a model rounded alike; none where they are not to be had.

    The user who has set it, on or off, has decided.
    """
    state = model_state(model)
    recipe = state.recipe
    assert recipe is not None, "it is built"
    if any(INVARIANT in section for section in recipe.config.values()):
        return {}
    return {
        f"{backend.name}_context": {INVARIANT: "1"}
        for backend, _ in state.require_built().plan.parts
        if INVARIANT in backend.info.options
    }


def _run_of(model: Model, cancel: CancelToken | None) -> batchable.Run:
    """Return a model as the function that a trial calls."""

    def run(arrays: Sequence[batchable.Array]) -> list[batchable.Array]:
        if cancel is not None:
            cancel.check()
        return [tensor.get_data_to_numpy() for tensor in model.predict(list(arrays))]

    return run
