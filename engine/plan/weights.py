"""Weights of a plan that may be exchanged while it runs.

A declared weight is an input of the graph (`variables` of the source), and its value is the core's.
A predict reads the values once, as one tuple, so an update is atomic for all of it: over segments,
contexts and threads alike. A backend never sees that a weight has changed.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from engine.errors import InputError, ModelError, ModelStateError
from engine.formats.opened import variables_of
from engine.options import nearest
from engine.plan.partition import graph_of, reachable
from engine.plan.transfer import Transfer
from engine.types import Device, DeviceBuffer, DType, ModelSource, TensorSpec, Value
from engine.wings import wing

_HAVE_BODIES = frozenset(("If", "Loop", "Scan", "SequenceMap"))


class PlanWeights:
    """The present values of a plan's variable weights. Any thread may call any method.

    specs: name, dtype and shape of each, in the order of the graph's inputs. initial: arrays that
    nobody changes. homes: the device where each is read, None for the host.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        initial: Sequence[np.ndarray[Any, Any]],
        homes: Sequence[Device | None],
        transfer: Transfer,
    ) -> None:
        self.specs = tuple(specs)
        self._homes = tuple(homes)
        self._transfer = transfer
        self._numbers = {spec.name: number for number, spec in enumerate(specs)}
        # Of updates; predicts take none. Reentrant, as a signal handler may update too.
        self._turn = threading.RLock()
        self.is_closed = False
        self.values: tuple[Value, ...] = tuple(
            array if homes[number] is None else self._at_home(array, number)
            for number, array in enumerate(initial)
        )

    def update(self, weights: Mapping[str, Value]) -> None:
        """Exchange weights, for every predict that begins after this returns.

        weights: new values by name, arrays or DeviceBuffers; copied. Predicts that run keep the
            old ones to their end.
        Raises InputError naming the weight that is unknown or does not fit, ModelStateError once
        the model is closed; nothing changed then.
        """
        self.exchange(self.prepared(weights))

    def prepared(self, weights: Mapping[str, Value]) -> Mapping[int, Value]:
        """Check and copy new values to where they are read; `exchange` then cannot fail.

        So several plans can be prepared before the first of them changes. See `update`.
        """
        if self.is_closed:
            raise ModelStateError("the model is closed; build a new one")
        for name, value in weights.items():
            number = self._numbers.get(name)
            if number is None:
                raise unknown_weight(name, self._numbers)
            check_weight(value, self.specs[number])
        return {
            self._numbers[name]: self._at_home(value, self._numbers[name])
            for name, value in weights.items()
        }

    def exchange(self, prepared: Mapping[int, Value]) -> None:
        """Have every predict that begins from now on use what was prepared."""
        with self._turn:
            self.values = tuple(
                prepared.get(number, value) for number, value in enumerate(self.values)
            )

    def current(self) -> dict[str, Value]:
        """Return the values of this moment, by name. They are the plan's: not to be changed."""
        return {spec.name: value for spec, value in zip(self.specs, self.values, strict=True)}

    def _at_home(self, value: Value, number: int) -> Value:
        """Return a copy of a weight where it is read."""
        home = self._homes[number]
        if home is not None:
            if isinstance(value, np.ndarray):
                value = np.ascontiguousarray(value)
            return self._transfer.to_device(value, home, self.specs[number].name)
        if isinstance(value, DeviceBuffer):
            return self._transfer.to_host(value)
        return np.array(value, order="C")


def unknown_weight(name: str, names: Collection[str]) -> InputError:
    """Return the error for a weight that is not among those declared, `names`."""
    near = nearest(name, names)
    hint = f"did you mean {near!r}? " if near else ""
    return InputError(
        f"weight {name!r} was not declared variable; {hint}declared: {', '.join(map(repr, names))}",
        name,
    )


def check_weight(value: object, spec: TensorSpec) -> None:
    """Raise InputError unless a value is a tensor of exactly the weight's dtype and shape."""
    if isinstance(value, DeviceBuffer):
        got = f"{value.dtype}{list(value.shape)}"
        fits = (value.dtype, value.shape) == (spec.dtype, spec.shape)
    elif np.ma.isMaskedArray(value):
        got, fits = "a masked array; fill its masked elements first", False
    elif isinstance(value, np.ndarray):
        got = f"{value.dtype}{list(value.shape)}"
        fits = value.dtype == spec.dtype.numpy and value.shape == spec.shape
        if value.shape == spec.shape and spec.dtype is not DType.STRING:
            got += f"; convert it with astype({str(spec.dtype)!r})"
    else:
        got, fits = type(value).__name__, False
    if not fits:
        raise InputError(f"weight {spec.name!r}: expected {spec}, got {got}", spec.name)


def check_declared(source: ModelSource, names: Sequence[str]) -> None:
    """Raise InputError for a declared weight that is not there, ModelError for one without effect.

    names: what the user has declared; they may be a node's, whose weight has another name.
    """
    slots = variables_of(source)
    graph = source.graph
    if names and not slots:
        raise InputError(
            f"{source.name}: has no weights that can be exchanged, but {list(names)} were declared "
            "variable; declare weights of an ONNX or MindIR model",
            names[0],
        )
    if not slots or graph is None:
        return
    wanted = {slot.name for slot in slots}
    if any(node.op_type in _HAVE_BODIES for node in graph.nodes):
        live = wing("reachable_names")(source)  # bodies of nodes are not in the GraphInfo
    else:
        live = reachable(graph_of(graph))
    dead = sorted(wanted - live)
    if dead:
        raise ModelError(
            f"{source.name}: weight {dead[0]!r} was declared variable, but no output depends on "
            "it; leave it out of the declaration",
            source.name,
        )
