"""onnxruntime's Python interface on top of the engine.

    import engine.onnxruntime as ort

    session = ort.InferenceSession("model.onnx")
    outputs = session.run(None, {"x": array})

`install()` puts it in onnxruntime's place; so does `python -m engine.onnxruntime program.py` for a
program that cannot be changed.

session.py     InferenceSession; building.py: the Model in it; binding.py: IOBinding
options.py     SessionOptions, RunOptions; settings.py: what they are for a Model
providers.py   execution providers: the engine's targets in onnxruntime's words
values.py      OrtValue, OrtDevice; arguments.py: NodeArg, ModelMetadata
errors.py      onnxruntime's exceptions
process.py     versions, devices, logging
genuine.py     onnxruntime itself, where it is installed; stand_in.py: this in its place
capi/          names of onnxruntime's modules

Other names, as SparseTensor and LoraAdapter, are onnxruntime's own, where it is installed.
"""

from __future__ import annotations

from typing import Any

from engine.onnxruntime import capi
from engine.onnxruntime.arguments import ModelMetadata, NodeArg
from engine.onnxruntime.binding import IOBinding
from engine.onnxruntime.capi import _pybind_state, onnxruntime_inference_collection  # noqa: F401
from engine.onnxruntime.genuine import genuine
from engine.onnxruntime.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)
from engine.onnxruntime.process import (
    __version__,
    disable_telemetry_events,
    enable_telemetry_events,
    get_build_info,
    get_device,
    get_version_string,
    has_collective_ops,
    preload_dlls,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_seed,
)
from engine.onnxruntime.providers import get_all_providers, get_available_providers
from engine.onnxruntime.session import InferenceSession
from engine.onnxruntime.stand_in import install
from engine.onnxruntime.values import OrtDevice, OrtValue

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtDevice",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "__version__",
    "capi",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "has_collective_ops",
    "install",
    "preload_dlls",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]


def __getattr__(name: str) -> Any:
    if genuine is not None and hasattr(genuine, name):
        return getattr(genuine, name)
    text = f"module {__name__!r} has no attribute {name!r}"
    if genuine is None:
        text += "; what only onnxruntime has needs it: pip install onnxruntime"
    raise AttributeError(text, name=name)
