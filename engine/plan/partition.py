"""Partition nodes into the fewest segments that keep their order.

Pure bookkeeping on names; what a segment's model looks like is in `extract`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from engine.formats.collectives import is_collective
from engine.types import GraphInfo


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the main graph.

    reads: the names it needs, also those that its subgraphs take from outside. writes: the names
    it makes. is_collective: other ranks wait for it, so it runs whether anybody reads what it
    makes or not, and after all collectives before it.
    """

    reads: frozenset[str]
    writes: tuple[str, ...]
    is_collective: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """The main graph. nodes: in an order in which they can run. constants: its initializers.

    inputs: what a caller gives. All but the nodes are names.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: frozenset[str]


@dataclass(frozen=True, slots=True)
class Segment:
    """Nodes that run together, by index in the graph, and what goes in and out by name.

    level: which of the backends gets it.
    """

    level: int
    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def partition(graph: Graph, levels: Sequence[int], copied: Collection[int] = ()) -> list[Segment]:
    """Cut a graph into segments of one level each, in the order in which they run.

    levels: one for each node. copied: constant nodes, whose level means nothing: they go into
        every segment that reads them. Nodes that no output depends on go nowhere, collectives
        excepted. Collectives run in the order of the file, whatever stands around them: every rank
        makes the same ones, and they meet by their order alone.
    """
    makers = {name: index for index in copied for name in graph.nodes[index].writes}
    groups = _fewest(graph.nodes, [i for i in live(graph) if i not in copied], levels) or [(0, [])]
    readers: dict[str, set[int]] = defaultdict(set)
    for number, (_, group) in enumerate(groups):
        for index in group:
            for name in graph.nodes[index].reads:
                readers[name].add(number)
    segments: list[Segment] = []
    known = list(graph.inputs)
    for number, (level, group) in enumerate(groups):
        computed = [
            name
            for index in group
            for name in graph.nodes[index].writes
            if name in graph.outputs
            or readers[name] - {number}
            # Or its backend would drop it as code whose result nobody reads.
            or (graph.nodes[index].is_collective and not readers[name])
        ]
        constant = [name for name in graph.outputs if name in makers or name in graph.constants]
        outputs = [*computed, *(() if number else constant)]
        needed = {name for index in group for name in graph.nodes[index].reads}.union(outputs)
        nodes = sorted({*group, *(makers[name] for name in needed if name in makers)})
        inputs = tuple(name for name in known if name in needed)
        known += computed
        if outputs or any(graph.nodes[index].is_collective for index in group):
            segments.append(Segment(level, tuple(nodes), inputs, tuple(outputs)))
    return segments


def live(graph: Graph) -> list[int]:
    """Return the nodes that an output depends on, and collectives with what they depend on."""
    needed = set(graph.outputs)
    indices = []
    for index in reversed(range(len(graph.nodes))):
        node = graph.nodes[index]
        if node.is_collective or not needed.isdisjoint(node.writes):
            needed |= node.reads
            indices.append(index)
    return indices[::-1]


def reachable(graph: Graph) -> set[str]:
    """Return the names that an output or a collective depends on."""
    return set(graph.outputs).union(*(graph.nodes[index].reads for index in live(graph)))


def _fewest(
    nodes: Sequence[Node], indices: Sequence[int], levels: Sequence[int]
) -> list[tuple[int, list[int]]]:
    """Group nodes so that levels change as seldom as possible; (level, nodes) in running order.

    Taking all that is ready is best whatever comes next; with two levels the only choice left is
    which comes first.
    """
    producers = {name: index for index in indices for name in nodes[index].writes}
    waits: dict[int, int] = {}
    followers: dict[int, list[int]] = defaultdict(list)
    collective: int | None = None  # the last one; the next waits for it as for what it reads
    for index in indices:
        before = {producers[name] for name in nodes[index].reads if name in producers}
        if nodes[index].is_collective:
            if collective is not None:
                before.add(collective)
            collective = index
        waits[index] = len(before)
        for producer in before:
            followers[producer].append(index)
    starts = sorted({levels[index] for index, count in waits.items() if not count})
    orders = (_greedy(waits, followers, levels, start) for start in starts)
    return min(orders, key=len, default=[])


def _greedy(
    waits: dict[int, int], followers: dict[int, list[int]], levels: Sequence[int], start: int
) -> list[tuple[int, list[int]]]:
    """Take every node of one level that is ready, again and again, then go to another level."""
    left = dict(waits)
    ready: dict[int, list[int]] = defaultdict(list)
    for index, count in left.items():
        if not count:
            ready[levels[index]].append(index)
    groups = []
    level = start
    while True:
        group = []
        pending = ready.pop(level)
        while pending:
            index = pending.pop()
            group.append(index)
            for follower in followers[index]:
                left[follower] -= 1
                if not left[follower]:
                    same = levels[follower] == level
                    (pending if same else ready[levels[follower]]).append(follower)
        groups.append((level, sorted(group)))
        if not ready:
            return groups
        level = max(ready, key=lambda other: (len(ready[other]), -other))


def graph_of(graph: GraphInfo) -> Graph:
    """Return the graph as `partition` takes it; what bodies of nodes read is not known here."""
    return Graph(
        nodes=tuple(
            Node(
                frozenset(filter(None, node.inputs)),
                tuple(filter(None, node.outputs)),
                is_collective(node.op_type, node.domain),
            )
            for node in graph.nodes
        ),
        inputs=tuple(spec.name for spec in graph.inputs),
        outputs=tuple(spec.name for spec in graph.outputs),
        constants=frozenset(parameter.name for parameter in graph.parameters),
    )
