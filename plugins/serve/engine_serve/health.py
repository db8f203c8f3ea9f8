"""grpc.health.v1, by which Kubernetes' probes and Envoy ask for a server's health."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc

from engine_serve.bearer import Bearer
from engine_serve.errors import RequestError, text_of
from engine_serve.protocol import HEALTH, message
from engine_serve.rpc import check, read, reader
from engine_serve.service import Service

HealthCheckRequest = message("HealthCheckRequest", HEALTH)
HealthCheckResponse = message("HealthCheckResponse", HEALTH)

_LOOK_S = 0.5  # how soon a watcher sees that models are ready or not; an end it sees at once


class Health:
    """The health of a server, by the name "", and of its models, by theirs.

    bearer: what clients must show for a model's, as for the protocol's own ModelReady. transfer_s:
    for a request to come. most: calls at once: who shows no token is to leave some for others.
    """

    def __init__(self, service: Service, bearer: Bearer, transfer_s: float, most: int) -> None:
        self._service, self._bearer = service, bearer
        self._transfer_s, self._most = transfer_s, most
        self._calls = 0

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler of the service, for a server of gRPC."""
        forms = {
            "request_deserializer": reader(HealthCheckRequest),
            "response_serializer": HealthCheckResponse.SerializeToString,
        }
        methods = {
            "Check": grpc.stream_unary_rpc_method_handler(self.check, **forms),
            "Watch": grpc.stream_stream_rpc_method_handler(self.watch, **forms),
        }
        return grpc.method_handlers_generic_handler(f"{HEALTH}.Health", methods)

    async def check(self, _: object, context: Any) -> Any:
        """Return the health now; NOT_FOUND for an unknown name."""
        name = await self._name(context)
        status = self._status(name)
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            text = f'there is no model {name!r}; "" asks for the server\'s health'
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        return HealthCheckResponse(status=status)

    async def watch(self, _: object, context: Any) -> AsyncIterator[Any]:
        """Yield the health now and at each change, until the server ends."""
        name = await self._name(context)
        ending, told = self._service.ending, None
        while True:
            is_over, status = ending.is_set(), self._status(name)
            if status != told:
                yield HealthCheckResponse(status=status)
                told = status
            if is_over:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(ending.wait(), _LOOK_S)

    async def _name(self, context: Any) -> str:
        """Return the name that a call asks for, once it may; count the call while it lasts."""
        if self._calls >= self._most:
            text = f"{self._calls} calls ask for health, the most at once; end one that watches"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._calls += 1
        context.add_done_callback(self._ended)
        request = await read(context, self._transfer_s)
        if isinstance(request, RequestError):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text_of(request))
        if request.service:
            await check(self._bearer, context)
        name: str = request.service
        return name

    def _ended(self, _: object) -> None:
        self._calls -= 1

    def _status(self, name: str) -> int:
        service = self._service
        if name and name not in service.repository.names:
            unknown: int = HealthCheckResponse.SERVICE_UNKNOWN
            return unknown
        is_ready = service.is_model_ready(name, "") if name else service.is_ready
        status: int = HealthCheckResponse.SERVING if is_ready else HealthCheckResponse.NOT_SERVING
        return status
