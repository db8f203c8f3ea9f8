"""A layered drawing of a graph: every arrow goes down, and neighbours stand near each other.

After Sugiyama: layers, an order within each that crosses few arrows, and places in that order. An
arrow over several layers passes them at points of its own, which all arrows from one node share.
One over so many that its points would outnumber the nodes has none: the page draws it on demand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

NODE = 168.0
"""The distance between the middles of two nodes of a layer."""
POINT = 30.0
_ORDERINGS = 4
_PLACINGS = 6


class Drawing(NamedTuple):
    """Where nodes stand. layers: the layer of each node, from 0 on. xs: its middle.

    routes: for each arrow the points at which it passes the layers between its ends; None where it
    is too long to have any.
    """

    layers: list[int]
    xs: list[float]
    routes: list[list[float] | None]


def drawn(count: int, arrows: Sequence[tuple[int, int]]) -> Drawing:
    """Place `count` nodes. arrows: from and to, without circles."""
    layers = _layers(count, arrows)
    longest = _longest(layers, arrows)
    ranks = [*layers]
    widths = [NODE] * count
    points: dict[tuple[int, int], int] = {}
    links: set[tuple[int, int]] = set()
    for source, target in arrows:
        if layers[target] - layers[source] > longest:
            continue
        before = source
        for layer in range(layers[source] + 1, layers[target]):
            point = points.get((source, layer))
            if point is None:
                point = points[source, layer] = len(ranks)
                ranks.append(layer)
                widths.append(POINT)
            links.add((before, point))
            before = point
        links.add((before, target))
    xs = _placed(ranks, widths, links)
    routes = [
        None
        if layers[target] - layers[source] > longest
        else [xs[points[source, layer]] for layer in range(layers[source] + 1, layers[target])]
        for source, target in arrows
    ]
    return Drawing(layers, xs[:count], routes)


def _layers(count: int, arrows: Sequence[tuple[int, int]]) -> list[int]:
    """Return the layer of each node: below all that it reads, and near what reads it."""
    before, after = _neighbours(count, arrows)
    order = _topological(before, after)
    layers = [0] * count
    for node in order:
        layers[node] = max((layers[other] + 1 for other in before[node]), default=0)
    for node in reversed(order):
        if after[node] and len(before[node]) < len(after[node]) + (not before[node]):
            layers[node] = min(layers[other] for other in after[node]) - 1
    used = {layer: place for place, layer in enumerate(sorted({*layers}))}
    return [used[layer] for layer in layers]


def _topological(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> list[int]:
    waits = [len(others) for others in before]
    order = [node for node, left in enumerate(waits) if not left]
    for node in order:  # grows
        for other in after[node]:
            waits[other] -= 1
            if not waits[other]:
                order.append(other)
    return order


def _neighbours(
    count: int, links: Iterable[tuple[int, int]]
) -> tuple[list[list[int]], list[list[int]]]:
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in links:
        before[target].append(source)
        after[source].append(target)
    return before, after


def _longest(layers: Sequence[int], arrows: Sequence[tuple[int, int]]) -> int:
    """Return over how many layers an arrow may go and have points: as many as there are nodes."""
    spans: dict[int, int] = defaultdict(int)
    ends: dict[int, int] = {}
    for source, target in arrows:
        ends[source] = max(ends.get(source, 0), layers[target] - layers[source])
    for span in ends.values():
        spans[span] += 1
    left, longest = 2 * len(layers) + 500, 1
    for span in sorted(spans):
        left -= (span - 1) * spans[span]
        if left < 0:
            break
        longest = span
    return longest


def _placed(
    ranks: Sequence[int], widths: Sequence[float], links: Iterable[tuple[int, int]]
) -> list[float]:
    """Return where nodes and points stand in their layers."""
    before, after = _neighbours(len(ranks), sorted(links))
    rows: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    for node, layer in enumerate(ranks):
        rows[layer].append(node)
    places = [0.0] * len(ranks)
    for row in rows:
        for place, node in enumerate(row):
            places[node] = place
    for turn in range(_ORDERINGS):
        near, walk = (before, rows) if turn % 2 == 0 else (after, rows[::-1])
        for row in walk:
            wanted = {node: _mean(places, near[node], places[node]) for node in row}
            row.sort(key=wanted.__getitem__)
            for place, node in enumerate(row):
                places[node] = place
    xs = [0.0] * len(ranks)
    for row in rows:
        _fit(row, [0.0] * len(row), widths, xs)
    for turn in range(_PLACINGS):
        is_last = turn >= _PLACINGS - 2
        near, walk = (before, rows) if turn % 2 == 0 else (after, rows[::-1])
        for row in walk:
            if is_last:
                wishes = [_mean(xs, [*before[node], *after[node]], xs[node]) for node in row]
            else:
                wishes = [_mean(xs, near[node], xs[node]) for node in row]
            _fit(row, wishes, widths, xs)
    return xs


def _mean(values: Sequence[float], places: Sequence[int], default: float) -> float:
    if not places:
        return default
    return sum(values[place] for place in places) / len(places)


def _fit(
    row: Sequence[int], wishes: Sequence[float], widths: Sequence[float], xs: list[float]
) -> None:
    """Place a row in its order, none nearer than its width, as near to the wishes as that allows.

    The least squares of the distances: neighbours that push each other share the mean of what they
    wish (pool adjacent violators).
    """
    offset, offsets = 0.0, []
    blocks: list[list[float]] = []  # the sum of wishes, and how many
    for place, node in enumerate(row):
        if place:
            offset += (widths[row[place - 1]] + widths[node]) / 2
        offsets.append(offset)
        blocks.append([wishes[place] - offset, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, number = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += number
    place = 0
    for total, number in blocks:
        for _ in range(int(number)):
            xs[row[place]] = total / number + offsets[place]
            place += 1
