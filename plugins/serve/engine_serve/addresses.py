"""The addresses of the REST protocol, but inference's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine_serve.body import ClientGone, Held, Room, read
from engine_serve.errors import RequestError, Unsupported, note, status_of, text_of
from engine_serve.metrics import Metrics
from engine_serve.rest_infer import object_of
from engine_serve.service import Service

Endpoint = Callable[[Request], Awaitable[Response]]


def addresses(
    service: Service, metrics: Metrics, room: Room, further: Sequence[Route] = ()
) -> Starlette:
    """Return the application of all addresses but inference's. further: routes beside them."""

    def given(request: Request, key: str) -> str:
        found: str = request.path_params.get(key, "")
        return found

    async def object_in(request: Request, held: Held | None = None) -> dict[str, Any]:
        own = held or Held(room)
        try:
            body = await read(request.receive, -1, 0, "", own)
            return object_of(body) if body else {}
        finally:
            if held is None:
                own.give_back()

    def values(of: Callable[[Request], object]) -> Endpoint:
        async def answer(request: Request) -> Response:
            return JSONResponse(of(request))

        return answer

    def of_model(method: Callable[[str, str], object]) -> Endpoint:
        return values(lambda request: method(given(request, "name"), given(request, "version")))

    async def ready(request: Request) -> Response:
        return JSONResponse({"ready": service.is_ready}, 200 if service.is_ready else 503)

    async def model_ready(request: Request) -> Response:
        name = given(request, "name")
        is_ready = service.is_model_ready(name, given(request, "version"))
        return JSONResponse({"name": name, "ready": is_ready}, 200 if is_ready else 503)

    async def index(request: Request) -> Response:
        wanted = await object_in(request)
        return JSONResponse(await service.refreshed_index(ready=wanted.get("ready") is True))

    async def load(request: Request) -> Response:
        held = Held(room)  # until the load has ended: files may be in it
        try:
            wanted = await object_in(request, held)
            parameters = wanted.get("parameters", {})
            if not isinstance(parameters, dict):
                raise RequestError("'parameters' must be an object")
            await service.load(given(request, "name"), parameters)
        finally:
            held.give_back()
        return Response()

    async def unload(request: Request) -> Response:
        await object_in(request)
        await service.unload(given(request, "name"))
        return Response()

    async def register(request: Request) -> Response:
        wanted = await object_in(request)
        key, offset, size = wanted.get("key"), wanted.get("offset", 0), wanted.get("byte_size")
        if not isinstance(key, str) or type(offset) is not int or type(size) is not int:
            raise RequestError("a region takes 'key', text, and 'offset' and 'byte_size', in bytes")
        service.regions.register(given(request, "region"), key, offset, size)
        return Response()

    async def unregister(request: Request) -> Response:
        service.regions.unregister(given(request, "region"))
        return Response()

    async def no_device_memory(request: Request) -> Response:
        raise Unsupported("CUDA shared memory is not offered; use system shared memory")

    async def nothing(request: Request) -> Response:
        return Response()

    async def trace(request: Request) -> Response:
        wanted = await object_in(request) if request.method == "POST" else {}
        return JSONResponse(service.trace_setting(wanted, given(request, "name")))

    async def logs(request: Request) -> Response:
        wanted = await object_in(request) if request.method == "POST" else {}
        return JSONResponse(service.log_settings(wanted))

    async def measured(request: Request) -> Response:
        text = await asyncio.to_thread(metrics.text)
        return Response(text, media_type=metrics.media_type)

    server = values(lambda request: service.server_metadata())
    statistics = of_model(service.statistics)
    region_status = values(lambda request: service.region_status(given(request, "region")))
    model, version = "/v2/models/{name}", "/versions/{version}"
    system, cuda = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
    region = "/region/{region}"
    routes = [
        Route("/metrics", measured),
        Route("/v2", server),
        Route("/v2/", server),
        Route("/v2/health/live", values(lambda request: {"live": True})),
        Route("/v2/health/ready", ready),
        Route("/v2/models/stats", statistics),
        *_both(model, version, "", of_model(service.model_metadata)),
        *_both(model, version, "/ready", model_ready),
        *_both(model, version, "/config", of_model(service.config)),
        *_both(model, version, "/stats", statistics),
        *_both(model, version, "/infer", nothing, ["POST"]),  # Rest answers POST; others: 405
        Route("/v2/repository/index", index, methods=["POST"]),
        Route("/v2/repository/models/{name}/load", load, methods=["POST"]),
        Route("/v2/repository/models/{name}/unload", unload, methods=["POST"]),
        *_both(system, region, "/status", region_status),
        Route(f"{system}{region}/register", register, methods=["POST"]),
        *_both(system, region, "/unregister", unregister, ["POST"]),
        *_both(cuda, region, "/status", values(lambda request: [])),
        Route(f"{cuda}{region}/register", no_device_memory, methods=["POST"]),
        *_both(cuda, region, "/unregister", nothing, ["POST"]),
        Route("/v2/trace/setting", trace, methods=["GET", "POST"]),
        Route(f"{model}/trace/setting", trace, methods=["GET", "POST"]),
        Route("/v2/logging", logs, methods=["GET", "POST"]),
    ]
    guarded = [_guarded(route) for route in (*routes, *further)]
    return Starlette(routes=guarded, exception_handlers={HTTPException: _not_here})


def _both(
    path: str, middle: str, end: str, endpoint: Endpoint, methods: list[str] | None = None
) -> list[Route]:
    """Return the routes of an address with and without its middle part."""
    return [Route(f"{path}{part}{end}", endpoint, methods=methods) for part in ("", middle)]


def _guarded(route: Route) -> Route:
    endpoint = route.endpoint

    async def call(request: Request) -> Response:
        try:
            found: Response = await endpoint(request)
        except ClientGone:
            return Response(status_code=400)
        except Exception as error:
            return refusal(error)
        return found

    return Route(route.path, call, methods=[*(route.methods or ())])


def refusal(error: Exception) -> Response:
    """Return the answer to a request that failed."""
    status = status_of(error).http
    if status == 500:
        note(error)
    return JSONResponse({"error": text_of(error)}, status)


async def _not_here(request: Request, error: Exception) -> Response:
    status = 404
    headers: Mapping[str, str] | None = None
    if isinstance(error, HTTPException):
        status, headers = error.status_code, error.headers  # Allow, of a 405
    text = (
        f"there is nothing for {request.method} at {request.url.path!r}; "
        "inference is POST /v2/models/NAME/infer, the list of models POST /v2/repository/index"
    )
    return JSONResponse({"error": text}, status, headers)
