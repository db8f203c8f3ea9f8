"""The emulated machine's libraries, as ctypes finds them by name."""

from __future__ import annotations

import ctypes
import os
from typing import Any

_CDLL = ctypes.CDLL
_libraries: dict[str, Any] = {}


class _Loader(_CDLL):
    """ctypes.CDLL that knows the emulated libnccl.so.2."""

    def __new__(cls, name: Any = None, *arguments: Any, **named: Any) -> Any:
        if name is None or os.path.basename(str(name)) != "libnccl.so.2":
            return super().__new__(cls)
        if os.environ.get("ENGINE_EMULATED_NCCL") == "none":
            raise OSError("libnccl.so.2: cannot open shared object file: No such file or directory")
        return nccl()


def nccl() -> Any:
    """Return the emulated NCCL, as whoever loads it gets it: one in this process."""
    if not _libraries:
        from emulated_gpu.nccl import Library

        _libraries["nccl"] = Library()
    return _libraries["nccl"]


def install() -> None:
    """Let ctypes find the emulated libraries."""
    ctypes.CDLL = _Loader  # type: ignore[misc]


def uninstall() -> None:
    """Let ctypes find what is really there."""
    ctypes.CDLL = _CDLL  # type: ignore[misc]
