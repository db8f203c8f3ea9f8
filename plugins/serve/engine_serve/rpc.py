"""The gRPC service on grpc.aio: errors as statuses, tokens, deadlines, streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from engine_serve.bearer import Bearer, refusal
from engine_serve.errors import RequestError, note, status_of, text_of
from engine_serve.protocol import SERVICE, message, methods
from engine_serve.rpc_methods import METHODS, Method, model_infer
from engine_serve.service import ENDING, Service

_OPEN = ("ServerLive", "ServerReady")
_STREAMED = 32  # requests of one stream that are at work or wait to be sent

StreamResponse = message("ModelStreamInferResponse")


async def check(bearer: Bearer, context: Any) -> None:
    """End a call that does not show the token: UNAUTHENTICATED."""
    given = str(dict(context.invocation_metadata() or ()).get("authorization", "")).encode()
    if not bearer.is_shown(given):
        text = refusal(given, "metadata authorization, 'Bearer TOKEN'")
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, text)


def reader(request: Any) -> Callable[[bytes], Any]:
    """Return what reads a message; an error is what it read: grpc would log each as our fault."""

    def read(data: bytes) -> Any:
        try:
            return request.FromString(data)
        except DecodeError as error:
            return RequestError(f"not a {request.DESCRIPTOR.full_name}: {error}")

    return read


async def read(context: Any, within_s: float) -> Any:
    """Return a call's only request, as `reader` read it; end a call that has none in time.

    For a method that takes a stream of one request, which is the same on the wire, and is called
    when its headers are there. grpc calls a method of one request after that has come, and waits
    for ever.
    """
    try:
        async with asyncio.timeout(within_s):
            request = await context.read()
    except TimeoutError:
        text = f"the request did not come: expected all of it within {within_s:g} s"
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, text)
    if request is grpc.aio.EOF:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
    return request


class Rpc:
    """The service. transfer_s: for a request to come. idle_s: for a stream without any at work.

    Methods that need no token wait for no request, which is empty: nobody holds calls by them.
    """

    def __init__(self, service: Service, bearer: Bearer, transfer_s: float, idle_s: float) -> None:
        self._service, self._bearer = service, bearer
        self._transfer_s, self._idle_s = transfer_s, idle_s
        self._idle = f"the stream is idle: no request came within {idle_s:g} s; open another"

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a grpc.aio server takes."""
        found = {}
        for name, request, response, is_stream in methods():
            forms = (reader(request), response.SerializeToString)
            if is_stream:
                found[name] = grpc.stream_stream_rpc_method_handler(self._stream, *forms)
            else:
                call = self._call(name, METHODS[name], response)
                found[name] = grpc.stream_unary_rpc_method_handler(call, *forms)
        return grpc.method_handlers_generic_handler(SERVICE, found)

    def _call(
        self, name: str, method: Method, response: Any
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        """Return a method whose errors are statuses, and whose plain values are a message."""
        is_guarded = bool(self._bearer) and name not in _OPEN
        service = self._service

        async def call(_: object, context: Any) -> Any:
            if is_guarded:
                await check(self._bearer, context)
            request = None if name in _OPEN else await read(context, self._transfer_s)
            try:
                if isinstance(request, RequestError):
                    raise request
                if name == "ModelInfer":
                    service.check_open()  # the others tell that it ends
                found = await method(service, request, context)
            except Exception as error:
                _note(error)
                await context.abort(status_of(error).rpc, text_of(error))
            return json_format.ParseDict(found, response()) if type(found) is dict else found

        return call

    async def _stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Yield the answers to a stream's requests in their order; several are at work at once.

        At the server's end, and where a stream is idle for too long, those that have come are
        answered. The stream then ends: UNAVAILABLE, and no request without an answer has run.
        """
        await check(self._bearer, context)
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
        ending = asyncio.ensure_future(self._service.ending.wait())
        ending.add_done_callback(lambda _: reader.cancel())
        task: asyncio.Task[Any] | None = None
        try:
            while (task := await self._next(ahead, reader)) is not None:
                yield await task
                room.release()
            if reader.cancelled():
                text = ENDING if self._service.ending.is_set() else self._idle
                await context.abort(grpc.StatusCode.UNAVAILABLE, text)
        finally:
            reader.cancel()  # at once: what it reads from now on nobody would cancel
            ending.cancel()
            while task is not None:
                task.cancel()
                task = None if ahead.empty() else ahead.get_nowait()

    async def _next(self, ahead: asyncio.Queue[Any], reader: asyncio.Task[None]) -> Any:
        """Return a stream's next task, None at its end; an idle one reads no more requests."""
        if not ahead.empty():
            return ahead.get_nowait()
        try:
            async with asyncio.timeout(self._idle_s):
                return await ahead.get()
        except TimeoutError:
            reader.cancel()
            return await ahead.get()  # what came meanwhile, or the end

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


def _note(error: Exception) -> None:
    if status_of(error).rpc is grpc.StatusCode.INTERNAL:
        note(error)
