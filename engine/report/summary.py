"""A model at a glance: what its file holds and, once it is built, where it runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

from engine.config.text import aligned, counted, html_tables, plain, size
from engine.model import facts
from engine.types import GraphInfo, NodeInfo, NodeState, ParameterInfo, Placement, TensorSpec

if TYPE_CHECKING:
    from engine.model.memory import ModelMemory
    from engine.model.state import ModelState

__all__ = ["CompiledPart", "ModelSummary", "Operator", "PlacementGroup"]

DEFAULT_DOMAIN = "ai.onnx"  # what ONNX calls the domain whose name is empty
_MOST_OPERATORS = 12  # in the text; the others are counted
_LONG = 200  # characters of metadata that are shown
_OF_GRAPH = (
    "inputs", "outputs", "name", "producer", "ir_version", "opsets", "metadata", "nodes",
    "parameters",
)  # fmt: skip


@dataclass(frozen=True)
class Operator:
    """An operator, and how many nodes of it there are.

    domain: "" for a MindIR's primitives. support: "yes", "no", or what it takes to run it.
    """

    domain: str
    name: str
    count: int
    support: str = "yes"


@dataclass(frozen=True)
class CompiledPart:
    """One of the models in a file that are compiled for Ascend; or an executor of some of them.

    inputs, outputs: their names; () where the file does not say them. size_bytes: of the compiled
    model. runs: the numbers of the models that an executor runs; () for a model.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    size_bytes: int = 0
    runs: tuple[int, ...] = ()

    @property
    def runs_text(self) -> str:
        """The models that an executor runs, in words."""
        return ", ".join(f"model {number}" for number in self.runs)


@dataclass(frozen=True)
class PlacementGroup:
    """Nodes that run on one device, by one backend, for one reason.

    is_fallback: that is not the first target's backend.
    """

    device: str
    backend: str
    provider: str
    count: int
    reason: str
    is_fallback: bool


_STATES = {
    NodeState.FUSED: "computed by the kernel of another node",
    NodeState.FOLDED: "computed when the model is compiled",
    NodeState.UNUSED: "no output depends on it",
}
"""Reasons for many nodes at once: the nodes' own name what each is fused into."""


