"""grpc.health.v1: health as probes of Kubernetes and Envoy ask for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from serve_ways import Serve, Served, scaled

from engine_serve.protocol import HEALTH, SERVICE, message

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN


@pytest.fixture
def net(serve: Serve, tmp_path: Path) -> Served:
    return serve(scaled(tmp_path / "net.onnx", 2))


@pytest.fixture
def health(net: Served) -> Iterator[HealthStub]:
    with grpc.insecure_channel(net.grpc) as channel:
        yield HealthStub(channel)


def named(name: str) -> HealthCheckRequest:
    return HealthCheckRequest(service=name)


def test_a_check_tells_the_health_of_the_server_and_of_models(
    net: Served, health: HealthStub
) -> None:
    assert [health.Check(named(name)).status for name in ("", "net")] == [SERVING, SERVING]
    net.repository.unload("net")
    assert [health.Check(named(name)).status for name in ("", "net")] == [SERVING, NOT_SERVING]
    with pytest.raises(grpc.RpcError, match="there is no model 'nobody'") as raised:
        health.Check(named("nobody"))
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_server_with_a_model_that_could_not_be_loaded_does_not_serve(
    net: Served, health: HealthStub, tmp_path: Path
) -> None:
    net.repository.unload("net")
    (tmp_path / "net.onnx").write_text("no model")
    with pytest.raises(Exception, match="is a text file"):
        net.repository.load("net")
    assert health.Check(named("")).status == NOT_SERVING


def test_a_watch_tells_each_change_until_the_server_ends(net: Served, health: HealthStub) -> None:
    watches = {name: health.Watch(named(name)) for name in ("net", "nobody")}
    first = {name: next(watch).status for name, watch in watches.items()}
    assert first == {"net": SERVING, "nobody": UNKNOWN}
    net.repository.unload("net")
    assert next(watches["net"]).status == NOT_SERVING
    net.repository.load("net")
    assert next(watches["net"]).status == SERVING
    watches[""] = health.Watch(named(""))
    assert next(watches[""]).status == SERVING
    ending = threading.Thread(target=net.server.stop)
    ending.start()
    left = {name: [answer.status for answer in watch] for name, watch in watches.items()}
    ending.join()
    assert left == {"": [NOT_SERVING], "net": [NOT_SERVING], "nobody": []}


def test_a_models_health_needs_the_token_and_the_servers_does_not(
    serve: Serve, tmp_path: Path
) -> None:
    found = serve(scaled(tmp_path / "net.onnx", 2), token="secret")
    with grpc.insecure_channel(found.grpc) as channel:
        health = HealthStub(channel)
        assert health.Check(named("")).status == SERVING
        for call in (health.Check, lambda request: next(health.Watch(request))):
            with pytest.raises(grpc.RpcError) as raised:
                call(named("net"))
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        shown = (("authorization", "Bearer secret"),)
        assert health.Check(named("net"), metadata=shown).status == SERVING


def test_calls_for_health_that_have_ended_leave_their_places(serve: Serve, tmp_path: Path) -> None:
    found = serve(scaled(tmp_path / "net.onnx", 2), connections=4)
    with grpc.insecure_channel(found.grpc) as channel:
        health = HealthStub(channel)
        for number in range(200):
            watch = health.Watch(named(""))
            time.sleep(number % 10 / 2000)  # at each point of its way
            watch.cancel()
        until_s = time.monotonic() + 30
        while True:
            watches = [health.Watch(named("")) for _ in range(2)]
            with suppress(grpc.RpcError):
                assert [next(watch).status for watch in watches] == [SERVING, SERVING]
                break
            for watch in watches:
                watch.cancel()
            assert time.monotonic() < until_s
            time.sleep(0.05)
        with pytest.raises(grpc.RpcError, match="2 calls ask for health, the most at once"):
            health.Check(named(""))
        watches[0].cancel()
        while True:
            with suppress(grpc.RpcError):
                assert health.Check(named("")).status == SERVING
                break
            assert time.monotonic() < until_s
            time.sleep(0.05)
        watches[1].cancel()


@pytest.mark.parametrize("way", ["watch", "a check that does not come", "ServerLive likewise"])
def test_a_client_without_the_token_cannot_take_all_calls(
    serve: Serve, tmp_path: Path, way: str
) -> None:
    found = serve(scaled(tmp_path / "net.onnx", 2), token="secret", connections=6)
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait(30)
        yield from ()

    with (
        grpc.insecure_channel(found.grpc) as channel,
        grpc.insecure_channel(found.grpc, [("grpc.use_local_subchannel_pool", 1)]) as others,
    ):
        live = f"/{SERVICE}/ServerLive"
        check = f"/{HEALTH}.Health/Check"
        calls = []
        for _ in range(9):
            if way == "watch":
                calls.append(HealthStub(channel).Watch(HealthCheckRequest()))
            else:
                path = check if way.startswith("a check") else live
                calls.append(channel.stream_unary(path, lambda request: request).future(nothing()))
        ready = others.unary_unary(
            f"/{SERVICE}/ModelReady",
            lambda request: request.SerializeToString(),
            message("ModelReadyResponse").FromString,
        )
        shown = (("authorization", "Bearer secret"),)
        until_s = time.monotonic() + 30
        while sum(call.done() for call in calls) < (9 if "Live" in way else 6):
            assert time.monotonic() < until_s
            time.sleep(0.01)
        assert ready(message("ModelReadyRequest")(name="net"), metadata=shown, timeout=30).ready
        told = {call.code().name for call in calls if call.done()}
        assert told == {"OK" if "Live" in way else "RESOURCE_EXHAUSTED"}
        over.set()
        for call in calls:
            call.cancel()
