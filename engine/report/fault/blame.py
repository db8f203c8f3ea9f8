"""Tell of a block which of its nodes makes the error, or that they make it only together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from engine.errors import EngineError
from engine.report.fault.found import Fault, FaultKind, FaultNode
from engine.report.fault.search import Block, Search, Trial
from engine.report.fault.sides import Side, Values
from engine.report.fault.spread import share_of, spread_of
from engine.tensor.description import Array

CLEARLY = 4
"""A node's own error that is as many times each other's is named, though within the tolerance."""

_MEANT = 0.02  # of the tolerance; a smaller error of a node's own is rounding

_MOST_TRIALS = 32
_LIMIT_S = 15.0  # of a block in float64


class Blame:
    """A block that is apart on equal inputs, and the fault in it.

    block, trial: the first that is apart, as the sides run; they become smaller on the way.
    """

    def __init__(self, search: Search, block: Block, trial: Trial) -> None:
        self._search = search
        self.block, self.trial = block, trial
        self._own: dict[str, float] = {}

    def kind(self) -> tuple[FaultKind, list[int]]:
        """Return the kind of the fault and its nodes in a's graph."""
        search = self._search
        order = list(search.pairs.names)
        end = order.index(self.block.value) + 1 if self.block.value in order else len(order)
        if search.knows_all and (found := self._first_alone(order[:end])):
            return found
        kind, nodes = self._of_block()
        # An error that has grown may hide a node that is wrong by itself, further on.
        if kind is FaultKind.GROWS and search.knows_all:
            with suppress(EngineError):  # values that b has in another shape do not fit a's nodes
                return self._first_alone(order[end:]) or (kind, nodes)
        return kind, nodes

    def _of_block(self) -> tuple[FaultKind, list[int]]:
        """Look into the shortest block that is apart on equal inputs."""
        search = self._search
        shortest = search.shortest(self.block)
        if shortest is not None:
            self.block, self.trial = shortest
        nodes = self._nodes()
        inside = self._inside(nodes)
        if shortest is not None:
            if not inside:
                return (FaultKind.NODE if len(nodes) == 1 else FaultKind.BLOCK), nodes
            read = search.run(self.block, inside)
            if CLEARLY * self._share(read.a, read.b) < self._share(self.trial.a, self.trial.b):
                return self._fused(inside)
        value = self.block.value
        names = [*inside, *([value] if value in search.pairs.names else [])]
        if not search.knows_all and (found := self._first_alone(names)):
            return found
        # The block begins at the node without which all is within.
        start, *others = names or [""]
        rest = max((self._own[name] for name in others), default=0.0)
        if others and self._own[start] > max(_MEANT, CLEARLY * rest):
            cone = search.a.cone([start], self._begins() - {start})
            steps = [index for index in cone if index in set(nodes)]
            return (FaultKind.NODE if len(steps) == 1 else FaultKind.BLOCK), steps
        return FaultKind.GROWS, nodes

    def _inside(self, nodes: Sequence[int]) -> list[str]:
        """Return the values between a block's nodes that b's graph has too."""
        search = self._search
        return [
            name
            for index in nodes
            for name in search.a.graph.nodes[index].writes
            if name in search.pairs.names and index != search.a.makers[self.block.value]
        ]

    def _first_alone(self, names: Sequence[str]) -> tuple[FaultKind, list[int]] | None:
        """Return the first of these steps that is apart by itself, on b's values."""
        self._own |= self._own_shares(names)
        for name in names:
            if self._own[name] > 1 and (found := self._alone(name)):
                return found
        return None

    def _nodes(self) -> list[int]:
        """Return the nodes of the block that are not constants."""
        known = {*self.block.given, *self._search.inputs}
        cone = self._search.a.cone([self.block.value], known)
        order = {*self._search.a.order}
        return [index for index in cone if index in order] or cone

    def _begins(self) -> set[str]:
        """Return all values at which a step of a may begin."""
        return {*self._search.pairs.names, *self._search.inputs}

    def _begins_b(self) -> set[str]:
        """Return the same of b."""
        return {*self._search.pairs.names.values(), *self._search.inputs_b}

    def _alone(self, value: str) -> tuple[FaultKind, list[int]] | None:
        """Make the steps to a value the block, if it is apart by itself when built alone too."""
        search = self._search
        known = self._begins() - {value}
        cone = search.a.cone([value], known)
        read = {name for index in cone for name in search.a.graph.nodes[index].reads}
        given = tuple(name for name in search.pairs.names if name in read and name in known)
        block = Block(value, given)
        trial = search.run(block)
        if trial.found.is_within:
            return None
        self.block, self.trial = block, trial
        nodes = self._nodes()
        return (FaultKind.NODE if len(nodes) == 1 else FaultKind.BLOCK), nodes

    def _fused(self, inside: Sequence[str]) -> tuple[FaultKind, list[int]]:
        """Leave out each node without which the block is still apart."""
        search = self._search
        for name in [name for name in inside if name not in self.block.given][:_MOST_TRIALS]:
            smaller = Block(self.block.value, (*self.block.given, name))
            trial = search.run(smaller)
            if not trial.found.is_within:
                self.block, self.trial = smaller, trial
        nodes = self._nodes()
        return (FaultKind.FUSED if len(nodes) > 1 else FaultKind.NODE), nodes

    def _own_shares(self, names: Sequence[str]) -> dict[str, float]:
        """Return the error of each step's own, on b's values, as a share of its tolerance."""
        if not names:
            return {}
        search, pairs = self._search, self._search.pairs.names
        known = self._begins()
        read = search.a.read_by(names, known)
        read_b = search.b.read_by([pairs[name] for name in names], self._begins_b())
        reads = [name for name, other in pairs.items() if name in read or other in read_b]
        between = [name for name in reads if name not in self.block.given]
        values = search.b_at(self.block.given)
        values = {**values, **search.inside_b(between, values)}
        feeds = {**values, **search.inputs}
        own = search.a.each(names, known, feeds)
        other = self._each_of_b(names, feeds)
        return {name: self._share(own[name], other[name]) for name in names}

    def _each_of_b(self, names: Sequence[str], feeds: Values) -> Values:
        search = self._search
        pairs = search.pairs.names
        of_b = {**search.pairs.of_b(feeds), **search.inputs_b}
        found = search.b.each([pairs[name] for name in names], self._begins_b(), of_b)
        return {name: found[pairs[name]] for name in names}

    def _share(self, a: Array, b: Array) -> float:
        return share_of(a, b, *self._search.limits(a, b))

    # -------------------------------------------------------------------------------- the fault

    def fault(self) -> Fault:
        """Return the fault, with its error's distribution and either side's against float64."""
        first = self.trial.found
        kind, nodes = self.kind()
        search, value = self._search, self.block.value
        found, a, b = self.trial.found, self.trial.a, self.trial.b
        value_b = search.pairs.name_b(value)
        known = search.pairs.of_b(dict.fromkeys(self.block.given))
        nodes_b = search.b.cone([value_b], {*known, *search.inputs_b})
        exact, reason = self._exact()
        named = [self._named(index) for index in nodes]
        if kind is FaultKind.GROWS:
            named.sort(key=lambda node: -(node.own or 0.0))
        return Fault(
            kind=kind,
            nodes=tuple(named),
            nodes_b=tuple(_node(search.b, index) for index in nodes_b),
            value=value,
            value_b=value_b,
            inputs=self.block.given,
            own=found,
            first=first,
            spread=spread_of(a, b, found.rtol, found.atol),
            exact_a=None if exact is None else spread_of(a, exact, found.rtol, found.atol),
            exact_b=None if exact is None else spread_of(b, exact, found.rtol, found.atol),
            no_float64=reason,
        )

    def _named(self, index: int) -> FaultNode:
        node = _node(self._search.a, index)
        shares = [self._own[name] for name in node.outputs if name in self._own]
        return replace(node, own=max(shares)) if shares else node

    def _exact(self) -> tuple[Array | None, str]:
        """Return the block's value as b's graph makes it in float64, or why there is none."""
        from engine.report.choice.exact import in_float64

        search = self._search
        value = search.pairs.name_b(self.block.value)
        known = search.b_at(self.block.given)
        feeds = {**search.pairs.of_b(known), **search.inputs_b}
        part = search.b.part([value], feeds)
        assert part.graph is not None
        given = [feeds[spec.name] for spec in part.graph.inputs]
        found = in_float64(part, [given], _LIMIT_S)
        if found is None or value not in found[0]:
            return (
                None,
                "onnx's reference evaluator cannot run these nodes in float64, or takes too long",
            )
        return found[0][value], ""


def _node(side: Side, index: int) -> FaultNode:
    node = side.nodes[index]
    return FaultNode(index, node.name, node.op_type, tuple(filter(None, node.output)))
