"""Metrics for Prometheus, by the names that Triton's dashboards know; read when asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.samples import Sample

from engine_serve.loaded import LoadedModel
from engine_serve.repository import Repository

_TOTAL = re.compile(rb"(?m)^(# (?:HELP|TYPE) nv_inference_\w+)_total ")
_LABELS = ("model", "version")


class Metrics:
    """The metrics of a repository's models, as a collector and as text."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        # prometheus_client ends the names of counters in _total; Triton's do not.
        return _TOTAL.sub(rb"\1 ", generate_latest(self._registry))

    def describe(self) -> Iterator[Any]:
        """Return nothing: the names are those of `collect`."""
        return iter(())

    def collect(self) -> Iterator[Any]:
        """Yield the metrics as they are now."""
        models = [(model, model.runner.statistics()) for model in self._repository.loaded()]

        def counter(name: str, text: str, value: Any) -> CounterMetricFamily:
            family = CounterMetricFamily(name, text, labels=_LABELS)
            for model, counted in models:
                family.samples.append(_sample(name, model, value(model, counted)))
            return family

        def gauge(name: str, text: str, value: Any) -> GaugeMetricFamily:
            family = GaugeMetricFamily(name, text, labels=_LABELS)
            for model, counted in models:
                family.add_metric((model.name, model.version), value(model, counted))
            return family

        def micros(times: Any) -> float:
            return float(times.count * times.mean_s * 1e6)

        yield counter(
            "nv_inference_request_success",
            "Number of successful inference requests",
            lambda model, counted: counted.completed,
        )
        failures = CounterMetricFamily(
            "nv_inference_request_failure", "Number of failed inference requests"
        )
        for model, counted in models:
            for reason, count in (
                ("REJECTED", counted.refused),
                ("CANCELED", counted.cancelled),
                ("BACKEND", counted.failed),
                ("OTHER", counted.expired + model.own.refused),
            ):
                name = "nv_inference_request_failure"
                failures.samples.append(_sample(name, model, count, reason=reason))
        yield failures
        yield counter(
            "nv_inference_count",
            "Number of inferences performed: samples of a batch count one by one",
            lambda model, counted: model.own.samples,
        )
        yield counter(
            "nv_inference_exec_count",
            "Number of model executions performed",
            lambda model, counted: sum(counted.batch_sizes.values()),
        )
        yield gauge(
            "nv_inference_pending_request_count",
            "Number of requests that wait for a run",
            lambda model, counted: counted.waiting,
        )
        yield counter(
            "nv_inference_request_duration_us",
            "Cumulative time from a request's coming to its results",
            lambda model, counted: micros(counted.latency),
        )
        yield counter(
            "nv_inference_queue_duration_us",
            "Cumulative time that requests waited for a run",
            lambda model, counted: micros(counted.queue),
        )
        yield counter(
            "nv_inference_compute_input_duration_us",
            "Cumulative time to read requests",
            lambda model, counted: model.own.input_s * 1e6,
        )
        yield counter(
            "nv_inference_compute_infer_duration_us",
            "Cumulative time in the model",
            lambda model, counted: micros(counted.compute),
        )
        yield counter(
            "nv_inference_compute_output_duration_us",
            "Cumulative time to write answers",
            lambda model, counted: model.own.output_s * 1e6,
        )
        yield from _machine()


def _sample(name: str, model: LoadedModel, value: float, **more: str) -> Any:
    return Sample(name, {"model": model.name, "version": model.version, **more}, value)


def _machine() -> Iterator[Any]:
    with open("/proc/meminfo", encoding="ascii") as file:
        sizes = {key: int(rest.split()[0]) * 1024 for key, rest in
                 (line.split(":") for line in file) if rest.endswith("kB\n")}  # fmt: skip
    total = sizes["MemTotal"]
    yield GaugeMetricFamily("nv_cpu_memory_total_bytes", "CPU memory of the machine", total)
    used = total - sizes["MemAvailable"]
    yield GaugeMetricFamily("nv_cpu_memory_used_bytes", "CPU memory that is used", used)
