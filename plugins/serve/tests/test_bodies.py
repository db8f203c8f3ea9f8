"""Memory for bodies: bounded for one and for all, and given back."""

from __future__ import annotations

import gzip
import tracemalloc
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.grpc as rpc
from serve_ways import Serve, X, ask, binary, connected, identity, infer, tensor, until
from tritonclient.utils import InferenceServerException


def test_a_body_above_the_limit_is_refused_before_it_is_read(serve_affine: Serve) -> None:
    found = serve_affine(most_bytes=1000)
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
    serve_affine: Serve, path: str
) -> None:
    found = serve_affine(most_bytes_together=100_000)
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


def test_bodies_that_nobody_reads_leave_their_room(serve_affine: Serve) -> None:
    found = serve_affine(most_bytes_together=100_000, token="secret")
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


def test_no_memory_is_taken_for_a_body_before_the_token_is_shown(serve_affine: Serve) -> None:
    found = serve_affine(token="secret")
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
