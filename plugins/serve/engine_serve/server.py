"""Both servers in one event loop, in a thread of its own: begin, serve, drain, end."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import uvicorn
import uvloop

from engine.errors import SettingError
from engine_serve.bearer import Bearer
from engine_serve.body import Room
from engine_serve.health import Health
from engine_serve.http_limits import limited
from engine_serve.listening import accepted, listening, refuse_new
from engine_serve.metrics import Metrics
from engine_serve.origins import Origins, is_loopback
from engine_serve.page import Page
from engine_serve.repository import Repository
from engine_serve.rest import Rest
from engine_serve.rpc import Rpc
from engine_serve.service import Service
from engine_serve.shared_memory import Regions

_HANDSHAKE_S = 0.2  # of TCP, for connections whose client has heard that they are made
_PING_S = 20.0  # for a client of gRPC to say that it is there
_log = logging.getLogger("engine_serve")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to serve. A port of 0 is one that is free, None is none.

    most_bytes: of a request; most_bytes_together: of all that are here, over REST. pause_s: for the
    handshake of TLS, a request's headers, each next part of its body, and until a client takes more
    of its answer.
    transfer_s: for a whole request, and a whole answer. connections: of REST at once, and calls of
    gRPC. connection_age_s: of gRPC's connections, after which clients connect anew; 0 for any.
    idle_s: for which a connection of REST stays without a request; stream_idle_s: likewise a stream
    of gRPC. keepalive_s: after which gRPC asks a silent client whether it is still there.
    drain_s: for requests that run when the server ends. settle_s: for clients to notice that it
    ends: connections that are open stay so, and what comes on them is answered.
    certificate, key: PEM files. allowed_hosts: names that browsers may know the server by, beside
    its own.
    """

    host: str = "127.0.0.1"
    http_port: int | None = 8000
    grpc_port: int | None = 8001
    most_bytes: int = 64 << 20
    most_bytes_together: int = 1 << 30
    pause_s: float = 10.0
    transfer_s: float = 120.0
    connections: int = 1000
    connection_age_s: float = 0.0
    idle_s: int = 75
    stream_idle_s: float = 3600.0
    keepalive_s: float = 60.0
    drain_s: float = 30.0
    settle_s: float = 1.0
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
        self._bearer = Bearer(settings.token)
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
        if not self._ended.done():
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
            bound = listening(settings.host, settings.http_port, "--http-port")
            self.http_port = bound.getsockname()[1]
            rest = _Rest(self._http(), settings.pause_s)
            serving = asyncio.ensure_future(rest.serve(sockets=[bound]))
            while not rest.started and not serving.done():
                await asyncio.sleep(0.001)
            if serving.done():
                serving.result()  # raises
        rpc = None
        if settings.grpc_port is not None:
            rpc = self._rpc()
            await rpc.start()
        self._begun.set_result(None)
        await over.wait()
        self.service.ending.set()
        if rest is not None:
            await _close(rest, bound, settings.settle_s)
        await asyncio.sleep(settings.settle_s)  # from now on what comes is lost
        if rest is not None:
            rest.should_exit = True
        if rpc is not None:
            await rpc.stop(settings.drain_s)
        if rest is not None:
            await serving
            for connection in list(rest.server_state.connections):  # clients that keep it waiting
                connection.transport.abort()
            await asyncio.sleep(0)  # else the loop cannot be closed

    def _rpc(self) -> grpc.aio.Server:
        settings = self._settings
        answer_ms = round(min(settings.keepalive_s, _PING_S) * 1000)
        options = [
            ("grpc.max_receive_message_length", settings.most_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # a port that another process has is an error
            ("grpc.keepalive_time_ms", round(settings.keepalive_s * 1000)),
            ("grpc.keepalive_timeout_ms", answer_ms),
            ("grpc.http2.ping_timeout_ms", answer_ms),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),  # any number
            ("grpc.http2.min_ping_interval_without_data_ms", 1000),  # of clients; else 5 minutes
        ]
        if settings.connection_age_s:
            options.append(("grpc.max_connection_age_ms", round(settings.connection_age_s * 1000)))
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=settings.connections)
        rpc = Rpc(self.service, self._bearer, settings.transfer_s, settings.stream_idle_s)
        most = max(1, settings.connections // 2)
        health = Health(self.service, self._bearer, settings.transfer_s, most)
        server.add_generic_rpc_handlers((rpc.handler(), health.handler()))
        address = f"{_bracketed(settings.host)}:{settings.grpc_port}"
        if settings.grpc_port:  # gRPC itself would not say why
            listening(settings.host, settings.grpc_port, "--grpc-port").close()
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
        bearer, page = self._bearer, None
        if settings.has_page:
            page = Page(self.service, needs_token=bool(bearer))
        metrics = Metrics(self._repository)
        is_open = is_loopback(settings.host) and not bearer
        origins = Origins(settings.allowed_hosts, checks_hosts=is_open)
        room = Room(settings.most_bytes, settings.most_bytes_together)
        app = Rest(self.service, metrics, room, bearer, origins, page)
        return uvicorn.Config(
            app,
            http=limited(
                settings.pause_s,
                settings.transfer_s,
                settings.connections,
                room,
                bearer,
                self.service.ending,
            ),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=settings.idle_s,
            timeout_graceful_shutdown=max(1, round(settings.drain_s)),
            ssl_certfile=settings.certificate or None,
            ssl_keyfile=settings.key or None,
        )


class _Rest(uvicorn.Server):
    """uvicorn's server, with a limit of the time of TLS's handshake."""

    def __init__(self, config: uvicorn.Config, handshake_s: float) -> None:
        super().__init__(config)
        self._handshake_s = handshake_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen at `sockets`, as uvicorn does without an application's lifespan.

        uvicorn has no setting for that time, which is 60 s.
        """
        config, loop = self.config, asyncio.get_running_loop()

        def protocol() -> asyncio.Protocol:
            kind: Any = config.http_protocol_class
            made: asyncio.Protocol = kind(
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return made

        self.servers = [
            await loop.create_server(
                protocol,
                sock=bound,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=self._handshake_s if config.ssl else None,
            )
            for bound in sockets or ()
        ]
        self.started = True


async def _close(rest: uvicorn.Server, bound: socket.socket, wait_s: float) -> None:
    """Take no new connections; those that wait to be taken are the last, and not lost."""
    if refuse_new(bound):
        await asyncio.sleep(_HANDSHAKE_S)
    waiting = await accepted(bound, wait_s)
    for listener in rest.servers:
        listener.close()
    config, loop = rest.config, asyncio.get_running_loop()
    protocol: Any = config.http_protocol_class
    take = partial(protocol, config=config, server_state=rest.server_state, app_state={})
    taken = [loop.connect_accepted_socket(take, each, ssl=config.ssl) for each in waiting]
    with suppress(TimeoutError):  # of a TLS handshake
        await asyncio.wait_for(asyncio.gather(*taken, return_exceptions=True), wait_s)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
