"""The result of `engine.diff`, typed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.config.text import plain
from engine.report.differences import Comparison, OutputComparison
from engine.report.fault.spread import Spread

_ALIKE = 4  # the largest ratio of two errors that are both rounding


class FaultKind(StrEnum):
    """The ways in which two sides come apart.

    NODE: one node differs, with equal inputs. FUSED: a block of nodes differs, and only when they
    are built together. BLOCK: a block that cannot be told apart further, because the two graphs
    have no value in common inside. GROWS: each node is within the tolerances with equal inputs, and
    their errors together are not.
    """

    NODE = "node"
    FUSED = "fused"
    BLOCK = "block"
    GROWS = "grows"


@dataclass(frozen=True, slots=True)
class FaultNode:
    """A node of a's graph; index: its place there.

    own: its largest error with equal inputs, as a share of the tolerance; above 1 it is beyond.
    None where it was not computed alone.
    """

    index: int
    name: str
    op_type: str
    outputs: tuple[str, ...]
    own: float | None = None

    def __str__(self) -> str:
        name = self.name or ", ".join(self.outputs)
        return f"{self.op_type} {plain(name)!r} (node {self.index})"


@dataclass(frozen=True, slots=True)
class Fault:
    """The first place where two sides are apart.

    nodes: the node, or the smallest block that can be told apart; the nodes with the largest errors
    of their own first where the error grows. nodes_b: the same of b's graph, where it is another.
    value: the result of the block that is apart; value_b: its name in b. own: its comparison with
    equal inputs of the block, those that b computes. whole: that with each side's own inputs.
    first: the value that is the first to leave the tolerances as the sides run. spread: the
    distribution of `own`'s error. exact_a, exact_b: of either side against float64, None with the
    reason in `no_float64`. inputs: what goes into the block.
    """

    kind: FaultKind
    nodes: tuple[FaultNode, ...]
    nodes_b: tuple[FaultNode, ...]
    value: str
    value_b: str
    inputs: tuple[str, ...]
    own: OutputComparison
    first: OutputComparison
    spread: Spread | None = None
    exact_a: Spread | None = None
    exact_b: Spread | None = None
    no_float64: str = ""

    @property
    def is_rounding(self) -> bool:
        """True where both sides are about as far from float64: neither is wrong."""
        if self.exact_a is None or self.exact_b is None:
            return False
        if self.exact_a.unmatched or self.exact_b.unmatched:
            return False
        largest = [spread.absolute[-1:] for spread in (self.exact_a, self.exact_b)]
        return all(largest) and max(largest)[0] <= _ALIKE * min(largest)[0]

    def __str__(self) -> str:
        return f"{_SAID[self.kind].format(node=self.nodes[0], count=len(self.nodes))}: {self.own}"


_SAID = {
    FaultKind.NODE: "{node} makes the error",
    FaultKind.FUSED: "{count} nodes from {node} make the error, only when built together",
    FaultKind.BLOCK: "the error is made in {count} nodes from {node}",
    FaultKind.GROWS: "the error grows through {count} nodes, most of it from {node}",
}


@dataclass(frozen=True, slots=True)
class Diff:
    """Two sides on the same inputs, and the node that sets them apart.

    outputs: the comparison of the whole models. fault: None where these are within the tolerances.
    builds: the number of models that were built to find it. unpaired: the values of a's graph
    without a counterpart in b's, and those of b's. folder: of the reproducer, "" if none was
    written. notes: what could not be done, and why. has_inside: all values inside were compared.
    """

    outputs: Comparison
    fault: Fault | None = None
    builds: int = 2
    unpaired: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    folder: str = ""
    notes: tuple[str, ...] = ()
    has_inside: bool = False

    @property
    def is_within(self) -> bool:
        """True where nothing was found that differs beyond its tolerances."""
        return self.outputs.is_within and self.fault is None

    def __repr__(self) -> str:
        return str(self)  # what a prompt shows

    def __str__(self) -> str:
        if self.fault is not None:
            return str(self.fault)
        return "nothing apart" if self.is_within else f"no node found: {'; '.join(self.notes)}"
