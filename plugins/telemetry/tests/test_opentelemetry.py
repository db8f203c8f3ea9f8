"""Traces and metrics, by the real SDK with exporters that keep them in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry import trace
from ways import WAYS, opened, rows

import engine
from engine.errors import InputError, SettingError
from engine.types import (
    BuildEvent,
    Device,
    ModelDescription,
    RequestEvent,
    Span,
    Status,
    UpdateEvent,
)
from engine_telemetry.opentelemetry import Observer

Spans = Callable[[], list[Any]]
Points = Callable[[str, str], list[Any]]

MODEL = ModelDescription(name="m", path="/m.onnx", backends=("cpu",), inputs=(), outputs=())
NS = 1_000_000_000


def event(**fields: Any) -> RequestEvent:
    facts = {"id": "1-1", "status": Status.COMPLETED, "begin_s": time.monotonic() - 1}
    return RequestEvent(**{"model": MODEL, "queue_s": 0.25, "compute_s": 0.5, **facts, **fields})


def test_a_requests_span_has_its_times_on_the_wall_clock(spans: Spans) -> None:
    before = time.time_ns()
    Observer({}).on_request(event(batch_size=4))
    after = time.time_ns()
    request, queue, compute = spans()
    assert [span.name for span in (request, queue, compute)] == ["predict m", "queue", "compute"]
    assert before - NS - 10**6 <= request.start_time <= after - NS + 10**6
    assert request.start_time == queue.start_time
    assert queue.end_time == compute.start_time == request.start_time + NS // 4
    assert request.end_time == compute.end_time == request.start_time + 3 * NS // 4
    assert {span.parent.span_id for span in (queue, compute)} == {request.context.span_id}
    assert request.attributes == {
        "inference_engine.model.name": "m",
        "inference_engine.model.path": "/m.onnx",
        "inference_engine.backends": ("cpu",),
        "inference_engine.status": "completed",
        "inference_engine.request.id": "1-1",
        "inference_engine.batch.size": 4,
    }
    assert request.status.is_unset


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (Status.FAILED, "InputError: input 'x': expected: 3", "InputError"),
        (Status.EXPIRED, "DeadlineExceeded: after 1 s", "DeadlineExceeded"),
        (Status.REFUSED, "QueueFull: 3 wait", "QueueFull"),
    ],
)
def test_an_error_is_the_spans_status_and_its_type(
    status: Status, error: str, kind: str, spans: Spans
) -> None:
    Observer({}).on_request(
        event(status=status, error=error, error_type=kind, batch_size=0, compute_s=0.0)
    )
    request, queue = spans()
    assert queue.name == "queue"
    assert request.attributes["error.type"] == kind
    assert request.attributes["inference_engine.status"] == str(status)
    assert request.status.status_code is trace.StatusCode.ERROR
    assert request.status.description == error


def test_a_request_that_its_owner_cancels_is_no_error(spans: Spans) -> None:
    Observer({}).on_request(event(status=Status.CANCELLED, error="Cancelled: by its owner"))
    assert spans()[0].status.is_unset
    assert "error.type" not in spans()[0].attributes


def test_the_phases_of_a_build_are_spans_inside_it(spans: Spans) -> None:
    begin = time.monotonic() - 3
    phases = (
        Span(name="read", begin_s=begin, duration_s=1.0),
        Span(name="compile", begin_s=begin + 1, duration_s=1.5),
    )
    with trace.get_tracer("test").start_as_current_span("start"):
        Observer({}).on_build(
            BuildEvent(
                model=MODEL, status=Status.COMPLETED, begin_s=begin, duration_s=2.5, spans=phases
            )
        )
    build, read, compile_, start = spans()
    assert [span.name for span in (build, read, compile_)] == ["build m", "read", "compile"]
    assert build.parent.span_id == start.context.span_id
    assert {span.parent.span_id for span in (read, compile_)} == {build.context.span_id}
    assert compile_.start_time - read.start_time == pytest.approx(NS, abs=1000)
    assert compile_.end_time - compile_.start_time == NS * 3 // 2
    assert build.end_time - build.start_time == NS * 5 // 2


def test_an_update_is_a_span(spans: Spans) -> None:
    Observer({}).on_update(
        UpdateEvent(
            model=MODEL,
            status=Status.COMPLETED,
            begin_s=time.monotonic(),
            duration_s=0.5,
            weights=("w", "b"),
        )
    )
    [update] = spans()
    assert update.name == "update m"
    assert update.attributes["inference_engine.update.weights"] == 2
    assert update.end_time - update.start_time == NS // 2


def test_a_request_without_a_known_caller_has_no_parent(spans: Spans) -> None:
    with trace.get_tracer("test").start_as_current_span("somebody else's"):
        Observer({}).on_request(event(begun=None))
    assert spans()[0].parent is None


@pytest.mark.parametrize("way", WAYS)
def test_each_way_gives_one_span_in_the_callers_trace(
    way: str, affine: Path, spans: Spans, points: Points
) -> None:
    tracer = trace.get_tracer("test")
    with opened(way, affine, {"opentelemetry": {}}) as ask:
        for number in range(3):
            with tracer.start_as_current_span(f"caller {number}"):
                ask([rows(number + 1)])
        with pytest.raises(InputError), tracer.start_as_current_span("caller 3"):
            ask([rows(1), rows(1)])
    found = spans()
    callers = {span.context.span_id: span for span in found if span.name.startswith("caller")}
    requests = [span for span in found if span.name == f"predict {affine.stem}"]
    assert [callers[span.parent.span_id].name for span in requests] == [
        f"caller {number}" for number in range(4)
    ]
    for span in requests:
        caller = callers[span.parent.span_id]
        assert caller.start_time - 10**6 <= span.start_time
        assert span.end_time <= caller.end_time + 10**6
    states = [span.attributes["inference_engine.status"] for span in requests]
    assert states == ["completed"] * 3 + ["failed"]
    computes = [span.parent.span_id for span in found if span.name == "compute"]
    assert {span.context.span_id for span in requests[:3]} <= {*computes}
    assert [span.name for span in found].count(f"build {affine.stem}") == 1
    by_status = {
        point.attributes["inference_engine.status"]: point.count
        for point in points("request.duration", affine.stem)
    }
    assert by_status == {"completed": 3, "failed": 1}
    [active] = points("active_requests", affine.stem)
    [models] = points("models", affine.stem)
    assert (active.value, models.value) == (0, 0)


def test_metrics_are_of_models_and_states(
    affine: Path, load: Callable[..., engine.Model], points: Points
) -> None:
    with load(affine, "opentelemetry") as model:
        for _ in range(3):
            model.predict([rows(1)])
        [models] = points("models", affine.stem)
        assert models.value == 1
    [durations] = points("request.duration", affine.stem)
    assert (durations.count, durations.explicit_bounds[0]) == (3, 0.0001)
    assert durations.attributes["inference_engine.status"] == "completed"
    assert 0 < durations.sum < 60
    [batches] = points("request.batch.size", affine.stem)
    assert (batches.sum, batches.count, batches.explicit_bounds[:3]) == (3, 3, (1, 2, 4))
    [builds] = points("build.duration", affine.stem)
    assert builds.count == 1
    [models] = points("models", affine.stem)
    assert models.value == 0


def test_a_measurement_has_its_trace_as_exemplar(
    affine: Path, load: Callable[..., engine.Model], points: Points, spans: Spans
) -> None:
    with load(affine, "opentelemetry") as model:
        model.predict([rows(1)])
    [request] = [span for span in spans() if span.name.startswith("predict")]
    [durations] = points("request.duration", affine.stem)
    assert [exemplar.span_id for exemplar in durations.exemplars] == [request.context.span_id]


def test_a_build_that_fails_is_an_error_of_its_model(
    tmp_path: Path, load: Callable[..., engine.Model], spans: Spans, points: Points
) -> None:
    path = tmp_path / "broken_one.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(engine.ModelError):
        load(path, "opentelemetry")
    [build] = spans()
    assert build.name == "build broken_one"
    assert build.attributes["error.type"] == "ModelError"
    assert points("models", "broken_one") == []


@pytest.mark.parametrize(("on", "off"), [("traces", "metrics"), ("metrics", "traces")])
def test_either_can_be_switched_off(
    on: str,
    off: str,
    affine: Path,
    load: Callable[..., engine.Model],
    spans: Spans,
    points: Points,
) -> None:
    with load(affine, "opentelemetry", **{on: "on", off: "off"}) as model:
        model.predict([rows(1)])
    assert bool(spans()) is (on == "traces")
    assert bool(points("request.duration", affine.stem)) is (on == "metrics")


def test_a_misspelt_option_gets_the_nearest(
    affine: Path, load: Callable[..., engine.Model]
) -> None:
    with pytest.raises(SettingError, match=r"opentelemetry.*'trace'.*did you mean 'traces'"):
        load(affine, "opentelemetry", trace="on")
    with pytest.raises(SettingError, match=r"'traces': expected true or false, got 'maybe'"):
        load(affine, "opentelemetry", traces="maybe")


def test_many_threads_have_traces_of_their_own(affine: Path, spans: Spans) -> None:
    tracer = trace.get_tracer("test")
    failures: list[BaseException] = []
    with opened("runner", affine, {"opentelemetry": {}}) as ask:

        def client(number: int) -> None:
            try:
                for _ in range(5):
                    with tracer.start_as_current_span(f"client {number}"):
                        ask([rows(1)])
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=client, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert failures == []
    found = spans()
    clients = {span.context.span_id for span in found if span.name.startswith("client")}
    parents = [span.parent.span_id for span in found if span.name.startswith("predict")]
    assert sorted(parents) == sorted(clients)
    assert len(parents) == 40


def test_a_request_has_the_devices_that_served_it_and_its_runs_id(
    spans: Spans, points: Points
) -> None:
    devices = (Device("gpu", 0), Device("gpu", 1))
    Observer({}).on_request(event(devices=devices, run_id="7-run-1", batch_size=2))
    request = spans()[0]
    assert request.attributes["inference_engine.devices"] == ("gpu:0", "gpu:1")
    assert request.attributes["inference_engine.run.id"] == "7-run-1"
    counted = points("device.requests", "m")
    assert {point.attributes["inference_engine.device"] for point in counted} == {"gpu:0", "gpu:1"}


def test_the_memory_of_devices_is_read_when_it_is_collected(
    affine: Path, load: Callable[..., engine.Model], measured: Callable[[str], list[Any]]
) -> None:
    def own() -> list[int]:
        return [
            point.value
            for point in measured("device.memory")
            if point.attributes
            == {"inference_engine.device": "null:0", "inference_engine.memory.kind": "own"}
        ]

    with load(affine, "opentelemetry"):
        [before] = own()
        kept = engine.Tensor(np.zeros(1000, np.float32), device="null:0")
        [after] = own()
        assert after - before == 4000
        del kept
    assert own() == []  # nothing is asked of a closed model's backend
