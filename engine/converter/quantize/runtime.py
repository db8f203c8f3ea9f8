"""Use of ONNX Runtime by quantization: packages, sessions, silence."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from onnx import ModelProto

from engine.converter.weights import total_bytes
from engine.errors import ModelError, one_line

LARGEST = 2**31 - 2**20
"""Bytes of weights beyond which it does not fit in one protobuf message."""

# ONNX Runtime writes what it learns of a model, an encrypted one too, for its makers into the
# user's cache folder. It reads this when it is imported; the user may have set it to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def needed(module: str, what: str) -> ModuleType:
    """Import a package that comes with the extra; raises ModelError with the command."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ModelError(
            f'{what} needs {package} ({error}); run: pip install "inference-engine[quantize]"'
        ) from error


def open_session(model: ModelProto, what: str, *, is_exact: bool = False, **options: Any) -> Any:
    """Return an onnxruntime.InferenceSession of the model on the CPU.

    what: names the model in an error. is_exact: products of integers do not saturate, whatever the
    processor; slower where they would. options: attributes of SessionOptions.
    Raises ModelError where ONNX Runtime does not take the model.
    """
    runtime = needed("onnxruntime", "quantizing a model")
    runtime.disable_telemetry_events()  # where others have imported it before
    settings = runtime.SessionOptions()
    settings.log_severity_level = 3  # errors come as exceptions too
    for name, value in options.items():
        setattr(settings, name, value)
    if is_exact:
        settings.add_session_config_entry("session.x64quantprecision", "1")
    size = total_bytes(model)
    if size > LARGEST:
        raise ModelError(
            f"{what} has {size} bytes: expected at most {LARGEST}, to be run while it "
            "is quantized; use quant_type=WEIGHT_QUANT, which does without"
        )
    try:
        return runtime.InferenceSession(
            model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's errors share no base
        raise ModelError(f"{what} cannot be run by ONNX Runtime: {one_line(error)}") from error


@contextlib.contextmanager
def quiet(notes: list[str]) -> Iterator[None]:
    """Hold back what ONNX Runtime's quantizer logs in this thread; its warnings go to `notes`.

    It logs to the root logger, which belongs to the program.
    """
    own = threading.get_ident()

    def hold(record: logging.LogRecord) -> bool:
        if record.thread != own or "onnxruntime" not in Path(record.pathname).parts:
            return True
        if record.levelno >= logging.WARNING and record.getMessage() not in notes:
            notes.append(record.getMessage())
        return False

    root, silent = logging.getLogger(), logging.NullHandler()
    root.addFilter(hold)
    root.addHandler(silent)  # without any, logging.warning() would set up one that stays
    try:
        yield
    finally:
        root.removeHandler(silent)
        root.removeFilter(hold)
