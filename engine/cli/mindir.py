"""The part of `engine inspect` for MindIR files: their primitives as written, not lowered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cli.output import counted, fields, size, table

if TYPE_CHECKING:
    from engine.formats.mindir import Description


def show(path: Path, model: Description, parameters: str) -> None:
    """Print the facts and a table of the primitives, those that this version lacks first."""
    fields(
        {
            "model": str(path),
            "format": "mindir",
            "encryption": model.encryption,
            "file": size(path.stat().st_size),
            "producer": model.producer,
            "graph": f"{model.name or 'unnamed'}, "
            f"{counted(sum(model.primitives.values()), 'node')}",
            "functions": ", ".join(model.functions),
            "parameters": parameters,
            "metadata": ", ".join(f"{key}={value}" for key, value in model.user_info.items()),
        }
    )
    table(
        "Primitives",
        ("primitive", ">count", "supported"),
        [
            (name, f"{model.primitives[name]:,}", _supported(name, model))
            for name in sorted(
                model.primitives,
                key=lambda name: (_supported(name, model) == "yes", -model.primitives[name], name),
            )
        ],
    )


def _supported(name: str, model: Description) -> str:
    if name in model.collectives:
        return "no: waits for other ranks"
    return "no" if name in model.unsupported else "yes"


def values(model: Description) -> dict[str, Any]:
    """Return the same as plain values, for JSON."""
    return {
        "graph": model.name,
        "producer": model.producer,
        "metadata": dict(model.user_info),
        "functions": list(model.functions),
        "nodes": sum(model.primitives.values()),
        "primitives": [
            {
                "primitive": name,
                "count": count,
                "supported": name not in (*model.unsupported, *model.collectives),
            }
            for name, count in model.primitives.items()
        ],
    }
