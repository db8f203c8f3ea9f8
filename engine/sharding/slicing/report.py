"""The report of a slicing: what each rank holds and exchanges, what stayed whole and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any

from onnx import NodeProto

from engine.formats.collectives import is_collective
from engine.formats.onnx.graphs import reads
from engine.layouts.states import WHOLE
from engine.sharding.slicing.original import Original, stored_bytes
from engine.sharding.slicing.partitioner import Choice
from engine.sharding.slicing.program import Program, nbytes_of


@dataclass(frozen=True)
class RankReport:
    """One rank. Bytes; open dims of activations count as 1.

    whole_bytes: of its weights, those that other ranks of its stage hold too. activation_bytes: the
    most that is alive at once. exchanged_bytes: what it sends in a predict.
    """

    rank: int
    stage: int
    file: str
    weight_bytes: int
    whole_bytes: int
    activation_bytes: int
    exchanged_bytes: int


@dataclass(frozen=True)
class WholeWeight:
    """A weight that every rank of a stage holds, and why."""

    name: str
    nbytes: int
    reason: str


@dataclass(frozen=True)
class Difference:
    """One result against the original: `largest` is of the original's values."""

    output: str
    difference: float
    largest: float
    is_equal: bool


@dataclass
class Report:
    """Result of a slicing. files: the ranks' models in order.

    weight_bytes: of the original. divided_bytes: of these, what was divided. collectives: of one
    rank's predict, by kind. counted_shapes: of the inputs with open sizes, as the bytes of the
    ranks' activations and exchanges take them. differences: () where nothing was compared; note:
    then why.
    """

    model: str
    tp: int
    pp: int
    files: list[str] = field(default_factory=list)
    strategy: str = ""
    weight_bytes: int = 0
    divided_bytes: int = 0
    collectives: dict[str, int] = field(default_factory=dict)
    ranks: list[RankReport] = field(default_factory=list)
    counted_shapes: dict[str, list[int]] = field(default_factory=dict)
    whole: list[WholeWeight] = field(default_factory=list)
    undivided_nodes: dict[str, str] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    note: str = ""

    @property
    def balance(self) -> float:
        """The most weights that a rank holds, over an even split of what was divided.

        An undivided weight counts as what it takes on each rank of its stage; with pipeline
        stages it is the largest rank over the mean.
        """
        if not self.ranks:
            return 1.0
        most = max(rank.weight_bytes for rank in self.ranks)
        even = sum(rank.weight_bytes for rank in self.ranks) / len(self.ranks)
        return most / even if even else 1.0

    def values(self) -> Mapping[str, Any]:
        """Return the report as plain values, for JSON."""
        return {**asdict(self), "balance": self.balance}


def rank_report(
    program: Program, nodes: Sequence[NodeProto], rank: int, stage: int, file: str
) -> RankReport:
    """Return what one rank holds and exchanges."""
    read = {name for node in nodes for name in reads(node)}
    own = {name: weight for name, weight in program.weights.items() if name in read}
    member = rank % program.ranks
    sizes = {name: nbytes_of(w, program.model, program.ranks, member) for name, w in own.items()}
    shared = sum(size for name, size in sizes.items() if own[name].is_shared)
    return RankReport(
        rank, stage, file, sum(sizes.values()), shared, _activations(program, nodes),
        sum(_exchanged(program, node) for node in nodes),
    )  # fmt: skip


def counted_shapes(model: Original) -> dict[str, list[int]]:
    """Return the shapes of the inputs with open sizes, with 1 for each open size."""
    shapes = {name: model.shape(name) or () for name in model.inputs}
    return {
        name: [size if isinstance(size, int) else 1 for size in shape]
        for name, shape in shapes.items()
        if not all(isinstance(size, int) for size in shape)
    }


def _local_bytes(program: Program, name: str) -> int:
    known = program.known.get(name)
    if known is None or known.dtype is None or known.shape is None:
        return 0
    return stored_bytes(
        known.dtype, prod(size if isinstance(size, int) else 1 for size in known.shape)
    )


def _activations(program: Program, nodes: Sequence[NodeProto]) -> int:
    left = Counter(name for node in nodes for name in reads(node))
    left.update(program.model.outputs)
    alive = most = 0
    for node in nodes:
        alive += sum(_local_bytes(program, name) for name in node.output if left[name])
        most = max(most, alive)
        for name in reads(node):
            left[name] -= 1
            if not left[name] and name not in program.weights:
                alive -= _local_bytes(program, name)
    return most


def _exchanged(program: Program, node: NodeProto) -> int:
    if not is_collective(node.op_type, node.domain):
        return 0
    ranks = program.ranks
    whole = program.collectives.get(node.name)
    if whole is None:
        return _local_bytes(program, node.input[0]) if node.op_type == "Send" else 0
    part = whole * (ranks - 1) // ranks
    return {"AllReduce": 2 * part, "AllToAll": part // ranks, "AllGather": part}.get(
        node.op_type, whole
    )


def whole_weights(program: Program, choice: Choice) -> list[WholeWeight]:
    """Return the weights that are not divided, the largest first, and why."""
    model = program.model
    ways = {node.name: way for node, way in zip(model.nodes, choice.ways)}
    found = []
    for weight in program.weights.values():
        if not weight.source or weight.state.is_shard:
            continue
        nbytes = model.nbytes(weight.source)
        reason = ""
        for node in model.readers.get(weight.source, ()):
            kind = f"{node.op_type} {node.name!r}"
            if node.name in choice.reasons:
                reason = f"{kind}: {choice.reasons[node.name]}"
            elif all(state == WHOLE for state in ways[node.name].outputs):
                reason = reason or f"{kind} gives a result that is needed whole"
            else:
                reason = reason or f"{kind} is divided along another axis"
        found.append(WholeWeight(weight.source, nbytes, reason or "read by nobody"))
    return sorted(found, key=lambda one: -one.nbytes)
