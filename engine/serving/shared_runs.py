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
from engine.runtime.extensions import in_trial
from engine.serving import batchable
from engine.serving.batchable import Batching
from engine.serving.built_model import BuiltModel
from engine.serving.in_service import SharingInService
from engine.serving.request_queue import RequestQueue

if TYPE_CHECKING:
    from engine.serving.statistics import Recorder
    from engine.types import CancelToken

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

    @property
    def are_open(self) -> bool:
        """True where the user has left to the runner how requests share runs."""
        return self.most is None and self.delay_us is None and not self.is_forced


def share_runs(
    queues: list[RequestQueue[BuiltModel]],
    wishes: Wishes,
    build: Callable[[Config], list[RequestQueue[BuiltModel]]],
    recorder: Recorder,
) -> tuple[list[RequestQueue[BuiltModel]], str]:
    """Let requests share runs where that pays, or as asked for; return why so.

    queues: one a device. build: makes them once more, with further settings. Returns those that are
    to be used too: `queues`, or others in their place, and `queues` are closed then.
    """
    if wishes.most == 1:
        return queues, "off"
    model = queues[0].runnable.model
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
            queues, batching = _rounded_alike(queues, batching, wishes, build)
        if is_forced:
            batching = batchable.forced(batching, wishes.most, reason)
        reason = batching.reason
        if batching.most > 1:
            if wishes.delay_us is not None:
                batching = Batching(batching.most, reason, wishes.delay_us / 1e6)
            same = () if is_forced else batchable.same_sizes(inputs)
            sharing = SharingInService()
            if wishes.are_open:
                recorder.sharing = sharing
            for queue in queues:
                queue.runnable.batch(replace(batching, same=same), recorder, sharing)
            return queues, str(batching)
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
    return queues, f"off: {reason}"


def _rounded_alike(
    queues: list[RequestQueue[BuiltModel]],
    found: Batching,
    wishes: Wishes,
    build: Callable[[Config], list[RequestQueue[BuiltModel]]],
) -> tuple[list[RequestQueue[BuiltModel]], Batching]:
    """Return queues whose results do not depend on the batch's size, if there are such.

    found: by a trial of `queues`; returned with them where there are no others. A request
    alone must get the bits that it gets from `queues`.
    """
    config = _invariant(queues[0].runnable.model) if found.rounded else {}
    if not config:
        return queues, found
    try:
        others = build(config)
    except (EngineError, MemoryError) as error:
        if isinstance(error, Cancelled) or raised_by_handler(error):
            raise
        return queues, found
    unused = others
    try:
        model = others[0].runnable.model
        run, original = (
            _run_of(queue.runnable.model, wishes.cancel) for queue in (others[0], queues[0])
        )
        inputs = model_state(model).require_built().signature.inputs
        batching = batchable.tried(run, inputs, found.rounded, original)
        if batching.most > 1:
            names = ", ".join(f"[{section}]" for section in config)
            reason = f"{found.pays}; built with {INVARIANT} = on in {names}"
            found, queues, unused = replace(batching, reason=reason), others, queues
    finally:
        for queue in unused:
            queue.runnable.model.close()
    return queues, found


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
        results = in_trial(lambda: model.predict(list(arrays)))
        return [tensor.get_data_to_numpy() for tensor in results]

    return run
