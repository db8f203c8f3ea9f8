"""Memory of a model, as a table for people and as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.cli.output import attributes, line, size, table

if TYPE_CHECKING:
    from engine.model.memory import ModelMemory

_SIZES = ("private_bytes", "shared_bytes", "mapped_bytes", "workspace_bytes")


def show(memory: ModelMemory) -> None:
    """Print a table with a row for each part of the model."""
    table(
        "Memory",
        ("device", "backend", *(f">{name.removesuffix('_bytes')}" for name in _SIZES)),
        [
            (
                part.device,
                part.backend or "core",
                *(size(getattr(part, name)) for name in _SIZES[:-1]),
                # 0 also stands for what the backend cannot know.
                size(part.workspace_bytes) if part.workspace_bytes else "none known",
            )
            for part in memory.parts
        ],
    )
    if memory.uncounted:
        line(f"weights: {memory.uncounted}")
    for device, free in memory.free_bytes.items():
        line(f"free on {device}: {size(free)}")


def values(memory: ModelMemory) -> dict[str, Any]:
    """Return the same as plain values, with the sums."""
    return {
        **attributes(memory, *_SIZES),
        "uncounted": memory.uncounted or None,
        "free_bytes": dict(memory.free_bytes),
        "parts": [
            {"backend": part.backend or "core", **attributes(part, "device", *_SIZES)}
            for part in memory.parts
        ],
    }
