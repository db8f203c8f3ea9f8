"""Recurrent layers whose weights MindSpore keeps packed in one vector."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine_mindir.emit import Emitter, Unsupported
from engine_mindir.primitives import primitive
from engine_mindir.values import Value


def _reordered(g: Emitter, gates: Value, size: int, order: tuple[int, ...]) -> Value:
    """Return the gates' blocks of rows in ONNX's order."""
    parts = g.nodes(
        "Split", gates, types=[(None, None)] * len(order), axis=0, num_outputs=len(order)
    )
    return g.node("Concat", *(parts[gate] for gate in order), axis=0)


class _Packed:
    """Reader of consecutive parts of a flat weight vector."""

    def __init__(self, g: Emitter, flat: Value) -> None:
        self.g = g
        self.flat = flat
        self.offset = 0

    def take(self, *shape: int) -> Value:
        count = 1
        for size in shape:
            count *= size
        g = self.g
        part = g.node(
            "Slice", self.flat, *map(g.ints, (self.offset, self.offset + count, 0)), shape=(count,)
        )
        self.offset += count
        return g.reshape(part, shape)


@primitive("LSTM")
def lstm(
    g: Emitter, x: Value, h: Value, c: Value, weight: Value, *, input_size: Any, hidden_size: Any,
    num_layers: Any = 1, has_bias: Any = True, bidirectional: Any = False, dropout: float = 0.0,
    proj_size: Any = 0,
) -> tuple[Any, ...]:  # fmt: skip
    """x [time, batch, input], states [layers * directions, batch, hidden]; gates i, f, g, o.

    Packed: for every layer the input weights and hidden weights of each direction, then all biases
    in the same order: one for the input and one for the hidden state, or (on the CPU) their sum.
    """
    hidden, layers = int(hidden_size), int(num_layers)
    directions = 2 if bidirectional else 1
    if proj_size:
        raise Unsupported("an LSTM with a projection")
    packed = _Packed(g, g.reshape(weight, (-1,)))
    order = (0, 3, 1, 2)  # i, o, f, c
    weights = []
    for layer in range(layers):
        width = int(input_size) if layer == 0 else hidden * directions
        for _ in range(directions):
            w = packed.take(4 * hidden, width)
            r = packed.take(4 * hidden, hidden)
            weights.append((w, r))
    length = 1
    for size in weight.shape or (None,):
        if size is None:
            raise Unsupported("an LSTM whose packed weights have an unknown length")
        length *= size
    biases_per_direction = (
        (length - packed.offset) // (4 * hidden * len(weights)) if has_bias else 0
    )
    if (
        biases_per_direction > 2
        or packed.offset + biases_per_direction * 4 * hidden * len(weights) != length
    ):
        raise Unsupported(f"an LSTM of {length:,} packed weights")
    biases = [[packed.take(4 * hidden) for _ in range(biases_per_direction)] for _ in weights]
    y, last_h, last_c = x, [], []
    for layer in range(layers):
        indices = range(layer * directions, (layer + 1) * directions)
        w = _joined(g, [_reordered(g, weights[index][0], hidden, order) for index in indices])
        r = _joined(g, [_reordered(g, weights[index][1], hidden, order) for index in indices])
        bias = None
        if biases_per_direction:
            rows = []
            for index in indices:
                halves = [_reordered(g, half, hidden, order) for half in biases[index]]
                if biases_per_direction == 1:
                    g.bounded(4, hidden)
                    halves.append(g.constant(np.zeros(4 * hidden), halves[0].dtype))
                rows.append(g.node("Concat", *halves, axis=0))
            bias = _joined(g, rows)
        first = layer * directions
        h0, c0 = h, c
        if layers > 1:
            ends = (first, first + directions, 0)
            h0 = g.node("Slice", h, *map(g.ints, ends))
            c0 = g.node("Slice", c, *map(g.ints, ends))
        out, hn, cn = g.nodes(
            "LSTM", y, w, r, bias, None, h0, c0, types=[(None, None)] * 3, hidden_size=hidden,
            direction="bidirectional" if directions == 2 else "forward",
        )  # fmt: skip
        # [time, directions, batch, hidden] -> [time, batch, directions * hidden]
        if directions == 1:
            y = g.squeeze(out, (1,))
        else:
            y = g.node("Transpose", out, perm=[0, 2, 1, 3])
            y = g.node("Reshape", y, g.ints((0, 0, -1)))
        last_h.append(hn)
        last_c.append(cn)
    if layers == 1:
        return y, last_h[0], last_c[0], None, None
    return (
        y, g.node("Concat", *last_h, axis=0), g.node("Concat", *last_c, axis=0), None, None,
    )  # fmt: skip


def _joined(g: Emitter, parts: list[Value]) -> Value:
    wide = [g.unsqueeze(part, (0,)) for part in parts]
    return wide[0] if len(wide) == 1 else g.node("Concat", *wide, axis=0)


@primitive("DynamicRNN")
def dynamic_rnn(
    g: Emitter, x: Value, weight: Value, bias: Value, sequence: Any = None, h: Any = None,
    c: Any = None, *, forget_bias: float = 0.0, cell_type: str = "LSTM",
    direction: str = "UNIDIRECTIONAL", activation: str = "tanh", keep_prob: float = 1.0,
    use_peephole: Any = False, cell_clip: float = -1.0, num_proj: Any = 0, time_major: Any = True,
    is_training: Any = False,
) -> tuple[Any, ...]:  # fmt: skip
    """x [time, batch, input], weight [input + hidden, 4 hidden] with gates i, g, f, o."""
    if weight.shape is None or weight.shape[1] is None or x.shape is None or x.shape[2] is None:
        raise Unsupported("a DynamicRNN of unknown size")
    if direction != "UNIDIRECTIONAL" or use_peephole or num_proj or activation != "tanh":
        raise Unsupported("a DynamicRNN that is no plain LSTM")
    hidden, width = weight.shape[1] // 4, x.shape[2]
    order = (0, 3, 2, 1)
    turned = g.transpose(weight, [1, 0])
    w = g.node("Slice", turned, *map(g.ints, (0, width, 1)))
    r = g.node("Slice", turned, *map(g.ints, (width, width + hidden, 1)))
    rows = _reordered(g, bias, hidden, order)
    if forget_bias:
        g.bounded(4, hidden)
        extra = np.zeros(4 * hidden)
        extra[2 * hidden : 3 * hidden] = forget_bias
        rows = g.node("Add", rows, g.constant(extra, bias.dtype))
    zeros = g.node("Sub", rows, rows)
    b = g.unsqueeze(g.node("Concat", rows, zeros, axis=0), (0,))
    parts = [g.unsqueeze(_reordered(g, item, hidden, order), (0,)) for item in (w, r)]
    out, _, cn = g.nodes(
        "LSTM", x, *parts, b, None, h, c, types=[(None, None)] * 3, hidden_size=hidden
    )
    y = g.squeeze(out, (1,))
    return y, y, cn, None, None, None, None, None


@primitive("DynamicGRUV2")
def dynamic_gru(
    g: Emitter, x: Value, weight_input: Value, weight_hidden: Value, bias_input: Any = None,
    bias_hidden: Any = None, sequence: Any = None, h: Any = None, *,
    direction: str = "UNIDIRECTIONAL", activation: str = "tanh", gate_order: str = "rzh",
    reset_after: Any = True, cell_depth: Any = 1, keep_prob: float = 1.0, cell_clip: float = -1.0,
    num_proj: Any = 0, time_major: Any = True, is_training: Any = True,
) -> tuple[Any, ...]:  # fmt: skip
    """x [time, batch, input], weights [input, 3 hidden] and [hidden, 3 hidden]."""
    if weight_hidden.shape is None or weight_hidden.shape[0] is None:
        raise Unsupported("a DynamicGRUV2 of unknown size")
    if direction != "UNIDIRECTIONAL" or activation != "tanh" or num_proj:
        raise Unsupported("a DynamicGRUV2 that is no plain GRU")
    hidden = weight_hidden.shape[0]
    order = (1, 0, 2) if gate_order == "rzh" else (0, 1, 2)
    w, r = (
        g.unsqueeze(_reordered(g, g.transpose(item, [1, 0]), hidden, order), (0,))
        for item in (weight_input, weight_hidden)
    )
    bias = None
    if bias_input is not None or bias_hidden is not None:
        g.bounded(3, hidden)
        rows = [
            _reordered(g, item, hidden, order) if item is not None
            else g.constant(np.zeros(3 * hidden), x.dtype)
            for item in (bias_input, bias_hidden)
        ]  # fmt: skip
        bias = g.unsqueeze(g.node("Concat", *rows, axis=0), (0,))
    first = h if h is None or h.rank == 3 else g.unsqueeze(h, (0,))
    out, _ = g.nodes(
        "GRU", x, w, r, bias, sequence, first, types=[(None, None)] * 2, hidden_size=hidden,
        linear_before_reset=int(bool(reset_after)),
    )  # fmt: skip
    y = g.squeeze(out, (1,))
    return y, y, None, None, None, None
