"""uvicorn's HTTP protocol with limits: for the time of headers, and the number of connections."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
    b"content-length: 34\r\nconnection: close\r\n\r\n"
    b'{"error":"too many connections"}\r\n'
)


def limited(header_s: float, connections: int) -> type[HttpToolsProtocol]:
    """Return the class of a protocol with these limits.

    header_s: from a connection's begin, or from a request's first byte, until its headers are
    complete, and for each next part of a body.
    """

    class Limited(HttpToolsProtocol):
        """Closes connections that send too slowly, and those that are too many."""

        timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            if len(self.connections) >= connections:
                transport.write(_BUSY)
                transport.close()
                self.is_refused = True
                return
            super().connection_made(transport)
            self.expect()

        is_refused = False

        def expect(self) -> None:
            self.relax()
            self.timer = self.loop.call_later(header_s, self.give_up)

        def relax(self) -> None:
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def give_up(self) -> None:
            self.timer = None
            self.transport.close()

        def data_received(self, data: bytes) -> None:
            if self.is_refused:
                return
            super().data_received(data)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.expect()

        def on_body(self, body: bytes) -> None:
            super().on_body(body)
            self.expect()

        def on_message_complete(self) -> None:
            self.relax()
            super().on_message_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            if self.is_refused:
                return
            self.relax()
            super().connection_lost(exc)

    return Limited
