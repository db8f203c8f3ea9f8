"""Bodies of HTTP requests: read once into aligned memory, within a limit; and lost clients."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import numpy as np

from engine.types import CancelToken
from engine_serve.errors import RequestError, TooLarge

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]

_ALIGNED = 64
_LOOK_S = 0.02  # a shorter request is not asked whether its client has gone
_ENCODINGS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # zlib's window sizes


class ClientGone(Exception):
    """The client has closed its connection before it sent all of its request."""


async def read(
    receive: Receive, length: int, header_length: int, encoding: str, most: int
) -> memoryview:
    """Return the body of a request; what follows `header_length` bytes in it is aligned.

    length: as announced, -1 for unknown. Raises RequestError, ClientGone.
    """
    if length > most:
        raise TooLarge(f"the body has {length} bytes, more than the {most} that this server takes")
    message = await receive()
    chunk = message.get("body", b"")
    chunks = [chunk]
    total = len(chunk)
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message["body"]
        chunks.append(chunk)
        total += len(chunk)
        if total > most:
            break
    if message["type"] == "http.disconnect":
        raise ClientGone
    if total > most:
        raise TooLarge(f"the body has more than the {most} bytes that this server takes")
    if encoding not in ("", "identity"):
        chunks = [_decoded(chunks, encoding, most)]
        total = len(chunks[0])
    return _aligned(chunks, total, header_length)


def _aligned(chunks: list[bytes], total: int, header_length: int) -> memoryview:
    """Return chunks as one, so that what follows the header begins at a multiple of 64 bytes."""
    memory = np.empty(total + 2 * _ALIGNED, np.uint8)
    begin = -(memory.ctypes.data + header_length) % _ALIGNED
    body = memory.data[begin : begin + total]
    at = 0
    for chunk in chunks:
        body[at : at + len(chunk)] = chunk
        at += len(chunk)
    return body


def _decoded(chunks: list[bytes], encoding: str, most: int) -> bytes:
    if encoding not in _ENCODINGS:
        raise RequestError(f"Content-Encoding must be gzip or deflate, got {encoding!r}")
    decoder = zlib.decompressobj(_ENCODINGS[encoding])
    try:
        decoded = decoder.decompress(b"".join(chunks), most + 1)
    except zlib.error as error:
        raise RequestError(f"the body is not {encoding}: {error}") from error
    if len(decoded) > most:
        raise TooLarge(f"the body unpacks to more than the {most} bytes that this server takes")
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
