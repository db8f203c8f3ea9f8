"""ONNX Runtime itself, also while `engine.onnxruntime` stands in its place in sys.modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnxruntime as ort
else:
    import onnxruntime

    ort = getattr(onnxruntime, "genuine", onnxruntime)

__all__ = ["ort"]
