"""The gRPC service on grpc.aio: errors as statuses, tokens, deadlines, streams."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from engine_serve.errors import RequestError, status_of, text_of
from engine_serve.protocol import SERVICE, message, methods
from engine_serve.rpc_methods import METHODS, Method, model_infer
from engine_serve.service import Service

_OPEN = ("ServerLive", "ServerReady")
_STREAMED = 32  # requests of one stream that are at work or wait to be sent
_log = logging.getLogger("engine_serve")

StreamResponse = message("ModelStreamInferResponse")


class Rpc:
    """The service. token: what clients must show; "" for none."""

    def __init__(self, service: Service, token: str) -> None:
        self._service = service
        self._token = f"Bearer {token}".encode() if token else b""

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a grpc.aio server takes."""
        found = {}
        for name, request, response, is_stream in methods():
            forms = (_reader(request), response.SerializeToString)
            if is_stream:
                found[name] = grpc.stream_stream_rpc_method_handler(self._stream, *forms)
            else:
                call = self._call(name, METHODS[name], response)
                found[name] = grpc.unary_unary_rpc_method_handler(call, *forms)
        return grpc.method_handlers_generic_handler(SERVICE, found)

    def _call(
        self, name: str, method: Method, response: Any
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        """Return a method whose errors are statuses, and whose plain values are a message."""
        is_guarded = bool(self._token) and name not in _OPEN

        async def call(request: Any, context: Any) -> Any:
            if is_guarded:
                await self._check(context)
            try:
                if isinstance(request, RequestError):
                    raise request
                found = await method(self._service, request, context)
            except Exception as error:
                _note(error)
                await context.abort(status_of(error).rpc, text_of(error))
            return json_format.ParseDict(found, response()) if type(found) is dict else found

        return call

    async def _check(self, context: Any) -> None:
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        if not hmac.compare_digest(str(given).encode(), self._token):
            text = "a token is needed: metadata authorization, 'Bearer TOKEN'"
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, text)

    async def _stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Yield the answers to a stream's requests in their order; several are at work at once."""
        if self._token:
            await self._check(context)
        ahead: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue()
        room = asyncio.Semaphore(_STREAMED)

        async def read() -> None:
            try:
                async for request in requests:
                    await room.acquire()  # before there is a task that nobody would cancel
                    ahead.put_nowait(asyncio.ensure_future(self._streamed(request)))
            finally:
                ahead.put_nowait(None)

        reader = asyncio.ensure_future(read())
        task: asyncio.Task[Any] | None = None
        try:
            while (task := await ahead.get()) is not None:
                yield await task
                room.release()
        finally:
            reader.cancel()
            while task is not None:
                task.cancel()
                task = None if ahead.empty() else ahead.get_nowait()

    async def _streamed(self, request: Any) -> Any:
        if isinstance(request, RequestError):
            return StreamResponse(error_message=text_of(request))
        try:
            return StreamResponse(infer_response=await model_infer(self._service, request, None))
        except Exception as error:
            _note(error)
            answer = StreamResponse(error_message=text_of(error))
            answer.infer_response.id = request.id
            answer.infer_response.model_name = request.model_name
            return answer


def _reader(request: Any) -> Callable[[bytes], Any]:
    """Return what reads a message; an error is what it read: grpc would log each as our fault."""

    def read(data: bytes) -> Any:
        try:
            return request.FromString(data)
        except DecodeError as error:
            return RequestError(f"not a {request.DESCRIPTOR.full_name}: {error}")

    return read


def _note(error: Exception) -> None:
    if status_of(error).rpc is grpc.StatusCode.INTERNAL:
        _log.error("a request failed: %s", text_of(error), exc_info=error)
