"""Deadlines, cancellation, a full queue, tokens, and clients that send too much or too slowly."""

from __future__ import annotations

import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
import tritonclient.grpc as rpc
from serve_process import process
from serve_ways import (
    Served,
    X,
    ask,
    ask_raw,
    binary,
    connected,
    identity,
    infer,
    scaled,
    served,
    slow,
    tensor,
)
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
        lines = [f"{key}: {value}" for key, value in headers.items()]
        head = "\r\n".join(["POST /v2/models/slow/infer HTTP/1.1", "Host: [::1]", *lines])
        with connected(busy.http) as connection:
            connection.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
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


@pytest.mark.parametrize("path", ["/v2/models/affine/infer", "/v2/repository/index"])
def test_bodies_that_wait_together_are_bounded_and_leave_their_room(
    serve: Serve, tmp_path: Path, path: str
) -> None:
    found = serve(models.affine(tmp_path), most_bytes_together=100_000)
    head = f"POST {path} HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 70000\r\n\r\n".encode()
    with connected(found.http) as holding:
        holding.sendall(head + bytes(60_000))  # and the rest does not come

        def status() -> int:
            return ask(found.http, "POST", path, bytes(60_000))[0]

        until(lambda: status() == 503)
        error = ask(found.http, "POST", path, bytes(60_000))[1]["error"]
        assert "together they may have 100000; try again" in error
        assert infer(found.http, "affine", tensor(X))[0] == 200  # a small one has room
    until(lambda: status() == 400)  # no JSON, but it is read


def test_bodies_that_nobody_reads_leave_their_room(serve: Serve, tmp_path: Path) -> None:
    found = serve(models.affine(tmp_path), most_bytes_together=100_000, token="secret")
    path = "/v2/models/affine/infer"
    head = f"POST {path} HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 70000\r\n\r\n".encode()
    with ExitStack() as open_ones:
        for _ in range(3):
            connection = open_ones.enter_context(connected(found.http))
            connection.sendall(head + bytes(60_000))
            assert connection.recv(10_000).startswith(b"HTTP/1.1 401")
        with suppress(OSError):
            connection.sendall(bytes(10_000))
        token = {"Authorization": "Bearer secret"}
        status, answer = ask(found.http, "POST", path, bytes(90_000), token)
        assert (status, "JSON" in answer["error"]) == (400, True)  # it was read


def test_no_memory_is_taken_for_a_body_before_the_token_is_shown(
    serve: Serve, tmp_path: Path
) -> None:
    found = serve(models.affine(tmp_path), token="secret")
    head = "POST /v2/models/affine/infer HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 60000000\r\n"
    tracemalloc.start()
    try:
        for authorization, is_large in (("Bearer wrong", False), ("bearer secret", True)):
            tracemalloc.reset_peak()
            with connected(found.http) as connection:
                connection.sendall(f"{head}Authorization: {authorization}\r\n\r\n{{".encode())
                if not is_large:
                    assert connection.recv(10_000).startswith(b"HTTP/1.1 401")
                until(lambda is_large=is_large: holds(60_000_000) == is_large)
    finally:
        tracemalloc.stop()


def holds(size: int) -> bool:
    """Return whether so many bytes were in use at once."""
    return tracemalloc.get_traced_memory()[1] >= size


@pytest.mark.parametrize(
    "sent", ["", "POST /v2/mod", "POST /v2/models/affine/infer HTTP/1.1\r\nHo"]
)
def test_a_connection_that_sends_no_whole_head_is_closed(
    serve: Serve, tmp_path: Path, sent: str
) -> None:
    found = serve(models.affine(tmp_path), pause_s=0.2)
    with connected(found.http) as connection:
        connection.sendall(sent.encode())
        assert connection.recv(10_000) == b""


HEAD = b"POST /v2/models/affine/infer HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 100\r\n\r\n"


def answer_to(connection: socket.socket) -> bytes:
    """Return what a server sends until it closes the connection."""
    parts = []
    while part := connection.recv(10_000):
        parts.append(part)
    return b"".join(parts)


