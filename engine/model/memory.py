"""Memory of a model, as `Model.memory()` gives it and people read it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from engine.config.text import aligned
from engine.errors import BackendUnavailable
from engine.weights.compile_cache import uncounted_weights

if TYPE_CHECKING:
    from engine.plan import Plan

__all__ = ["ModelMemory", "PartMemory"]


@dataclass(frozen=True, slots=True)
class PartMemory:
    """Memory of the part of a model that one backend runs on one device, in bytes.

    backend: "" for what the core holds itself: weights that can be exchanged, state. device: as
    `str(Device)`.
    private_bytes: weights that only this model uses, in memory of its own.
    shared_bytes: weights that other models of this process use too; each of them counts them.
    mapped_bytes: weights in files that no other model of this process uses; other processes that
        map the same files have the same pages. Pages come to memory when they are first used.
    workspace_bytes: scratch memory of open contexts. 0 also where the backend does not know:
        onnxruntime does not say what its arenas hold.
    """

    backend: str
    device: str
    private_bytes: int = 0
    shared_bytes: int = 0
    mapped_bytes: int = 0
    workspace_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Memory of a model, by the backends that run it, in bytes. Prints as a table.

    parts: in running order. why_unshared: why weights are not shared with the group that the model
    is in, "" where some are, or where it is in none. group_workspace_bytes: what the largest model
    of its group needs for its activations, as ModelGroup.cal_max_size_of_workspace measured it; 0
    where it did not. uncounted: weights that the sizes leave out, in words; "" for none.
    free_bytes: memory that is free now, by device, for a new allocation of any process; only of
    devices whose backend tells it.
    """

    parts: tuple[PartMemory, ...]
    why_unshared: str = ""
    group_workspace_bytes: int = 0
    uncounted: str = ""
    free_bytes: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def private_bytes(self) -> int:
        """The sum over the parts."""
        return sum(part.private_bytes for part in self.parts)

    @property
    def shared_bytes(self) -> int:
        """The sum over the parts."""
        return sum(part.shared_bytes for part in self.parts)

    @property
    def mapped_bytes(self) -> int:
        """The sum over the parts."""
        return sum(part.mapped_bytes for part in self.parts)

    @property
    def workspace_bytes(self) -> int:
        """The sum over the parts."""
        return sum(part.workspace_bytes for part in self.parts)

    def __repr__(self) -> str:
        return str(self)  # what a prompt shows

    def __str__(self) -> str:
        columns = [field.name.removesuffix("_bytes") for field in fields(PartMemory)]
        rows = [columns]
        for part in self.parts:
            sizes = [getattr(part, field.name) for field in fields(part)[2:]]
            rows.append([part.backend or "core", part.device, *(f"{size:,}" for size in sizes)])
        lines = aligned(rows, numbers=range(2, len(columns)))
        if self.uncounted:
            lines.append(f"weights: {self.uncounted}")
        if self.why_unshared:
            lines.append(f"weights are not shared: {self.why_unshared}")
        if self.group_workspace_bytes:
            lines.append(f"workspace of the group's largest model: {self.group_workspace_bytes:,}")
        lines += [f"free on {device}: {free:,}" for device, free in self.free_bytes.items()]
        return "\n".join(lines)


def memory_of(plan: Plan, why_unshared: str, group_workspace_bytes: int) -> ModelMemory:
    """Return what a plan takes now."""
    parts = (
        PartMemory(
            name,
            str(device),
            report.weights_bytes,
            report.shared_bytes,
            report.mapped_bytes,
            report.workspace_bytes,
        )
        for name, device, report in plan.memory()
    )
    uncounted = uncounted_weights(plan.source.graph)
    free: dict[str, int] = {}
    for backend, device in plan.parts:
        with suppress(BackendUnavailable):  # what the model takes is known all the same
            found = backend.memory(device)
            if found is not None and found.free_bytes is not None:
                free.setdefault(str(device), found.free_bytes)
    return ModelMemory(tuple(parts), why_unshared, group_workspace_bytes, uncounted, free)
