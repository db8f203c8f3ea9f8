"""LSTM, GRU and RNN: samples, directions, or weights that are held in parts and gathered.

Each step needs all of what the step before has made, so hidden units cannot be divided among ranks
without an exchange a step, for which one node has no place. The two directions of a bidirectional
one do not meet. Else each rank holds a part of the weights, and gets the others' before it runs:
(ranks - 1) / ranks of their bytes are received with every predict.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.layouts.own_attributes import set_attribute, set_for_ranks
from engine.layouts.rules.op import Change, Local, Op, Way
from engine.layouts.states import State

LEAST_ELEMENTS = 1 << 14
"""Weights of fewer elements stay whole: gathering them costs time, and saves next to nothing."""

_WEIGHTS, _BIAS, _LENGTHS, _STATES, _PEEPHOLES = (1, 2), 3, 4, (5, 6), 7


def recurrent(op: Op) -> Iterator[Way]:
    """Samples; two directions on two ranks; weights by rows of their gates, gathered."""
    x, weights = op.shape(op.inputs[0]), op.shape(op.inputs[1])
    if x is None or weights is None or len(x) != 3 or len(weights) != 3:
        return
    batch = 0 if op.attribute("layout", 0) else 1
    samples = [_by_samples(op, state, batch) for state in op.axis_states(op.inputs[0], batch)]
    yield from samples
    yield from _by_direction(op, weights[0], batch)
    _, rows, columns = weights
    if not isinstance(rows, int) or not isinstance(columns, int) or rows * columns < LEAST_ELEMENTS:
        return
    if all(op.input(index) in op.model.constants for index in _WEIGHTS):
        gate_rows = op.division(1, weights[1])
        if gate_rows is not None:  # of W and R alike
            for way in (op.way({}, {}, cost=1.0), *samples):
                inputs = [*way.inputs]
                for index in _WEIGHTS:
                    inputs[index] = gate_rows
                yield way._replace(inputs=tuple(inputs), gathered=_WEIGHTS)


def _by_samples(op: Op, state: State, batch: int) -> Way:
    last = state.on(0 if batch == 0 else 1)
    inputs = {0: state, _LENGTHS: state.on(0), **dict.fromkeys(_STATES, last)}
    return op.way(inputs, {0: state.on(0 if batch == 0 else 2), 1: last, 2: last})


def _by_direction(op: Op, directions: object, batch: int) -> Iterator[Way]:
    own = op.division(0, 2)
    uses_numbers = op.attribute("activation_alpha") or op.attribute("activation_beta")
    if op.ranks != 2 or directions != 2 or own is None or uses_numbers:
        return
    last = own.on(1 if batch == 0 else 0)
    inputs = dict.fromkeys((*_WEIGHTS, _BIAS, _PEEPHOLES), own) | dict.fromkeys(_STATES, last)
    outputs = {0: own.on(2 if batch == 0 else 1), 1: last, 2: last}
    yield op.way(inputs, outputs, _one_direction(op))


def _one_direction(op: Op) -> Change:
    names = [
        name.decode() if isinstance(name, bytes) else name
        for name in op.attribute("activations") or ()
    ]

    def change(local: Local) -> None:
        set_for_ranks(local.node, "direction", ["forward", "reverse"])
        half = len(names) // 2
        if names[:half] == names[half:]:
            if names:
                set_attribute(local.node, "activations", names[:half])
        else:
            set_for_ranks(local.node, "activations", [names[:half], names[half:]])

    return change
