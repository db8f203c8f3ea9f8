"""The partitioner: choose how the ranks hold every tensor of a model, and write what they run.

    choice = choose(model, ranks=2)          # a way for every node
    program = write_program(model, choice)   # the nodes of a rank, collectives between them

Three steps. Each operator's rule says in which ways ranks can share its work
(`engine.layouts.rules`). `choose` goes through the nodes in order and keeps the cheapest ways to
get there, one for each set of states that the tensors still needed can be in (a search with a
beam). `write_program` then writes each node as its way says, and what brings a tensor from the
state that it is in to the one that it is wanted in (`program`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from onnx import NodeProto

from engine.errors import ModelError
from engine.formats.onnx.graphs import reads, subgraphs
from engine.layouts.rules import Op, Way, rule_of
from engine.layouts.states import PARTIAL, WHOLE, State
from engine.sharding.slicing.costs import Costs
from engine.sharding.slicing.dequantized import write_as_arithmetic
from engine.sharding.slicing.original import Original
from engine.sharding.slicing.program import Program, Writer
from engine.sharding.slicing.undivided import NothingDivided
from engine.types import DType

BEAM = 24
"""Sets of states that are followed at once. Between blocks of a model there are few tensors."""
_MOST_BLOCKS, _MOST_STATES = 64, 4

_SUMMED = frozenset((DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64, DType.INT32,
                     DType.INT64))  # fmt: skip

Filter: TypeAlias = Callable[[Op, list[Way]], list[Way]]
"""narrow(op, ways): those of the ways that a strategy allows."""


@dataclass
class Choice:
    """A way for each node of a model. ranks: that share it. reasons: why a node runs whole."""

    ranks: int
    ways: list[Way]
    costs: Costs
    reasons: dict[str, str] = field(default_factory=dict)


class _Path(NamedTuple):
    """The ways of all nodes so far. held: the states that tensors needed later can be had in."""

    cost: float
    held: Mapping[str, frozenset[State]]
    last: tuple[Way, object] | None


def choose(model: Original, costs: Costs, narrow: Filter | None = None) -> Choice:
    """Choose a way for every node, so that the whole costs least.

    narrow: leaves of the ways of a node those that a strategy allows; may raise.
    """
    ranks = costs.ranks
    ops, reasons = _ways_of_all(model, ranks, narrow)
    needed = Counter(name for op, _ in ops for name in reads(op.node))
    needed.update(model.outputs)
    held: dict[str, frozenset[State]] = {name: frozenset((WHOLE,)) for name in model.inputs}
    paths = [_Path(0.0, held, None)]
    for op, ways in ops:
        uses = Counter(reads(op.node))
        needed.subtract(uses)
        gone = [name for name in uses if not needed[name]]
        best: dict[frozenset[tuple[str, frozenset[State]]], _Path] = {}
        work = [costs.of_work(op, way) for way in ways]
        for path in paths:
            for way, seconds in zip(ways, work):
                following = _follow(path, op, way, seconds, needed, gone, costs)
                if following is None:
                    continue
                key = frozenset(following.held.items())
                if key not in best or following.cost < best[key].cost:
                    best[key] = following
        paths = sorted(best.values(), key=lambda path: path.cost)[:BEAM]
        if not paths:
            raise ModelError(
                f"{model.name}: {op.node.op_type} {op.node.name!r} cannot have its inputs in the "
                "way that the strategy asks for; leave this node, or those before it, to the slicer"
            )
    ends = [(path.cost + _ending(path, model, costs), place) for place, path in enumerate(paths)]
    path = paths[min(ends)[1]]
    chosen: list[Way] = []
    last: object = path.last
    while isinstance(last, tuple):
        way, last = last
        chosen.append(way)
    return Choice(ranks, chosen[::-1], costs, reasons)


def _follow(
    path: _Path,
    op: Op,
    way: Way,
    seconds: float,
    needed: Counter[str],
    gone: Iterable[str],
    costs: Costs,
) -> _Path | None:
    """Return a path with one more node; None where an input cannot be had in the state wanted."""
    cost = path.cost + seconds
    held = dict(path.held)
    for name, state in zip(op.inputs, way.inputs):
        if not name:
            continue
        has = held.get(name, frozenset())
        if state in has:
            continue
        if name in costs.model.constants:
            cost += costs.of_weight(name, state)
            if needed[name]:
                held[name] = has | {state}
            continue
        step, through = costs.cheapest(name, has, state)
        if through is None:
            return None
        cost += step
        held[name] = has | {state, *through}
    for name in gone:
        held.pop(name, None)
    for name, state in zip(op.outputs, way.outputs):
        if name and needed[name]:
            held[name] = frozenset((state,))
    return _Path(cost, held, (way, path.last))


def _ending(path: _Path, model: Original, costs: Costs) -> float:
    """Return what it costs to have all results whole."""
    total = 0.0
    for name in model.outputs:
        has = path.held.get(name, frozenset())
        if name not in model.constants and WHOLE not in has:
            total += costs.cheapest(name, has, WHOLE)[0]
    return total


# ------------------------------------------------------------------------------- ways of the nodes


def _ways_of_all(
    model: Original, ranks: int, narrow: Filter | None
) -> tuple[list[tuple[Op, list[Way]]], dict[str, str]]:
    """Return each node with its ways, and why some have but one: whole on each rank."""
    blocks: dict[str, set[State]] = {}
    ops = [Op(node, model, ranks, blocks) for node in model.nodes]
    for ordered in (ops[::-1], ops, ops[::-1]):  # who wants blocks tells who makes them
        for op in ordered:
            for way in _ways(op):
                _note_blocks(blocks, op.inputs, way.inputs)
                _note_blocks(blocks, op.outputs, way.outputs)
    reasons: dict[str, str] = {}
    found = []
    for op in ops:
        ways = _ways(op)
        every = [*ways, _whole(op)]
        allowed = narrow(op, every) if narrow is not None else every
        if not any(map(is_shared, ways)):
            reason = _why_whole(op)
            if reason:
                reasons[op.node.name] = reason
        elif not any(map(is_shared, allowed)):
            reasons[op.node.name] = "the strategy leaves it whole"
        found.append((op, allowed))
    return found, reasons


def _why_whole(op: Op) -> str:
    """Return why a node has no way in which ranks share its tensors; "" for a scalar's."""
    if rule_of(op.node.op_type, op.node.domain) is None:
        return f"{op.node.op_type} has no rule"
    if is_alone(op.node):
        return "it has a body, which runs whole"
    if op.model.is_random(op.node):
        return "its random numbers are the same on all ranks"
    unknown = [name for name in (*op.inputs, *op.outputs) if name and op.shape(name) is None]
    if unknown and any(name in op.model.constants for name in op.inputs):
        return f"the shape of {unknown[0]!r} is not known; say those of the inputs (--input-shape)"
    if any(len(op.shape(name) or ()) > 1 for name in op.inputs):
        return f"no axis can be divided by {op.ranks}"
    return ""


