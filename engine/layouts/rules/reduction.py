"""Reductions along axes."""

from __future__ import annotations

from collections.abc import Iterator

from engine.layouts.rules.op import Op, Way
from engine.layouts.states import PARTIAL, State

_AXES_INPUT = {"ReduceSum": 13}
"""From which operator set on the axes are an input; 18 for those that are not here."""


def reduction(op: Op) -> Iterator[Way]:
    """Axes that stay may be divided; a sum over a divided axis gives terms of a sum."""
    shape = op.shape(op.inputs[0])
    kind = op.node.op_type
    if shape is None:
        return
    if op.version >= _AXES_INPUT.get(kind, 18):
        axes = op.ints(1) if op.input(1) else []
    else:
        axes = op.attribute("axes", [])
    if axes is None:
        return
    rank = len(shape)
    if not axes and op.attribute("noop_with_empty_axes", 0):
        return
    reduced = {axis % rank for axis in axes} if axes else set(range(rank))
    keeps = op.attribute("keepdims", 1)
    for state in op.states(op.inputs[0]):
        if state.axis in reduced:
            if kind == "ReduceSum":
                yield op.way({0: state}, {0: PARTIAL})
            continue
        yield op.way({0: state}, {0: _result(state, reduced, bool(keeps))})


def _result(state: State, reduced: set[int], keeps: bool) -> State:
    lost = 0 if keeps else sum(axis < state.axis for axis in reduced)
    return state.on(state.axis - lost)
