"""A small picture of a model's graph as SVG, for notebooks: no script, no style sheet."""

from __future__ import annotations

from engine.report.explanation.families import family
from engine.report.explanation.found import Findings
from engine.report.explanation.layout import drawn
from engine.report.explanation.pieces import pieces_of

_COLOURS = (
    "#3b6fd4", "#d9822b", "#2e9a63", "#b5458f", "#7a6bd1", "#1798a8", "#a8852a", "#c94f4f",
    "#6b7688",
)  # fmt: skip
_LENGTH, _BREADTH, _ROW = 760, 150, 14.0
_MOST = 3000


def thumbnail(found: Findings) -> str:
    """Return the graph, drawn from left to right; "" for one too large to tell anything so small.

    A box has its operator's colour, and its title in a tooltip.
    """
    from html import escape

    pieces, arrows = pieces_of(found)
    if not pieces or len(pieces) > _MOST:
        return ""
    drawing = drawn(len(pieces), arrows)
    least, most = min(drawing.xs), max(drawing.xs)
    across = min(_BREADTH / max(most - least, 1.0), 0.12)
    along = min(_LENGTH / (max(drawing.layers) + 1), _ROW)
    height = (most - least) * across + 10
    spots = [
        (layer * along + along / 2, (x - least) * across + 5)
        for layer, x in zip(drawing.layers, drawing.xs, strict=True)
    ]
    lines = "".join(
        f"M{spots[a][0]:.1f} {spots[a][1]:.1f}L{spots[b][0]:.1f} {spots[b][1]:.1f}"
        for (a, b), route in zip(arrows, drawing.routes, strict=True)
        if route is not None
    )
    width = max(along * 0.7, 0.8)
    boxes = "".join(
        f'<rect x="{x - width / 2:.1f}" y="{y - 4:.1f}" width="{width:.1f}" height="8" '
        f'fill="{_COLOURS[family(piece.node.op_type)] if piece.node else "#999999"}">'
        f"<title>{escape(piece.node.title if piece.node else piece.label)}</title></rect>"
        for piece, (x, y) in zip(pieces, spots, strict=True)
    )
    total = (max(drawing.layers) + 1) * along
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total:.0f} {height:.0f}" '
        f'width="{total:.0f}" height="{height:.0f}"><path d="{lines}" fill="none" '
        f'stroke="#9aa3b2" stroke-width="0.7" />{boxes}</svg>'
    )
