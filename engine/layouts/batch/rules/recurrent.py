"""LSTM, GRU and RNN: time is one axis, samples are another."""

from __future__ import annotations

from engine.layouts.batch.node import Node, require
from engine.layouts.batch.values import Value, divided, whole


def recurrent(node: Node) -> list[Value]:
    """Samples along axis 1, or 0 with layout 1; weights are the same for every sample."""
    x = node.input(0)
    layout = int(node.attributes.get("layout", 0))
    own = 0 if layout else 1
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[node.op_type]
    recurrences = node.input(2)
    hidden = node.attributes.get("hidden_size") or recurrences.dims[-1]
    directions = 2 if node.attributes.get("direction", "forward") == "bidirectional" else 1
    node.require_whole(1, 2, 3)
    if gates == 4:
        node.require_whole(7)  # peepholes
    states = [(4, 0), (5, own), *([(6, own)] if gates == 4 else [])]
    present = [(node.maybe(index), axis) for index, axis in states]
    given = [(value, axis) for value, axis in present if value is not None]
    count, time = x.dims[own], x.dims[1 - own]
    if not x.is_divided:
        require(all(value.is_whole for value, _ in given), "its states are other samples'")
    else:
        require(x.axis == own, "it runs along the batch as along time")
        require(
            all(v.is_divided and v.axis == axis and v.size == x.size for v, axis in given),
            "its states or lengths are not divided along the batch",
        )
    if layout:
        shapes = [(count, time, directions, hidden), *[(count, directions, hidden)] * 2]
        axes = (0, 0, 0)
    else:
        shapes = [(time, directions, count, hidden), *[(directions, count, hidden)] * 2]
        axes = (2, 1, 1)
    made: list[Value] = [
        divided(axis, shape) if x.is_divided else whole(shape) for axis, shape in zip(axes, shapes)
    ]
    return made[: node.count]
