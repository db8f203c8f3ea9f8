"""The clients of the package `kserve`, over REST and gRPC; the `clients` environment has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serve_ways import Serve, Served, X, scaled

try:
    import kserve.inference_client  # noqa: F401
except ImportError as error:
    pytest.skip(f"kserve is not installed: {error}", allow_module_level=True)
except TypeError:  # protobuf takes the names of the protocol's messages once a process
    pytest.skip("tritonclient is loaded; run this file alone", allow_module_level=True)

import grpc
import httpx
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferOutput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput


class Rest:
    """Calls of the REST client, all of one server."""

    refusal = httpx.HTTPStatusError

    def __init__(self, served: Served, headers: dict[str, str]) -> None:
        self.client = InferenceRESTClient(RESTConfig(protocol="v2"))
        self.url, self.headers = f"http://{served.http}", headers

    async def infer(self, request: InferRequest) -> Any:
        return await self.client.infer(self.url, request, request.model_name, self.headers)

    async def is_server_ready(self) -> bool:
        return await self.client.is_server_ready(self.url)

    async def is_server_live(self) -> bool:
        return await self.client.is_server_live(self.url)

    async def is_model_ready(self, name: str) -> bool:
        return await self.client.is_model_ready(self.url, name, self.headers)

    async def close(self) -> None:
        await self.client.close()


class Rpc:
    """Calls of the gRPC client."""

    refusal = grpc.RpcError

    def __init__(self, served: Served, headers: dict[str, str]) -> None:
        self.client = InferenceGRPCClient(served.grpc)
        self.headers = tuple((key.lower(), value) for key, value in headers.items())
        self.is_server_ready = self.client.is_server_ready
        self.is_server_live = self.client.is_server_live
        self.close = self.client.close

    async def infer(self, request: InferRequest) -> Any:
        return await self.client.infer(request, headers=self.headers)

    async def is_model_ready(self, name: str) -> bool:
        return await self.client.is_model_ready(name, headers=self.headers)


@asynccontextmanager
async def connected(kind: type, served: Served, **headers: str) -> AsyncIterator[Any]:
    client = kind(served, headers)
    try:
        yield client
    finally:
        await client.close()


def request(x: np.ndarray = X, *, is_binary: bool, name: str = "affine") -> InferRequest:
    tensor = InferInput("x", [*x.shape], "FP32")
    tensor.set_data_from_numpy(x, binary_data=is_binary)
    return InferRequest(name, [tensor], request_id="7")


both = pytest.mark.parametrize("kind", [Rest, Rpc])


@both
def test_health_is_told(affine: Served, kind: type) -> None:
    async def ask() -> list[bool]:
        async with connected(kind, affine) as client:
            ready = await client.is_model_ready("affine")
            return [await client.is_server_live(), await client.is_server_ready(), ready]

    assert asyncio.run(ask()) == [True, True, True]


@both
@pytest.mark.parametrize("is_binary", [True, False], ids=["binary", "json"])
def test_an_inference_is_answered(affine: Served, kind: type, is_binary: bool) -> None:
    async def ask() -> Any:
        async with connected(kind, affine) as client:
            return await client.infer(request(is_binary=is_binary))

    answer = asyncio.run(ask())
    assert (answer.id, answer.model_name) == ("7", "affine")
    np.testing.assert_array_equal(answer.outputs[0].as_numpy(), 2 * X + 1)


@both
def test_many_inferences_at_once_have_their_own_answers(affine: Served, kind: type) -> None:
    async def ask() -> list[Any]:
        async with connected(kind, affine) as client:
            requests = [request(X + number, is_binary=True) for number in range(32)]
            return await asyncio.gather(*map(client.infer, requests))

    for number, answer in enumerate(asyncio.run(ask())):
        np.testing.assert_array_equal(answer.outputs[0].as_numpy(), 2 * (X + number) + 1)


@both
def test_an_error_has_our_sentence(affine: Served, kind: type) -> None:
    async def ask() -> None:
        async with connected(kind, affine) as client:
            await client.infer(request(is_binary=True, name="nobody"))

    with pytest.raises(kind.refusal, match="there is no model 'nobody'; models: affine"):
        asyncio.run(ask())


@both
def test_a_token_goes_along(serve: Serve, tmp_path: Path, kind: type) -> None:
    served = serve(scaled(tmp_path / "net.onnx", 2), token="secret")

    async def ask(**headers: str) -> Any:
        async with connected(kind, served, **headers) as client:
            assert await client.is_server_ready()
            return await client.infer(request(is_binary=True, name="net"))

    answer = asyncio.run(ask(Authorization="Bearer secret"))
    np.testing.assert_array_equal(answer.outputs[0].as_numpy(), 2 * X)
    with pytest.raises(kind.refusal, match="a token is needed"):
        asyncio.run(ask())
    with pytest.raises(kind.refusal, match="the token is not this server's"):
        asyncio.run(ask(Authorization="Bearer other"))


def test_requested_outputs_and_their_form_are_kept(affine: Served) -> None:
    async def ask(**parameters: bool) -> Any:
        async with connected(Rest, affine) as client:
            wanted = request(is_binary=True)
            wanted.request_outputs = [RequestedOutput("y", parameters)]
            return await client.infer(wanted)

    for is_binary in (True, False):
        [output] = asyncio.run(ask(binary_data=is_binary)).outputs
        assert isinstance(output, InferOutput)
        np.testing.assert_array_equal(output.as_numpy(), 2 * X + 1)