def is_shared(way: Way) -> bool:
    """Return whether ranks hold different parts of a tensor."""
    return any(state.is_shard for state in (*way.inputs, *way.outputs))


def require_divided(model: Original, choice: Choice) -> None:
    """Raise NothingDivided where each rank would run the whole model."""
    if choice.ranks > 1 and not any(map(is_shared, choice.ways)):
        unsaid = "dividing it costs more than it saves"
        raise NothingDivided(
            model.name,
            choice.ranks,
            {
                node.name: choice.reasons.get(node.name, unsaid)
                for node in model.nodes
                if node.op_type != "Constant"
            },
        )


def _ways(op: Op) -> list[Way]:
    """Return the ways of a rule that are possible here."""
    rule = rule_of(op.node.op_type, op.node.domain)
    if rule is None or is_alone(op.node) or op.model.is_random(op.node):
        return []
    return [way for way in rule(op) if _is_possible(op, way)]


def is_alone(node: NodeProto) -> bool:
    """Return whether a node has bodies: it runs whole whatever its rule says."""
    return any(True for _ in subgraphs(node))


def _is_possible(op: Op, way: Way) -> bool:
    for name, state in (*zip(op.inputs, way.inputs), *zip(op.outputs, way.outputs)):
        if not name or state == WHOLE:
            continue
        shape, dtype = op.shape(name), op.model.dtype(name)
        if state == PARTIAL:
            if dtype not in _SUMMED:
                return False
            continue
        is_packed = name in op.model.constants and dtype is not DType.STRING  # exchanged by nobody
        if shape is None or state.axis >= len(shape):
            return False
        if not op.model.is_numeric(name) and not is_packed:
            return False
        size = shape[state.axis]
        if not op.splits(size, state.blocks, state.unit):
            return False
        if state.blocks and sum(state.blocks) != size:
            return False
    return True


def _note_blocks(
    blocks: dict[str, set[State]], names: Iterable[str], states: Iterable[State]
) -> None:
    for name, state in zip(names, states):
        is_plain = not state.blocks and state.unit < 2
        if name and state.is_shard and not is_plain and len(state.blocks) <= _MOST_BLOCKS:
            known = blocks.setdefault(name, set())
            if len(known) < _MOST_STATES:
                known.add(state)


def _whole(op: Op) -> Way:
    return Way((WHOLE,) * len(op.inputs), (WHOLE,) * len(op.outputs), None, 1.0)


# --------------------------------------------------------------------------------- the program


def write_program(model: Original, choice: Choice) -> Program:
    """Write what each rank runs, in one order on all of them."""
    writer = Writer(model, choice.ranks, choice.costs)
    for node, way in zip(model.nodes, choice.ways):
        writer.node(node, way)
        if model.is_random(node):  # or each rank would go on with numbers of its own
            writer.same_on_all(node)
    write_as_arithmetic(writer)
    return writer.finished()
