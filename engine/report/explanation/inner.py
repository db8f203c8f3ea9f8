"""Nodes inside of nodes: those of the bodies of a Loop, an If, a Scan or a function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from engine.report.explanation.bodies import Bodies
from engine.report.explanation.node import ExplainedBody, ExplainedNode, sum_of, total_of
from engine.report.explanation.results import Body
from engine.report.explanation.roof import Roof
from engine.report.explanation.tensors import Tensors
from engine.report.explanation.times import bounded
from engine.report.explanation.traffic import moved, moved_together
from engine.types import DType

_STEERING = frozenset((DType.INT64, DType.BOOL))
"""Types of counts and conditions, whose work is little."""


class Inside:
    """Looks into the nodes of a model; a node inside of another has the place of that one."""

    def __init__(self, main: Tensors, roof: Roof | None) -> None:
        self._bodies, self._roof = Bodies(main), roof

    def seen(self, node: ExplainedNode, outside: Tensors) -> ExplainedNode:
        """Return a node with its bodies, and with the work that follows from theirs."""
        bodies = tuple(self._body(node, body) for body in self._bodies.of(outside, node.index))
        if not bodies:
            return node
        found = replace(node, bodies=bodies)
        return replace(
            found, flops=total_of(found, "flops"), moved_bytes=total_of(found, "moved_bytes")
        )

    def _body(self, around: ExplainedNode, body: Body) -> ExplainedBody:
        inside = body.inside
        nodes = tuple(self._node(around, inside, place) for place in range(len(inside.nodes)))
        flops = sum_of(node.flops for node in nodes)
        moved_bytes = sum_of(node.moved_bytes for node in nodes)
        least_s, bound = None, ""
        pairs = [
            (tuple(reads), tuple(node.output))
            for node, reads in zip(inside.nodes, inside.reads, strict=True)
        ]
        together = moved_together(pairs, frozenset(body.outputs), inside.nbytes)
        if self._roof and flops is not None and moved_bytes is not None and together is not None:
            is_float = {*_types(nodes)} - _STEERING == {DType.FLOAT32}
            # A Gather reads a part of a table.
            nbytes = min(moved_bytes, together)
            least_s, bound = bounded(flops if is_float else 0, nbytes, self._roof)
        return ExplainedBody(body.name, body.times, nodes, flops, moved_bytes, least_s, bound)

    def _node(self, around: ExplainedNode, inside: Tensors, place: int) -> ExplainedNode:
        node, work = inside.nodes[place], inside.work(place)
        nbytes = moved(node.op_type, node.input, node.output, inside.nbytes)
        made = ExplainedNode(
            index=place,
            node=node.name,
            op_type=node.op_type,
            domain=node.domain,
            backend=around.backend,
            device=around.device,
            provider=around.provider,
            segment=around.segment,
            state=around.state,
            fused_into=None,
            why=(),
            reads=tuple(sorted(inside.reads[place])),
            outputs=tuple(inside.spec(name) for name in node.output if name),
            flops=work,
            moved_bytes=None if work is None else nbytes,
        )
        return self.seen(made, inside) if work is None else made


def _types(nodes: Iterable[ExplainedNode]) -> Iterator[DType]:
    for node in nodes:
        for body in node.bodies:
            yield from _types(body.nodes)
        if not node.bodies:
            yield from (spec.dtype for spec in node.outputs)
