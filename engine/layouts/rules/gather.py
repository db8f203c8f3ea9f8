"""Gather and embeddings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.layouts.rules.op import Change, Local, Op, Way
from engine.layouts.states import PARTIAL, State, lengths
from engine.types import DType


def gather(op: Op) -> Iterator[Way]:
    """Columns of the table; the places that are looked up; rows of the table, as terms of a sum."""
    data, places = op.shape(op.inputs[0]), op.shape(op.inputs[1])
    if data is None or places is None:
        return
    axis = op.axis(0, len(data))
    for state in op.states(op.inputs[0]):
        if state.axis != axis:
            moved = state.axis + (len(places) - 1 if state.axis > axis else 0)
            yield op.way({0: state}, {0: state.on(moved)})
    for state in op.states(op.inputs[1]):
        yield op.way({1: state}, {0: state.on(axis + state.axis)})
    rows, dtype = data[axis] if data else None, op.model.dtype(op.inputs[0])
    is_table = op.inputs[0] in op.model.constants and axis == 0 and len(data) > 1
    if (
        is_table
        and op.version >= 13
        and isinstance(rows, int)
        and (own := op.division(0, rows)) is not None
        and dtype is DType.FLOAT32
    ):
        yield op.way({0: own}, {0: PARTIAL}, _own_rows(rows, len(data), own), cost=1.0)


def _own_rows(rows: int, rank: int, state: State) -> Change:
    """Return a change that looks up a rank's own rows, and gives zeros for those of the others."""

    def change(local: Local) -> None:
        own = lengths(rows, local.ranks, state.unit)
        given = local.add("Cast", [local.node.input[1]], to=7)
        below = local.add("Less", [given, local.constant(np.int64(0))])
        counted = local.add("Add", [given, local.constant(np.int64(rows))])
        index = local.add("Where", [below, counted, given])  # -1 is the last row
        starts = [np.int64(sum(own[:rank])) for rank in range(local.ranks)]
        index = local.add("Sub", [index, local.constant(starts)])
        low = local.add("Less", [index, local.constant(np.int64(0))])
        high = local.add("Less", [local.constant([np.int64(size - 1) for size in own]), index])
        outside = local.add("Or", [low, high])
        local.node.input[1] = local.add("Where", [outside, local.constant(np.int64(0)), index])
        axes = local.constant(np.arange(-(rank - 1), 0, dtype=np.int64))
        mask = local.add("Unsqueeze", [outside, axes])
        local.follow(0, "Where", [mask, local.constant(np.float32(0))])

    return change


def one_hot(op: Op) -> Iterator[Way]:
    """Axes of the places, which the new axis moves."""
    made = op.shape(op.outputs[0])
    for state in op.states(op.inputs[0]) if made else ():
        moved = state.axis >= op.axis(-1, len(made or ()))
        yield op.way({0: state}, {0: state.on(state.axis + moved)})


def gather_elements(op: Op) -> Iterator[Way]:
    """Axes other than the one that is looked up in, where both inputs have the same size."""
    data, places = op.shape(op.inputs[0]), op.shape(op.inputs[1])
    if data is None or places is None:
        return
    axis = op.axis(0, len(data))
    for state in op.states(op.inputs[0]):
        if state.axis != axis and data[state.axis] == places[state.axis]:
            yield op.way({0: state, 1: state}, {0: state})
