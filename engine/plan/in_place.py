"""A plan whose backend holds the variable weights itself, by `engine_update_weights`.

The weights are constants of the graph, so the backend may fold and pack what it can, and predict is
the backend's own function. For a model that is one executable, whose weights nobody else has.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import numpy as np

from engine.backends.attribution import attribute_errors_to
from engine.errors import EngineError, ModelError, ModelStateError
from engine.formats.onnx.weights import with_constants
from engine.formats.opened import OpenedSource
from engine.host.interrupts import pass_interrupt, undisturbed
from engine.plan.compile import compile_whole
from engine.plan.contexts import ContextPool
from engine.plan.plan import Candidate, Opener, Plan
from engine.plan.transfer import Transfer
from engine.types import DeviceBuffer, Value


def compile_in_place(candidate: Candidate, source: OpenedSource) -> Plan | None:
    """Return the plan of a model whose backend exchanges its variable weights; None if it cannot.

    candidate: its backend announces UPDATE_WEIGHTS. source: with the weights as inputs, and without
    state. Raises what `compile_whole` does but ModelError: the model may still run with the weights
    as inputs.
    """
    backend, options = candidate.backend, candidate.options
    names = tuple(slot.name for slot in source.variables)
    own = candidate._replace(options=replace(options, variable_weights=names))
    reason = "it cannot run all nodes"
    constant = with_constants(source, {})
    if constant.graph is not None and source.graph is not None:
        # Facts of the weights' values may change: only what holds for any is kept.
        known = {spec.name: spec for spec in (*source.graph.inputs, *source.graph.outputs)}
        inputs = tuple(known[spec.name] for spec in constant.graph.inputs)
        outputs = tuple(known[spec.name] for spec in constant.graph.outputs)
        constant = replace(constant, graph=replace(constant.graph, inputs=inputs, outputs=outputs))
    try:
        plan, _ = compile_whole(own, constant)
    except ModelError as error:
        pass_interrupt(error)
        plan, reason = None, str(error)
    if plan is None:
        logging.getLogger("engine").info(
            "%s: backend %r does not hold its variable weights, the core does: %s",
            source.name, backend.name, reason,
        )  # fmt: skip
        return None
    opener = Opener(backend, plan.executable)
    weights = BackendWeights(plan, opener.close)
    opener.close = weights.close
    return replace(plan, pool=ContextPool(opener), weights=weights)


class BackendWeights:
    """See engine.plan.plan.InPlaceWeights. Any thread may call any method."""

    def __init__(self, plan: Plan, close: Callable[[], None]) -> None:
        """Take over the weights of a plan. close: frees its executable."""
        self.given: Mapping[str, Value] = MappingProxyType({})
        self.is_added = False
        self._backend = plan.backend
        self._executable = plan.executable
        self._update = plan.backend.bind("engine_update_weights")
        self._transfer = Transfer([(plan.backend, plan.device)])
        self._close = close
        self._is_closed = False
        # Of updates and the close; predicts take none. Reentrant, as a signal handler may update.
        self._turn = threading.RLock()

    def update(self, weights: Mapping[str, Value], is_added: bool) -> None:
        """See InPlaceWeights."""
        self.exchange(self.prepared(weights), is_added)

    def prepared(self, weights: Mapping[str, Value]) -> Mapping[str, Value]:
        """See InPlaceWeights."""
        self._check_open()
        return {
            name: self._transfer.to_host(value)
            if isinstance(value, DeviceBuffer)
            else np.array(value, order="C")
            for name, value in weights.items()
        }

    def exchange(self, prepared: Mapping[str, Value], is_added: bool) -> None:
        """See InPlaceWeights."""
        # A signal handler's exception must not come between the exchange and the note of it.
        undisturbed(partial(self._exchange, prepared, is_added))

    def _exchange(self, prepared: Mapping[str, Value], is_added: bool) -> None:
        with self._turn:
            self._check_open()
            with attribute_errors_to(self._backend, "engine_update_weights"):
                try:
                    self._update(self._executable, prepared, is_added)
                except ValueError as error:
                    if isinstance(error, EngineError):
                        raise
                    raise self._backend.at_fault("engine_update_weights", error) from error
            self.given = {**self.given, **prepared}
            self.is_added = is_added

    def close(self) -> None:
        """Free the executable, after an update that runs; twice does nothing."""
        with self._turn:
            self._is_closed = True
            self._close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ModelStateError("the model is closed; build a new one")
