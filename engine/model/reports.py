"""Reports of a model as its user sees them: protocols that the wing engine/report fills."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
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
    facts: Callable[[], dict[str, str]]

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
    trace: Callable[[], dict[str, Any]]
    save_trace: Callable[[str | os.PathLike[str]], None]


class Explanation(Protocol):
    """A model, node by node; prints as text, in a notebook too. See `report.explanation`."""

    nodes: tuple[Any, ...]
    by_operator: tuple[Any, ...]
    flops: int
    moved_bytes: int
    least_s: float | None
    predict_s: float | None
    batching: str
    to_json: Callable[[], dict[str, Any]]
    save_html: Callable[[str | os.PathLike[str]], None]
