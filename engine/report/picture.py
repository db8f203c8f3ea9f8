"""Placement as a small SVG: the nodes in order, a cell each, coloured by what runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from engine.config.text import counted, plain
from engine.types import NodeState, Placement

Runner = tuple[str, str]
"""A device, and the backend that runs nodes on it."""

_FIRST = "#4a90d9"
_FALLBACKS = ("#e8833a", "#a06cd5", "#2fa37c", "#d6456b", "#b8a12e")
# Readable on white and on black: text and outlines take the page's own colour.
_FAINT = {NodeState.FUSED: "0.65", NodeState.FOLDED: "0.35"}

_ACROSS = 50
_MOST_CELLS = 400
_STEP, _CELL, _ROW = 13, 11, 20


def colours(placement: Sequence[Placement], first: str) -> dict[Runner, str]:
    """Return a colour for each device and backend; that of the first target's backend is blue."""
    runners = dict.fromkeys((node.device, node.backend) for node in placement)
    found: dict[Runner, str] = {}
    for runner in runners:
        others = len([colour for colour in found.values() if colour != _FIRST])
        is_first = runner[1] == first and _FIRST not in found.values()
        found[runner] = _FIRST if is_first else _FALLBACKS[others % len(_FALLBACKS)]
    return found


def picture(placement: Sequence[Placement], first: str, palette: Mapping[Runner, str]) -> str:
    """Return an SVG with a cell for each node, or for a few in a row where there are very many.

    first: the backend of the first target; cells with nodes of another one are outlined and
    taller. A cell's nodes are told where the pointer rests on it.
    """
    share = max(1, -(-len(placement) // _MOST_CELLS))
    groups = [placement[at : at + share] for at in range(0, len(placement), share)]
    rows = -(-len(groups) // _ACROSS)
    width, height = min(len(groups), _ACROSS) * _STEP + 2, rows * _ROW + 2
    cells = []
    for place, group in enumerate(groups):
        row, column = divmod(place, _ACROSS)
        strange = [node for node in group if node.backend != first]
        shown = (strange or group)[0]
        x, y, size = column * _STEP + 2, row * _ROW + 5, _CELL
        outline = ""
        if strange:
            y, size = y - 3, size + 6
            outline = ' stroke="currentColor" stroke-width="1.5"'
        faint = _FAINT.get(shown.state) if share == 1 else None
        opacity = f' opacity="{faint}"' if faint and not strange else ""
        cells.append(
            f'<rect x="{x}" y="{y}" width="{_CELL}" height="{size}" rx="2" '
            f'fill="{palette[shown.device, shown.backend]}"{outline}{opacity}>'
            f"<title>{text(_told(group, shown))}</title></rect>"
        )
    label = f"{counted(len(placement), 'node')} in order, coloured by device"
    return (
        f'<svg role="img" aria-label="{label}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" style="max-width:100%">{"".join(cells)}</svg>'
    )


def swatch(colour: str, is_fallback: bool) -> str:
    """Return a cell of that colour alone, as a legend shows it."""
    outline = ' stroke="currentColor" stroke-width="1.5"' if is_fallback else ""
    return (
        '<svg width="13" height="13" viewBox="0 0 13 13" aria-hidden="true" '
        'style="min-width:13px;vertical-align:-2px">'
        f'<rect x="1" y="1" width="11" height="11" rx="2" fill="{colour}"{outline}/></svg>'
    )


def text(words: object) -> str:
    """Return text from a file as HTML that shows it and does nothing else."""
    return escape(plain(str(words)))


def _told(group: Sequence[Placement], shown: Placement) -> str:
    where = f"{shown.device}, {shown.backend}"
    if len(group) > 1:
        return f"nodes {group[0].index} to {group[-1].index}: {where}; {shown.reason}"
    state = "" if shown.state is NodeState.RUNS else f", {shown.state}"
    return f"{shown.index} {shown.op_type} {shown.node}: {where}{state}; {shown.reason}"
