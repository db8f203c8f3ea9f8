"""Clients that send or read too slowly, or nothing at all."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.grpc as rpc
from serve_ways import Serve, X, ask, binary, connected, http, identity, infer, slow, tensor

HEAD = b"POST /v2/models/affine/infer HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 100\r\n\r\n"


def answer_to(connection: socket.socket) -> bytes:
    """Return what a server sends until it closes the connection."""
    parts = []
    while part := connection.recv(10_000):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    "sent", ["", "POST /v2/mod", "POST /v2/models/affine/infer HTTP/1.1\r\nHo"]
)
def test_a_connection_that_sends_no_whole_head_is_closed(serve_affine: Serve, sent: str) -> None:
    found = serve_affine(pause_s=0.2)
    with connected(found.http) as connection:
        connection.sendall(sent.encode())
        assert connection.recv(10_000) == b""


def test_a_connection_without_a_request_is_closed_after_a_while(serve_affine: Serve) -> None:
    found = serve_affine(idle_s=1, pause_s=60)
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
    serve_affine: Serve,
) -> None:
    found = serve_affine(idle_s=1, pause_s=60, token="secret")
    with connected(found.http) as connection:
        connection.sendall(HEAD)
        assert connection.recv(10_000).startswith(b"HTTP/1.1 401 ")
        connection.sendall(bytes(100))
        assert connection.recv(10_000) == b""


def test_a_request_behind_another_has_its_time_once_the_server_reads_it(
    serve: Serve, tmp_path: Path
) -> None:
    found = serve(slow(tmp_path / "slow.onnx", times=1000), pause_s=0.2)  # less than a run takes
    body, headers = binary(np.ones(1 << 18, np.float32))
    sent = http("/v2/models/slow/infer", body, headers)
    with connected(found.http) as connection:
        sender = threading.Thread(target=connection.sendall, args=(2 * sent,))
        sender.start()
        answers = b""
        while answers.count(b"HTTP/1.1 200 OK") < 2:
            part = connection.recv(1 << 20)
            assert part, "the connection was closed"
            answers += part
        sender.join()


def test_a_body_that_stops_coming_ends_its_connection(serve_affine: Serve) -> None:
    found = serve_affine(pause_s=0.2)
    with connected(found.http) as connection:
        connection.sendall(HEAD + b"{")
        answer = answer_to(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"expected more of its body within 0.2 s, and all of it within 120 s" in answer
    status, answer = infer(found.http, "affine", tensor(X))
    assert (status, answer["outputs"][0]["data"][0]) == (200, 1)


def test_a_body_that_comes_byte_by_byte_ends_its_connection(serve_affine: Serve) -> None:
    found = serve_affine(transfer_s=0.5)
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


def test_requests_one_after_the_other_have_each_their_own_time(serve_affine: Serve) -> None:
    found = serve_affine(transfer_s=0.5)
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
    with connected(found.http) as connection:
        connection.sendall(http("/v2/models/same/infer", body, headers))
        time.sleep(4)  # the buffers of the system fill, then nothing goes on
        read = 0
        with suppress(ConnectionResetError):
            while part := connection.recv(1 << 20):
                read += len(part)
    assert read < len(body)
    assert ask(found.http, "GET", "/v2/health/live")[0] == 200


def test_a_grpc_request_that_comes_too_slowly_is_ended(serve_affine: Serve) -> None:
    found = serve_affine(transfer_s=0.5)
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
