"""Errors that clients see, each with its status in HTTP and in gRPC."""

from __future__ import annotations

import logging
from typing import NamedTuple

import grpc

from engine.config.wording import own_text
from engine.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineError,
    InputError,
    ModelStateError,
    QueueFull,
    one_line,
)

_LOGGED = "is_logged"  # an attribute of errors
_log = logging.getLogger("engine_serve")


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


_WORDS = {
    ", the runner's queue_limit": " (--queue-limit, or max_queue_size in config.pbtxt)",
    ", or let it wait: when_full='wait'": "",
    "predict failed! ": "",
    "longer than timeout_s, ": "longer than its time-out, ",
    ", or leave timeout_s out": "",
}
"""Words of the engine for callers of Python, and those for clients of the server."""


def status_of(error: BaseException) -> Status:
    """Return the status of an error; that of a fault of the server for any other."""
    for kind in type(error).__mro__:
        if kind in _BY_CLASS:
            return _BY_CLASS[kind]
    return _OTHERS


def note(error: BaseException) -> None:
    """Log a request that failed, unless `note_load` has logged its error."""
    if _LOGGED not in vars(error):
        _write("a request failed", error)


def note_load(error: BaseException, name: str) -> None:
    """Log that a model could not be loaded."""
    _write(f"model {name!r} could not be loaded", error)
    vars(error)[_LOGGED] = True


def _write(event: str, error: BaseException) -> None:
    """Log an error, with a traceback where the fault is the server's own."""
    trace = None if isinstance(error, EngineError | OSError) else error
    _log.error("%s: %s", event, text_of(error), exc_info=trace)


def text_of(error: BaseException) -> str:
    """Return the sentence that a client gets."""
    if not isinstance(error, EngineError):
        return one_line(error)
    text = " ".join(own_text(error).split())  # clients called no method of Python
    for said, known in _WORDS.items():
        text = text.replace(said, known)
    return text
