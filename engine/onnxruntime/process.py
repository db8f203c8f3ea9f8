"""Facts and settings of onnxruntime for a whole process: versions, devices, logging, telemetry."""

from __future__ import annotations

import logging
from typing import Any

from engine.onnxruntime.genuine import genuine
from engine.onnxruntime.providers import is_there

INTERFACE = "1.32.0"
"""The version of onnxruntime whose interface this is."""

__version__: str = INTERFACE if genuine is None else genuine.__version__

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def get_version_string() -> str:
    """Return onnxruntime's version; without it, that of this interface."""
    return __version__


def get_build_info() -> str:
    """Return how onnxruntime was built."""
    if genuine is None:
        return "ORT Build Info: none, onnxruntime is not installed"
    return str(genuine.get_build_info())


def get_device() -> str:
    """Return "GPU" where the engine has one, else "CPU"."""
    return "GPU" if is_there("gpu") else "CPU"


def set_default_logger_severity(severity: int) -> None:
    """Log from this level on: 0 for all, 4 for what is fatal; the engine too."""
    if genuine is not None:
        genuine.set_default_logger_severity(severity)
    elif not 0 <= severity < len(_LEVELS):
        raise RuntimeError(f"Invalid logging severity. Valid range is 0 to 4, but got {severity}")
    logging.getLogger("engine").setLevel(_LEVELS[severity])


def set_default_logger_verbosity(verbosity: int) -> None:
    """Have onnxruntime log more at its lowest level."""
    if genuine is not None:
        genuine.set_default_logger_verbosity(verbosity)


def disable_telemetry_events() -> None:
    """Do nothing: the engine sends none, and has switched onnxruntime's off."""


def enable_telemetry_events() -> None:
    """Send onnxruntime's events to its makers again, where it has such."""
    if genuine is not None:
        genuine.enable_telemetry_events()


def preload_dlls(*given: Any, **named: Any) -> None:
    """Load the libraries of onnxruntime's CUDA provider; the engine's own need no such call."""
    if genuine is not None and hasattr(genuine, "preload_dlls"):
        genuine.preload_dlls(*given, **named)


def set_seed(seed: int) -> None:
    """Set the seed of onnxruntime's random operators."""
    if genuine is not None:
        genuine.set_seed(seed)
    else:
        logging.getLogger("engine").warning("set_seed has no effect without onnxruntime")


def has_collective_ops() -> bool:
    """Return True: the engine runs collectives of several ranks."""
    return True
