"""Divide a model at declared values into parts, of which executors run some one after the other.

As MindSpore Lite's converter does for [SplitGraph] (graph_split_pass.cc): the values that blocks
name are boundaries, in the order of the nodes that compute them. A part has the nodes that its
boundary needs and no earlier part has; the last one has the rest. An executor begins with the
first part that reads one of its inputs, and takes also what its parts need of earlier ones. Before
one that takes values inside the model stands one that computes them from the model's inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from engine.errors import InputError
from engine.plan.partition import Graph, Segment

Names = tuple[str, ...]


class Executor(NamedTuple):
    """Parts, by number, that run one after the other, with the values that go in and come out."""

    parts: tuple[int, ...]
    inputs: Names
    outputs: Names


class Division(NamedTuple):
    """A model in parts, and the executors that they make up."""

    parts: tuple[Segment, ...]
    executors: tuple[Executor, ...]


def divide(
    graph: Graph, fixed: Collection[int], blocks: Iterable[tuple[Sequence[str], Sequence[str]]]
) -> Division:
    """Divide a model for executors.

    fixed: nodes that give the same in each run; parts that read them have copies of them.
    blocks: the values that each executor takes and gives. Raises InputError for values between
    which nothing can be run.
    """
    asked = [(tuple(inputs), tuple(outputs)) for inputs, outputs in blocks]
    if not all(outputs for _, outputs in asked):
        raise InputError("an executor without outputs is declared; name what it is to compute")
    named = {name for block in asked for names in block for name in names}
    for name in sorted(named):
        _check(graph, fixed, name)
    parts = _parts(graph, fixed, named)
    executors: list[Executor] = []
    for inputs, outputs in asked:
        executor = _executor(parts, inputs, outputs)
        inside = tuple(name for name in executor.inputs if name not in graph.inputs)
        if inside:
            executors.append(_executor(parts, (), inside))
        executors.append(executor)
    return Division(parts, tuple(executors))


def _check(graph: Graph, fixed: Collection[int], name: str) -> None:
    makers = (index for index, node in enumerate(graph.nodes) if name in node.writes)
    if (maker := next(makers, None)) is None and name not in graph.inputs:
        raise InputError(f"{name!r} is neither an input of the model nor computed by a node", name)
    if maker in fixed:
        raise InputError(f"{name!r} is a constant; name what depends on the model's inputs", name)


def _parts(graph: Graph, fixed: Collection[int], named: Collection[str]) -> tuple[Segment, ...]:
    makers = {name: index for index, node in enumerate(graph.nodes) for name in node.writes}
    owners: dict[int, int] = {}
    groups: list[list[int]] = []
    boundaries = sorted({makers[name] for name in named if name in makers})
    last = [makers[name] for name in graph.outputs if name in makers]
    for roots in (*([index] for index in boundaries), last):
        pending, group = list(roots), []
        while pending:
            index = pending.pop()
            if index not in owners and index not in fixed:
                owners[index] = len(groups)
                group.append(index)
                pending += [makers[name] for name in graph.nodes[index].reads if name in makers]
        if group:
            groups.append(sorted(group))
    crossing = {*named, *graph.outputs}
    for index, owner in owners.items():
        for name in graph.nodes[index].reads & makers.keys():
            if owners.get(makers[name]) != owner:
                crossing.add(name)
    return tuple(_segment(graph, fixed, makers, group, crossing) for group in groups)


def _segment(
    graph: Graph,
    fixed: Collection[int],
    makers: Mapping[str, int],
    group: Sequence[int],
    crossing: Collection[str],
) -> Segment:
    """Return a part, with its copies of fixed nodes."""
    nodes, pending = {*group}, [*group]
    while pending:
        for name in graph.nodes[pending.pop()].reads & makers.keys():
            if makers[name] in fixed and makers[name] not in nodes:
                nodes.add(makers[name])
                pending.append(makers[name])
    read = {name for index in nodes for name in graph.nodes[index].reads}
    made = {name for index in nodes for name in graph.nodes[index].writes}
    return Segment(
        level=0,
        nodes=tuple(sorted(nodes)),
        inputs=tuple(sorted((read - made) & {*graph.inputs, *makers})),
        outputs=tuple(
            name for index in group for name in graph.nodes[index].writes if name in crossing
        ),
    )


def _executor(parts: Sequence[Segment], inputs: Names, outputs: Names) -> Executor:
    """Return the parts between values, and all that they need besides."""
    first = 0
    if inputs:
        readers = [n for n, part in enumerate(parts) if not {*inputs}.isdisjoint(part.inputs)]
        for name in inputs:
            if not any(name in part.inputs for part in parts):
                raise InputError(f"{name!r} is an input of an executor, but no node reads it", name)
        first = readers[0]
    needed = {*outputs}
    run: list[int] = []
    for number in reversed(range(first, len(parts))):
        part = parts[number]
        if not needed.isdisjoint(part.outputs):
            run.insert(0, number)
            needed = (needed - {*part.outputs}) | ({*part.inputs} - {*inputs})
    made = {name for number in run for name in parts[number].outputs}
    for name in outputs:
        if name not in made:
            before = ", ".join(map(repr, inputs)) or "the model's inputs"
            raise InputError(
                f"{name!r} is an output of an executor, but is not computed after {before}", name
            )
    read = {name for number in run for name in parts[number].inputs}
    for name in inputs:
        if name not in read:
            raise InputError(
                f"{name!r} is an input of an executor, but its outputs, "
                f"{', '.join(map(repr, outputs))}, do not depend on it; leave it out",
                name,
            )
    return Executor(tuple(run), tuple(sorted({*inputs, *needed})), outputs)
