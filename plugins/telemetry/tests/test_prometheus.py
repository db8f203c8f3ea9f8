"""Metrics for Prometheus, read back by prometheus_client's own parser."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from ways import WAYS, opened, rows

import engine
from engine.errors import Cancelled, DeadlineExceeded, InputError, SettingError
from engine.types import CancelToken, ModelDescription, RequestEvent, Status
from engine_telemetry.prometheus import Observer, text


def samples(model: str, page: str | None = None) -> dict[tuple[str, str], float]:
    """The samples of a model but those of buckets, by name and status."""
    return {
        (sample.name.removeprefix("inference_engine_"), sample.labels.get("status", "")): (
            sample.value
        )
        for family in text_string_to_metric_families(text() if page is None else page)
        for sample in family.samples
        if sample.labels.get("model") == model and not sample.name.endswith(("_bucket", "_created"))
    }


@pytest.mark.parametrize("way", WAYS)
def test_each_way_counts_each_request_once_by_its_end(way: str, affine: Path) -> None:
    token = CancelToken()
    token.cancel()
    with opened(way, affine, {"prometheus": {}}) as ask:
        assert samples(affine.stem)["models", ""] == 1
        for number in range(3):
            ask([rows(number + 1)])
        for _ in range(2):
            with pytest.raises(InputError):
                ask([rows(1), rows(1)])
        with pytest.raises(Cancelled):
            ask([rows(1)], cancel=token)
        with pytest.raises(DeadlineExceeded):
            ask([rows(1)], timeout_s=1e-9)
    found = samples(affine.stem)
    for status, count in (("completed", 3), ("failed", 2), ("cancelled", 1), ("expired", 1)):
        assert found["requests_total", status] == count, status
        assert found["request_duration_seconds_count", status] == count
    assert found["request_batch_size_count", ""] >= 3
    assert found["request_duration_seconds_sum", "completed"] > 0
    assert found["build_duration_seconds_count", "completed"] == 1
    assert (found["models", ""], found["active_requests", ""]) == (0, 0)


def test_buckets_add_up(affine: Path, load: Callable[..., engine.Model]) -> None:
    with load(affine, "prometheus") as model:
        for _ in range(4):
            model.predict([rows(1)])
    buckets = [
        sample
        for family in text_string_to_metric_families(text())
        if family.name == "inference_engine_request_duration_seconds"
        for sample in family.samples
        if sample.labels["model"] == affine.stem and sample.name.endswith("_bucket")
    ]
    assert [float(bucket.labels["le"]) for bucket in buckets][:3] == [0.0001, 0.00025, 0.0005]
    assert buckets[-1].labels["le"] == "+Inf"
    assert buckets[-1].value == 4
    assert [bucket.value for bucket in buckets] == sorted(bucket.value for bucket in buckets)


def test_updates_are_counted_by_their_end(affine: Path, null_backend: str) -> None:
    on = {"common_context": {"extensions": "prometheus"}}
    with engine.load(affine, target=null_backend, config=on, variable_weights=["two"]) as model:
        model.update_weights({"two": np.array([5], np.float32)})
        with pytest.raises(engine.EngineError):
            model.update_weights({"two": np.array([5, 6], np.float32)})
    found = samples(affine.stem)
    assert found["update_duration_seconds_count", "completed"] == 1
    assert found["update_duration_seconds_count", "failed"] == 1


def test_a_refused_request_has_waited_but_not_run() -> None:
    model = ModelDescription(name="refusing", path="", backends=(), inputs=(), outputs=())
    observer = Observer({})
    observer.on_begin(model)
    assert samples("refusing")["active_requests", ""] == 1
    observer.on_request(
        RequestEvent(
            model=model,
            id="1",
            status=Status.REFUSED,
            begin_s=0.0,
            queue_s=0.5,
            compute_s=0.0,
            batch_size=0,
        )
    )
    found = samples("refusing")
    assert found["requests_total", "refused"] == 1
    assert found["request_duration_seconds_sum", "refused"] == 0.5
    assert ("request_batch_size_count", "") not in found
    assert found["active_requests", ""] == 0


def test_ever_new_names_of_models_are_one_label_from_some_on() -> None:
    observer = Observer({"max_models": "2"})
    for number in range(5):
        observer.on_begin(
            ModelDescription(name=f"new {number}", path="", backends=(), inputs=(), outputs=())
        )
    assert samples("new 0")["active_requests", ""] == 1
    assert samples("new 1")["active_requests", ""] == 1
    assert samples("new 2") == {}
    assert samples("other")["active_requests", ""] == 3


def test_a_port_serves_the_metrics(affine: Path, load: Callable[..., engine.Model]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with load(affine, "prometheus", port=str(port)) as model:
        model.predict([rows(1)])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            page = answer.read().decode()
    assert samples(affine.stem, page)["requests_total", "completed"] == 1


def test_a_port_that_is_taken_is_an_error_that_names_it(
    affine: Path, load: Callable[..., engine.Model]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=rf"'port': cannot serve at 127.0.0.1:{port}: "):
            load(affine, "prometheus", port=str(port))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"prot": "9000"}, "unknown option 'prot'; did you mean 'port'"),
        ({"port": "http"}, "'port': expected int from 0 to 65535, got 'http'"),
        ({"addr": "0.0.0.0"}, "'addr' needs 'port'"),
        ({"max_models": "0"}, "'max_models': expected int from 1, got '0'"),
    ],
)
def test_a_wrong_option_says_what_was_wanted(options: dict[str, str], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Observer(options)


FORKING = """
import os, sys
import engine
from engine_telemetry import prometheus
import numpy as np

