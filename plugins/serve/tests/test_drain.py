"""The end of a server: not ready at once, every request that came is answered, none is lost."""

from __future__ import annotations

import queue
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from subprocess import TimeoutExpired

import grpc
import numpy as np
import pytest
import tritonclient.grpc as rpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from serve_process import Process, process
from serve_ways import Serve, Served, X, ask, binary, connected, scaled, slow
from tritonclient.utils import InferenceServerException

INFER = "/v2/models/net/infer"


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Process]:
    with process(scaled(tmp_path / "net.onnx", 2)) as found:
        yield found


def given(x: np.ndarray = X) -> rpc.InferInput:
    found = rpc.InferInput("x", x.shape, "FP32")
    found.set_data_from_numpy(x)
    return found


def looped(net: Process, client: Callable[[Counter], None]) -> Counter:
    """Run eight clients until each ends, SIGTERM meanwhile; return the counts of all."""
    counts: Counter = Counter()
    threads = [threading.Thread(target=client, args=(counts,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    while counts["answered"] < 100:
        time.sleep(0.01)
    status, log = net.end()
    for thread in threads:
        thread.join()
    assert status == 0
    assert "ended" in log
    return counts


@pytest.mark.parametrize("keeps", [True, False], ids=["keep-alive", "a connection each"])
def test_clients_of_rest_lose_no_request_when_the_server_ends(net: Process, keeps: bool) -> None:
    body, headers = binary(X, binary_data_output=True)
    headers |= {} if keeps else {"Connection": "close"}

    def client(counts: Counter) -> None:
        connection = HTTPConnection(net.http, timeout=30)  # after Connection: close, connects anew
        while True:
            try:
                connection.request("POST", INFER, body, headers)
                answer = connection.getresponse()
                is_right = answer.status == 200 and answer.read().endswith((2 * X).tobytes())
                counts["answered" if is_right else answer.status] += 1
            except ConnectionRefusedError:
                counts["refused"] += 1
                return
            except OSError as error:
                counts[repr(error)] += 1
                return

    assert {*looped(net, client)} == {"answered", "refused"}


def test_calls_by_grpc_are_answered_or_unavailable_when_the_server_ends(net: Process) -> None:
    own = [("grpc.use_local_subchannel_pool", 1)]  # a connection for each client

    def client(counts: Counter) -> None:
        with rpc.InferenceServerClient(net.grpc, channel_args=own) as connection:
            while True:
                try:
                    found = connection.infer("net", [given()]).as_numpy("y")
                    counts["answered" if np.array_equal(found, 2 * X) else "wrong"] += 1
                except InferenceServerException as error:
                    counts[error.status()] += 1
                    return

    assert {*looped(net, client)} == {"answered", "StatusCode.UNAVAILABLE"}


def test_connections_that_grow_old_are_left_and_lose_no_call(serve: Serve, tmp_path: Path) -> None:
    found = serve(scaled(tmp_path / "net.onnx", 2), connection_age_s=0.2)
    states: list[grpc.ChannelConnectivity] = []
    with grpc.insecure_channel(found.grpc) as channel:
        channel.subscribe(states.append)
        health = HealthStub(channel)
        end_s = time.monotonic() + 60
        while states.count(grpc.ChannelConnectivity.READY) < 4 and time.monotonic() < end_s:
            assert health.Check(HealthCheckRequest()).status == HealthCheckResponse.SERVING
    assert states.count(grpc.ChannelConnectivity.READY) >= 4


def test_readiness_is_false_at_once_while_open_connections_are_answered(tmp_path: Path) -> None:
    with process(scaled(tmp_path / "net.onnx", 2), slow(tmp_path / "slow.onnx")) as net:
        body, headers = binary(X)
        probe, idle = (HTTPConnection(net.http, timeout=30) for _ in range(2))
        for connection in (probe, idle):
            connection.request("GET", "/v2/health/ready")
            assert connection.getresponse().read() == b'{"ready":true}'
        with rpc.InferenceServerClient(net.grpc) as client:
            assert client.is_server_ready()
            net.process.send_signal(signal.SIGTERM)
            while client.is_server_ready():
                pass
            probe.request("GET", "/v2/health/ready")
            answer = probe.getresponse()
            assert (answer.status, answer.read()) == (503, b'{"ready":false}')
            idle.request("POST", INFER, body, headers)
            answer = idle.getresponse()
            assert (answer.status, answer.getheader("connection")) == (200, "close")
            answer.read()
            with pytest.raises(InferenceServerException, match="the server is ending") as raised:
                client.infer("net", [given()])
            assert raised.value.status() == "StatusCode.UNAVAILABLE"
            with pytest.raises(ConnectionRefusedError):
                ask(net.http, "GET", "/v2/health/ready")
        assert net.process.wait(60) == 0


def begun(found: Served) -> tuple[socket.socket, bytes]:
    """Return a connection on which all of a request but its last byte has come, and that byte."""
    body, headers = binary(X)
    lines = [f"{key}: {value}" for key, value in headers.items()]
    head = "\r\n".join([f"POST {INFER} HTTP/1.1", "Host: [::1]", *lines])
    connection = connected(found.http)
    connection.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body[:-1])
    assert ask(found.http, "GET", "/v2/health/live")[0] == 200  # so that has been read
    return connection, body[-1:]


def test_a_request_that_comes_as_the_server_ends_is_its_connections_last(
    serve: Serve, tmp_path: Path
) -> None:
    found = serve(scaled(tmp_path / "net.onnx", 2), drain_s=30)
    connection, rest = begun(found)
    with connection:
        ending = threading.Thread(target=found.server.stop)
        ending.start()
        time.sleep(0.5)  # after settle_s
        connection.sendall(rest)
        answer = b""
        while part := connection.recv(10_000):  # until the server closes it
            answer += part
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b"connection: close" in answer
        ending.join(20)
        assert not ending.is_alive()


def test_a_request_that_never_comes_does_not_keep_the_server(serve: Serve, tmp_path: Path) -> None:
    found = serve(scaled(tmp_path / "net.onnx", 2), drain_s=1, pause_s=60)
    connection, _ = begun(found)
    with connection, connected(found.http) as other:
        other.sendall(b"POST")
        assert ask(found.http, "GET", "/v2/health/live")[0] == 200  # so that has been read
        found.server.stop()
        assert other.recv(1) == b""


def test_a_streams_requests_are_answered_before_it_ends(serve: Serve, tmp_path: Path) -> None:
    found = serve(slow(tmp_path / "slow.onnx"))
    answers: queue.Queue = queue.Queue()
    with rpc.InferenceServerClient(found.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for _ in range(3):
            client.async_stream_infer("slow", [given(np.zeros(1 << 18, np.float32))])
        assert answers.get(timeout=30)[1] is None
        found.server.stop()
        errors = [answers.get(timeout=30)[1] for _ in range(3)]
    assert [error and error.status() for error in errors] == [None, None, "StatusCode.UNAVAILABLE"]


def test_a_signal_that_is_sent_twice_is_one(net: Process) -> None:
    net.process.send_signal(signal.SIGTERM)
    status, log = net.end()
    assert status == 0
    assert "ended" in log


def test_a_second_signal_later_ends_it_at_once(tmp_path: Path) -> None:
    body, headers = binary(np.zeros(1 << 18, np.float32))
    with process(slow(tmp_path / "slow.onnx", times=5000)) as net:  # some seconds
        connection = HTTPConnection(net.http, timeout=30)
        connection.request("POST", "/v2/models/slow/infer", body, headers)
        net.process.send_signal(signal.SIGTERM)
        assert net.process.stderr is not None
        assert any("ending" in line for line in net.process.stderr)
        with pytest.raises(TimeoutExpired):
            net.process.wait(1.5)
        assert net.end()[0] == 128 + signal.SIGTERM
        connection.close()
