"""uvicorn's HTTP protocol for inference: a body is copied once, an answer is one write."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from engine_serve.bearer import Bearer
from engine_serve.body import BODY, Body, Held, Room


class _Guarded:
    """A connection for one answer, which is dropped where it is closed.

    uvicorn tells only the last of several requests that it is lost, and then uvloop's write raises.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.close, self.is_closing = transport.close, transport.is_closing

    def write(self, data: bytes) -> None:
        """Write, unless the connection is closed."""
        if not self.is_closing():
            self._transport.write(data)


class _OneWrite(_Guarded):
    """The same, which sends the answer's head together with what follows it.

    Two writes are two system calls, and wake the client twice.
    """

    _head: bytes | None = None

    def write(self, data: bytes) -> None:
        """Keep the head, and write it with what follows."""
        if self._head is None:
            self._head = data
        elif self._head:
            if not self.is_closing():
                self._transport.writelines((self._head, data))
            self._head = b""
        else:
            super().write(data)


class InferProtocol(HttpToolsProtocol):
    """Puts the body of an inference where it stays, which uvicorn would copy twice more.

    room: for bodies. bearer: what a client must show to get it. A body of unknown length, one that
    is packed, and that of a request behind another, which no application reads yet, goes uvicorn's
    way.
    """

    room, bearer = Room(0, 0), Bearer("")
    _body: Body | None = None

    def on_headers_complete(self) -> None:
        """Begin a request."""
        super().on_headers_complete()
        self._body = None
        is_infer = self.scope["method"] == "POST" and self.scope["path"].endswith("/infer")
        way = _OneWrite if is_infer and not self.expect_100_continue else _Guarded
        self.cycle.transport = cast(Any, way(self.transport))
        if not is_infer:
            return
        headers = dict(self.headers)
        length = _number(headers.get(b"content-length", b""))
        is_next = not self.pipeline and self.bearer.is_shown(headers.get(b"authorization", b""))
        if is_next and 0 < length <= self.room.most and b"content-encoding" not in headers:
            header_length = _number(headers.get(b"inference-header-content-length", b""))
            self._body = Body(length, header_length, Held(self.room))
            cast(MutableMapping[str, Any], self.scope)[BODY] = self._body

    def on_body(self, body: bytes) -> None:
        """Take a part of a request's body."""
        if self._body is None:
            super().on_body(body)
        elif not self._body.take(body):
            self.cycle.message_event.set()  # else the application is woken when it is complete


def _number(value: bytes) -> int:
    """Return a header's number; 0 for none, and for what the application refuses."""
    return int(value) if value.isdigit() and len(value) <= 18 else 0