@dataclass(frozen=True)
class ModelSummary:
    """Summary of a model. Prints as text, and in notebooks as HTML.

    model: its file, "" for one from memory. format: "onnx", an installed one as "mindir",
    "encrypted" where the key is missing, or a backend's compiled form; of the last two nobody knows
    what is in them, and what follows is empty or None. size_bytes: of the file; None for a model
    from memory. operators: the most frequent first; of a MindIR's file its primitives, those that
    cannot run first. nodes, parameters: of the main graph. functions: of a MindIR. compiled: the
    models in a MindIR that are compiled for Ascend, then the executors that MultiModelRunner makes
    of them.
    backend: the first target's. placement, memory: None before the model is built.
    """

    model: str
    format: str
    encryption: str = ""
    size_bytes: int | None = None
    inputs: tuple[TensorSpec, ...] | None = None
    outputs: tuple[TensorSpec, ...] | None = None
    name: str = ""
    producer: str = ""
    ir_version: int | None = None
    opsets: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    operators: tuple[Operator, ...] = ()
    functions: tuple[str, ...] = ()
    compiled: tuple[CompiledPart, ...] = ()
    nodes: tuple[NodeInfo, ...] | None = field(default=None, repr=False)
    parameters: tuple[ParameterInfo, ...] | None = field(default=None, repr=False)
    backend: str = ""
    placement: tuple[Placement, ...] | None = field(default=None, repr=False)
    memory: ModelMemory | None = field(default=None, repr=False)

    @property
    def is_as_written(self) -> bool:
        """True for a file that is shown in the terms of its own format, and not as ONNX."""
        return self.nodes is None and self.parameters is not None

    @property
    def node_count(self) -> int:
        """The number of nodes in the file."""
        return sum(operator.count for operator in self.operators)

    @property
    def parameter_count(self) -> int:
        """The number of elements of all parameters."""
        return sum(prod(parameter.shape) for parameter in self.parameters or ())

    @property
    def parameter_bytes(self) -> int:
        """The size of all parameters."""
        return sum(parameter.nbytes for parameter in self.parameters or ())

    @property
    def external_data(self) -> dict[str, list[ParameterInfo]]:
        """The parameters that are in other files, by file."""
        files: dict[str, list[ParameterInfo]] = {}
        for parameter in self.parameters or ():
            if parameter.location:
                files.setdefault(parameter.location, []).append(parameter)
        return files

    @property
    def placed(self) -> tuple[PlacementGroup, ...]:
        """The placement by device, backend, provider and reason; () before the model is built."""
        groups = Counter(
            (node.device, node.backend, node.provider, _STATES.get(node.state, node.reason))
            for node in self.placement or ()
        )
        return tuple(
            PlacementGroup(device, backend, provider, count, reason, backend != self.backend)
            for (device, backend, provider, reason), count in groups.items()
        )

    def facts(self) -> dict[str, str]:
        """Return what one line can say, by name; "" for what is not known."""
        opsets = (f"{domain or DEFAULT_DOMAIN} {n}" for domain, n in self.opsets.items())
        graph = f"{self.name or 'unnamed'}, {counted(self.node_count, 'node')}"
        return {
            "model": self.model,
            "format": self.format,
            "encryption": self.encryption,
            "file": "" if self.size_bytes is None else size(self.size_bytes),
            "IR version": "" if self.ir_version is None else str(self.ir_version),
            "opset": ", ".join(opsets),
            "producer": self.producer,
            "graph": graph if self.parameters is not None else "",
            "functions": ", ".join(self.functions),
            "parameters": parameters_text(self.parameters, self.nodes or ()),
        }

    @property
    def short_metadata(self) -> dict[str, str]:
        """The metadata for people: of a long text, such as a vocabulary, its beginning."""
        return {key: shortened(text) for key, text in self.metadata.items()}

    def __repr__(self) -> str:
        return str(self)  # what a prompt shows

    def __str__(self) -> str:
        facts = {name: text for name, text in self.facts().items() if text}
        facts |= {"target": self.backend} if self.backend else {}
        lines = aligned(facts.items())
        for title, rows, numbers in self._tables():
            if rows:
                lines += ["", title, *(f"  {text}" for text in aligned(rows, numbers))]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        facts = self.facts()
        title = facts.pop("model") or "model from memory"
        known = [(name, text) for name, text in facts.items() if text]
        tables = [(title, rows) for title, rows, _ in self._tables()]
        return html_tables(title, [("", known), *tables])

    def _tables(self) -> list[tuple[str, Sequence[Sequence[object]], Sequence[int]]]:
        """Return headings, the rows under each, and which of their columns are numbers."""
        ports = [
            (kind, spec.name, spec)
            for kind, specs in (("input", self.inputs), ("output", self.outputs))
            for spec in specs or ()
        ]
        compiled = [
            (
                part.name,
                part.runs_text if part.runs else size(part.size_bytes),
                f"{', '.join(part.inputs)} -> {', '.join(part.outputs)}" if part.outputs else "",
            )
            for part in self.compiled
        ]
        placed = [
            (
                group.device,
                group.backend,
                group.provider,
                f"{group.count:,}",
                f"fallback: {group.reason}" if group.is_fallback else group.reason,
            )
            for group in self.placed
        ]
        memory = str(self.memory).splitlines() if self.memory is not None else []
        return [
            ("Inputs and outputs", ports, ()),
            ("Compiled for Ascend", compiled, ()),
            ("Metadata", [*self.short_metadata.items()], ()),
            ("Operators", self._operator_rows(), (0,)),
            ("Placement", placed, (3,)),
            ("Memory", [(line,) for line in memory], ()),
        ]

    def _operator_rows(self) -> list[tuple[str, str, str]]:
        rows = [
            (f"{op.count:,}", operator_name(op), "" if op.support == "yes" else op.support)
            for op in self.operators[:_MOST_OPERATORS]
        ]
        if others := self.operators[_MOST_OPERATORS:]:
            rest = sum(operator.count for operator in others)
            rows.append((f"{rest:,}", f"of {counted(len(others), 'other operator')}", ""))
        return rows


