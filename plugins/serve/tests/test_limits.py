"""Deadlines, cancellation, a full queue, tokens, and clients that send too much or too slowly."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as rpc
from serve_ways import Served, X, ask, ask_raw, binary, connected, infer, served, slow, tensor
from tritonclient.utils import InferenceServerException

from engine_testing import models

LONG = np.ones(1 << 18, np.float32)
Serve = Callable[..., Served]


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


def until(claim: Callable[[], bool]) -> None:
    """Wait for a claim to be true, for half a minute at most."""
    end = time.monotonic() + 30
    while not claim() and time.monotonic() < end:
        time.sleep(0.01)
    assert claim()


def test_a_timeout_in_parameters_ends_a_request(busy: Served) -> None:
    body, headers = binary(LONG, timeout=1000)
    status, found = ask(busy.http, "POST", "/v2/models/slow/infer", body, headers)
    assert status == 504
    assert "0.001 s" in found["error"]


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

    def ask_once() -> None:
        found.append(ask(busy.http, "POST", "/v2/models/slow/infer", body, headers)[0])

    threads = [threading.Thread(target=ask_once) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {*found} == {200, 429}
    assert found.count(200) >= 3
    assert counted(busy, "REJECTED") >= found.count(429)


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
    first = threading.Thread(
        target=ask, args=(busy.http, "POST", "/v2/models/slow/infer", body, headers)
    )
    first.start()
    time.sleep(0.05)
    if kind == "http":
        lines = [f"{key}: {value}" for key, value in headers.items()]
        head = "\r\n".join(["POST /v2/models/slow/infer HTTP/1.1", "Host: [::1]", *lines])
        with connected(busy.http) as connection:
            connection.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            time.sleep(0.05)
    else:
        given = rpc.InferInput("x", LONG.shape, "FP32")
        given.set_data_from_numpy(LONG)
        client = rpc.InferenceServerClient(busy.grpc)
        call = client.async_infer("slow", [given], lambda result, error: None)
        time.sleep(0.05)
        call.cancel()
        client.close()
    first.join()
    until(lambda: counted(busy, "CANCELED") == before + 1)


def test_a_body_above_the_limit_is_refused_before_it_is_read(serve: Serve, tmp_path: Path) -> None:
    found = serve(models.affine(tmp_path), most_bytes=1000)
    text = "more than the 1000 that this server takes"
    with connected(found.http) as connection:
        head = (
            "POST /v2/models/affine/infer HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 1001\r\n\r\n"
        )
        connection.sendall(head.encode())
        answer = connection.recv(10_000).decode()
    assert answer.startswith("HTTP/1.1 413 ")
    assert text in answer
    parts = iter([b"x" * 600, b"x" * 600])
    status, answer = ask(found.http, "POST", "/v2/models/affine/infer", parts)
    assert status == 413
    import gzip

    packed, headers = gzip.compress(bytes(100_000)), {"Content-Encoding": "gzip"}
    assert ask(found.http, "POST", "/v2/models/affine/infer", packed, headers)[0] == 413
    client = rpc.InferenceServerClient(found.grpc)
    given = rpc.InferInput("x", [100, 3], "FP32")
    given.set_data_from_numpy(np.ones((100, 3), np.float32))
    with pytest.raises(InferenceServerException) as raised:
        client.infer("affine", [given])
    client.close()
    assert raised.value.status() == "StatusCode.RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    "sent", ["", "POST /v2/mod", "POST /v2/models/affine/infer HTTP/1.1\r\nHo"]
)
def test_a_connection_that_sends_no_whole_head_is_closed(
    serve: Serve, tmp_path: Path, sent: str
) -> None:
    found = serve(models.affine(tmp_path), read_s=0.2)
    with connected(found.http) as connection:
        connection.sendall(sent.encode())
        assert connection.recv(10_000) == b""


def test_a_body_that_stops_coming_ends_its_connection(serve: Serve, tmp_path: Path) -> None:
    found = serve(models.affine(tmp_path), read_s=0.2)
    head = "POST /v2/models/affine/infer HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 100\r\n\r\n{"
    with connected(found.http) as connection:
        connection.sendall(head.encode())
        assert connection.recv(10_000) == b""
    status, answer = infer(found.http, "affine", tensor(X))
    assert (status, answer["outputs"][0]["data"][0]) == (200, 1)


def test_connections_above_the_limit_are_told_so(serve: Serve, tmp_path: Path) -> None:
    found = serve(models.affine(tmp_path), connections=2)
    held: list[socket.socket] = []
    try:
        for _ in range(2):
            held.append(connected(found.http))
            held[-1].sendall(b"GET /v2 HTTP/1.1\r\nHost: [::1]\r\n\r\n")
            assert held[-1].recv(10_000).startswith(b"HTTP/1.1 200")
        with connected(found.http) as connection:
            connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: [::1]\r\n\r\n")
            assert connection.recv(10_000).startswith(b"HTTP/1.1 503")
    finally:
        for each in held:
            each.close()
    until(lambda: ask(found.http, "GET", "/v2/health/live")[0] == 200)


def test_a_token_is_asked_for_by_both_protocols(serve: Serve, tmp_path: Path) -> None:
    found = serve(models.affine(tmp_path), token="secret")
    path, body = "/v2/models/affine/infer", {"inputs": [tensor(X)]}
    assert ask(found.http, "POST", path, body)[0] == 401
    assert ask(found.http, "POST", path, body, {"Authorization": "Bearer secre"})[0] == 401
    assert ask(found.http, "POST", path, body, {"Authorization": "Bearer secret"})[0] == 200
    assert ask(found.http, "GET", "/metrics")[0] == 401
    assert ask(found.http, "GET", "/v2/health/ready")[0] == 200
    client = rpc.InferenceServerClient(found.grpc)
    given = rpc.InferInput("x", X.shape, "FP32")
    given.set_data_from_numpy(X)
    assert client.is_server_ready()
    with pytest.raises(InferenceServerException) as raised:
        client.infer("affine", [given])
    assert raised.value.status() == "StatusCode.UNAUTHENTICATED"
    result = client.infer("affine", [given], headers={"authorization": "Bearer secret"})
    client.close()
    np.testing.assert_array_equal(result.as_numpy("y"), 2 * X + 1)
