"""Strategies: what a user wants divided how, by node or by weight, and what was done, written down.

    {"parallel_strategy_item": {"fc1": {"parallel_strategys": {...}}}, "parallel_layout_item": ...}

The files are MindSpore's, which engine.sharding.strategy reads and writes. A strategy may say
something of some nodes and weights only; the rest is left to the slicer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from engine.errors import ModelError
from engine.sharding.layout import Layout
from engine.sharding.slicing.original import Original
from engine.sharding.slicing.partitioner import Choice, Filter
from engine.sharding.slicing.program import Program
from engine.sharding.slicing.rules import Op, Way
from engine.sharding.slicing.states import State
from engine.sharding.strategy import NodeStrategy, Strategy


def narrowed(strategy: Strategy, model: Original, ranks: int) -> Filter:
    """Return what leaves of a node's ways those that a strategy allows.

    Raises ModelError for a node or weight that the model does not have, or a split that the ranks
    cannot have; later, for one that no way of its operator has.
    """
    names = {node.name for node in model.nodes}
    for name, node in strategy.nodes.items():
        if name not in names:
            raise ModelError(
                f"{strategy.source}: node {name!r} is not in {model.name}; its nodes are called "
                f"{', '.join(map(repr, sorted(names)[:3]))} and so on",
                strategy.source,
            )
        for split in node.inputs:
            if prod(split) not in (1, ranks):
                raise ModelError(
                    f"{strategy.source}: node {name!r} splits an input {list(split)}, which is "
                    f"{prod(split)} ways; expected 1 or the {ranks} ranks of a stage (--tp)",
                    strategy.source,
                )
    wanted: dict[str, tuple[int, ...]] = {}
    for name, layout in strategy.layouts.items():
        if name not in model.constants:
            raise ModelError(
                f"{strategy.source}: parameter {name!r} is not among the weights of {model.name}",
                strategy.source,
            )
        dims = len(model.constants[name].dims)
        wanted[name] = layout.counts(dims)
        if prod(wanted[name]) not in (1, ranks):
            raise ModelError(
                f"{strategy.source}: parameter {name!r} is split {list(wanted[name])}; expected 1 "
                f"or {ranks} ways, as many as the ranks of a stage (--tp)",
                strategy.source,
            )

    def narrow(op: Op, ways: list[Way]) -> list[Way]:
        node = strategy.nodes.get(op.node.name)
        kept = ways
        if node is not None:
            kept = [way for way in kept if _fits(op, way, node.inputs)]
        for name in op.inputs:
            if name in wanted:
                kept = [way for way in kept if _holds(op, way, name, wanted[name])]
        if not kept:
            said = f"splits {[list(split) for split in node.inputs]}" if node else "of its weights"
            raise ModelError(
                f"{strategy.source}: {op.node.op_type} {op.node.name!r} cannot run {said} on "
                f"{ranks} ranks; it can: {_shown(op, ways)}",
                strategy.source,
            )
        return kept

    return narrow


def _fits(op: Op, way: Way, splits: Sequence[Sequence[int]]) -> bool:
    return all(
        not name or list(_split(op, name, state)) == list(split)
        for name, state, split in zip(op.inputs, way.inputs, splits)
    )


def _holds(op: Op, way: Way, wanted: str, split: tuple[int, ...]) -> bool:
    return all(
        name != wanted or _split(op, name, state) == split
        for name, state in zip(op.inputs, way.inputs)
    )


def _split(op: Op, name: str, state: State) -> tuple[int, ...]:
    rank = len(op.shape(name) or ())
    return tuple(op.ranks if axis == state.axis else 1 for axis in range(rank))


def _shown(op: Op, ways: Sequence[Way]) -> str:
    splits = {
        str([list(_split(op, name, state)) for name, state in zip(op.inputs, way.inputs)])
        for way in ways
    }
    return " or ".join(sorted(splits))


def written_down(model: Original, choice: Choice, program: Program, stages: int) -> Strategy:
    """Return what was done as a strategy: each node's splits, and each weight's layout.

    A weight that is divided in blocks (fused projections) has no layout: it is no box of the whole.
    """
    nodes = {}
    for node, way in zip(model.nodes, choice.ways):
        op = Op(node, model, choice.ranks, {})
        splits = tuple(
            _split(op, name, state) for name, state in zip(op.inputs, way.inputs) if name
        )
        if any(prod(split) > 1 for split in splits):
            nodes[node.name] = NodeStrategy(splits)
    layouts = {}
    for weight in program.weights.values():
        if weight.source and weight.state.is_shard and not weight.state.blocks:
            dims = len(model.constants[weight.source].dims)
            layouts[weight.source] = Layout(
                dev_matrix=(choice.ranks,),
                tensor_map=tuple(0 if axis == weight.state.axis else -1 for axis in range(dims)),
                pipeline_stages=tuple(range(stages)) if stages > 1 else (0,),
            )
    return Strategy(nodes, layouts)
