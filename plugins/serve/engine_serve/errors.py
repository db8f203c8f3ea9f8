"""Errors that clients see, each with its status in HTTP and in gRPC."""

from __future__ import annotations

from typing import NamedTuple

import grpc

from engine.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineError,
    InputError,
    ModelStateError,
    QueueFull,
    one_line,
)


class RequestError(InputError):
    """A request that is not one of the protocol, or does not fit its model."""


class TooLarge(RequestError):
    """A body of more bytes than the server takes."""


class NotFound(EngineError, LookupError):
    """There is no model, version, region or address of that name."""


class Unavailable(EngineError, RuntimeError):
    """The model or the server is not ready for requests now."""


class Unsupported(EngineError, RuntimeError):
    """The server does not offer that part of the protocol."""


class Status(NamedTuple):
    """A status in both protocols."""

    http: int
    rpc: grpc.StatusCode


_OTHERS = Status(500, grpc.StatusCode.INTERNAL)
_BY_CLASS: dict[type[Exception], Status] = {
    InputError: Status(400, grpc.StatusCode.INVALID_ARGUMENT),
    TooLarge: Status(413, grpc.StatusCode.RESOURCE_EXHAUSTED),
    NotFound: Status(404, grpc.StatusCode.NOT_FOUND),
    QueueFull: Status(429, grpc.StatusCode.RESOURCE_EXHAUSTED),
    Cancelled: Status(499, grpc.StatusCode.CANCELLED),
    Unsupported: Status(501, grpc.StatusCode.UNIMPLEMENTED),
    Unavailable: Status(503, grpc.StatusCode.UNAVAILABLE),
    ModelStateError: Status(503, grpc.StatusCode.UNAVAILABLE),
    DeadlineExceeded: Status(504, grpc.StatusCode.DEADLINE_EXCEEDED),
}


def status_of(error: BaseException) -> Status:
    """Return the status of an error; that of a fault of the server for any other."""
    for kind in type(error).__mro__:
        if kind in _BY_CLASS:
            return _BY_CLASS[kind]
    return _OTHERS


def text_of(error: BaseException) -> str:
    """Return the sentence that a client gets."""
    return " ".join(str(error).split()) if isinstance(error, EngineError) else one_line(error)
