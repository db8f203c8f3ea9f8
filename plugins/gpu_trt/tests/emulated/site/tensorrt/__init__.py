"""Emulated TensorRT, for tests: see `emulated_gpu`.

Names, parameters and enum values are those of the version in the table that
ENGINE_EMULATED_TENSORRT names; `test_surface.py` compares them with the real bindings.
"""

from __future__ import annotations

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
    "Builder", "Dims", "EngineInspector", "IBuilderConfig", "ICudaEngine", "IExecutionContext",
    "IHostMemory", "ILayer", "ILogger", "INetworkDefinition", "IOptimizationProfile",
    "IOutputAllocator", "IProfiler", "IProgressMonitor", "ITensor", "ITimingCache", "Logger",
    "OnnxParser", "ParserError", "Refitter", "Runtime", "Weights",
]  # fmt: skip

__version__ = f"{VERSION}+emulated"

globals().update({name: cls for name, cls in ENUMS.items() if "." not in name})
