"""TensorRT's messages: its log, its parser's errors, and which of them a user should read.

TensorRT reports a failure as None or False and says why in its log. It keeps the first logger it
is given for the whole process, so there is one here, which remembers the last errors:

    mark = messages.mark()
    if not context.execute_async_v3(stream):
        raise ModelError(f"... {messages.since(mark)}")
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
from collections import deque
from functools import cache
from typing import Any

_LOG = logging.getLogger("engine.gpu_trt")

_numbers = itertools.count(1)
_errors: deque[tuple[int, int, str]] = deque(maxlen=256)  # number, thread, text
_callers: set[int] = set()


class Heard(str):
    """Errors that TensorRT logged, in one line; never empty."""

    __slots__ = ()

    @property
    def out_of_memory(self) -> bool:
        """True if one of them says that device memory is short."""
        return re.search(r"out\s*of\s*memory", self, re.IGNORECASE) is not None


def mark() -> int:
    """Return a moment, for `since`; cheap."""
    _callers.add(threading.get_ident())
    return next(_numbers)


def since(moment: int) -> Heard:
    """Return the errors that TensorRT logged after `moment`, in this thread or one of its own."""
    thread = threading.get_ident()
    texts = [
        text
        for number, where, text in list(_errors)
        if number > moment and (where == thread or where not in _callers)
    ]
    return Heard("; ".join(dict.fromkeys(texts)) or "TensorRT did not say why")


@cache
def logger(trt: Any) -> Any:
    """Return the process's one logger, which passes messages on to `logging` ("engine.gpu_trt")."""
    severity = trt.ILogger.Severity
    levels = {
        severity.INTERNAL_ERROR: logging.DEBUG,  # errors reach the user as exceptions
        severity.ERROR: logging.DEBUG,
        severity.WARNING: logging.INFO,
        severity.INFO: logging.DEBUG,
    }

    class Log(trt.ILogger):  # type: ignore[misc]  # a class of a module without types
        def __init__(self) -> None:
            trt.ILogger.__init__(self)  # pybind11 needs the call by the base's own name

        def log(self, severity: Any, msg: str) -> None:
            level = levels.get(severity)
            if level is None:  # verbose: thousands of lines for one build
                return
            if severity <= trt.ILogger.Severity.ERROR:
                _remember(msg)
            _LOG.log(level, "%s", msg)

    return Log()


def parser_errors(parser: Any) -> list[Any]:
    """Return the parser's error objects, in order; it must live as long as they do."""
    return [parser.get_error(index) for index in range(parser.num_errors)]


def tidy(text: str) -> str:
    """Return one of TensorRT's messages in one line, without the places in its source code."""
    text = re.sub(r"^\s*(\S+\.cpp:\d+:|\[\S+::\d+\])\s*", "", text)
    text = re.sub(r"\s*In \w+ at \S+?:\d+", "", text)
    text = re.sub(r"(\w+::\w+: )?Error Code (\d+): ", r"TensorRT error \2: ", text)
    return " ".join(text.split())


def _remember(text: str) -> None:
    text = tidy(text)
    if text and "Begin node" not in text and "End node" not in text:
        _errors.append((next(_numbers), threading.get_ident(), text))
