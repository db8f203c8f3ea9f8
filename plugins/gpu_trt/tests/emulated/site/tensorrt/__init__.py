"""Emulated TensorRT, for tests: see `emulated_gpu`.

Names, parameters and enum values are those of the version in the table that
ENGINE_EMULATED_TENSORRT names; `test_surface.py` compares them with the real bindings.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._base import ENUMS, VERSION, Dims, IHostMemory, ILogger, Logger
from ._builder import (
    Builder,
    IBuilderConfig,
    IOptimizationProfile,
    IProgressMonitor,
    ITimingCache,
)
from ._network import ILayer, INetworkDefinition, ITensor, OnnxParser, ParserError
from ._refit import Refitter, Weights
from ._runtime import (
    EngineInspector,
    ICudaEngine,
    IExecutionContext,
    IOutputAllocator,
    IProfiler,
    Runtime,
)

__all__ = [
    "Builder",
    "Dims",
    "EngineInspector",
    "IBuilderConfig",
    "ICudaEngine",
    "IExecutionContext",
    "IHostMemory",
    "ILayer",
    "ILogger",
    "INetworkDefinition",
    "IOptimizationProfile",
    "IOutputAllocator",
    "IProfiler",
    "IProgressMonitor",
    "ITensor",
    "ITimingCache",
    "Logger",
    "OnnxParser",
    "ParserError",
    "Refitter",
    "Runtime",
    "Weights",
    "nptype",
    "volume",
]

__version__ = f"{VERSION}+emulated"

globals().update({name: cls for name, cls in ENUMS.items() if "." not in name})


def volume(iterable: Any) -> int:
    result = 1
    for dim in iterable:
        result *= dim
    return result


def nptype(trt_type: Any) -> type:
    """Return the numpy type; TypeError for those that numpy does not have."""
    known: dict[str, type] = {
        "FLOAT": np.float32, "HALF": np.float16, "INT8": np.int8, "INT32": np.int32,
        "INT64": np.int64, "BOOL": np.bool_, "UINT8": np.uint8,
    }  # fmt: skip
    if trt_type.name not in known:
        raise TypeError("Could not resolve TensorRT datatype to an equivalent numpy datatype.")
    return known[trt_type.name]
