"""The facts about a model that its user may read."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from engine.config.checks import require
from engine.errors import EngineError
from engine.host.imports import ready
from engine.model.state import NOT_BUILT, ModelState
from engine.runtime.descriptions import known_shape, meta_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.model.memory import ModelMemory
    from engine.tensor import TensorMeta
    from engine.types import TensorSpec


def is_built(state: ModelState) -> bool:
    """Return whether a model has been built; log an error where it has not.

    Raises ModelStateError for one that is closed.
    """
    if state.why_not is NOT_BUILT:
        import logging

        logging.getLogger("engine").error(NOT_BUILT)
        return False
    state.require_built()
    return True


def memory(state: ModelState) -> ModelMemory:
    """See Model.memory."""
    from engine.model.memory import memory_of  # rare

    built, sharing = state.require_built(), state.sharing
    measured_bytes = sharing.workspace_bytes if sharing and sharing.workspace else 0
    reason = built.why_unshared
    if sharing and sharing.weights and not reason:
        reason = sharing.why_alone(built.plan)
    return memory_of(built.plan, reason, measured_bytes)


def info(state: ModelState, key: str) -> str:
    """See Model.get_model_info."""
    require("key", key, str)
    if key == "current_pid":
        return str(os.getpid())
    built, recipe = state.built, state.recipe
    if built is None or recipe is None:
        return ""
    if key == "shareable_weight_mem_handle":
        return built.loan.handle if built.loan is not None else ""
    from engine.runtime.model_info import model_info  # rare

    weights = () if recipe.weights is None else recipe.weights.specs
    return model_info(key, built.plan, built.signature, recipe.config, weights, recipe.kept)


def outputs(state: ModelState) -> tuple[TensorMeta, ...]:
    """See Model.get_outputs."""
    if not is_built(state):
        return ()
    signature = state.require_built().signature
    specs: Sequence[TensorSpec] = signature.outputs
    if any(known_shape(spec.shape) is None for spec in specs):
        threads = state.threads
        thread = getattr(threads, "state", None) or getattr(threads, "own", None)
        shapes: Sequence[Any] = signature.shapes
        if thread is not None:
            shapes = [shape for _, shape in thread.expected]
        if None not in shapes:
            original = state.recipe.original if state.recipe is not None else None
            ready("engine.runtime.resizing")
            from engine.runtime import resizing  # rare

            seen = getattr(thread, "seen", ())
            specs = resizing.sized_outputs(signature, shapes, seen, original)
    return tuple(map(meta_for, specs))


def described(state: ModelState) -> str:
    """Return a model as a prompt shows it."""
    plan = state.plan
    if plan is None:
        return f"<engine.Model: {state.why_not}>"
    backends = {plan.backend.name: None}
    with suppress(EngineError):  # a backend that cannot say what runs where
        backends |= dict.fromkeys(node.backend for node in plan.placement())
    return f"<engine.Model {state.path or 'from bytes'!r} on {', '.join(backends)}>"
