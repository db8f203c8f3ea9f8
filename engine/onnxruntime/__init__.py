"""onnxruntime's Python interface on top of the engine.

import engine.onnxruntime as ort

session = ort.InferenceSession("model.onnx")
outputs = session.run(None, {"x": array})
"""

from __future__ import annotations

from engine.onnxruntime.arguments import ModelMetadata, NodeArg
from engine.onnxruntime.genuine import genuine
from engine.onnxruntime.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)
from engine.onnxruntime.providers import get_all_providers, get_available_providers
from engine.onnxruntime.session import InferenceSession

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "RunOptions",
    "SessionOptions",
    "genuine",
    "get_all_providers",
    "get_available_providers",
]
