"""The page in the browser at `/`: its files, which anyone may read, and the state that it shows.

The files in page/ are HTML, CSS and JavaScript modules as they are; nothing is built.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from importlib import resources

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine_serve import __version__
from engine_serve.service import Service
from engine_serve.state import State

_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_HEADERS = {
    "cache-control": "no-cache",  # asked for again with its ETag, so a new version shows at once
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "object-src 'none'; require-trusted-types-for 'script'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Page:
    """Routes of the page. needs_token: it asks for the server's token.

    open_paths: those that need no token. They tell nothing of the models.
    """

    def __init__(self, service: Service, *, needs_token: bool) -> None:
        about = {"version": __version__, "needs_token": needs_token}
        state = State(service)

        async def read_about(request: Request) -> Response:
            return JSONResponse(about, headers=_HEADERS)

        async def read_state(request: Request) -> Response:
            return JSONResponse(state.read(), headers={"cache-control": "no-store"})

        files = [
            Route("/" if name == "index.html" else f"/page/{name}", _file(name, body))
            for name, body in files_of_page().items()
        ]
        files.append(Route("/page/about.json", read_about))
        self.open_paths = frozenset(route.path for route in files)
        self.routes = [*files, Route("/page/state.json", read_state)]


def files_of_page() -> dict[str, bytes]:
    """Return the page's files by name."""
    folder = resources.files("engine_serve") / "page"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def _file(name: str, body: bytes) -> Callable[[Request], Awaitable[Response]]:
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**_HEADERS, "etag": tag}
    kind = _KINDS[name.rpartition(".")[2]]

    async def send(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=kind, headers=headers)

    return send
