"""Requests as connections carry them: in pieces, one behind the other, and asked for first."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import threading
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import uvicorn
import uvloop
from serve_ways import Served, binary, connected
from uvicorn.server import ServerState

from engine_serve.bearer import Bearer
from engine_serve.body import Room
from engine_serve.http_limits import limited
from engine_serve.listening import accepted, listening


def request_of(x: np.ndarray, *headers: str) -> bytes:
    """Return a binary request whose answer is in JSON."""
    body, length = binary(x)
    lines = [f"{key}: {value}" for key, value in length.items()]
    lines += ["Host: 127.0.0.1", f"Content-Length: {len(body)}", *headers]
    head = "\r\n".join(["POST /v2/models/affine/infer HTTP/1.1", *lines, "", ""])
    return head.encode() + body


def read(connection: socket.socket, rest: bytes = b"") -> tuple[bytes, list[float], bytes]:
    """Return an answer's status, its values, and what comes behind it."""
    while (at := rest.find(b"\r\n\r\n")) < 0:
        rest += connection.recv(10_000)
    head, rest = rest[:at], rest[at + 4 :]
    [length] = [int(line[15:]) for line in head.split(b"\r\n") if line[:15] == b"content-length:"]
    while len(rest) < length:
        rest += connection.recv(10_000)
    values = json.loads(rest[:length])["outputs"][0]["data"]
    return head[9:12], values, rest[length:]


@pytest.mark.parametrize("size", [1, 7, 300])
def test_a_request_in_pieces_is_what_it_is_as_one(affine: Served, size: int) -> None:
    with connected(affine.http) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(3):  # of one connection
            x = np.arange(30, dtype=np.float32).reshape(10, 3) + number
            sent = request_of(x)
            for at in range(0, len(sent), size):
                connection.sendall(sent[at : at + size])
            assert read(connection) == (b"200", (2 * x.ravel() + 1).tolist(), b"")


def test_requests_one_behind_the_other_are_answered_in_their_order(affine: Served) -> None:
    many = [np.full((2, 3), number, np.float32) for number in range(20)]
    with connected(affine.http) as connection:
        connection.sendall(b"".join(map(request_of, many)))
        rest = b""
        for x in many:
            status, values, rest = read(connection, rest)
            assert (status, values) == (b"200", (2 * x.ravel() + 1).tolist())
        assert rest == b""


def test_a_client_that_asks_first_is_told_to_go_on(affine: Served) -> None:
    x = np.ones((1, 3), np.float32)
    sent = request_of(x, "Expect: 100-continue")
    length = sent.index(b"\r\n\r\n") + 4
    with connected(affine.http) as connection:
        connection.sendall(sent[:length])
        assert connection.recv(10_000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(sent[length:])
        assert read(connection) == (b"200", [3.0, 3.0, 3.0], b"")


def test_a_refused_body_does_not_reach_the_next_request(affine: Served) -> None:
    x = np.ones((1, 3), np.float32)
    with connected(affine.http) as connection:
        wrong = request_of(x).replace(b"/affine/", b"/absent/")
        connection.sendall(wrong + request_of(x))
        rest = b""
        while b"\r\n\r\n" not in rest or not rest.partition(b"\r\n\r\n")[2].endswith(b"]}]}"):
            rest += connection.recv(10_000)
        assert rest.startswith(b"HTTP/1.1 404")
        assert read(connection, rest[rest.index(b"HTTP/1.1 200") :])[1] == [3.0, 3.0, 3.0]


INFER = request_of(np.ones((1, 3), np.float32))


@pytest.mark.parametrize(
    "request_bytes",
    [INFER, INFER.replace(b"\r\n", b"\r\nExpect: 100-continue\r\n", 1), b"GET / HTTP/1.1\r\n\r\n"],
    ids=["infer", "expect", "get"],
)
def test_an_answer_before_another_request_is_dropped_where_the_connection_is_lost(
    request_bytes: bytes,
) -> None:
    over = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        send.__self__.transport.close()
        await asyncio.sleep(0.05)  # uvicorn tells the request behind this one alone
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"late"})
        over.set()

    async def ask() -> bytes:
        kind = limited(5.0, 5.0, 10, Room(1000, 1000), Bearer(""), asyncio.Event())
        config = uvicorn.Config(app, http=kind, lifespan="off", log_config=None)
        config.load()
        server = await asyncio.get_running_loop().create_server(
            lambda: kind(config=config, server_state=ServerState(), app_state={}), "127.0.0.1", 0
        )
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(2 * request_bytes)
        try:
            answer = await reader.read()
            await asyncio.to_thread(over.wait, 5)
            return answer
        finally:
            writer.close()
            server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(asyncio.wait_for(ask(), 10)) == b""
    assert over.is_set()


def test_connections_that_wait_are_all_accepted_though_a_descriptor_lacks_for_now() -> None:
    with ExitStack() as open_ones:
        bound = open_ones.enter_context(listening("127.0.0.1", 0, "--http-port"))
        bound.listen()
        for _ in range(3):
            open_ones.enter_context(socket.create_connection(bound.getsockname()))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)

        async def accept() -> list[socket.socket]:
            # None at all: another thread may give one back at any time.
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
            with pytest.raises(OSError, match="Too many open files"):
                bound.accept()
            loop = asyncio.get_running_loop()
            loop.call_later(0.1, resource.setrlimit, resource.RLIMIT_NOFILE, limits)
            return await accepted(bound, 30.0)

        try:
            found = asyncio.run(accept())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for connection in found:
            open_ones.enter_context(connection)
        assert len(found) == 3
