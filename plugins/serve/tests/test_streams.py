"""Streams of gRPC and their ends: idle ones, dead clients, and what comes as a stream ends."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from serve_ways import Serve, X, connected, slow

from engine_serve.bearer import Bearer
from engine_serve.protocol import SERVICE, message
from engine_serve.rpc import Rpc
from engine_serve.service import Service
from engine_serve.shared_memory import Regions
from engine_testing import models


def request_of(model: str, x: np.ndarray) -> Any:
    request = message("ModelInferRequest")(model_name=model, raw_input_contents=[x.tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=x.shape)
    return request


def test_a_stream_ends_where_nothing_is_at_work_for_too_long(serve: Serve, tmp_path: Path) -> None:
    found = serve(slow(tmp_path / "slow.onnx", times=1200), stream_idle_s=0.2)
    over = threading.Event()

    def requests() -> Iterator[Any]:
        yield request_of("slow", np.ones(1 << 18, np.float32))  # the run takes longer than that
        over.wait(30)

    with grpc.insecure_channel(found.grpc) as channel:
        call = channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            lambda request: request.SerializeToString(),
            message("ModelStreamInferResponse").FromString,
        )
        begin_s = time.monotonic()
        answers = call(requests())
        assert next(answers).error_message == ""
        assert time.monotonic() - begin_s > 0.2
        with pytest.raises(grpc.RpcError) as raised:
            next(answers)
        over.set()
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    text = "the stream is idle: no request came within 0.2 s; open another"
    assert raised.value.details() == text


def test_a_request_that_crosses_the_end_of_an_idle_stream_may_be_sent_again(
    serve: Serve, tmp_path: Path
) -> None:
    found = serve(models.affine(tmp_path), stream_idle_s=0.02)
    [model] = found.repository.loaded()
    answered, codes = 0, []
    with grpc.insecure_channel(found.grpc) as channel:
        call = channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            lambda request: request.SerializeToString(),
            message("ModelStreamInferResponse").FromString,
        )
        for pause_ms in [*range(15, 25), 60] * 3:

            def requests(pause_ms: int = pause_ms) -> Iterator[Any]:
                yield request_of("affine", X)
                time.sleep(pause_ms / 1000)
                yield request_of("affine", X)
                time.sleep(0.3)

            try:
                for answer in call(requests()):
                    assert answer.error_message == ""
                    answered += 1
            except grpc.RpcError as error:
                codes.append(error.code())
    assert codes == [grpc.StatusCode.UNAVAILABLE] * 33
    assert model.own.answered == answered


@contextmanager
def relay(address: str) -> Iterator[tuple[str, Callable[[], None], Callable[[], bool]]]:
    """Pass bytes between a client and a server, until the client is made to seem dead.

    Yields the address, what makes it so, and what waits for the server to close the connection.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    dead = threading.Event()
    closed = threading.Event()
    open_ones = [listener]

    def passed(source: socket.socket, to: socket.socket, tell: Callable[[], None]) -> None:
        with suppress(OSError):
            while part := source.recv(1 << 16):
                if not dead.is_set():
                    to.sendall(part)
        tell()

    def serve() -> None:
        client, server = listener.accept()[0], connected(address)
        open_ones.extend((client, server))
        server.settimeout(None)
        threading.Thread(target=passed, args=(client, server, lambda: None), daemon=True).start()
        passed(server, client, closed.set)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", dead.set, lambda: closed.wait(20)
    finally:
        for each in open_ones:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def test_a_client_that_is_dead_loses_its_connection(serve: Serve, tmp_path: Path) -> None:
    found = serve(models.affine(tmp_path), keepalive_s=0.3)
    with (
        relay(found.grpc) as (address, kill, is_closed),
        grpc.insecure_channel(address) as channel,
    ):
        watch = HealthStub(channel).Watch(HealthCheckRequest())
        next(watch)
        time.sleep(1)  # it answers each time that it is asked
        assert watch.is_active()
        kill()
        assert is_closed()
        watch.cancel()


@pytest.mark.slow
def test_a_client_may_ask_often_whether_the_server_is_there(serve: Serve, tmp_path: Path) -> None:
    found = serve(models.affine(tmp_path))
    options = [("grpc.keepalive_time_ms", 1200), ("grpc.http2.max_pings_without_data", 0)]
    with grpc.insecure_channel(found.grpc, options=options) as channel:
        watch = HealthStub(channel).Watch(HealthCheckRequest())
        next(watch)
        time.sleep(8)  # gRPC's own limit, a question in five minutes, ends it after three
        assert watch.is_active()
        watch.cancel()


def test_a_request_that_comes_as_its_stream_ends_does_not_run(serve: Serve, tmp_path: Path) -> None:
    found = serve(models.affine(tmp_path))
    [model] = found.repository.loaded()
    service = Service(found.repository, Regions(is_on=False, most_bytes=0), may_change=False)
    handler = Rpc(service, Bearer(""), 10.0, 10.0).handler()
    method = handler.service(SimpleNamespace(method=f"/{SERVICE}/ModelStreamInfer"))
    context = SimpleNamespace(invocation_metadata=tuple)

    async def one_after_the_end() -> int:
        coming: asyncio.Queue[Any] = asyncio.Queue()

        async def requests() -> AsyncIterator[Any]:
            while True:
                yield await coming.get()

        stream = method.stream_stream(requests(), context)
        coming.put_nowait(request_of("affine", X))
        answer = await anext(stream)
        assert answer.error_message == ""
        coming.put_nowait(request_of("affine", X))
        await stream.aclose()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=5)
        return int(model.own.answered)

    assert asyncio.run(one_after_the_end()) == 1
