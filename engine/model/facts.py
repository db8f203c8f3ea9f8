"""The facts about a built model that its user may read."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from engine.config.checks import require
from engine.config.wording import prefixed
from engine.errors import EngineError, ModelStateError
from engine.model.handle import Handle
from engine.runtime.descriptions import Specs, known_shape, meta_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.model.memory import ModelMemory
    from engine.model.recipe import Built, Recipe
    from engine.plan import Plan
    from engine.report.summary import ModelSummary
    from engine.tensor import TensorMeta
    from engine.types import Placement, TensorSpec
    from engine.weights.sharing import Sharing

NOT_BUILT = "the model is not built; call build_from_file first"


class ModelFacts(Handle):
    """A model as its user reads it: inputs, outputs, metadata, where it runs, what it takes."""

    def __init__(self) -> None:
        self.model_path_ = ""
        # Replaced as one: a thread that makes its state meanwhile gets all of one or of the other.
        self._built: Built | None = None
        self._recipe: Recipe | None = None
        self._sharing: Sharing | None = None
        self._threads = threading.local()
        self._why_not = NOT_BUILT

    @property
    def inputs(self) -> Specs:
        """The inputs as the model declares them or as last resized, symbolic names included."""
        return Specs(self._require_built().signature.inputs)

    @property
    def outputs(self) -> Specs:
        """The outputs, likewise."""
        return Specs(self._require_built().signature.outputs)

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the model's file, by key: who made it, labels, sizes."""
        graph = self._require_built().plan.source.graph
        return dict(graph.metadata) if graph is not None else {}

    @property
    def placement(self) -> list[Placement]:
        """For each node: backend, device, provider, and why it runs there."""
        return self._require_built().plan.placement()

    def summary(self) -> ModelSummary:
        """Return what is known of the model at a glance: print it, or show it in a notebook.

        Raises ModelStateError before building or after closing.
        """
        from engine.report.inspection import of_model  # rare

        return of_model(self)

    def memory(self) -> ModelMemory:
        """Return what the model takes in memory now, in bytes, by the backends that run it.

        Weights are private to the model, shared with others of this process, or mapped from files
        that other processes may have mapped too. Raises ModelStateError before building or after
        closing.
        """
        from engine.model.memory import memory_of  # rare

        built = self._require_built()
        sharing = self._sharing
        measured_bytes = sharing.workspace_bytes if sharing and sharing.workspace else 0
        reason = built.why_unshared
        if sharing and sharing.weights and not reason:
            from engine.weights.sharing import why_alone

            reason = why_alone(built.plan)
        return memory_of(built.plan, reason, measured_bytes)

    def get_model_info(self, key: str) -> str:
        """Return what the model says of itself, as text; "" for what is not known yet.

        key: "user_info", the metadata of the model's file as JSON; "input_shape", for example
        "x:1,3,8,8;mask:-1,4", and "variable_weights", what was declared, likewise; "dynamic_dims",
        what the configuration gave; "current_pid", this process, also before building;
        "shareable_weight_mem_handle", what the processes that shareable_weight_pid_list names
        build the same model with, on this one's weights.
        Raises TypeError unless `key` is a str.
        """
        require("key", key, str)
        if key == "current_pid":
            return str(os.getpid())
        built, recipe = self._built, self._recipe
        if built is None or recipe is None:
            return ""
        if key == "shareable_weight_mem_handle":
            return built.loan.handle if built.loan is not None else ""
        from engine.runtime.model_info import model_info  # rare

        weights = () if recipe.weights is None else recipe.weights.specs
        return model_info(key, built.plan, built.signature, recipe.config, weights, recipe.kept)

    def get_outputs(self) -> tuple[TensorMeta, ...]:
        """Return descriptions of the outputs. Empty before the model is built.

        Sizes are those of the calling thread's last predict, else what follows from the last
        resize; an axis of which neither tells is -1.
        """
        if not self._is_built():
            return ()
        signature = self._require_built().signature
        specs: Sequence[TensorSpec] = signature.outputs
        if any(known_shape(spec.shape) is None for spec in specs):
            threads = self._threads
            state = getattr(threads, "state", None)
            shapes: Sequence[Any] = signature.shapes
            if state is not None:
                shapes = [shape for _, shape in state.expected]
            if None not in shapes:
                original = self._recipe.original if self._recipe is not None else None
                specs = signature.sized_outputs(shapes, threads.seen if state else (), original)
        return tuple(map(meta_for, specs))

    def _repr_html_(self) -> str:
        if self._built is None or self._why_not:
            from html import escape

            return f"<code>{escape(repr(self))}</code>"
        return self.summary()._repr_html_()

    def __repr__(self) -> str:
        plan = self._plan
        if plan is None:
            return f"<engine.Model: {self._why_not}>"
        backends = {plan.backend.name: None}
        with suppress(EngineError):  # a backend that cannot say what runs where
            backends |= dict.fromkeys(node.backend for node in plan.placement())
        return f"<engine.Model {self.model_path_ or 'from bytes'!r} on {', '.join(backends)}>"

    @property
    def _plan(self) -> Plan | None:
        built = self._built
        return None if built is None else built.plan

    def _is_built(self) -> bool:
        if self._why_not is NOT_BUILT:
            import logging

            logging.getLogger("engine").error(NOT_BUILT)
            return False
        self._require_built()
        return True

    def _require_built(self, caller: str = "") -> Built:
        built = self._built
        if built is None or self._why_not:
            raise prefixed(ModelStateError(self._why_not), f"{caller} failed! " if caller else "")
        return built
