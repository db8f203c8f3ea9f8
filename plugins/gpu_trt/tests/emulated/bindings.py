"""Describes a real TensorRT bindings wheel on a machine without TensorRT or a GPU.

The wheel's module needs three libraries, of which it imports a dozen C symbols: stub libraries
that a C compiler makes are enough to import and look at it, though not to create anything.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
SYMBOLS = (
    "createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL", "createInferRuntime_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL", "createNvOnnxParser_INTERNAL",
    "getBuilderPluginRegistry", "getNvOnnxParserVersion", "getPluginRegistry",
    "initLibNvInferPlugins",
)  # fmt: skip


def wheels(folder: Path) -> dict[str, Path]:
    """Return the unpacked `tensorrt_cu*_bindings` wheels in or below a folder, by version."""
    folders = {}
    for info in sorted(folder.rglob("tensorrt_cu*_bindings-*.dist-info")):
        version = re.fullmatch(r"tensorrt_cu\d+_bindings-(.+)\.dist-info", info.name)
        if version is not None:
            folders[version[1]] = info.parent
    return folders


def describe(wheel: Path, version: str, work: Path) -> dict[str, Any]:
    """Return an unpacked wheel's surface (see `surface.describe`), read in its own process.

    Raises RuntimeError where there is no C compiler or the module does not import.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("no C compiler (cc, gcc) to make the stub libraries with")
    source = work / "stub.c"
    source.write_text("".join(f"void *{symbol}(void) {{ return 0; }}\n" for symbol in SYMBOLS))
    major = version.partition(".")[0]
    for library in LIBRARIES:
        target = work / f"lib{library}.so.{major}"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", target, source], check=True)
    child = subprocess.run(
        [sys.executable, Path(__file__).with_name("surface.py"), "tensorrt_bindings"],
        env={**os.environ, "LD_LIBRARY_PATH": str(work), "PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if child.returncode:
        raise RuntimeError(f"tensorrt_bindings {version} does not import: {child.stderr[-500:]}")
    table: dict[str, Any] = json.loads(child.stdout)
    return table
