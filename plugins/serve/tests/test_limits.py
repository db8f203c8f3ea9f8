"""Limits on connections and calls, and the token."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import numpy as np
import pytest
import tritonclient.grpc as rpc
from serve_ways import Serve, Served, X, ask, connected, tensor, until
from tritonclient.utils import InferenceServerException


def test_a_call_without_a_request_is_refused(affine: Served) -> None:
    with grpc.insecure_channel(affine.grpc) as channel:
        call = channel.stream_unary("/inference.GRPCInferenceService/ServerMetadata")
        with pytest.raises(grpc.RpcError) as raised:
            call(iter(()))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_calls_above_the_limit_are_told_so(serve_affine: Serve) -> None:
    found = serve_affine(connections=2)
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


def test_connections_above_the_limit_are_told_so(serve_affine: Serve) -> None:
    found = serve_affine(connections=2)
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


def test_clients_without_the_token_cannot_keep_the_others_out(serve_affine: Serve) -> None:
    found = serve_affine(token="secret", connections=3)
    shown = b"GET /v2 HTTP/1.1\r\nHost: [::1]\r\nAuthorization: Bearer secret\r\n\r\n"
    with ExitStack() as stack:
        silent = [stack.enter_context(connected(found.http)) for _ in range(3)]
        known = []
        for _ in silent:
            known.append(stack.enter_context(connected(found.http)))
            known[-1].sendall(shown)
            assert known[-1].recv(10_000).startswith(b"HTTP/1.1 200")
        for connection in silent:  # each has made room
            assert connection.recv(10_000).startswith(b"HTTP/1.1 503")
        with connected(found.http) as further:  # none of those that showed the token does
            further.sendall(shown)
            assert further.recv(10_000).startswith(b"HTTP/1.1 503")
        for connection in known:
            connection.sendall(shown)
            assert connection.recv(10_000).startswith(b"HTTP/1.1 200")


def test_a_token_is_asked_for_by_both_protocols(serve_affine: Serve) -> None:
    found = serve_affine(token="secret")
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
