"""The pieces of a drawing of a model: its inputs, its nodes but the constants, its outputs."""

from __future__ import annotations

from typing import NamedTuple

from engine.config.text import plain
from engine.report.explanation.found import Findings, spec_text
from engine.report.explanation.node import ExplainedNode, inside
from engine.types import TensorSpec

NODE, INPUT, OUTPUT = 0, 1, 2


class Piece(NamedTuple):
    """A box of the drawing. label, under: its two lines. words: what a search looks in."""

    kind: int
    label: str
    under: str
    words: str
    node: ExplainedNode | None = None


def pieces_of(found: Findings) -> tuple[list[Piece], list[tuple[int, int]]]:
    """Return the pieces, and the arrows between them: from and to."""
    pieces = [_port(INPUT, spec) for spec in found.inputs]
    makers = {spec.name: place for place, spec in enumerate(found.inputs)}
    for node in found.nodes:
        if node.op_type == "Constant" and not node.reads:
            continue
        for spec in node.outputs:
            makers[spec.name] = len(pieces)
        under = spec_text(node.outputs[0]) if node.outputs else ""
        words = "\n".join(
            word
            for each in (node, *(inner for _, _, inner in inside(node)))
            for word in (each.operator, each.node, *(spec.name for spec in each.outputs))
        )
        pieces.append(Piece(NODE, plain(node.op_type), under, plain(words), node))
    arrows: dict[tuple[int, int], None] = {}
    for place, piece in enumerate(pieces):
        for name in piece.node.reads if piece.node else ():
            if name in makers:
                arrows[makers[name], place] = None
    for spec in found.outputs:
        if spec.name in makers:
            arrows[makers[spec.name], len(pieces)] = None
        pieces.append(_port(OUTPUT, spec))
    return pieces, list(arrows)


def _port(kind: int, spec: TensorSpec) -> Piece:
    return Piece(kind, plain(spec.name), spec_text(spec), plain(spec.name))
