"""This machine and the versions that run a model: all on which its speed depends beside itself."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

from engine.host import processor
from engine.host.cpus import usable_cpus
from engine.host.version import __version__

_RUNTIMES = ("numpy", "onnxruntime", "openvino", "tensorrt", "jax", "torch", "onnx")


def this_machine() -> dict[str, str]:
    """Return the machine as text by name; not its own name, which a container draws anew."""
    return {
        "processor": processor.name(),
        "CPUs": str(usable_cpus()),
        "system": platform.system(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, this package and the runtimes that are loaded, by name."""
    found = {"python": platform.python_version(), "engine": __version__}
    for name in _RUNTIMES:
        if name in sys.modules:
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:  # onnxruntime-gpu, or a build of one's own
                found[name] = str(getattr(sys.modules[name], "__version__", "unknown"))
    return found
