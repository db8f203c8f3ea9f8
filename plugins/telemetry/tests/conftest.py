from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import engine
from engine import Model
from engine_testing import models
from engine_testing.fixtures import null_backend, plugin_folder

__all__ = ["null_backend", "plugin_folder"]

os.environ["ENGINE_CACHE"] = "off"  # what a test builds is no business of the user's cache

sys.path.insert(0, str(Path(__file__).parent))  # `ways` is for every file here


@pytest.fixture
def affine(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """y = 2x + 1, x float32[batch, 3]; the file has the test's name, by which metrics are told."""
    name = "".join(char if char.isalnum() else "_" for char in request.node.name)
    path = tmp_path / f"{name}.onnx"
    models.affine(tmp_path).rename(path)
    return path


@pytest.fixture
def load(null_backend: str) -> Callable[..., Model]:
    """Build a model on the null backend with one extension on, its options by keyword."""

    def build(path: Path, extension: str, /, **options: str) -> Model:
        sections = {"common_context": {"extensions": extension}, f"{extension}_extension": options}
        return engine.load(path, target=null_backend, config=sections)

    return build


@pytest.fixture(scope="session")
def _exporter() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(_exporter: InMemorySpanExporter) -> Iterator[Callable[[], list[Any]]]:
    """The spans that have ended in this test, in the order of their beginning, parents first."""

    def found() -> list[Any]:
        ended = reversed(_exporter.get_finished_spans())  # children end first
        return sorted(ended, key=lambda span: (span.start_time, -span.end_time))

    _exporter.clear()
    yield found
    _exporter.clear()


@pytest.fixture(scope="session")
def _reader() -> InMemoryMetricReader:
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    return reader


@pytest.fixture
def measured(_reader: InMemoryMetricReader) -> Callable[[str], list[Any]]:
    """The data points of an instrument."""

    def of(name: str) -> list[Any]:
        data = _reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == f"inference_engine.{name}"
            for point in metric.data.data_points
        ]

    return of


@pytest.fixture
def points(measured: Callable[[str], list[Any]]) -> Callable[[str, str], list[Any]]:
    """The data points of an instrument, of one model."""

    def of(name: str, model: str) -> list[Any]:
        about = "inference_engine.model.name"
        return [point for point in measured(name) if point.attributes[about] == model]

    return of


@pytest.fixture
def instruments(_reader: InMemoryMetricReader) -> Callable[[], dict[str, str]]:
    """The units of all instruments that have measured something."""

    def found() -> dict[str, str]:
        data = _reader.get_metrics_data()
        return {
            metric.name: metric.unit
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name.startswith("inference_engine.")
        }

    return found
