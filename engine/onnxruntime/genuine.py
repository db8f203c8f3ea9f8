"""onnxruntime itself, where it is installed, also while this package stands in its place."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

# As the cpu backend has it: the runtime reads this when it is imported, and then reports nothing.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def _found() -> ModuleType | None:
    """Return the package; None where there is none, or one that an uninstall has left in parts."""
    try:
        import onnxruntime
    except Exception:  # a damaged one raises what it likes
        return None
    found: Any = getattr(onnxruntime, "genuine", onnxruntime)
    return found if hasattr(found, "InferenceSession") else None


genuine: Any = _found()
"""The package; None without one."""

native: Any = None if genuine is None else genuine.capi._pybind_state
"""Its compiled module; None without one."""
