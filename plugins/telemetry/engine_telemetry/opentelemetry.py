"""Traces and metrics by the OpenTelemetry API, for the providers that the process has set up.

Without a provider the API does nothing. One that is set later is used from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import engine_telemetry
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
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

OPTIONS = {
    "traces": Option(text="a span for each request, build and update", type=bool, default="true"),
    "metrics": Option(text="durations, batch sizes and counts", type=bool, default="true"),
}
SCOPE = "inference_engine"  # of tracer and meter, and what all names begin with
MODEL, STATUS, ERROR = f"{SCOPE}.model.name", f"{SCOPE}.status", "error.type"
DEVICE = f"{SCOPE}.device"


class Observer:
    """Hands events to traces and metrics; see `engine.types.Observer`."""

    observes = True

    def __init__(self, options: Mapping[str, str]) -> None:
        """options: as in `OPTIONS`. Raises ValueError; ExtensionError without the API's package."""
        wanted = parsed(options, OPTIONS)
        context = require("opentelemetry", "opentelemetry.context", "opentelemetry-api")
        self._caller, self._nobody = context.get_current, context.Context()
        self._traces = Traces() if wanted["traces"] else None
        self._metrics = Metrics() if wanted["metrics"] else None

    def on_begin(self, model: ModelDescription) -> object:
        """Keep the trace that the caller is in: the request may end in another thread."""
        if self._metrics:
            self._metrics.active.add(1, {MODEL: model.name})
        return self._caller()

    def on_request(self, event: RequestEvent) -> None:
        """Write the request's spans and measurements."""
        # Without a context of the caller's, that of this thread would be somebody else's.
        context: Any = event.begun or self._nobody
        if self._traces:
            context = self._traces.request(event, context)
        if self._metrics:
            self._metrics.request(event, context)

    def on_build(self, event: BuildEvent) -> None:
        """Write the build's span, with its phases, and its duration."""
        if self._traces:
            self._traces.build(event)
        if self._metrics:
            self._metrics.build(event)

    def on_update(self, event: UpdateEvent) -> None:
        """Write the update's span and its duration."""
        if self._traces:
            self._traces.update(event)
        if self._metrics:
            self._metrics.updates.record(event.duration_s, _attributes(event))

    def on_close(self, event: CloseEvent) -> None:
        """Count a model less."""
        if self._metrics:
            self._metrics.models.add(-1, {MODEL: event.model.name})
            self._metrics.memories.closed(event)


class Traces:
    """Writes spans that are over already, with the times of their events."""

    def __init__(self) -> None:
        from opentelemetry import trace

        self._trace = trace
        self._tracer = trace.get_tracer(SCOPE, engine_telemetry.__version__)

    def request(self, event: RequestEvent, parent: Context) -> Context:
        """Write the span of a request and those of its parts; return the context inside it."""
        offset = events.wall_offset_ns()
        begin = events.wall_ns(event.begin_s, offset)
        run = begin + int(event.queue_s * events.NS)
        end = run + int(event.compute_s * events.NS)
        span = self._span("predict", event, parent, begin)
        inside = self._trace.set_span_in_context(span, parent)
        if span.is_recording():
            span.set_attribute(f"{SCOPE}.request.id", event.id)
            span.set_attribute(f"{SCOPE}.batch.size", event.batch_size)
            if event.devices:
                span.set_attribute(f"{SCOPE}.devices", [str(device) for device in event.devices])
                span.set_attribute(f"{SCOPE}.run.id", event.run_id)
            if run > begin:
                self._part("queue", inside, begin, run)
            if event.batch_size:
                self._part("compute", inside, run, end)
        span.end(end)
        return inside

    def build(self, event: BuildEvent) -> None:
        """Write the span of a build and those of its phases."""
        from opentelemetry.context import get_current

        offset = events.wall_offset_ns()
        parent = get_current()  # a build ends in the thread that asked for it
        begin = events.wall_ns(event.begin_s, offset)
        span = self._span("build", event, parent, begin)
        if span.is_recording():
            inside = self._trace.set_span_in_context(span, parent)
            for phase in event.spans:
                phase_begin = events.wall_ns(phase.begin_s, offset)
                phase_end = phase_begin + int(phase.duration_s * events.NS)
                self._part(phase.name, inside, phase_begin, phase_end)
        span.end(begin + int(event.duration_s * events.NS))

    def update(self, event: UpdateEvent) -> None:
        """Write the span of an update of weights."""
        from opentelemetry.context import get_current

        begin = events.wall_ns(event.begin_s, events.wall_offset_ns())
        span = self._span("update", event, get_current(), begin)
        span.set_attribute(f"{SCOPE}.update.weights", len(event.weights))
        span.end(begin + int(event.duration_s * events.NS))

    def _span(
        self, name: str, event: RequestEvent | BuildEvent | UpdateEvent, parent: Context, begin: int
    ) -> Span:
        model = event.model
        span = self._tracer.start_span(
            f"{name} {model.name}", parent, attributes={MODEL: model.name}, start_time=begin
        )
        if not span.is_recording():
            return span
        span.set_attributes(
            {f"{SCOPE}.model.path": model.path, f"{SCOPE}.backends": model.backends}
        )
        span.set_attributes(_attributes(event))
        if event.status in events.FAULTS:
            span.set_status(self._trace.StatusCode.ERROR, event.error)
        return span

    def _part(self, name: str, parent: Context, begin: int, end: int) -> None:
        self._tracer.start_span(name, parent, start_time=begin).end(end)


