"""Bodies of HTTP requests: read once into aligned memory, within limits; and lost clients."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import numpy as np

from engine.types import CancelToken
from engine_serve.errors import RequestError, TooLarge, Unavailable

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]

BODY = "engine.body"  # in a request's scope: its Body, where the connection fills one
_TAKEN = "that this server takes (--max-request-mib)"
_ALIGNED = 64
_NOTHING = memoryview(b"")
_LOOK_S = 0.02  # a shorter request is not asked whether its client has gone
_ENCODINGS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # zlib's window sizes


class ClientGone(Exception):
    """The client has closed its connection before it sent all of its request."""


class Room:
    """Room for bodies. For the event loop's thread.

    most: bytes of one body. left: bytes for all that are here at once.
    """

    def __init__(self, most: int, together: int) -> None:
        self.most, self.left, self._together = most, together, together

    def full(self) -> Unavailable:
        """Return the error of a body that has no room beside the others."""
        return Unavailable(
            f"the requests that are here have {self._together - self.left} bytes, and together "
            f"they may have {self._together}; try again"
        )


class Held:
    """The room that a request's body takes, until it is given back."""

    __slots__ = ("_is_over", "_size", "room")

    def __init__(self, room: Room) -> None:
        self.room, self._size, self._is_over = room, 0, False

    def add(self, size: int) -> None:
        """Take room. Raises Unavailable where there is none."""
        if self._is_over or size > self.room.left:
            raise self.room.full()
        self.room.left -= size
        self._size += size

    def give_back(self) -> None:
        """Give the room back, and take no more; may be called twice."""
        self._is_over = True
        self.room.left += self._size
        self._size = 0


class Body:
    """The memory of a body; what follows its header begins at a multiple of 64 bytes.

    error: where there was no room for what has come.
    """

    error: Unavailable | None = None

    def __init__(self, length: int, header_length: int, held: Held) -> None:
        memory = np.empty(length + 2 * _ALIGNED, np.uint8)
        begin = -(memory.__array_interface__["data"][0] + header_length) % _ALIGNED
        self.view = memory.data[begin : begin + length]
        self.held = held
        self._at = 0

    def take(self, chunk: bytes) -> bool:
        """Put in what has come next where there is room; return whether there is."""
        try:
            self.held.add(len(chunk))
        except Unavailable as error:
            self.error = error
            return False
        self.add(chunk)
        return True

    def add(self, chunk: bytes) -> None:
        """Put in what has room already."""
        end = self._at + len(chunk)
        self.view[self._at : end] = chunk
        self._at = end

    def end(self) -> None:
        """Give back the room and the memory: a connection keeps its last request until the next."""
        self.held.give_back()
        self.view = _NOTHING


async def read(
    receive: Receive,
    length: int,
    header_length: int,
    encoding: str,
    held: Held,
    filled: Body | None = None,
) -> memoryview:
    """Return the body of a request; what follows `header_length` bytes in it is aligned.

    length: as announced, -1 for unknown. held: takes the body's room. filled: what the connection
    puts the body into; then `receive` says when it is complete, or has an error.
    Raises RequestError, ClientGone, Unavailable.
    """
    most = held.room.most
    if length > most:
        raise TooLarge(f"the body has {length} bytes, more than the {most} {_TAKEN}")
    message = await receive()
    chunk = message.get("body", b"")
    chunks = [chunk]
    total = len(chunk)
    held.add(total)
    while message.get("more_body", False) and (filled is None or filled.error is None):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message["body"]
        chunks.append(chunk)
        total += len(chunk)
        held.add(len(chunk))
        if total > most:
            break
    if message["type"] == "http.disconnect":
        raise ClientGone
    if filled is not None and filled.error is not None:
        raise filled.error
    if filled is not None:
        return filled.view
    if total > most:
        raise TooLarge(f"the body has more than the {most} bytes {_TAKEN}")
    if encoding not in ("", "identity"):
        chunks = [_decoded(chunks, encoding, most)]
        total = len(chunks[0])
        held.add(total)
    body = Body(total, header_length, held)
    for chunk in chunks:
        body.add(chunk)
    return body.view


def _decoded(chunks: list[bytes], encoding: str, most: int) -> bytes:
    if encoding not in _ENCODINGS:
        raise RequestError(f"Content-Encoding must be gzip or deflate, got {encoding!r}")
    decoder = zlib.decompressobj(_ENCODINGS[encoding])
    try:
        decoded = decoder.decompress(b"".join(chunks), most + 1)
    except zlib.error as error:
        raise RequestError(f"the body is not {encoding}: {error}") from error
    if len(decoded) > most:
        raise TooLarge(f"the body unpacks to more than the {most} bytes {_TAKEN}")
    if not decoder.eof:
        raise RequestError(f"the body ends in the middle of its {encoding} data")
    return decoded


class Watch:
    """Cancels a request whose client has gone. One that takes less than 20 ms costs a timer."""

    def __init__(self, receive: Receive, token: CancelToken) -> None:
        self._receive, self._token = receive, token
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._token.cancel()

    def end(self) -> None:
        """Watch no longer."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
