"""Metrics of prometheus_client, in its default registry: `text()` has them, or a port serves them.

Labels are a model's name and a status. A process that builds models of ever new names has at most
`max_models` of them; the rest are together, as "other".
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from engine.options import parsed
from engine.types import (
    BuildEvent,
    CloseEvent,
    ModelDescription,
    Option,
    RequestEvent,
    Status,
    UpdateEvent,
)
from engine_telemetry import events, memory
from engine_telemetry.requirements import require

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

OPTIONS = {
    "port": Option(
        text="serve the metrics at http://ADDR:PORT/metrics", type=int, lowest=0, highest=65535
    ),
    "addr": Option(text="the address of that port", default="127.0.0.1"),
    "max_models": Option(text="the most names of models", type=int, lowest=1, default="100"),
}
OTHER = "other"
_ALL = "PROMETHEUS_MULTIPROC_DIR"
_SPACE = "inference_engine"


def _serve(port: int, addr: str) -> None:
    from prometheus_client import start_http_server

    try:
        start_http_server(port, addr, registry())
    except OSError as error:
        if _ALL in os.environ and error.errno == errno.EADDRINUSE:
            return  # by another of these processes, for all of them
        raise ValueError(
            f"option 'port': cannot serve at {addr}:{port}: {error}; give another port, or none "
            "and serve engine_telemetry.prometheus.text() yourself"
        ) from error


def registry() -> CollectorRegistry:
    """Return the registry that has the metrics.

    It is the default one, or one of all processes where the variable PROMETHEUS_MULTIPROC_DIR
    names the folder by which they share their metrics.
    """
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    if _ALL not in os.environ:
        return REGISTRY
    of_all = CollectorRegistry()
    MultiProcessCollector(of_all)  # type: ignore[no-untyped-call]
    of_all.register(metrics().memories)
    return of_all


def text() -> str:
    """Return all metrics of the registry in Prometheus' text format, as a scrape would."""
    from prometheus_client import generate_latest

    return generate_latest(registry()).decode()


class _Memories(memory.Memories):
    """A collector of prometheus_client: asked when the page is."""

    def describe(self) -> Iterator[Any]:
        """Return nothing: who registers it reads no memory."""
        return iter(())

    def collect(self) -> Iterator[Any]:
        """Yield the gauge, as it is now."""
        from prometheus_client.core import GaugeMetricFamily

        name = f"{_SPACE}_device_memory_bytes"
        gauge = GaugeMetricFamily(name, memory.TEXT, labels=("device", "kind"))
        for device, kind, nbytes in self.read():
            gauge.add_metric((device, kind), nbytes)
        yield gauge


class Metrics:
    """Counters and histograms, by labels: functions that return the one for some labels.

    A registry takes each collector once. A name ends in its unit.
    """

    def __init__(self) -> None:
        from prometheus_client import REGISTRY, Counter, Gauge, Histogram

        of_status, of_model = ("model", "status"), ("model",)

        def histogram(name: str, help: str, labels: tuple[str, ...], buckets: Any) -> Any:
            return cache(Histogram(name, help, labels, namespace=_SPACE, buckets=buckets).labels)

        def gauge(name: str, help: str) -> Any:
            # Of several processes: the sum over those that live.
            sum_of = Gauge(name, help, of_model, namespace=_SPACE, multiprocess_mode="livesum")
            return cache(sum_of.labels)

        self.active = gauge("active_requests", "Requests that have come and not ended.")
        self.models = gauge("models", "Models and runners that are built and not closed.")
        ended = Counter("requests", "Requests that have ended.", of_status, namespace=_SPACE)
        self.requests = cache(ended.labels)
        served = Counter(
            "device_requests",
            "Requests that a device has served.",
            ("model", "device"),
            namespace=_SPACE,
        )
        self.devices = cache(served.labels)
        self.memories = _Memories()
        REGISTRY.register(self.memories)
        self.durations = histogram(
            "request_duration_seconds", "Time from coming to end.", of_status, events.SECONDS
        )
        self.queues = histogram(
            "request_queue_seconds", "Time that requests waited to run.", of_model, events.SECONDS
        )
        self.batches = histogram(
            "request_batch_size", "Requests that shared a run.", of_model, events.REQUESTS
        )
        self.builds = histogram(
            "build_duration_seconds", "Time that builds took.", of_status, events.BUILD_SECONDS
        )
        self.updates = histogram(
            "update_duration_seconds",
            "Time that updates of weights took.",
            of_status,
            events.BUILD_SECONDS,
        )


metrics = cache(Metrics)
"""Return this process's collectors, which are made and registered at the first call."""


class Observer:
    """Counts and measures events; see `engine.types.Observer`."""

    observes = True

    def __init__(self, options: Mapping[str, str]) -> None:
        """Serve the port too, if one is given.

        options: as in `OPTIONS`. Raises ValueError; ExtensionError without prometheus_client.
        """
        wanted = parsed(options, OPTIONS)
        if options.get("addr") and wanted["port"] is None:
            raise ValueError("option 'addr' needs 'port', which serves there")
        require("prometheus", "prometheus_client", "prometheus_client")
        self._metrics = metrics()
        self._max_models = wanted["max_models"]
        self._names: dict[str, str] = {}
        self._lock = Lock()
        if wanted["port"] is not None:
            _serve(wanted["port"], wanted["addr"])

    def on_begin(self, model: ModelDescription) -> None:
        """Count a request that runs or waits."""
        self._metrics.active(self._label(model)).inc()

    def on_request(self, event: RequestEvent) -> None:
        """Count and measure a request that has ended."""
        model, status = self._label(event.model), str(event.status)
        self._metrics.active(model).dec()
        self._metrics.requests(model, status).inc()
        self._metrics.durations(model, status).observe(event.duration_s)
        if event.batch_size:
            self._metrics.queues(model).observe(event.queue_s)
            for device in event.devices:
                self._metrics.devices(model, str(device)).inc()
            self._metrics.batches(model).observe(event.batch_size)

    def on_build(self, event: BuildEvent) -> None:
        """Measure a build, and count the model if there is one."""
        model = self._label(event.model)
        self._metrics.builds(model, str(event.status)).observe(event.duration_s)
        if event.status is Status.COMPLETED:
            self._metrics.models(model).inc()
            self._metrics.memories.built(event)

    def on_update(self, event: UpdateEvent) -> None:
        """Measure an update of weights."""
        model = self._label(event.model)
        self._metrics.updates(model, str(event.status)).observe(event.duration_s)

    def on_close(self, event: CloseEvent) -> None:
        """Count a model less."""
        self._metrics.models(self._label(event.model)).dec()
        self._metrics.memories.closed(event)

    def _label(self, model: ModelDescription) -> str:
        found = self._names.get(model.name)
        if found is None:
            with self._lock:
                is_known = model.name in self._names or len(self._names) < self._max_models
                if not is_known:  # not kept: there may be any number of them
                    return OTHER
                found = self._names.setdefault(model.name, model.name)
        return found
