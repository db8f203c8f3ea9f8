"""Reports of a model as its user sees them: protocols that the wing engine/report fills."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

from engine.model.memory import ModelMemory
from engine.types import NodeInfo, ParameterInfo, Placement, TensorSpec


class ModelSummary(Protocol):
    """Summary of a model; prints as text, and in notebooks as HTML. See `report.summary`."""

    model: str
    format: str
    encryption: str
    size_bytes: int | None
    inputs: tuple[TensorSpec, ...] | None
    outputs: tuple[TensorSpec, ...] | None
    name: str
    producer: str
    ir_version: int | None
    opsets: Mapping[str, int]
    metadata: Mapping[str, str]
    operators: tuple[Any, ...]
    functions: tuple[str, ...]
    compiled: tuple[Any, ...]
    nodes: tuple[NodeInfo, ...] | None
    parameters: tuple[ParameterInfo, ...] | None
    backend: str
    placement: tuple[Placement, ...] | None
    memory: ModelMemory | None
    node_count: int
    parameter_count: int
    parameter_bytes: int
    external_data: dict[str, list[ParameterInfo]]
    placed: tuple[Any, ...]
    short_metadata: dict[str, str]

    def facts(self) -> dict[str, str]:
        """Return what one line can say, by name; "" for what is not known."""

    def _repr_html_(self) -> str: ...


class Kernel(Protocol):
    """A kernel, over all predicts that were measured. See `report.profiling`."""

    name: str
    op_type: str
    nodes: tuple[int, ...]
    backend: str
    device: str
    runs: float
    time_s: float
    share: float


class Profile(Protocol):
    """A model's time by kernel; prints as a table, in a notebook too. See `report.profiling`."""

    predict_s: float
    measured_s: float
    kernels: tuple[Kernel, ...]
    runs: tuple[Any, ...]
    predicts: int
    unmeasured: tuple[str, ...]
    kernels_s: float
    by_operator: tuple[Any, ...]

    def trace(self) -> dict[str, Any]:
        """Return it as trace events, which Perfetto and Chrome (about:tracing) open as JSON."""

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write `trace()` into a file. Raises OSError."""
