"""The REST protocol as an ASGI application; inference is one of its own.

Inference does not go through starlette's router and request, which cost more than a tiny model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from engine.types import CancelToken
from engine_serve.addresses import addresses
from engine_serve.bearer import Bearer, refusal
from engine_serve.body import BODY, Body, ClientGone, Held, Receive, Room, Watch, read
from engine_serve.errors import RequestError, note, status_of, text_of
from engine_serve.inferring import infer
from engine_serve.metrics import Metrics
from engine_serve.origins import Origins
from engine_serve.page import Page
from engine_serve.rest_infer import answer_of, joined, request_of
from engine_serve.service import Service

Scope: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")
_OPEN = frozenset(("/v2/health/live", "/v2/health/ready"))
_LARGE = 100_000  # bytes of JSON: some milliseconds


class Rest:
    """The ASGI application.

    room: for bodies. bearer: what clients must show. origins: the sites whose pages may ask.
    page: for browsers.
    """

    def __init__(
        self,
        service: Service,
        metrics: Metrics,
        room: Room,
        bearer: Bearer,
        origins: Origins,
        page: Page | None = None,
    ) -> None:
        self._origins = origins
        self._service, self._room = service, room
        self._bearer = bearer
        self._open = _OPEN | (page.open_paths if page else frozenset())
        self._others = addresses(service, metrics, room, page.routes if page else ())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            raise RuntimeError(f"there is nothing here but http, got {scope['type']}")
        try:
            await self._answered(scope, receive, send)
        finally:
            if (body := scope.get(BODY)) is not None:
                body.end()  # whoever has answered

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if fault := self._origins.fault(scope["headers"]):
            await _answer(send, 403, json.dumps({"error": fault}).encode())
            return
        if self._bearer and path not in self._open:
            given = next((v for name, v in scope["headers"] if name == b"authorization"), b"")
            if not self._bearer.is_shown(given):
                text = refusal(given, "Authorization: Bearer TOKEN")
                await _answer(send, 401, json.dumps({"error": text}).encode())
                return
        found = _INFER.fullmatch(path)
        if found is None or scope["method"] != "POST":
            await self._others(scope, receive, send)
            return
        try:
            await self._infer(found[1], found[2] or "", scope, receive, send)
        except ClientGone:
            return
        except Exception as error:
            await _refuse(send, error)

    async def _infer(
        self, name: str, version: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        header_length: int | None = None
        length, encoding = -1, ""
        for key, value in scope["headers"]:
            if key == b"content-length":
                length = _whole(value, "Content-Length")
            elif key == b"inference-header-content-length":
                header_length = _whole(value, "Inference-Header-Content-Length")
            elif key == b"content-encoding":
                encoding = value.decode("latin-1")
        filled: Body | None = scope.get(BODY)
        held = Held(self._room) if filled is None else filled.held
        regions, token = self._service.regions, CancelToken()
        watch: Watch | None = None
        try:
            body = await read(receive, length, header_length or 0, encoding, held, filled)
            watch = Watch(receive, token)
            json_length, parts = await infer(
                self._service.repository,
                name,
                version,
                lambda model: request_of(body, header_length, model, regions),
                answer_of,
                token,
                is_large=(len(body) if header_length is None else header_length) > _LARGE,
            )
        finally:
            held.give_back()
            if watch is not None:
                watch.end()
        kind = b"application/json" if json_length is None else b"application/octet-stream"
        headers = [(b"content-type", kind), (b"content-length", b"%d" % sum(map(len, parts)))]
        if json_length is not None:
            headers.append((b"inference-header-content-length", b"%d" % json_length))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        parts = joined(parts)
        for part in parts[:-1]:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": parts[-1]})


def _whole(value: bytes, name: str) -> int:
    if not value.isdigit() or len(value) > 18:
        raise RequestError(f"{name} must be a whole number, got {value[:40]!r}")
    return int(value)


async def _refuse(send: Send, error: Exception) -> None:
    status = status_of(error).http
    if status == 500:
        note(error)
    body = json.dumps({"error": text_of(error)}).encode()
    await _answer(send, status, body)


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
