"""onnxruntime's exceptions, and what of the engine's is which of them."""

from __future__ import annotations

from typing import Any

from engine.errors import (
    Cancelled,
    EngineError,
    InputError,
    ModelError,
    ModelNotFound,
    SettingError,
)
from engine.onnxruntime.genuine import native

_CODES = {
    "Fail": (1, "FAIL"),
    "InvalidArgument": (2, "INVALID_ARGUMENT"),
    "NoSuchFile": (3, "NO_SUCHFILE"),
    "NoModel": (4, "NO_MODEL"),
    "EngineError": (5, "ENGINE_ERROR"),
    "RuntimeException": (6, "RUNTIME_EXCEPTION"),
    "InvalidProtobuf": (7, "INVALID_PROTOBUF"),
    "ModelLoaded": (8, "MODEL_LOADED"),
    "NotImplemented": (9, "NOT_IMPLEMENTED"),
    "InvalidGraph": (10, "INVALID_GRAPH"),
    "EPFail": (11, "EP_FAIL"),
    "ModelLoadCanceled": (12, "MODEL_LOAD_CANCELED"),
    "ModelRequiresCompilation": (13, "MODEL_REQUIRES_COMPILATION"),
    "NotFound": (14, "NOT_FOUND"),
    "DeviceReset": (15, "DEVICE_RESET"),
}
"""Each with its number and its word in messages."""


def _class(name: str) -> type[Exception]:
    """Return onnxruntime's own class, so that who catches it catches ours; else one like it."""
    found: Any = getattr(native, name, None)
    if found is None:
        module = "engine.onnxruntime.capi.onnxruntime_pybind11_state"
        found = type(name, (Exception,), {"__module__": module})
    return found  # type: ignore[no-any-return]


CLASSES = {name: _class(name) for name in _CODES}
_OWN = tuple(CLASSES.values())


def made(name: str, text: str) -> Exception:
    """Return the exception of that name, with a message in onnxruntime's form."""
    number, word = _CODES[name]
    return CLASSES[name](f"[ONNXRuntimeError] : {number} : {word} : {text}")


def translated(error: EngineError) -> Exception:
    """Return onnxruntime's exception for one of the engine's; the cause, where it is one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, _OWN):
            return cause
        cause = cause.__cause__
    text = str(error)
    if isinstance(error, ModelNotFound):
        return made("NoSuchFile", text)
    if isinstance(error, InputError):
        return made("InvalidArgument", text)
    if isinstance(error, Cancelled):
        return made("ModelLoadCanceled", text)
    if isinstance(error, SettingError):
        return made("InvalidArgument", text)
    if isinstance(error, ModelError):
        is_read = _READ in text or not any(words in text for words in _UNREAD)
        return made("InvalidGraph" if is_read else "InvalidProtobuf", text)
    return error


# Words of the core for a file that it could read, and for others.
_READ = "not a valid ONNX model"
_UNREAD = ("damaged ONNX file", "expected a", "empty")
