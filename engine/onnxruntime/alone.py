"""Models that onnxruntime runs and the engine has no form for: ORT's own format, sparse tensors."""

from __future__ import annotations

from typing import Any

from engine.onnxruntime.errors import made
from engine.onnxruntime.genuine import genuine
from engine.onnxruntime.options import noted_of
from engine.onnxruntime.providers import CPU

_MARK = b"ORTM"
_FORMAT = "session.load_model_format"
_SPARSE = " is a sparse tensor"
WHY = "onnxruntime alone runs models in ORT's own format, and with sparse inputs or outputs"


def is_ort_format(model: str | bytes, options: Any) -> bool:
    """Return whether a model is in onnxruntime's own format."""
    if noted_of(options).entries.get(_FORMAT) == "ORT":
        return True
    return model[4:8] == _MARK if isinstance(model, bytes) else model.endswith(".ort")


def is_sparse(error: Exception) -> bool:
    """Return whether a model was refused for a sparse tensor among its inputs or outputs."""
    return _SPARSE in str(error)


def session(model: str | bytes, options: Any) -> Any:
    """Have onnxruntime alone run a model, on the CPU. Raises its exceptions."""
    if genuine is None:
        raise made("NotImplemented", f"{WHY}; run: pip install onnxruntime")
    return genuine.InferenceSession(model, options, providers=[CPU], enable_fallback=0)
