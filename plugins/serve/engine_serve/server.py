"""Both servers in one event loop, in a thread of its own: begin, serve, drain, end."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import grpc
import uvicorn
import uvloop

from engine.errors import SettingError
from engine_serve.http_limits import limited
from engine_serve.metrics import Metrics
from engine_serve.origins import Origins, is_loopback
from engine_serve.page import Page
from engine_serve.repository import Repository
from engine_serve.rest import Rest
from engine_serve.rpc import Rpc
from engine_serve.service import Service
from engine_serve.shared_memory import Regions

_log = logging.getLogger("engine_serve")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to serve. A port of 0 is one that is free, None is none.

    most_bytes: of a request. read_s: for a request's headers, and for each next part of its body.
    connections: of REST at once. drain_s: for requests that run when the server ends.
    certificate, key: PEM files. allowed_hosts: names that browsers may know the server by, beside
    its own.
    """

    host: str = "127.0.0.1"
    http_port: int | None = 8000
    grpc_port: int | None = 8001
    most_bytes: int = 64 << 20
    read_s: float = 10.0
    connections: int = 1000
    drain_s: float = 30.0
    token: str = ""
    certificate: str = ""
    key: str = ""
    shares_memory: bool = True
    may_change: bool = True
    has_page: bool = True
    allowed_hosts: tuple[str, ...] = ()


class Server:
    """Serves a repository from `start` to `stop`, in a thread of its own.

    http_port, grpc_port: those that are bound.
    """

    def __init__(self, repository: Repository, settings: Settings) -> None:
        self._repository, self._settings = repository, settings
        self.http_port = self.grpc_port = 0
        regions = Regions(is_on=settings.shares_memory, most_bytes=settings.most_bytes)
        self.service = Service(repository, regions, may_change=settings.may_change)
        self._begun: Future[None] = Future()
        self._ended: Future[None] = Future()
        self._stop: Callable[[], None] = lambda: None

    def __str__(self) -> str:
        kind, host = "s" * bool(self._settings.certificate), _bracketed(self._settings.host)
        parts = []
        if self.http_port:
            parts.append(f"REST at http{kind}://{host}:{self.http_port}")
        if self.grpc_port:
            parts.append(f"gRPC at {host}:{self.grpc_port}")
        return ", ".join(parts)

    def start(self) -> None:
        """Listen. Raises SettingError where that cannot be."""
        threading.Thread(target=self._run, name="engine serve", daemon=True).start()
        self._begun.result()

    def stop(self) -> None:
        """Take no more requests, answer those that have come, and end; may be called twice."""
        self._stop()
        self._ended.result()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            for future in (self._begun, self._ended):
                if not future.done():
                    future.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        settings = self._settings
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def stop() -> None:
            loop.call_soon_threadsafe(over.set)

        self._stop = stop
        rest = None
        if settings.http_port is not None:
            bound = listening(settings.host, settings.http_port)
            self.http_port = bound.getsockname()[1]
            rest = uvicorn.Server(self._http())
            serving = asyncio.ensure_future(rest.serve(sockets=[bound]))
            while not rest.started and not serving.done():
                await asyncio.sleep(0.001)
        rpc = None
        if settings.grpc_port is not None:
            rpc = self._rpc()
            await rpc.start()
        self._begun.set_result(None)
        await over.wait()
        self.service.is_open = False
        if rest is not None:
            rest.should_exit = True
        if rpc is not None:
            await rpc.stop(settings.drain_s)
        if rest is not None:
            await serving

    def _rpc(self) -> grpc.aio.Server:
        settings = self._settings
        options = [
            ("grpc.max_receive_message_length", settings.most_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # a port that another process has is an error
        ]
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers((Rpc(self.service, settings.token).handler(),))
        address = f"{_bracketed(settings.host)}:{settings.grpc_port}"
        try:
            if settings.certificate:
                pair = (Path(settings.key).read_bytes(), Path(settings.certificate).read_bytes())
                credentials = grpc.ssl_server_credentials([pair])
                self.grpc_port = server.add_secure_port(address, credentials)
            else:
                self.grpc_port = server.add_insecure_port(address)
        except RuntimeError as error:
            raise SettingError(f"cannot listen at {address}: {error}") from error
        return server

    def _http(self) -> uvicorn.Config:
        settings = self._settings
        token, page = settings.token, None
        if settings.has_page:
            page = Page(self.service, needs_token=bool(token))
        metrics = Metrics(self._repository)
        is_open = is_loopback(settings.host) and not token
        origins = Origins(settings.allowed_hosts, checks_hosts=is_open)
        app = Rest(self.service, metrics, settings.most_bytes, token, origins, page)
        return uvicorn.Config(
            app,
            http=limited(settings.read_s, settings.connections),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=max(1, round(settings.drain_s)),
            ssl_certfile=settings.certificate or None,
            ssl_keyfile=settings.key or None,
        )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that is bound. Raises SettingError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise SettingError(f"cannot listen at {host}:{port}: {error}") from error
    bound.setblocking(False)
    return bound
