"""Nodes that stand in another order than they can run in: that order, and errors about it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush

from engine.formats.onnx.scope import title
from engine.types import NodeInfo


def explain_unknown(name: str, reader: NodeInfo, nodes: Sequence[NodeInfo], where: str) -> str:
    """Say why node `reader` cannot read `name`: nobody defines it, too late, or a cycle.

    nodes: all nodes of the graph, in the file's order.
    """
    producers = {output: node for node in nodes for output in node.outputs if output}
    producer = producers.get(name)
    if producer is None:
        return (
            f"{title(reader)} of the {where} reads {name!r}, which no input, initializer "
            f"or node before it defines"
        )
    cycle = _find_cycle(reader, producers)
    if cycle:
        shown = [*cycle[:6], *(["..."] if len(cycle) > 6 else []), cycle[0]]
        return f"the nodes of the {where} form a cycle: {' -> '.join(shown)}"
    return (
        f"{title(reader)} of the {where} reads {name!r} before {title(producer)} defines it; "
        f"expected nodes in topological order"
    )


def running_order(nodes: Sequence[NodeInfo], name: str) -> list[int] | None:
    """Order the indices of `nodes` so that each comes after those it reads from.

    None where none of them defines `name`, or where they form a cycle.
    """
    producers = {output: node.index for node in nodes for output in node.outputs if output}
    if name not in producers:
        return None
    order = in_order(
        {
            node.index: {producers[name] for name in node.inputs if name in producers}
            for node in nodes
        }
    )
    return order if len(order) == len(nodes) else None


def in_order(before: Mapping[int, Collection[int]]) -> list[int]:
    """Order numbers so that each comes after those before it, the lowest first where several may.

    Those that wait for each other are left out.
    """
    followers: dict[int, list[int]] = defaultdict(list)
    for index, others in before.items():
        for other in others:
            followers[other].append(index)
    waits = {index: len(others) for index, others in before.items()}
    ready = sorted(index for index, count in waits.items() if not count)
    order = []
    while ready:
        order.append(heappop(ready))
        for follower in followers[order[-1]]:
            waits[follower] -= 1
            if not waits[follower]:
                heappush(ready, follower)
    return order


def _find_cycle(start: NodeInfo, producers: dict[str, NodeInfo]) -> list[str]:
    """Return the names of nodes that wait for each other, from `start` backwards; [] for none."""
    path: list[NodeInfo] = [start]
    ahead = [iter(start.inputs)]
    on_path = {start.index}
    done: set[int] = set()
    while path:
        for name in ahead[-1]:
            node = producers.get(name)
            if node is None or node.index in done:
                continue
            if node.index in on_path:
                first = next(i for i, other in enumerate(path) if other.index == node.index)
                return [repr(n.name or f"{n.op_type}:{n.index}") for n in reversed(path[first:])]
            path.append(node)
            ahead.append(iter(node.inputs))
            on_path.add(node.index)
            break
        else:
            on_path.discard(path[-1].index)
            done.add(path.pop().index)
            ahead.pop()
    return []
