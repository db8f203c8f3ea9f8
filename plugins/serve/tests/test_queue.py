"""Requests that wait: deadlines, a full queue, priorities, cancellation."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as rpc
from serve_process import process
from serve_ways import (
    Serve,
    Served,
    X,
    ask,
    ask_raw,
    binary,
    connected,
    http,
    infer,
    scaled,
    served,
    slow,
    tensor,
    until,
)
from tritonclient.utils import InferenceServerException

LONG = np.ones(1 << 18, np.float32)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model whose runs take some tenths of a second, one at a time, with a queue of two."""
    folder = tmp_path_factory.mktemp("models") / "slow"
    slow(folder / "1/model.onnx")
    (folder / "config.pbtxt").write_text(
        "instance_group { count: 1 kind: KIND_CPU } "
        "dynamic_batching { default_queue_policy { max_queue_size: 2 } }"
    )
    with served(folder) as found:
        yield found


def counted(busy: Served, reason: str) -> float:
    """Return how many requests have failed for a reason, as the metrics have it."""
    text = ask_raw(busy.http, "GET", "/metrics")[1].decode()
    key = f'nv_inference_request_failure{{model="slow",reason="{reason}",version="1"}} '
    [value] = [line.removeprefix(key) for line in text.splitlines() if line.startswith(key)]
    return float(value)


def test_a_timeout_in_parameters_ends_a_request(busy: Served) -> None:
    body, headers = binary(LONG, timeout=1000)
    status, found = ask(busy.http, "POST", "/v2/models/slow/infer", body, headers)
    assert status == 504
    assert "longer than its time-out, 0.001 s" in found["error"]
    assert "timeout_s" not in found["error"]  # an argument of Python


@pytest.mark.parametrize("timeout", [-1, "1", 0.5, True])
def test_a_timeout_that_is_none_is_refused(affine: Served, timeout: object) -> None:
    status, found = infer(affine.http, "affine", tensor(X), parameters={"timeout": timeout})
    assert status == 400
    assert "parameter 'timeout' must be whole microseconds" in found["error"]


def test_a_timeout_of_any_length_is_taken(affine: Served) -> None:
    for timeout in (1 << 62, 10**400):
        parameters = {"timeout": timeout}
        assert infer(affine.http, "affine", tensor(X), parameters=parameters)[0] == 200


def test_grpcs_own_deadline_ends_a_request(busy: Served) -> None:
    given = rpc.InferInput("x", LONG.shape, "FP32")
    given.set_data_from_numpy(LONG)
    client = rpc.InferenceServerClient(busy.grpc)
    before = counted(busy, "OTHER") + counted(busy, "CANCELED")
    with pytest.raises(InferenceServerException) as raised:
        client.infer("slow", [given], client_timeout=0.1)
    client.close()
    assert raised.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    until(lambda: counted(busy, "OTHER") + counted(busy, "CANCELED") == before + 1)


