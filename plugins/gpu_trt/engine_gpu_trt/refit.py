"""Weights that are exchanged in an engine, by TensorRT's Refitter.

Only the weights that were declared may be: TensorRT computes everything else ahead as it does
without. An engine must not be refitted while it runs, so predicts are held off for that long.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import BackendUnavailable, InputError, ModelError
from engine.types import DeviceBuffer, ModelSource, ParameterInfo, Value
from engine_gpu_trt import dtypes, memory, messages
from engine_gpu_trt.slots import Array

if TYPE_CHECKING:
    from engine_gpu_trt.engines import Engine
    from engine_gpu_trt.model import TrtModel

UNSOUND = (11, 3)
"""The version of TensorRT whose refittable engines may drop a bias (its release notes say so)."""


def declare(model: TrtModel, names: tuple[str, ...]) -> None:
    """Tell the builder which weights of a network may be exchanged, inside `with gpu`.

    Raises ModelError naming one that is no weight of TensorRT's network.
    """
    model.config.set_flag(model.trt.BuilderFlag.REFIT_INDIVIDUAL)
    for name in names:
        if not model.network.mark_weights_refittable(name):
            raise ModelError(
                f"{model.source.name}: TensorRT's network has no weight {name!r} to exchange in "
                "place; declare an initializer, and leave precision_mode at enforce_fp32, or let "
                "the core hold it (variable_weights_mode = swap)"
            )


class Refit:
    """The variable weights of one engine.

    source: the model, from which weights are read again where an update needs them; at once where
    it is in memory, which is then not kept.
    """

    def __init__(self, engine: Engine, names: tuple[str, ...], source: ModelSource) -> None:
        graph = source.graph
        assert graph is not None, "only ONNX models have variable weights"
        parameters = {parameter.name: parameter for parameter in graph.parameters}
        self._engine = engine
        self._parameters = {name: parameters[name] for name in names if name in parameters}
        self._source = replace(source, data=None, files={})
        self._loaded: dict[str, Array] = {}
        if source.data is not None:
            self._loaded = _read(source, self._parameters)
        self._updated: dict[str, Array] = {}

    def update(self, weights: Mapping[str, Value], additive: bool) -> None:
        """Exchange weights; see engine_update_weights."""
        given = {name: self._checked(name, value) for name, value in weights.items()}
        engine = self._engine
        assert engine.turns is not None
        with engine.turns.alone():
            if additive:
                with np.errstate(over="ignore", invalid="ignore"):  # as any sum on the device
                    given = {name: self._as_loaded(name) + value for name, value in given.items()}
            for run in list(engine.runs.values()):
                run.settle()
                run.forget_recording()
            with engine.gpu:
                self._refit(given)
            self._updated |= given

    def _refit(self, given: dict[str, Array]) -> None:
        engine, trt = self._engine, self._engine.trt
        if engine.broken:
            raise ModelError(engine.broken)
        mark = messages.mark()
        refitter = trt.Refitter(engine.engine, messages.logger(trt))
        try:
            kept = [_set(engine, refitter, name, value) for name, value in given.items()]
            # Weights that TensorRT has joined with these have to come with them.
            for name in refitter.get_missing_weights():
                value = self._updated.get(name)
                kept.append(
                    _set(engine, refitter, name, self._as_loaded(name) if value is None else value)
                )
            if not refitter.refit_cuda_engine():
                engine.broken = (
                    f"{self._source.name}: TensorRT did not take an update of its weights: "
                    f"{messages.since(mark)}; build the model again"
                )
                raise BackendUnavailable(engine.broken, "gpu_trt")
        finally:
            del refitter  # here, and not with an error's traceback, where no context is current
        kept.clear()

    def _checked(self, name: str, value: Value) -> Array:
        """Return a copy on the host of a weight that fits; InputError where it does not."""
        old = self._parameters.get(name)
        if isinstance(value, DeviceBuffer):
            array: Array = np.empty(value.shape, value.dtype.numpy)
            memory.copy(value, array, None)
        else:
            array = np.array(value, order="C")
        if old is None or (old.dtype.numpy, old.shape) != (array.dtype, array.shape):
            expected = "no weight" if old is None else f"{old.dtype}{list(old.shape)}"
            raise InputError(
                f"weight {name!r}: expected {expected}, got {array.dtype}{list(array.shape)}", name
            )
        return array

    def _as_loaded(self, name: str) -> Array:
        """Return a weight of the model's file; all that are variable are read at the first one."""
        if not self._loaded:
            self._loaded = _read(self._source, self._parameters)
        return self._loaded[name]


def _set(engine: Engine, refitter: Any, name: str, value: Array) -> Array:
    """Hand one weight to a refitter, in the type that the engine has it in; return what to keep."""
    dtype = refitter.get_weights_prototype(name).dtype
    array = np.ascontiguousarray(value, dtypes.from_tensorrt(engine.trt, dtype).numpy)
    weights = engine.trt.Weights(dtype, array.ctypes.data, array.size)
    if not refitter.set_named_weights(name, weights):
        raise InputError(f"weight {name!r}: TensorRT does not take it", name)
    return array


def _read(source: ModelSource, parameters: Mapping[str, ParameterInfo]) -> dict[str, Array]:
    import onnx
    from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

    data = source.data if source.data is not None else Path(source.path or "").read_bytes()
    folder = source.folder or (source.path.parent if source.path is not None else None)
    found = {}
    for tensor in onnx.load_model_from_string(data).graph.initializer:
        if tensor.name in parameters:
            if uses_external_data(tensor) and folder is not None:
                load_external_data_for_tensor(tensor, os.fspath(folder))
            found[tensor.name] = onnx.numpy_helper.to_array(tensor)
    return found
