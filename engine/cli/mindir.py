"""The part of `engine inspect` for MindIR files: their primitives as written, not lowered."""

from __future__ import annotations

from typing import Any

from engine.cli.output import attributes, size, table
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
    compiled = [
        {
            **attributes(part, "inputs", "outputs", "runs"),
            "part": part.name,
            "size_bytes": part.size_bytes or None,
        }
        for part in found.compiled
    ]
    return {
        "graph": found.name,
        **attributes(found, "producer", "metadata", "functions"),
        "nodes": found.node_count,
        "primitives": [
            {
                "primitive": operator.name,
                "count": operator.count,
                "supported": operator.support != "no",
            }
            for operator in found.operators
        ],
        **({"compiled": compiled} if compiled else {}),
    }