def test_a_full_queue_refuses_with_429(busy: Served) -> None:
    body, headers = binary(LONG)
    found: list[int] = []
    texts: set[str] = set()

    def ask_once() -> None:
        status, answer = ask(busy.http, "POST", "/v2/models/slow/infer", body, headers)
        found.append(status)
        if status == 429:
            texts.add(answer["error"])

    threads = [threading.Thread(target=ask_once) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {*found} == {200, 429}
    assert found.count(200) >= 3
    [text] = texts
    assert "wait already (--queue-limit, or max_queue_size in config.pbtxt); try again" in text
    assert counted(busy, "REJECTED") >= found.count(429)


def test_a_full_queue_takes_a_higher_priority_in_place_of_the_newest_of_the_lowest(
    busy: Served,
) -> None:
    body, headers = binary(LONG)
    urgent = binary(LONG, priority=1)
    found: list[tuple[str, int, Any]] = []

    def ask_for(name: str, body: bytes, headers: dict[str, str]) -> None:
        found.append((name, *ask(busy.http, "POST", "/v2/models/slow/infer", body, headers)))

    def counts() -> tuple[int, int]:
        [model] = ask(busy.http, "GET", "/page/state.json")[1]["models"]
        return model["running"], model["waiting"]

    until(lambda: counts() == (0, 0))
    asked = [("a", 0), ("b", 1), ("c", 2)]
    with ThreadPoolExecutor(4) as threads:
        for name, before in asked:
            threads.submit(ask_for, name, body, headers)
            until(lambda before=before: counts() == (1, before))
        threads.submit(ask_for, "urgent", *urgent)
    names = [name for name, _, _ in found]
    statuses = {name: status for name, status, _ in found}
    assert statuses == {"a": 200, "b": 200, "c": 429, "urgent": 200}
    assert [name for name in names if name != "c"] == ["a", "urgent", "b"]
    [text] = [answer["error"] for name, _, answer in found if name == "c"]
    assert text.startswith("one of a higher priority has its place: 2 requests wait already (--q")


def test_a_client_asks_for_no_higher_priority_than_the_server_allows(
    tmp_path: Path,
) -> None:
    scaled(tmp_path / "net/1/model.onnx", 2)
    (tmp_path / "net/config.pbtxt").write_text(
        "dynamic_batching { default_priority_level: 1 }"  # it is the administrator's
    )
    text = (
        "parameter 'priority' must be 0, for the default, or from 5, the server's "
        "--highest-priority, got 4"
    )
    given = rpc.InferInput("x", X.shape, "FP32")
    given.set_data_from_numpy(X)
    with process(tmp_path / "net", "--highest-priority", 5) as found:
        client = rpc.InferenceServerClient(found.grpc)
        for level in (0, 5, 6):
            assert infer(found.http, "net", tensor(X), parameters={"priority": level})[0] == 200
            assert (client.infer("net", [given], priority=level).as_numpy("y") == 2 * X).all()
        refused = infer(found.http, "net", tensor(X), parameters={"priority": 4})
        assert refused == (400, {"error": text})
        with pytest.raises(InferenceServerException) as raised:
            client.infer("net", [given], priority=4)
        assert raised.value.message() == text
        client.close()


def test_a_long_run_that_holds_the_only_slot_keeps_nobody_else_waiting(
    serve: Serve, tmp_path: Path
) -> None:
    slow(tmp_path / "slow/1/model.onnx", "1, n", 40)
    (tmp_path / "slow/config.pbtxt").write_text("instance_group { count: 1 kind: KIND_CPU }")
    found = serve(tmp_path / "slow")
    short, long = (binary(np.ones((1, size), np.float32)) for size in (2, 1 << 22))

    def ask_once(given: tuple[bytes, dict[str, str]]) -> int:
        return ask(found.http, "POST", "/v2/models/slow/infer", *given)[0]

    assert {ask_once(short) for _ in range(300)} == {200}  # one of them takes a short time
    holding, waiting = (threading.Thread(target=ask_once, args=(it,)) for it in (long, short))

    def counts() -> tuple[int, int]:
        [model] = ask(found.http, "GET", "/page/state.json")[1]["models"]
        return model["running"], model["waiting"]

    holding.start()
    until(lambda: counts() == (1, 0))
    waiting.start()
    until(lambda: counts() == (1, 1))  # the server answers while it waits
    holding.join()
    waiting.join()


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_request_whose_client_goes_away_is_cancelled(busy: Served, kind: str) -> None:
    body, headers = binary(LONG)
    before = counted(busy, "CANCELED")
    [model] = busy.repository.loaded("slow")
    first = threading.Thread(
        target=ask, args=(busy.http, "POST", "/v2/models/slow/infer", body, headers)
    )
    first.start()
    until(lambda: model.in_flight == 1)
    if kind == "http":
        with connected(busy.http) as connection:
            connection.sendall(http("/v2/models/slow/infer", body, headers))
            until(lambda: model.in_flight == 2)
    else:
        given = rpc.InferInput("x", LONG.shape, "FP32")
        given.set_data_from_numpy(LONG)
        client = rpc.InferenceServerClient(busy.grpc)
        call = client.async_infer("slow", [given], lambda result, error: None)
        until(lambda: model.in_flight == 2)
        call.cancel()
        client.close()
    first.join()
    until(lambda: counted(busy, "CANCELED") == before + 1)
