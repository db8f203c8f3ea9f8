"""The addresses of the REST protocol, but inference's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine_serve.body import ClientGone, read
from engine_serve.errors import RequestError, Unsupported, status_of, text_of
from engine_serve.metrics import Metrics
from engine_serve.rest_infer import object_of
from engine_serve.service import Service

_log = logging.getLogger("engine_serve")


def addresses(
    service: Service, metrics: Metrics, most_bytes: int, further: Sequence[Route] = ()
) -> Starlette:
    """Return the application of all addresses but inference's. further: routes beside them."""

    def given(request: Request, key: str) -> str:
        found: str = request.path_params.get(key, "")
        return found

    async def object_in(request: Request) -> dict[str, Any]:
        body = await read(request.receive, -1, 0, "", most_bytes)
        return object_of(body) if body else {}

    async def live(request: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(request: Request) -> Response:
        return JSONResponse({"ready": service.is_ready}, 200 if service.is_ready else 503)

    async def model_ready(request: Request) -> Response:
        name = given(request, "name")
        is_ready = service.is_model_ready(name, given(request, "version"))
        return JSONResponse({"name": name, "ready": is_ready}, 200 if is_ready else 503)

    async def server(request: Request) -> Response:
        return JSONResponse(service.server_metadata())

    async def model(request: Request) -> Response:
        return JSONResponse(
            service.model_metadata(given(request, "name"), given(request, "version"))
        )

    async def config(request: Request) -> Response:
        return JSONResponse(service.config(given(request, "name"), given(request, "version")))

    async def statistics(request: Request) -> Response:
        return JSONResponse(service.statistics(given(request, "name"), given(request, "version")))

    async def index(request: Request) -> Response:
        wanted = await object_in(request)
        return JSONResponse(service.index(ready=wanted.get("ready") is True))

    async def load(request: Request) -> Response:
        wanted = await object_in(request)
        parameters = wanted.get("parameters", {})
        if not isinstance(parameters, dict):
            raise RequestError("'parameters' must be an object")
        await service.load(given(request, "name"), parameters)
        return Response()

    async def unload(request: Request) -> Response:
        await object_in(request)
        await service.unload(given(request, "name"))
        return Response()

    async def region_status(request: Request) -> Response:
        return JSONResponse(service.region_status(given(request, "region")))

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

    async def no_regions(request: Request) -> Response:
        return JSONResponse([])

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

    of_model, version = "/v2/models/{name}", "/versions/{version}"
    system, cuda = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
    region = "/region/{region}"
    routes = [
        Route("/metrics", measured),
        Route("/v2", server),
        Route("/v2/", server),
        Route("/v2/health/live", live),
        Route("/v2/health/ready", ready),
        Route("/v2/models/stats", statistics),
        *_both(of_model, version, "", model),
        *_both(of_model, version, "/ready", model_ready),
        *_both(of_model, version, "/config", config),
        *_both(of_model, version, "/stats", statistics),
        Route("/v2/repository/index", index, methods=["POST"]),
        Route("/v2/repository/models/{name}/load", load, methods=["POST"]),
        Route("/v2/repository/models/{name}/unload", unload, methods=["POST"]),
        *_both(system, region, "/status", region_status),
        Route(f"{system}{region}/register", register, methods=["POST"]),
        *_both(system, region, "/unregister", unregister, ["POST"]),
        *_both(cuda, region, "/status", no_regions),
        Route(f"{cuda}{region}/register", no_device_memory, methods=["POST"]),
        *_both(cuda, region, "/unregister", nothing, ["POST"]),
        Route("/v2/trace/setting", trace, methods=["GET", "POST"]),
        Route(f"{of_model}/trace/setting", trace, methods=["GET", "POST"]),
        Route("/v2/logging", logs, methods=["GET", "POST"]),
    ]
    guarded = [_guarded(route) for route in (*routes, *further)]
    return Starlette(routes=guarded, exception_handlers={HTTPException: _not_here})


Endpoint = Callable[[Request], Awaitable[Response]]


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
        _log.error("a request failed: %s", text_of(error), exc_info=error)
    return JSONResponse({"error": text_of(error)}, status)


async def _not_here(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    text = f"there is nothing for {request.method} at {request.url.path!r}"
    return JSONResponse({"error": text}, status)
