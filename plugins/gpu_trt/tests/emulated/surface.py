"""Surface of a binding module: class, method and parameter names, properties, enum values.

`describe` reads them from the real TensorRT bindings (from pybind11's docstrings); the tables
beside this file are what it found. The emulator is compared with the tables in every run, and the
tables with the real wheels where these are at hand. `python surface.py tensorrt_bindings` prints
the table of an unpacked wheel on PYTHONPATH, with stub libraries on LD_LIBRARY_PATH: see
`bindings.py`, which makes these.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent
CLASSES = (
    "Builder", "Dims", "EngineInspector", "IBuilderConfig", "ICudaEngine", "IErrorRecorder",
    "IExecutionContext", "IGpuAllocator", "IHostMemory", "ILayer", "ILogger",
    "INetworkDefinition", "IOptimizationProfile", "IOutputAllocator", "IProfiler",
    "IProgressMonitor", "IRuntimeConfig", "ISerializationConfig", "ITensor", "ITimingCache",
    "Logger", "OnnxParser", "OnnxParserRefitter", "ParserError", "Refitter", "Runtime", "Weights",
)  # fmt: skip
ENUMS = (
    "BuilderFlag", "CollectiveOperation", "DataType", "DeviceType", "EngineCapability",
    "EngineStat", "ErrorCode", "ErrorCodeTRT", "ExecutionContextAllocationStrategy",
    "HardwareCompatibilityLevel", "LayerInformationFormat", "LayerType", "MemoryPoolType",
    "NetworkDefinitionCreationFlag",
    "OnnxParserFlag", "PreviewFeature", "ProfilingVerbosity", "ReduceOperation",
    "SerializationFlag", "TensorFormat", "TensorIOMode", "TensorLocation", "TempfileControlFlag",
)  # fmt: skip


def describe(module: ModuleType) -> dict[str, Any]:
    """Return the table of a module of the real bindings."""
    classes = {name: getattr(module, name) for name in CLASSES if hasattr(module, name)}
    enums = {name: getattr(module, name) for name in ENUMS if hasattr(module, name)}
    enums["ILogger.Severity"] = module.ILogger.Severity
    return {
        "version": module.__version__,
        "functions": sorted(
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and inspect.isroutine(value)
        ),
        "classes": {name: _class(cls) for name, cls in sorted(classes.items())},
        "enums": {
            name: {member: int(value) for member, value in sorted(cls.__members__.items())}
            for name, cls in sorted(enums.items())
        },
    }


def table(version: str, package: str = "tensorrt") -> dict[str, Any]:
    """Return the committed table of a version, e.g. "11.4.0.106"."""
    table: dict[str, Any] = json.loads((HERE / f"{package}-{version}.json").read_text())
    return table


def versions() -> list[str]:
    """Return the versions that have a committed table, oldest first."""
    return sorted(path.stem.removeprefix("tensorrt-") for path in HERE.glob("tensorrt-*.json"))


def _class(cls: type) -> dict[str, Any]:
    methods: dict[str, list[list[str]]] = {}
    properties: list[str] = []
    for name, value in sorted(vars(cls).items()):
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(value, property):
            properties.append(name)
        elif callable(value) and not isinstance(value, type):
            calls = list(_overloads(name, value.__doc__ or ""))
            if calls:
                methods[name] = calls
    return {"methods": methods, "properties": properties}


def _overloads(name: str, doc: str) -> Iterator[list[str]]:
    """Return the parameter names of each overload, without self; an optional one ends with "="."""
    for line in doc.splitlines():
        match = re.match(rf"(?:\d+\. )?{re.escape(name)}\((.*)\) -> .*$", line)
        if match and not match[1].startswith("*args"):
            yield [parameter for parameter in _parameters(match[1]) if parameter != "self"]


def _parameters(text: str) -> Iterator[str]:
    depth, part = 0, ""
    for char in [*text, ","]:
        depth += (char in "([{<") - (char in ")]}>")
        if char == "," and depth == 0:
            if part.strip():
                yield part.split(":")[0].strip() + ("=" if " = " in part else "")
            part = ""
        else:
            part += char


if __name__ == "__main__":
    import tables

    print(tables.write(describe(importlib.import_module(sys.argv[1])), depth=4))