def test_a_connection_without_a_request_is_closed_after_a_while(
    serve: Serve, tmp_path: Path
) -> None:
    found = serve(models.affine(tmp_path), idle_s=1, pause_s=60)
    with connected(found.http) as connection:
        for _ in range(2):
            connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: [::1]\r\n\r\n")
            answer = connection.recv(10_000)
            while not answer.endswith(b"}"):  # the head may come alone
                answer += connection.recv(10_000)
            assert answer.startswith(b"HTTP/1.1 200 OK")
        connection.sendall(b"\r\n")  # which is no request
        assert connection.recv(10_000) == b""


def test_a_connection_is_closed_after_a_while_though_it_was_answered_before_its_body_came(
    serve: Serve, tmp_path: Path
) -> None:
    found = serve(models.affine(tmp_path), idle_s=1, pause_s=60, token="secret")
    with connected(found.http) as connection:
        connection.sendall(HEAD)
        assert connection.recv(10_000).startswith(b"HTTP/1.1 401 ")
        connection.sendall(bytes(100))
        assert connection.recv(10_000) == b""


def test_a_request_behind_another_has_its_time_once_the_server_reads_it(
    serve: Serve, tmp_path: Path
) -> None:
    found = serve(slow(tmp_path / "slow.onnx", times=1000), pause_s=0.2)  # less than a run takes
    body, headers = binary(LONG)
    lines = [f"{key}: {value}" for key, value in headers.items()]
    head = "\r\n".join(["POST /v2/models/slow/infer HTTP/1.1", "Host: [::1]", *lines])
    sent = f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with connected(found.http) as connection:
        sender = threading.Thread(target=connection.sendall, args=(2 * sent,))
        sender.start()
        answers = b""
        while answers.count(b"HTTP/1.1 200 OK") < 2:
            part = connection.recv(1 << 20)
            assert part, "the connection was closed"
            answers += part
        sender.join()


def test_connections_without_a_request_keep_no_body(serve: Serve, tmp_path: Path) -> None:
    found = serve(identity(tmp_path / "same.onnx", onnx.TensorProto.UINT8))
    body, headers = binary(np.zeros(8 << 20, np.uint8), "UINT8", binary_data_output=True)
    clients = [HTTPConnection(found.http, timeout=30) for _ in range(3)]
    tracemalloc.start()
    try:
        for client in clients:
            client.request("POST", "/v2/models/same/infer", body, headers)
            answer = client.getresponse()
            assert (answer.status, len(answer.read()) >= 8 << 20) == (200, True)
        until(lambda: tracemalloc.get_traced_memory()[0] < 8 << 20)
    finally:
        tracemalloc.stop()
        for client in clients:
            client.close()


