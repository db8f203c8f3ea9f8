"""A stand-in for `import onnxruntime` on top of `engine`: as much of it as programs need."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from os import PathLike
from types import SimpleNamespace
from typing import Any

import numpy as np

import engine
from engine.types import TensorSpec

_PROVIDERS = ["CPUExecutionProvider"]
# ONNX Runtime's names of element types that are not numpy's.
_NAMES = {"float32": "float", "float64": "double"}


class GraphOptimizationLevel(Enum):
    """The level that programs set; here every model is optimised in full."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_ALL = 99


class SessionOptions:
    """Settings of a session; the number of threads is read."""

    def __init__(self) -> None:
        self.intra_op_num_threads = 0
        self.inter_op_num_threads = 0
        self.log_severity_level = 2
        self.enable_cpu_mem_arena = True
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL


class InferenceSession:
    """A model, called as ONNX Runtime's session is."""

    made = 0

    def __init__(
        self,
        path: str | PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
    ) -> None:
        threads = sess_options.intra_op_num_threads if sess_options is not None else 0
        self._model = engine.load(path, threads=threads)
        InferenceSession.made += 1

    def get_inputs(self) -> list[SimpleNamespace]:
        """Return the inputs' names, types and shapes."""
        return [_argument(spec) for spec in self._model.inputs]

    def get_outputs(self) -> list[SimpleNamespace]:
        """Return the outputs' names, types and shapes."""
        return [_argument(spec) for spec in self._model.outputs]

    def get_providers(self) -> list[str]:
        """Return the execution providers in use."""
        return _PROVIDERS

    def get_modelmeta(self) -> SimpleNamespace:
        """Return what the model says of itself."""
        info = self._model.get_model_info("user_info")
        return SimpleNamespace(custom_metadata_map=json.loads(info) if info else {})

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """Run the model; return the outputs of these names."""
        outputs = self._model({name: np.asarray(value) for name, value in feeds.items()})
        return [outputs[name] for name in names or outputs]


def get_available_providers() -> list[str]:
    """Return the execution providers that there are."""
    return _PROVIDERS


def get_device() -> str:
    """Return the device that this build is for."""
    return "CPU"


def _argument(spec: TensorSpec) -> SimpleNamespace:
    kind = f"tensor({_NAMES.get(str(spec.dtype), str(spec.dtype))})"
    return SimpleNamespace(name=spec.name, type=kind, shape=list(spec.shape or ()))
