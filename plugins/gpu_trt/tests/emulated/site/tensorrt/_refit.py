"""The emulated Refitter."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from emulated_gpu.graphs import Kernels
from emulated_gpu.machine import MACHINE, Crash

from ._base import ENUMS, ILogger, Null
from ._runtime import _NUMPY, ICudaEngine

DataType, TensorLocation = ENUMS["DataType"], ENUMS["TensorLocation"]


class Weights:
    """An array that somebody else keeps: a type, an address, a count."""

    def __init__(self, type: Any, ptr: int, count: int) -> None:
        self._type, self._ptr, self._count = DataType(type), ptr, count

    @property
    def dtype(self) -> Any:
        return self._type

    @property
    def size(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        return self._count * np.dtype(_NUMPY[self._type.name]).itemsize

    def numpy(self) -> np.ndarray[Any, Any]:
        dtype = np.dtype(_NUMPY[self._type.name])
        return np.frombuffer(ctypes.string_at(self._ptr, self.nbytes), dtype)


class Refitter(Null):
    _counted = "refitters"

    def __init__(self, engine: ICudaEngine, logger: ILogger) -> None:
        self._make(logger)
        self._engine = engine
        self._given: dict[str, Weights] = {}

    def get_all_weights(self) -> list[str]:
        return list(self._engine._header["refittable"])

    def get_missing_weights(self) -> list[str]:
        """Those that the engine keeps in one piece with what was set."""
        graph, names = self._engine._graph, set(self.get_all_weights())
        wanted = {other for name in self._given for other in graph.joined_with(name)}
        return sorted((wanted & names) - set(self._given))

    def get_weights_prototype(self, weights_name: str) -> Weights:
        tensor = self._tensor(weights_name)
        if tensor is None:
            return Weights(DataType.FLOAT, 0, -1)
        from emulated_gpu.graphs import TYPES

        count = int(np.prod(tensor.dims, dtype=np.int64))
        return Weights(DataType[TYPES[tensor.data_type]], 0, count)

    def _tensor(self, name: str) -> Any:
        if name not in self._engine._header["refittable"]:
            return None
        tensors = self._engine._graph.model.graph.initializer
        return next((tensor for tensor in tensors if tensor.name == name), None)

    def set_named_weights(self, name: str, weights: Weights) -> bool:
        prototype = self.get_weights_prototype(name)
        where = "IRefitter::setNamedWeights"
        if (weights.dtype, weights.size) != (prototype.dtype, prototype.size):
            self._error(where, 3, f"Parameter check failed: {name} is not such a weight.")
            return False
        self._given[name] = weights
        return True

    def refit_cuda_engine(self) -> bool:
        engine, where = self._engine, "IRefitter::refitCudaEngine"
        if any(context._queued_by is not None for context in engine._contexts):
            raise Crash("an engine is refitted while its work is queued")
        if self.get_missing_weights():
            self._error(where, 4, f"Missing weights: {self.get_missing_weights()}.")
            return False
        if MACHINE.faulty("refit"):
            self._error(where, 2, "Requested size was 4096 bytes.", "OutOfMemory")
            return False
        values = {name: weights.numpy() for name, weights in self._given.items()}
        engine._graph = engine._graph.with_weights(values)
        engine._kernels = Kernels(engine._graph)
        MACHINE.counted["refits"] += 1
        return True