def test_a_body_that_stops_coming_ends_its_connection(serve: Serve, tmp_path: Path) -> None:
    found = serve(models.affine(tmp_path), pause_s=0.2)
    with connected(found.http) as connection:
        connection.sendall(HEAD + b"{")
        answer = answer_to(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"expected more of its body within 0.2 s, and all of it within 120 s" in answer
    status, answer = infer(found.http, "affine", tensor(X))
    assert (status, answer["outputs"][0]["data"][0]) == (200, 1)


def test_a_body_that_comes_byte_by_byte_ends_its_connection(serve: Serve, tmp_path: Path) -> None:
    found = serve(models.affine(tmp_path), transfer_s=0.5)
    with connected(found.http) as connection:
        connection.sendall(HEAD)
        connection.settimeout(0.1)
        answer, sent = b"", 0
        while not answer and sent < 90:
            connection.sendall(b" ")  # each within the time for the next part
            sent += 1
            with suppress(TimeoutError):
                answer = connection.recv(10_000)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert sent > 1


def test_requests_one_after_the_other_have_each_their_own_time(
    serve: Serve, tmp_path: Path
) -> None:
    found = serve(models.affine(tmp_path), transfer_s=0.5)
    body, headers = binary(X)
    client = HTTPConnection(found.http, timeout=30)
    begin = time.monotonic()
    while time.monotonic() < begin + 1.2:
        client.request("POST", "/v2/models/affine/infer", body, headers)
        answer = client.getresponse()
        assert (answer.status, len(answer.read()) > 0) == (200, True)
        time.sleep(0.05)
    client.close()


def test_a_client_that_does_not_read_its_answer_loses_its_connection(
    serve: Serve, tmp_path: Path
) -> None:
    found = serve(identity(tmp_path / "same.onnx", onnx.TensorProto.UINT8), pause_s=1.0)
    body, headers = binary(np.zeros(32 << 20, np.uint8), "UINT8", binary_data_output=True)
    lines = [f"{key}: {value}" for key, value in headers.items()]
    head = "\r\n".join(["POST /v2/models/same/infer HTTP/1.1", "Host: [::1]", *lines])
    with connected(found.http) as connection:
        connection.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(4)  # the buffers of the system fill, then nothing goes on
        read = 0
        with suppress(ConnectionResetError):
            while part := connection.recv(1 << 20):
                read += len(part)
    assert read < len(body)
    assert ask(found.http, "GET", "/v2/health/live")[0] == 200


def test_a_grpc_request_that_comes_too_slowly_is_ended(serve: Serve, tmp_path: Path) -> None:
    found = serve(models.affine(tmp_path), transfer_s=0.5)
    path = b"/inference.GRPCInferenceService/ModelInfer"
    with connected(found.grpc) as connection:
        connection.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + frame(4, 0, 0, b"")  # SETTINGS
            + frame(
                1, 4, 1,  # HEADERS, END_HEADERS
                b"\x83\x86" + text_field(b":path", path) + text_field(b":authority", b"x")
                + text_field(b"content-type", b"application/grpc") + text_field(b"te", b"trailers"),
            )
            + frame(0, 0, 1, b"\x00\x00\x00\x00\x64")  # DATA: 100 bytes come
        )  # fmt: skip
        connection.settimeout(0.1)
        answer, sent = b"", 0
        while b"grpc-message" not in answer and sent < 90:
            connection.sendall(frame(0, 0, 1, b" "))
            sent += 1
            with suppress(TimeoutError):
                answer += connection.recv(10_000)
    assert b"expected all of it within 0.5 s" in answer
    assert sent > 1
    client = rpc.InferenceServerClient(found.grpc)
    assert client.is_server_ready()
    client.close()


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2."""
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def text_field(name: bytes, value: bytes) -> bytes:
    """Return a field of HTTP/2's headers in its plainest form (HPACK, 6.2.2)."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def test_a_call_without_a_request_is_refused(affine: Served) -> None:
    with grpc.insecure_channel(affine.grpc) as channel:
        call = channel.stream_unary("/inference.GRPCInferenceService/ServerMetadata")
        with pytest.raises(grpc.RpcError) as raised:
            call(iter(()))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_calls_above_the_limit_are_told_so(serve: Serve, tmp_path: Path) -> None:
    found = serve(models.affine(tmp_path), connections=2)
    over = threading.Event()

    def wait() -> Iterator[bytes]:
        over.wait(30)
        yield from ()

    with grpc.insecure_channel(found.grpc) as channel:
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        held = [stream(wait()) for _ in range(2)]
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")

        def code() -> grpc.StatusCode:
            try:
                live(b"")
            except grpc.RpcError as error:
                return error.code()
            return grpc.StatusCode.OK

        def is_full() -> bool:
            for place, call in enumerate(held):
                if call.done():  # refused: it came beside a question
                    held[place] = stream(wait())
            return code() is grpc.StatusCode.RESOURCE_EXHAUSTED

        until(is_full)
        over.set()
        assert [[*answers] for answers in held] == [[], []]
        until(lambda: code() is grpc.StatusCode.OK)


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