def operator_name(operator: Operator) -> str:
    """Return an operator's name, with its domain unless that is ONNX's own."""
    if operator.domain in ("", DEFAULT_DOMAIN):
        return plain(operator.name)
    return plain(f"{operator.domain}.{operator.name}")


def operators_of(nodes: Sequence[NodeInfo]) -> tuple[Operator, ...]:
    """Return the operators of nodes, the most frequent first."""
    counts = Counter((node.domain or DEFAULT_DOMAIN, node.op_type) for node in nodes)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Operator(domain, name, count) for (domain, name), count in ordered)


def shortened(text: str) -> str:
    """Return a text of metadata, or its beginning and how long it is."""
    if len(text) <= _LONG:
        return text
    return f"{text[:_LONG]}… ({len(text):,} characters; JSON has all of them)"


def parameters_text(
    parameters: Sequence[ParameterInfo] | None, nodes: Sequence[NodeInfo] = ()
) -> str:
    """Return how many there are, how large and of which types; "" where nobody knows.

    nodes: where there are none, those that hold values themselves are named instead.
    """
    if parameters is None:
        return ""
    if not parameters:
        holders = Counter(node.op_type for node in nodes if _holds_values(node))
        held = ", ".join(f"{count:,} {name}" for name, count in holders.most_common())
        return f"none but what is in nodes: {held}" if held else "none"
    elements = sum(prod(parameter.shape) for parameter in parameters)
    nbytes = sum(parameter.nbytes for parameter in parameters)
    types = Counter(str(parameter.dtype) for parameter in parameters)
    return (
        f"{elements:,} in {counted(len(parameters), 'tensor')}, {size(nbytes)} ({', '.join(types)})"
    )


def _holds_values(node: NodeInfo) -> bool:
    """Return True for a Constant, and for trees and the like, whose weights are attributes."""
    if node.op_type == "Constant" and not node.domain:
        return True
    is_learnt = node.domain == "ai.onnx.ml" and node.op_type not in ("ZipMap", "Cast", "CastMap")
    return is_learnt and any(
        value is None or isinstance(value, tuple) for value in node.attributes.values()
    )


def of_graph(graph: GraphInfo | None, **known: object) -> ModelSummary:
    """Return the summary of an ONNX graph, or of a file of which nobody knows the graph.

    known: further fields; they win.
    """
    facts: dict[str, object] = {}
    if graph is not None:
        facts = {name: getattr(graph, name) for name in _OF_GRAPH}
        facts["operators"] = operators_of(graph.nodes)
    return ModelSummary(**(facts | known))  # type: ignore[arg-type]


def of_model(state: ModelState) -> ModelSummary:
    """Return the summary of a built model: the graph that its backends got, as resized."""
    built = state.require_built()
    source = built.plan.source
    summary = of_graph(
        source.graph,
        model=state.path,
        format=source.format,
        size_bytes=file_size(state.path) if state.path else None,
        inputs=built.signature.inputs,
        outputs=built.signature.outputs,
    )
    return placed(summary, state)


def placed(summary: ModelSummary, state: ModelState) -> ModelSummary:
    """Return a file's summary with what is known of the built model."""
    built = state.require_built()
    plan, signature = built.plan, built.signature
    return replace(
        summary,
        inputs=signature.inputs if summary.inputs is None else summary.inputs,
        outputs=signature.outputs if summary.outputs is None else summary.outputs,
        backend=plan.backend.name,
        placement=tuple(plan.placement()),
        memory=facts.memory(state),
    )


def file_size(path: str) -> int | None:
    """Return the size of a file in bytes; None where it has gone since."""
    try:
        return os.stat(path).st_size
    except OSError:
        return None
