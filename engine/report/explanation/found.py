"""An explained model: its nodes, where each runs and why, and its least and measured time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any

from engine.config.text import aligned, counted, duration, plain, size
from engine.report.explanation.node import (
    ExplainedNode,
    amount,
    inside,
    kernels_of,
    moved_text,
    operations_text,
    state_text,
)
from engine.report.explanation.roof import Roof
from engine.types import NodeState, TensorSpec

__all__ = ["Findings", "OperatorWork"]

_MOST_FUSED = 3  # operators that are named
MOST_ROWS = 15
"""Of a table in the text."""


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """All nodes of an operator. unknown: how many of them have work that is not known.

    Sums are of the others.
    """

    operator: str
    nodes: int
    flops: int
    moved_bytes: int
    unknown: int
    least_s: float
    time_s: float | None


@dataclass(frozen=True, repr=False)
class Findings:
    """What was found of a model. Prints as text.

    model: its file, "" for one from memory. inputs, outputs: with the sizes that the work is
    counted for; sizes: where these are from. why: the reasons that all nodes of a backend have.
    passes: the rewrites by which the core made the model of the file's. batching: why requests
    cannot share a run; "" where they can. cache: what the compile cache has of it. memory_bytes:
    of the weights: private, shared with others of this process or mapped from the cache.
    roof: None where none is known, as of a device. predict_s, kernels_s: measured, None else;
    unplaced_s: the part of kernels_s in kernels that stand for no node of the file.
    rank, world_size: of a sliced model. notes: what could not be told, and why.
    """

    model: str
    target: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    sizes: str
    nodes: tuple[ExplainedNode, ...] = field(repr=False)
    why: Mapping[str, str] = field(default_factory=dict)
    passes: tuple[str, ...] = ()
    batching: str = ""
    cache: str = ""
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    roof: Roof | None = None
    predict_s: float | None = None
    kernels_s: float | None = None
    unplaced_s: float = 0.0
    rank: int = 0
    world_size: int = 1
    notes: tuple[str, ...] = ()

    @property
    def flops(self) -> int:
        """The operations of a predict: of all nodes with known work."""
        return sum(node.flops or 0 for node in self.nodes)

    @property
    def moved_bytes(self) -> int:
        """The bytes that kernels read and write in a predict, each node for itself."""
        return sum(node.moved_bytes or 0 for node in self.nodes)

    @property
    def least_s(self) -> float | None:
        """The sum of the kernels' least times; None without a roof."""
        if self.roof is None:
            return None
        return sum(node.least_s or 0.0 for node in self.nodes)

    @property
    def unknown(self) -> tuple[ExplainedNode, ...]:
        """The nodes with work that is not known."""
        return tuple(node for node in self.nodes if node.flops is None or node.moved_bytes is None)

    def _operators_of(self, node: ExplainedNode, kernels: Mapping[int, list[ExplainedNode]]) -> str:
        """Return a node's operator, for one that stands for a kernel those of all its nodes."""
        names = [each.operator for each in kernels.get(node.index, ())] or [node.operator]
        return "+".join(names[:_MOST_FUSED]) + "+..." * (len(names) > _MOST_FUSED)

    @property
    def by_operator(self) -> tuple[OperatorWork, ...]:
        """The work by operator: the longest time first, or the most operations.

        A fused kernel's times are those of the operator with the most operations in it.
        """
        found: dict[str, list[ExplainedNode]] = {}
        for node in self.nodes:
            found.setdefault(node.operator, []).append(node)
        timed: dict[str, list[ExplainedNode]] = {operator: [] for operator in found}
        for lead, members in kernels_of(self.nodes).items():
            heaviest = max(members, key=lambda node: node.flops or 0)
            timed[heaviest.operator].append(self.nodes[lead])
        sums = [
            OperatorWork(
                operator,
                len(nodes),
                sum(node.flops or 0 for node in nodes),
                sum(node.moved_bytes or 0 for node in nodes),
                sum(node.flops is None or node.moved_bytes is None for node in nodes),
                sum(node.least_s or 0.0 for node in timed[operator]),
                None
                if self.predict_s is None
                else sum(node.time_s or 0.0 for node in timed[operator]),
            )
            for operator, nodes in found.items()
        ]
        return tuple(
            sorted(
                sums, key=lambda each: (each.time_s or 0.0, each.least_s, each.flops, each.nodes)
            )
        )[::-1]

    @property
    def heaviest(self) -> tuple[ExplainedNode, ...]:
        """The nodes with a time, the longest first: measured, else at the roof."""
        key = "least_s" if self.predict_s is None else "time_s"
        timed = [node for node in self.nodes if getattr(node, key)]
        return tuple(sorted(timed, key=lambda node: -getattr(node, key)))

    def facts(self) -> dict[str, str]:
        """Return what one line can say, by name; "" for what there is nothing to say of."""
        states = [
            f"{number:,} {word}"
            for state, word in _STATES.items()
            if (number := sum(node.state is state for node in self.nodes))
        ]
        places = dict.fromkeys(node.where for node in self.nodes)
        segments = len({node.segment for node in self.nodes})
        updatable = sorted({name for node in self.nodes for name in node.updatable})
        unknown = self.unknown
        facts = {
            "model": self.model or "from memory",
            "rank": f"{self.rank} of {self.world_size}" if self.world_size > 1 else "",
            "runs on": ", ".join(places) + (f", in {segments} segments" if segments > 1 else ""),
            "why": "; ".join(self.why.values()) if len(self.why) == 1 else "",
            "sizes": f"{_listed(self.inputs)} ({self.sizes})",
            "nodes": f"{len(self.nodes):,}: {', '.join(states)}",
            "operations": amount(self.flops, "FLOP"),
            "bytes moved": size(self.moved_bytes),
            "not known": f"the work of {counted(len(unknown), 'node')}: "
            f"{_names(map(_unknown_text, unknown))}"
            if unknown
            else "",
            "at the roof": "",
            "measured": "",
            "requests": f"cannot share runs: {self.batching}"
            if self.batching
            else "can share runs",
            "rewritten": ", ".join(self.passes),
            "compile cache": self.cache,
            "weights": ", ".join(
                f"{size(nbytes)} {kind}" for kind, nbytes in self.memory_bytes.items() if nbytes
            ),
            "updatable": _names(updatable),
        }
        if self.roof is not None and self.least_s is not None:
            facts["at the roof"] = (
                f"{seconds(self.least_s)}: {amount(self.roof.flops_per_s, 'FLOP/s')} of float32, "
                f"{size(round(self.roof.bytes_per_s))}/s ({self.roof.source})"
            )
        if self.predict_s is not None and self.kernels_s is not None:
            facts["measured"] = (
                f"predict {duration(self.predict_s)}; kernels {duration(self.kernels_s)}, "
                "with the time that measuring takes"
            )
            if self.unplaced_s:
                facts["measured"] += f", {duration(self.unplaced_s)} of these in no node's"
        return facts

    def operator_rows(self) -> list[tuple[str, ...]]:
        """Return the table by operator; its head is `operator_head`."""
        rows = []
        for each in self.by_operator:
            row = [
                each.operator,
                f"{each.nodes:,}",
                amount(each.flops, "FLOP") + (f" + {each.unknown:,} unknown" * bool(each.unknown)),
                size(each.moved_bytes),
            ]
            if self.roof is not None:
                row.append(seconds(each.least_s))
            if each.time_s is not None:
                row.append(seconds(each.time_s))
            rows.append(tuple(row))
        return rows

    @property
    def operator_head(self) -> tuple[str, ...]:
        """The head of the table by operator."""
        return ("operator", "nodes", "operations", "moved", *self.time_head)

    @property
    def time_head(self) -> tuple[str, ...]:
        """The heads of the columns of times."""
        return ("at the roof",) * (self.roof is not None) + ("time",) * (self.predict_s is not None)

    def times(self, node: ExplainedNode) -> tuple[str, ...]:
        """Return the cells of the columns of times."""
        cells = [node.least_s] if self.roof is not None else []
        cells += [node.time_s] if self.predict_s is not None else []
        return tuple("" if each is None else seconds(each) for each in cells)

    def node_table(
        self, nodes: Sequence[ExplainedNode], has_bodies: bool = False
    ) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return a head and a row for each of some nodes, without columns that have no text.

        has_bodies: also rows of the nodes inside of them, each below the one that it is in.
        """
        has_several_places = len({node.where for node in self.nodes}) > 1
        kernels = kernels_of(self.nodes)
        head = (
            "index", "operator", "name", "where", "state", "output", "operations", "moved",
            *self.time_head, "why",
        )  # fmt: skip
        rows = []
        for node in nodes:
            operators = self._operators_of(node, kernels)
            where = node.where if has_several_places else ""
            rows.append(self._row(node, f"{node.index}", operators, where, state_text(node)))
            for label, often, inner in inside(node) if has_bodies else ():
                rows.append(self._row(inner, label, inner.operator, "", often))
        kept = [place for place, column in enumerate(zip(*rows, strict=True)) if any(column)]
        return (
            tuple(head[place] for place in kept),
            [tuple(row[place] for place in kept) for row in rows],
        )

    def _row(
        self, node: ExplainedNode, label: str, operators: str, where: str, state: str
    ) -> tuple[str, ...]:
        return (
            label,
            operators,
            node.node,
            where,
            state,
            ", ".join(spec_text(spec) for spec in node.outputs),
            operations_text(node),
            moved_text(node),
            *self.times(node),
            "; ".join(node.why),
        )

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain values; times in seconds, sizes in bytes."""
        values = asdict(self)
        values["inputs"], values["outputs"] = _values(self.inputs), _values(self.outputs)
        _plain(values["nodes"], self.nodes)
        values["operators"] = [asdict(each) for each in self.by_operator]
        values["batchable"] = not self.batching
        totals = ("flops", "moved_bytes", "least_s")
        return {**values, **{name: getattr(self, name) for name in totals}}

    def __repr__(self) -> str:
        return str(self)  # what a prompt shows

    def __str__(self) -> str:
        facts = [(name, text) for name, text in self.facts().items() if text]
        lines = aligned(facts)
        lines += ["", *aligned([self.operator_head, *self.operator_rows()], range(1, 6))]
        if heaviest := self.heaviest[:MOST_ROWS]:
            head, rows = self.node_table(heaviest)
            lines += ["", *aligned([head, *rows])]
        lines += [f"note: {plain(note)}" for note in self.notes]
        return "\n".join(lines)


