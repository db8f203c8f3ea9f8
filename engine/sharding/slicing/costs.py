"""Costs of sharing: work that is done more than once, weights held more than once, exchanges.

In seconds of a predict, on a machine such as this project's tables were measured on. Only how
things compare matters.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import inf, prod
from typing import NamedTuple

from engine.layouts.rules import Op, Way
from engine.layouts.states import PARTIAL, WHOLE, State, local_size
from engine.sharding.slicing.original import Original

FLOPS = 30e9
BYTES = 8e9
EXCHANGED_BYTES = 2e9
EXCHANGE_S = 100e-6
"""Cost of a collective beside its bytes: waiting for each other, and a cut in the model."""

_NEARLY_EVEN = 1.05
"""Largest part, over that of an even division, that counts as such a one."""

TERMS_VERSION = 9
"""The operator set from which a whole tensor can become a term of a sum: that takes Where."""

PRODUCTS = frozenset(("MatMul", "Gemm", "Conv", "ConvTranspose", "MatMulInteger", "ConvInteger",
                       "QLinearMatMul", "QLinearConv", "MatMulNBits", "Einsum", "Attention", "LSTM",
                       "GRU", "RNN"))  # fmt: skip


class Step(NamedTuple):
    """A tensor's change from one state to another: seconds, and the collective it takes."""

    seconds: float
    collective: str = ""


class Costs:
    """The costs of one model on `ranks` ranks.

    divide_all: a weight that is held whole costs more than anything else: what can be divided is.
    """

    def __init__(self, model: Original, ranks: int, divide_all: bool) -> None:
        self.model = model
        self.ranks = ranks
        self._weight_s = 1e-3 if divide_all else 0.0
        self._work: dict[int, float] = {}

    def of_work(self, op: Op, way: Way) -> float:
        """Return what a node's work costs a rank."""
        key = id(op.node)
        whole = self._work.get(key)
        if whole is None:
            whole = self._work[key] = self._whole_work(op)
        shared = any(state.is_shard for state in (*way.inputs, *way.outputs))
        left = way.cost if way.cost is not None else self._share(op, way) if shared else 1.0
        cost = whole * left
        for index in way.gathered:
            exchange = step(way.inputs[index], WHOLE, self._nbytes(op.inputs[index]), self.ranks)
            cost += exchange.seconds if exchange is not None else inf
        if self._weight_s and op.outputs[0] in self.model.derived:  # a weight that is computed
            for name, state in zip(op.outputs, way.outputs):
                cost += self.of_weight(name, state) if name else 0.0
        return cost

    def of_weight(self, name: str, state: State) -> float:
        """Return what it costs a rank to hold a weight in this state."""
        shape = self.model.shape(name) or ()
        if sum(size != 1 for size in shape) < 2:
            return 0.0  # biases and scales follow what they belong to
        nbytes = self.model.nbytes(name) * self.share(name, state)
        return nbytes * (self._weight_s + 1 / BYTES)

    def share(self, name: str, state: State) -> float:
        """Return how much of a tensor the rank holds that holds the most of it.

        As much as each of equal parts where it is next to that: what a collective costs counts
        for more than a column.
        """
        if not state.is_shard:
            return 1.0
        size = (self.model.shape(name) or ())[state.axis] if state.unit else None
        if not isinstance(size, int):
            return 1 / self.ranks
        most = local_size(size, state, self.ranks) / size
        return 1 / self.ranks if most * self.ranks < _NEARLY_EVEN else most

    def _share(self, op: Op, way: Way) -> float:
        """Return the largest part of a node's work that a rank has."""
        held = (*zip(op.inputs, way.inputs), *zip(op.outputs, way.outputs))
        return max(self.share(name, state) for name, state in held if name and state.is_shard)

    def cheapest(
        self, name: str, has: Iterable[State], wanted: State
    ) -> tuple[float, tuple[State, ...] | None]:
        """Return the least cost of a state, and the states on the way there; None for no way."""
        best: tuple[float, tuple[State, ...] | None] = (inf, None)
        for state in has:
            cost, through = self._step(name, state, wanted)
            if cost < best[0]:
                best = cost, through
        return best

    def _step(
        self, name: str, state: State, wanted: State
    ) -> tuple[float, tuple[State, ...] | None]:
        if wanted == PARTIAL != state and self.model.opsets.get("", 1) < TERMS_VERSION:
            return inf, None
        direct = step(state, wanted, self._nbytes(name), self.ranks)
        if direct is not None:
            return direct.seconds, ()
        if state == WHOLE:
            return inf, None
        first = step(state, WHOLE, self._nbytes(name), self.ranks)
        then = step(WHOLE, wanted, self._nbytes(name), self.ranks)
        if first is None or then is None:
            return inf, None
        return first.seconds + then.seconds, (WHOLE,)

    @lru_cache(None)  # noqa: B019 - one object a slicing
    def _nbytes(self, name: str) -> int:
        return self.model.nbytes(name)

    def _whole_work(self, op: Op) -> float:
        moved = sum(self.model.nbytes(name) for name in (*op.inputs, *op.outputs) if name)
        seconds = moved / BYTES
        if op.node.op_type in PRODUCTS and len(op.inputs) > 1:
            made = self.model.nbytes(op.outputs[0]) / 4
            place = 3 if op.node.op_type.startswith("QLinear") else 1
            weights = op.shape(op.input(place)) or ()
            sizes = [size for size in weights if isinstance(size, int)]
            inner = prod(sizes[1:]) if "Conv" in op.node.op_type else (sizes or [1])[0]
            seconds += 2 * made * inner / FLOPS
        return seconds


def step(state: State, wanted: State, nbytes: int, ranks: int) -> Step | None:
    """Return how to come from one state to another directly; None where there is no such way."""
    part = nbytes * (ranks - 1) / ranks
    if state == wanted:
        return Step(0.0)
    if state == WHOLE and wanted.is_shard:
        return Step(nbytes / ranks / BYTES)
    if state == WHOLE and wanted == PARTIAL:
        return Step(2 * nbytes / BYTES)
    if state.is_shard and wanted == WHOLE:
        packed = 2 * nbytes / BYTES if state.unit else 0.0  # all bring as much as the longest part
        return Step(EXCHANGE_S + part / EXCHANGED_BYTES + packed, "AllGather")
    if state == PARTIAL and wanted == WHOLE:
        return Step(EXCHANGE_S + 2 * part / EXCHANGED_BYTES, "AllReduce")
    if state.is_shard and wanted.is_shard and _is_plain(state) and _is_plain(wanted):
        return Step(EXCHANGE_S + part / ranks / EXCHANGED_BYTES, "AllToAll")
    return None


def _is_plain(state: State) -> bool:
    return not state.blocks and not state.unit
