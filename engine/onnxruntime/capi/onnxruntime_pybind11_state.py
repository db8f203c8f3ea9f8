"""Names that programs take from onnxruntime's compiled module: exceptions, options, values."""

from __future__ import annotations

from typing import Any

from engine.onnxruntime.errors import CLASSES
from engine.onnxruntime.genuine import native
from engine.onnxruntime.options import RunOptions, SessionOptions
from engine.onnxruntime.providers import get_all_providers, get_available_providers

__all__ = ["RunOptions", "SessionOptions", "get_all_providers", "get_available_providers"]

globals().update(CLASSES)


def get_default_session_options() -> SessionOptions:
    """Return options that nothing was changed in."""
    return SessionOptions()


def __getattr__(name: str) -> Any:
    if native is not None and hasattr(native, name):
        return getattr(native, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
