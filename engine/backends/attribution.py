"""Attribution of errors: an exception out of a hook is reported as the fault of its backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import EngineError, ModelError
from engine.host.blocks import Translating
from engine.host.interrupts import raised_by_handler
from engine.host.lack import lack_of

if TYPE_CHECKING:
    from engine.backends import Backend


_WITH_OPTIONS = ("engine_load", "engine_compile", "engine_compiled_key")
"""Hooks that read options, whose values may be a user's mistake: ValueError says that."""


class attribute_errors_to(Translating):
    """Report what no hook may raise in the block as the backend's fault, in one line.

    Not what a signal handler raised, in whatever the backend has made of it.
    """

    __slots__ = ("_backend", "_hook")

    def __init__(self, backend: Backend, hook: str) -> None:
        self._backend = backend
        self._hook = hook

    def _translate(self, error: BaseException) -> None:
        interrupt = raised_by_handler(error)
        if interrupt is error:
            return
        if interrupt is not None:
            raise interrupt
        # Others: also SystemExit, or a panic of a compiled extension.
        if isinstance(error, EngineError | MemoryError | KeyboardInterrupt):
            return
        backend = self._backend
        if type(error) is ValueError and self._hook in _WITH_OPTIONS:
            raise ValueError(f"backend {backend.name!r}: {error}") from error
        if lack := lack_of(error):  # of the machine: nobody is at fault
            raise ModelError(
                f"{self._hook} of backend {backend.name!r}: {error}; {lack}"
            ) from error
        raise backend.at_fault(self._hook, error) from error
