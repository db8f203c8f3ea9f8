"""The page that draws explained models: one file of HTML, which loads nothing.

Names come from models, so they are data: JSON in which no tag can end, and text in the page. Its
policy allows this style and this script alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from itertools import islice
from string import Template
from typing import Any

from engine.config.text import counted, duration, plain, size
from engine.report.explanation.families import FAMILIES, family
from engine.report.explanation.found import Findings, seconds, spec_text
from engine.report.explanation.layout import drawn
from engine.report.explanation.node import (
    ExplainedNode,
    inside,
    moved_text,
    operations_text,
    state_text,
)
from engine.report.explanation.pieces import Piece, pieces_of
from engine.types import NodeState

_STATES = (NodeState.RUNS, NodeState.FUSED, NodeState.FOLDED, NodeState.UNUSED)
_SAID = ("runs", "fused into another", "folded to a constant", "unused")
_HOTTEST = 12
_OPERATORS = 14
_INSIDE = 200


def page(explanations: Sequence[Findings]) -> str:
    """Return the page of a model, or of the ranks of one."""
    title = explanations[0].model or "model from memory"
    script, style = _file("page.js"), _file("style.css")
    data = {
        "title": plain(title),
        "families": FAMILIES,
        "states": _SAID,
        "graphs": [_graph(each) for each in explanations],
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    policy = (
        f"default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"script-src '{_digest(script)}'; style-src 'unsafe-inline'"
    )
    return Template(_file("page.html")).substitute(
        policy=policy,
        title=escape(plain(title)),
        style=style,
        script=script,
        data=text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"),
    )


def _file(name: str) -> str:
    return (resources.files("engine.report.explanation") / "page" / name).read_text("utf-8")


def _digest(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _graph(found: Findings) -> dict[str, Any]:
    """Return one model as the script takes it: a list for each property, a place for each piece."""
    pieces, arrows = pieces_of(found)
    drawing = drawn(len(pieces), arrows)
    place_of = {piece.node.index: place for place, piece in enumerate(pieces) if piece.node}
    named = _places(found)
    places = {where: place for place, where in enumerate({node.where: 0 for node in found.nodes})}
    segments = sorted({node.segment for node in found.nodes})
    holds: dict[int, list[int]] = {}
    for place, piece in enumerate(pieces):
        if piece.node is not None and (into := place_of.get(_into(piece.node))) is not None:
            holds.setdefault(into, []).append(place)
    return {
        "layer": drawing.layers,
        "x": [round(x) for x in drawing.xs],
        "arrows": [
            [*arrow, *([None] if route is None else map(round, route))]
            for arrow, route in zip(arrows, drawing.routes, strict=True)
        ],
        "kind": [piece.kind for piece in pieces],
        "label": [piece.label for piece in pieces],
        "under": [piece.under for piece in pieces],
        "name": [plain(piece.node.node) if piece.node else "" for piece in pieces],
        "index": [piece.node.index if piece.node else -1 for piece in pieces],
        "words": [piece.words for piece in pieces],
        "family": [family(piece.node.op_type) if piece.node else 0 for piece in pieces],
        "place": [places[piece.node.where] if piece.node else 0 for piece in pieces],
        "segment": [piece.node.segment if piece.node else 0 for piece in pieces],
        "state": [_STATES.index(piece.node.state) if piece.node else 0 for piece in pieces],
        "roof": [piece.node.least_s if piece.node else None for piece in pieces],
        "time": [piece.node.time_s if piece.node else None for piece in pieces],
        "into": [place_of.get(_into(piece.node), -1) if piece.node else -1 for piece in pieces],
        "holds": holds,
        "facts": [_facts(piece, found, named) for piece in pieces],
        "insideHead": ("inside", "runs", "operations"),
        "inside": {
            place: rows
            for place, piece in enumerate(pieces)
            if piece.node and (rows := _inside(piece.node))
        },
        "places": list(places),
        "segments": [f"segment {number}" for number in segments] if segments[1:] else [],
        "hasTime": found.predict_s is not None,
        "hasRoof": found.roof is not None,
        "model": [[name, text] for name, text in found.facts().items() if text and name != "model"]
        + [["note", plain(note)] for note in found.notes],
        "operatorHead": _columns(found.operator_head),
        "operators": _operators(found),
        "hottest": [
            [place_of[node.index], found.times(node)[-1]]
            for node in found.heaviest[:_HOTTEST]
            if node.index in place_of
        ],
    }


def _into(node: ExplainedNode) -> int:
    return -1 if node.fused_into is None else node.fused_into


def _places(found: Findings) -> list[str]:
    """Return where each node runs, with its segment if there are several."""
    has_several = len({node.segment for node in found.nodes}) > 1
    return [
        f"segment {node.segment}: {node.where}" if has_several else node.where
        for node in found.nodes
    ]


def _columns(row: tuple[str, ...]) -> tuple[str, ...]:
    """Return the cells for which the panel has room: operator, nodes, operations, and a time."""
    return (*row[:3], row[-1])


def _operators(found: Findings) -> list[list[Any]]:
    """Return the rows of the table, each with its share of the whole for a bar."""
    works = found.by_operator
    key = "time_s" if found.predict_s is not None else "least_s"
    if not any(getattr(each, key) for each in works):
        key = "flops"
    total = sum(getattr(each, key) or 0 for each in works) or 1
    rows = [
        [_columns(row), (getattr(each, key) or 0) / total]
        for row, each in zip(found.operator_rows(), works, strict=True)
    ]
    more = len(rows) - _OPERATORS
    return rows if more < 2 else [*rows[:_OPERATORS], [(f"{more} others",), 0]]


def _facts(piece: Piece, found: Findings, places: Sequence[str]) -> list[tuple[str, str]]:
    """Return what the panel says of a node, or of an input or output."""
    node = piece.node
    if node is None:
        return [("tensor", piece.label), ("type", piece.under)]
    facts = [
        ("name", node.node),
        ("index", f"{node.index}"),
        ("operator", node.operator),
        ("state", state_text(node)),
        ("runs on", places[node.index]),
        ("why", "; ".join(node.why) or found.why.get(node.backend, "")),
        ("makes", ", ".join(f"{spec.name}: {spec_text(spec)}" for spec in node.outputs)),
        ("operations", operations_text(node)),
        ("moved", moved_text(node)),
        ("intensity", "" if node.intensity is None else f"{node.intensity:.3g} FLOP/byte"),
        ("at the roof", _least(node)),
        ("measured", "" if node.time_s is None else duration(node.time_s)),
        ("weights", _weights(node)),
        ("updatable", ", ".join(node.updatable)),
    ]
    return [(name, plain(text)) for name, text in facts if text]


def _inside(node: ExplainedNode) -> list[tuple[tuple[str, ...], int]]:
    """Return the rows of the nodes inside of a node, as those of `_operators` without a bar."""
    rows: list[tuple[tuple[str, ...], int]] = []
    for label, often, inner in islice(inside(node), _INSIDE):
        what = plain(f"{label} {inner.operator} {inner.node}".strip())
        rows.append(((what, often, operations_text(inner)), 0))
    return rows if len(rows) < _INSIDE else [*rows, (("and more",), 0)]


def _least(node: ExplainedNode) -> str:
    if not node.least_s:
        return ""
    share = f", {node.least_s / node.time_s:.0%} of the time" if node.time_s else ""
    return f"{seconds(node.least_s)}, bound by {node.bound}{share}"


def _weights(node: ExplainedNode) -> str:
    if not node.weights:
        return ""
    shown = ", ".join(node.weights[:4]) + (", …" if len(node.weights) > 4 else "")
    return f"{size(node.weights_bytes)} in {counted(len(node.weights), 'tensor')}: {shown}"
