"""The other name of onnxruntime_pybind11_state."""

from __future__ import annotations

from typing import Any

from engine.onnxruntime.capi import onnxruntime_pybind11_state


def __getattr__(name: str) -> Any:
    return getattr(onnxruntime_pybind11_state, name)
