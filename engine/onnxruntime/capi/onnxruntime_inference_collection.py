"""The module in which onnxruntime has its session and its values."""

from __future__ import annotations

from typing import Any

from engine.onnxruntime.binding import IOBinding
from engine.onnxruntime.genuine import genuine
from engine.onnxruntime.providers import check_and_normalize_provider_args
from engine.onnxruntime.session import InferenceSession
from engine.onnxruntime.values import OrtDevice, OrtValue

__all__ = [
    "IOBinding",
    "InferenceSession",
    "OrtDevice",
    "OrtValue",
    "check_and_normalize_provider_args",
]

Session = InferenceSession


def __getattr__(name: str) -> Any:
    found = None if genuine is None else genuine.capi.onnxruntime_inference_collection
    if hasattr(found, name):
        return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
