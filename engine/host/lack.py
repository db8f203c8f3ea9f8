"""Errors of a machine that has run out of something, in words that say of what."""

from __future__ import annotations

import errno

from engine.errors import EngineError, ModelError
from engine.host.blocks import Translating
from engine.host.interrupts import raised_by_handler

_ADVICE = {
    errno.EMFILE: "this process has as many files open as it may: close some, or raise ulimit -n",
    errno.ENFILE: "the system has as many files open as it may: close some, or raise fs.file-max",
    errno.EAGAIN: "no more processes or threads may run: end some, or raise ulimit -u (pids.max "
    "in a container)",
    errno.ENOMEM: "the machine or its container is out of memory: free some",
    errno.ENOSPC: "a file system is full: make room, in /dev/shm and the temporary folder too",
    errno.EDQUOT: "the user's quota is used up: make room",
    errno.EFBIG: "a file would be larger than it may be: raise ulimit -f",
}
_NO_THREAD = "can't start new thread"  # Python's RuntimeError


def lack_of(error: BaseException | None) -> str:
    """Return what a system's error says there is too little of, and what to do; "" for others."""
    if isinstance(error, OSError) and not isinstance(error, EngineError):
        return _ADVICE.get(error.errno or 0, "")
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return _ADVICE[errno.EAGAIN]
    return ""


class explained(Translating):
    """Raise a ModelError for what the block lacks of the machine; other errors pass.

    what: what could not be done, the beginning of the message.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def _translate(self, error: BaseException) -> None:
        if (lack := lack_of(error)) and not raised_by_handler(error):
            raise ModelError(f"{self._what}: {error}; {lack}") from error
