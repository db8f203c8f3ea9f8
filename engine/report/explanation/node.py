"""A node of an explained model, and the nodes inside of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.config.text import plain, size
from engine.types import NodeState, TensorSpec

__all__ = ["ExplainedBody", "ExplainedNode"]


@dataclass(frozen=True, slots=True)
class ExplainedBody:
    """A graph inside of a node.

    name: "body" of a Loop or Scan, "then" or "else" of an If, "function" of one that the model
    defines. times: how often it runs in a run of its node; None where data say it. nodes: with the
    place of that node, in the order of their own graph. flops, moved_bytes: of one time, None for
    unknown. least_s, bound: as of a kernel, of one time.
    """

    name: str
    times: int | None
    nodes: tuple[ExplainedNode, ...]
    flops: int | None = None
    moved_bytes: int | None = None
    least_s: float | None = None
    bound: str = ""


@dataclass(frozen=True, slots=True)
class ExplainedNode:
    """A node of the model.

    segment: the number of the part of the model that its backend compiled it in. fused_into: the
    node whose kernel computes it, where the backend knows. why: the reasons of its place, those
    that all nodes have left out. reads: the tensors that it takes. outputs: those that it makes; a
    size is None where the sizes of the inputs do not say it. weights: those that it reads;
    weights_bytes: their size. updatable: the ones that were declared variable.
    flops, moved_bytes: see `flops` and `traffic`; None for unknown, 0 where it is not computed in
    a predict. least_s: of its kernel, at the roof: only for the node that stands for the kernel,
    None where its work is not known. bound: "compute" or "memory", the reason of least_s. time_s:
    its kernel's, measured. bodies: the graphs inside of it, which make up its work.
    """

    index: int
    node: str
    op_type: str
    domain: str
    backend: str
    device: str
    provider: str
    segment: int
    state: NodeState
    fused_into: int | None
    why: tuple[str, ...]
    reads: tuple[str, ...]
    outputs: tuple[TensorSpec, ...]
    weights: tuple[str, ...] = ()
    weights_bytes: int = 0
    updatable: tuple[str, ...] = ()
    flops: int | None = None
    moved_bytes: int | None = None
    least_s: float | None = None
    bound: str = ""
    time_s: float | None = None
    bodies: tuple[ExplainedBody, ...] = ()

    @property
    def operator(self) -> str:
        """The operator's name, with its domain unless that is ONNX's own."""
        is_own = self.domain in ("", "ai.onnx")
        return self.op_type if is_own else f"{self.domain}.{self.op_type}"

    @property
    def title(self) -> str:
        """What messages call the node."""
        named = f"{self.operator} {self.node}" if self.node else f"{self.operator} #{self.index}"
        return plain(named)

    @property
    def intensity(self) -> float | None:
        """Operations for each byte; None where either is not known, or nothing is moved."""
        if not self.moved_bytes or self.flops is None:
            return None
        return self.flops / self.moved_bytes

    @property
    def where(self) -> str:
        """The backend and the device, with the provider in the backend's words."""
        provider = f" ({self.provider})" if self.provider else ""
        return f"{self.backend} {self.device}{provider}"


def state_text(node: ExplainedNode) -> str:
    """Return the part that a node takes in a run."""
    if node.state is NodeState.FUSED and node.fused_into is not None:
        return f"fused into {node.fused_into}"
    return str(node.state)


def operations_text(node: ExplainedNode) -> str:
    """Return the operations of a node; where data say how often its bodies run, of one time."""
    return _text(node, "flops", lambda count: amount(count, "FLOP"))


def moved_text(node: ExplainedNode) -> str:
    """Return the bytes that a node moves, as `operations_text` does."""
    return _text(node, "moved_bytes", size)


def _text(
    node: ExplainedNode, name: Literal["flops", "moved_bytes"], text: Callable[[int], str]
) -> str:
    count = getattr(node, name)
    if count is not None:
        return text(count)
    each = [getattr(body, name) for body in node.bodies]
    if not any(one is not None for one in each) or any(body.times for body in node.bodies):
        return "unknown"
    texts = ["unknown" if one is None else text(one) for one in each]
    if node.op_type == "If":
        return " or ".join(texts)
    return ", ".join(f"{one} an iteration" for one in texts)


def inside(node: ExplainedNode, label: str = "") -> Iterator[tuple[str, str, ExplainedNode]]:
    """Yield the nodes in the bodies of a node: a label, how often each runs, and the node."""
    for body in node.bodies:
        for inner in body.nodes:
            own = f"{label or node.index}.{body.name}.{inner.index}"
            yield own, _often(node, body), inner
            yield from inside(inner, own)


def _often(node: ExplainedNode, body: ExplainedBody) -> str:
    if body.times is None:
        return "if taken" if node.op_type == "If" else "each iteration"
    return {0: "never", 1: "once"}.get(body.times, f"{body.times:,} times")


def kernels_of(nodes: Sequence[ExplainedNode]) -> dict[int, list[ExplainedNode]]:
    """Return the nodes of each kernel, by the index of the node that stands for it.

    A node that is fused into nobody knows what stands for itself.
    """
    kernels: dict[int, list[ExplainedNode]] = {}
    for node in nodes:
        lead, seen = node, {node.index}
        while lead.fused_into is not None and lead.fused_into not in seen:
            lead = nodes[lead.fused_into]
            seen.add(lead.index)
        kernels.setdefault(lead.index, []).append(node)
    return kernels


def sum_of(counts: Iterable[int | None]) -> int | None:
    """Return a sum; None where a part of it is not known."""
    known = [*counts]
    return None if None in known else sum(count for count in known if count is not None)


def total_of(node: ExplainedNode, name: Literal["flops", "moved_bytes", "least_s"]) -> Any:
    """Return the sum over the bodies of a node; None where it is not known.

    Of branches that take the same, that of either.
    """
    each = [getattr(body, name) for body in node.bodies]
    if node.op_type == "If" and len({*each}) == 1:
        return each[0]
    total = 0
    for body, one in zip(node.bodies, each, strict=True):
        if body.times is None or (body.times and one is None):
            return None
        total += body.times and body.times * one
    return total


def amount(count: float, unit: str) -> str:
    """Return a number of a unit as text: "1.82 GFLOP" (powers of 1000)."""
    for prefix in ("", "k", "M", "G"):
        if count < 999.5:
            return f"{count:.3g} {prefix}{unit}"
        count /= 1000
    return f"{count:.3g} T{unit}"