_STATES = {
    NodeState.RUNS: "run",
    NodeState.FUSED: "fused",
    NodeState.FOLDED: "folded",
    NodeState.UNUSED: "unused",
}


def _unknown_text(node: ExplainedNode) -> str:
    text = operations_text(node)
    return node.operator if text == "unknown" or not node.bodies else f"{node.operator} ({text})"


def spec_text(spec: TensorSpec) -> str:
    """Return a type and a shape: "float32[1, 64, ?]"."""
    if spec.shape is None:
        return f"{spec.dtype}[...]"
    dims = ", ".join("?" if dim is None else str(dim) for dim in spec.shape)
    return f"{spec.dtype}[{dims}]"


def nbytes_of(spec: TensorSpec | None) -> int | None:
    """Return the size of a tensor; None where its type or its sizes do not say it."""
    if spec is None or spec.shape is None or not spec.dtype.bits:
        return None
    sizes = [dim for dim in spec.shape if isinstance(dim, int)]
    return (prod(sizes) * spec.dtype.bits + 7) // 8 if len(sizes) == len(spec.shape) else None


def seconds(count: float) -> str:
    """Return a time as text, of less than a microsecond too: "25.8 ns"; "0" for none."""
    if 0 < count < 0.9995e-6:
        return f"{count * 1e9:.3g} ns"
    return duration(count) if count else "0"


def _listed(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name}: {spec_text(spec)}" for spec in specs) or "none"


def _names(names: Iterable[str]) -> str:
    """Return some names: the first ones, and how many there are."""
    every = list(dict.fromkeys(names))
    more = f" and {len(every) - 6} more" if len(every) > 6 else ""
    return ", ".join(every[:6]) + more


def _values(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    return [{"name": spec.name, "dtype": str(spec.dtype), "shape": spec.shape} for spec in specs]


def _plain(values: Sequence[dict[str, Any]], nodes: Sequence[ExplainedNode]) -> None:
    """Bring nodes that `asdict` has made to plain values."""
    for value, node in zip(values, nodes, strict=True):
        value.update(outputs=_values(node.outputs), state=str(node.state))
        value["intensity"] = node.intensity
        for inner, body in zip(value["bodies"], node.bodies, strict=True):
            _plain(inner["nodes"], body.nodes)