x = np.ones((1, 3), np.float32)
config = {"common_context": {"extensions": "prometheus"}}

def serve(count):
    with engine.load(sys.argv[1], config=config) as model:
        for _ in range(count):
            model.predict([x])

for count in (2, 3):
    if not os.fork():
        serve(count)
        os._exit(0)
    assert os.wait()[1] == 0
serve(4)
print(prometheus.text())
"""


def test_processes_that_share_a_folder_of_metrics_are_one_page(
    affine: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    done: Any = subprocess.run(
        [sys.executable, "-c", FORKING, affine],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert samples(affine.stem, done.stdout)["requests_total", "completed"] == 9


def memory_of_devices(page: str) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["device"], sample.labels["kind"]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "inference_engine_device_memory_bytes"
    }


def test_the_memory_of_devices_is_read_when_the_page_is(
    affine: Path, load: Callable[..., engine.Model]
) -> None:
    device = ("null:0", "own")
    with load(affine, "prometheus"):
        before = memory_of_devices(text())
        assert before["null:0", "free"] > 0
        kept = engine.Tensor(np.zeros(1000, np.float32), device="null:0")
        after = memory_of_devices(text())
        assert after[device] - before[device] == 4000
        del kept
        assert memory_of_devices(text()) == before
    assert device not in memory_of_devices(text())  # nothing is asked of a closed model's backend


def served(model: str) -> dict[str, float]:
    """Return the counted requests of a model by device."""
    return {
        sample.labels["device"]: sample.value
        for family in text_string_to_metric_families(text())
        for sample in family.samples
        if sample.name == "inference_engine_device_requests_total"
        and sample.labels["model"] == model
    }


def test_a_request_is_counted_once_for_each_device_that_served_a_part(affine: Path) -> None:
    found: dict[str, float] = {}
    with opened("devices", affine, {"prometheus": {}}) as ask:
        for _ in range(1000):
            before = found
            ask([rows(4)])  # cut for both; one device may be quick enough to run both parts
            found = served(affine.stem)
            added = [found[device] - before.get(device, 0) for device in found]
            assert set(added) <= {0, 1}
            assert sum(added) >= 1
            if len(found) == 2:
                break
    assert set(found) == {"cpu:0", "cpu:1"}
