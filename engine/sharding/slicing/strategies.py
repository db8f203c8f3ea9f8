"""Strategies: what a user wants divided how, by node or by weight, and what was done, written down.

    {"parallel_strategy_item": {"fc1": {"parallel_strategys": {...}}}, "parallel_layout_item": ...}

The files are MindSpore's, which engine.sharding.strategy reads and writes. A strategy may say
something of some nodes and weights only; the rest is left to the slicer.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from onnx import NodeProto

from engine.errors import ModelError
from engine.layouts.rules import Op, Way
from engine.layouts.states import State, lengths
from engine.sharding.layout import Layout, NodeStrategy
from engine.sharding.slicing.original import Original
from engine.sharding.slicing.partitioner import Choice, Filter
from engine.sharding.slicing.program import Program
from engine.sharding.strategy import Strategy, plain_name
from engine.sharding.strategy_keys import (
    BIAS,
    Node,
    Split,
    file_name,
    is_whole,
    nodes_of,
    origins,
    parameter_of,
)

_log = logging.getLogger("engine")


class Wish(NamedTuple):
    """The wanted split of a node's input. is_firm: no way may do otherwise."""

    split: Split
    is_firm: bool


def narrowed(strategy: Strategy, model: Original, ranks: int) -> Filter:
    """Return what leaves of a node's ways those that a strategy allows.

    Of a file of MindSpore's, whose ranks may be a matrix, the splits of parameters count: a way
    divides the parameter along one of the dimensions that the file splits. Those of other inputs
    are followed where a way has both. An operator that has no such way here is divided otherwise,
    with a warning.
    Raises ModelError for a node or weight that the model does not have, or a split that the ranks
    cannot have; later, for one that no way of its operator has.
    """
    names = {node.name for node in model.nodes}
    keys = [name for name in strategy.nodes if name not in names]
    keyed = _keyed(strategy, keys, model)
    for name in strategy.nodes.keys() - {*keys}:
        for split in strategy.nodes[name].inputs:
            if prod(split) not in (1, ranks):
                raise ModelError(
                    f"{strategy.source}: node {name!r} splits an input {list(split)}, which is "
                    f"{prod(split)} ways; expected 1 or the {ranks} ranks of a stage (--tp)",
                    strategy.source,
                )
    wanted = _wanted(strategy, model, ranks, is_loose=bool(keys))

    def narrow(op: Op, ways: list[Way]) -> list[Way]:
        node = strategy.nodes.get(op.node.name)
        kept = ways
        if node is not None:
            kept = [way for way in kept if _fits(op, way, node.inputs)]
        wishes = dict(keyed.get(op.node.name, {}))
        for position, name in enumerate(op.inputs):
            if name in wanted and keys:
                wishes[position] = Wish(wanted[name], position != BIAS.get(op.node.op_type))
            elif name in wanted:
                kept = [way for way in kept if _holds(op, way, name, wanted[name])]
        if not kept:
            said = f"splits {[list(split) for split in node.inputs]}" if node else "of its weights"
            raise ModelError(
                f"{strategy.source}: {op.node.op_type} {op.node.name!r} cannot run {said} on "
                f"{ranks} ranks; it can: {_shown(op, ways)}",
                strategy.source,
            )
        followed = _followed(op, kept, wishes)
        if not followed:
            splits = [list(wish.split) for wish in wishes.values()]
            _log.warning(
                "%s: %s %r is divided otherwise than by %s; here it can: %s",
                strategy.source, op.node.op_type, op.node.name, splits, _shown(op, ways),
            )  # fmt: skip
        return followed or kept

    return narrow


def _keyed(strategy: Strategy, keys: Sequence[str], model: Original) -> dict[str, dict[int, Wish]]:
    """Return what MindSpore's keys say of nodes: of each, by the position of an input."""
    if not keys:
        return {}
    views = [
        Node(node.op_type, tuple(node.input), tuple(node.output), _permutation(node))
        for node in model.nodes
    ]
    made = origins(views, {name: len(value.dims) for name, value in model.constants.items()})
    parameters = {file_name(name) for name in model.constants}
    found: dict[str, dict[int, Wish]] = defaultdict(dict)
    for name in keys:
        splits = strategy.nodes[name].inputs
        known = {*parameters, *map(plain_name, strategy.layouts)}
        key = parameter_of(name, known)
        keyed = nodes_of(*key, splits, views, made) if key else []
        if not keyed and not (key and (is_whole(splits) or key[1] not in parameters)):
            names = sorted(node.name for node in model.nodes)
            raise ModelError(
                f"{strategy.source}: node {name!r} is not in {model.name}; its nodes are called "
                f"{', '.join(map(repr, names[:3]))} and so on",
                strategy.source,
            )
        for one in keyed:
            node = model.nodes[one.node]
            for place, (position, split) in enumerate(zip(one.positions, one.splits, strict=True)):
                if position >= 0:
                    firm = place in one.parameters and position != BIAS.get(node.op_type)
                    found[node.name][position] = Wish(split, firm)
    return found


def _permutation(node: NodeProto) -> tuple[int, ...] | None:
    return next((tuple(one.ints) for one in node.attribute if one.name == "perm"), None)


def _wanted(strategy: Strategy, model: Original, ranks: int, *, is_loose: bool) -> dict[str, Split]:
    """Return the split that a layout wants of each weight, by the weight's name in the model.

    is_loose: the layouts are MindSpore's own: of the file that the model comes from.
    """
    own = {file_name(name): name for name in model.constants}
    wanted = {}
    for given, layout in strategy.layouts.items():
        name = given if given in model.constants else own.get(plain_name(given), "")
        if not name and is_loose:
            continue  # it is part of another weight now
        if not name:
            raise ModelError(
                f"{strategy.source}: parameter {given!r} is not among the weights of {model.name}",
                strategy.source,
            )
        wanted[name] = layout.counts(len(model.constants[name].dims))
        if prod(wanted[name]) not in (1, ranks) and not is_loose:
            raise ModelError(
                f"{strategy.source}: parameter {name!r} is split {list(wanted[name])}; expected 1 "
                f"or {ranks} ways, as many as the ranks of a stage (--tp)",
                strategy.source,
            )
    return wanted


def _followed(op: Op, ways: list[Way], wishes: Mapping[int, Wish]) -> list[Way]:
    """Return the ways that follow most wishes: all, else the firm ones."""
    firm = {position: wish for position, wish in wishes.items() if wish.is_firm}
    kept = [way for way in ways if _follows(op, way, wishes)]
    return kept or [way for way in ways if _follows(op, way, firm)]


def _follows(op: Op, way: Way, wishes: Mapping[int, Wish]) -> bool:
    return all(_goes_along(way.inputs[position], wish.split) for position, wish in wishes.items())


def _goes_along(state: State, split: Split) -> bool:
    """Return whether a tensor is divided along a dimension that is split; whole if none is."""
    axes = {axis for axis, count in enumerate(split) if count > 1}
    return state.axis in axes if axes else not state.is_shard


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
            dims, axis = model.constants[weight.source].dims, weight.state.axis
            uneven = lengths(dims[axis], choice.ranks, weight.state.unit)
            layouts[weight.source] = Layout(
                dev_matrix=(choice.ranks,),
                tensor_map=tuple(0 if dim == axis else -1 for dim in range(len(dims))),
                param_split_shape=uneven if weight.state.unit else (),
                pipeline_stages=tuple(range(stages)) if stages > 1 else (0,),
            )
    return Strategy(nodes, layouts)