@cache
def _memories() -> memory.Memories:
    """Return what the gauge of this process reads: a meter takes it once."""
    from opentelemetry import metrics

    found = memory.Memories()

    def read(_: Any) -> Iterable[metrics.Observation]:
        for device, kind, nbytes in found.read():
            yield metrics.Observation(nbytes, {DEVICE: device, f"{SCOPE}.memory.kind": kind})

    meter = metrics.get_meter(SCOPE, engine_telemetry.__version__)
    meter.create_observable_gauge(f"{SCOPE}.device.memory", [read], "By", memory.TEXT)
    return found


class Metrics:
    """The instruments, and what is measured by them."""

    def __init__(self) -> None:
        from opentelemetry import metrics

        meter = metrics.get_meter(SCOPE, engine_telemetry.__version__)

        def histogram(name: str, unit: str, buckets: tuple[float, ...], text: str) -> Any:
            return meter.create_histogram(
                f"{SCOPE}.{name}", unit, text, explicit_bucket_boundaries_advisory=buckets
            )

        self.active = meter.create_up_down_counter(
            f"{SCOPE}.active_requests", "{request}", "Requests that have come and not ended."
        )
        self.models = meter.create_up_down_counter(
            f"{SCOPE}.models", "{model}", "Models and runners that are built and not closed."
        )
        self.durations = histogram(
            "request.duration", "s", events.SECONDS, "Time from a request's coming to its end."
        )
        self.queues = histogram(
            "request.queue.duration",
            "s",
            events.SECONDS,
            "Time that requests waited to run.",
        )
        self.batches = histogram(
            "request.batch.size", "{request}", events.REQUESTS, "Requests that shared a run."
        )
        self.builds = histogram(
            "build.duration", "s", events.BUILD_SECONDS, "Time that builds took."
        )
        self.updates = histogram(
            "update.duration", "s", events.BUILD_SECONDS, "Time that updates of weights took."
        )
        self.devices = meter.create_counter(
            f"{SCOPE}.device.requests", "{request}", "Requests that a device has served."
        )
        self.memories = _memories()

    def request(self, event: RequestEvent, context: Context) -> None:
        """Measure a request. context: inside its span, for exemplars."""
        model = {MODEL: event.model.name}
        self.active.add(-1, model)
        self.durations.record(event.duration_s, _attributes(event), context)
        if event.batch_size:
            self.queues.record(event.queue_s, model, context)
            for device in event.devices:
                self.devices.add(1, {**model, DEVICE: str(device)}, context)
            self.batches.record(event.batch_size, model, context)

    def build(self, event: BuildEvent) -> None:
        """Measure a build, and count the model if there is one."""
        self.builds.record(event.duration_s, _attributes(event))
        if event.status is Status.COMPLETED:
            self.models.add(1, {MODEL: event.model.name})
            self.memories.built(event)


def _attributes(event: RequestEvent | BuildEvent | UpdateEvent) -> dict[str, str]:
    """Return what spans and measurements of an event have in common."""
    found = {MODEL: event.model.name, STATUS: str(event.status)}
    if event.status in events.FAULTS:
        found[ERROR] = event.error_type or "_OTHER"
    return found
