"""The part of `engine inspect` for MindIR files: their primitives as written, not lowered."""

from __future__ import annotations

from typing import Any

from engine.cli.output import size, table
from engine.report.summary import ModelSummary


def show(found: ModelSummary) -> None:
    """Print a table of the primitives, those that this version lacks first."""
    table(
        "Primitives",
        ("primitive", ">count", "supported"),
        [(operator.name, f"{operator.count:,}", operator.support) for operator in found.operators],
    )
    if found.compiled:
        rows = [
            (
                part.name,
                ", ".join(part.inputs),
                ", ".join(part.outputs),
                "" if part.runs else size(part.size_bytes),
                part.runs_text,
            )
            for part in found.compiled
        ]
        table("Compiled for Ascend", ("part", "inputs", "outputs", ">size", "runs"), rows)


def values(found: ModelSummary) -> dict[str, Any]:
    """Return what only such files have as plain values, for JSON."""
    return {
        "graph": found.name,
        "producer": found.producer,
        "metadata": dict(found.metadata),
        "functions": list(found.functions),
        "nodes": found.node_count,
        "primitives": [
            {
                "primitive": operator.name,
                "count": operator.count,
                "supported": operator.support != "no",
            }
            for operator in found.operators
        ],
    } | _compiled(found)


def _compiled(found: ModelSummary) -> dict[str, Any]:
    """Return the models that are compiled for Ascend; nothing for a file of a graph."""
    if not found.compiled:
        return {}
    parts = [
        {
            "part": part.name,
            "inputs": list(part.inputs),
            "outputs": list(part.outputs),
            "size_bytes": part.size_bytes or None,
            "runs": list(part.runs),
        }
        for part in found.compiled
    ]
    return {"compiled": parts}
