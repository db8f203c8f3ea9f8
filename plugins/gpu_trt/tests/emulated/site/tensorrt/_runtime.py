"""The emulated runtime: engines and execution contexts."""

from __future__ import annotations

import ctypes
import functools
import json
import threading
import time
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
from emulated_gpu.graphs import Graph, InvalidShapes, Kernels
from emulated_gpu.inside import exchanging
from emulated_gpu.loader import nccl
from emulated_gpu.machine import MACHINE, Crash, OutOfMemory, Queue

from engine.errors import CommunicatorError

from ._base import ENUMS, VERSION, Callback, Dims, IHostMemory, ILogger, Made, Null
from ._builder import MAGIC

DataType, TensorIOMode = ENUMS["DataType"], ENUMS["TensorIOMode"]
TensorLocation, EngineStat = ENUMS["TensorLocation"], ENUMS["EngineStat"]
Strategy = ENUMS["ExecutionContextAllocationStrategy"]
LayerInformationFormat = ENUMS["LayerInformationFormat"]
_NUMPY = {
    "FLOAT": np.float32, "HALF": np.float16, "BF16": ml_dtypes.bfloat16, "INT8": np.int8,
    "INT32": np.int32, "INT64": np.int64, "BOOL": np.bool_, "UINT8": np.uint8,
    "FP8": ml_dtypes.float8_e4m3fn,
}  # fmt: skip
_ADDRESS_ALIGNMENT = 256
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class IOutputAllocator(Callback):
    """Its methods are the user's; the real one has none of its own either."""


class IProfiler(Callback):
    def report_layer_time(self, layer_name: str, ms: float) -> None:
        raise NotImplementedError('Tried to call pure virtual function "report_layer_time"')


class Runtime(Null):
    _counted = "runtimes"

    def __init__(self, logger: ILogger) -> None:
        self._make(logger)

    def deserialize_cuda_engine(self, serialized_engine: Any) -> ICudaEngine | None:
        device = self._enter()
        data = bytes(serialized_engine)
        where = "IRuntime::deserializeCudaEngine"
        if not data:
            self._error(where, 3, "Cannot deserialize with an empty memory buffer.")
            return None
        body = data[len(MAGIC) + 4 :]
        sound = data.startswith(MAGIC) and (
            zlib.crc32(body).to_bytes(4, "little") == data[len(MAGIC) : len(MAGIC) + 4]
        )
        if not sound:
            self._error(
                where, 1, "Serialization assertion header.magicTag == kEXPECTED_MAGIC_TAG failed."
                "Trying to load an engine created with incompatible serialization version.",
                "Serialization",
            )  # fmt: skip
            return None
        length = int.from_bytes(body[:8], "little")
        header = json.loads(body[8 : 8 + length])
        if header["version"] != VERSION:
            self._error(
                where, 1, f"Serialization assertion stdVersionRead == serializationVersion failed."
                f"Version tag does not match: the engine is of {header['version']}, this is "
                f"{VERSION}.", "Serialization",
            )  # fmt: skip
            return None
        try:
            if MACHINE.faulty("deserialize"):
                raise OutOfMemory
            weights = device.allocate(header["weights_bytes"], backed=False)
        except OutOfMemory:
            self._error(
                where, 2, f"Requested size was {header['weights_bytes']} bytes.", "OutOfMemory"
            )
            return None
        MACHINE.counted["deserialised"] += 1
        ranks = {int(index): count for index, count in header["ranks"].items()}
        graph = Graph(body[8 + length :], ranks=ranks)
        return ICudaEngine._of(self, header, data, weights, graph)


class ICudaEngine(Made):
    _counted = "engines"

    @classmethod
    def _of(
        cls, runtime: Runtime, header: dict[str, Any], plan: bytes, weights: int, graph: Graph
    ) -> ICudaEngine:
        engine = cls._new(runtime._logger)
        engine._runtime = runtime  # as the real one keeps it
        engine._header = header
        engine._plan = plan
        engine._weights = weights
        engine._graph = graph
        engine._kernels = Kernels(graph)
        engine._tensors = {
            tensor["name"]: tensor for tensor in header["inputs"] + header["outputs"]
        }
        engine._inputs = [tensor["name"] for tensor in header["inputs"]]
        engine._outputs = [tensor["name"] for tensor in header["outputs"]]
        engine._contexts: weakref.WeakSet[IExecutionContext] = weakref.WeakSet()
        return engine

    def _destroy(self) -> None:
        assert self._device is not None
        self._device.free(self._weights)

    @property
    def num_io_tensors(self) -> int:
        return len(self._tensors)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self._header["profiles"])

    @property
    def device_memory_size_v2(self) -> int:
        return int(self._header["activation_bytes"])

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_mode(self, name: str) -> Any:
        if name not in self._tensors:
            return TensorIOMode.NONE
        return TensorIOMode.INPUT if name in self._inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        return DataType[self._tensors[name]["dtype"]]

    def get_tensor_shape(self, name: str) -> Dims:
        return Dims(self._tensors[name]["shape"])

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Dims]:
        return [Dims(dims) for dims in self._header["profiles"][profile_index][name]]

    def is_shape_inference_io(self, name: str) -> bool:
        return bool(self._tensors[name].get("decides"))

    def get_engine_stat(self, stat: Any = EngineStat.TOTAL_WEIGHTS_SIZE) -> int:
        return int(self._header["weights_bytes"])

    def serialize(self) -> IHostMemory:
        return IHostMemory(self._plan)

    def create_engine_inspector(self) -> EngineInspector:
        return EngineInspector._of(self)

    def create_execution_context(self, strategy: Any = Strategy.STATIC) -> IExecutionContext | None:
        device = self._enter()
        size = self._header["activation_bytes"]
        try:
            if MACHINE.faulty("create_execution_context"):
                raise OutOfMemory
            own = strategy is not Strategy.USER_MANAGED
            memory = device.allocate(size, backed=False) if own else 0
        except OutOfMemory:
            self._error("ICudaEngine::createExecutionContext", 2,
                        f"Requested size was {size} bytes.", "OutOfMemory")  # fmt: skip
            return None
        return IExecutionContext._of(self, memory)


class EngineInspector(Made):
    _counted = "engine inspectors"

    @classmethod
    def _of(cls, engine: ICudaEngine) -> EngineInspector:
        inspector = cls._new(engine._logger)
        inspector._engine = engine
        return inspector

    def get_engine_information(self, format: Any) -> str:
        """Layer names alone at the default verbosity; objects at the detailed one."""
        header = self._engine._header
        names = [layer["Name"] for layer in header["layers"]]
        if format is not LayerInformationFormat.JSON:
            return "\n".join(names)
        layers = header["layers"] if header["is_detailed"] else names
        # TensorRT 11 calls the other half "I/O Tensors".
        tensors = "Bindings" if VERSION.startswith("10.") else "I/O Tensors"
        return json.dumps({"Layers": layers, tensors: []})


class IExecutionContext(Made):
    _counted = "execution contexts"

    @classmethod
    def _of(cls, engine: ICudaEngine, memory: int) -> IExecutionContext:
        context = cls._new(engine._logger)
        context._engine = engine  # as the real one keeps it
        context._memory = memory  # 0 where the user gives it
        context._scratch: tuple[int, int] = (memory, engine._header["activation_bytes"])
        context._profile = 0
        context._shapes: dict[str, tuple[int, ...]] = {
            name: tuple(shape)
            for name in engine._inputs
            if -1 not in (shape := engine._tensors[name]["shape"])
        }
        context._addresses: dict[str, int] = {}
        context._allocators: dict[str, Any] = {}
        context._in_use = threading.Lock()
        context._queued_by: int | None = None  # the thread whose work is not done yet
        context._warm = False  # it has run these shapes: only then it can be captured
        context._communicator = 0
        context._profiler: IProfiler | None = None
        context._emits = True
        context._took_ms: float | None = None  # of the execution that is to be reported
        engine._contexts.add(context)
        return context

    def _destroy(self) -> None:
        assert self._device is not None
        if self._queued_by is not None:
            MACHINE.violation("an IExecutionContext was destroyed while it ran")
        if self._memory:
            self._device.free(self._memory)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Admit one thread at a time, from the first call until what it queued is done."""
        if not self._in_use.acquire(blocking=False):
            raise Crash("an IExecutionContext is used by two threads at once")
        try:
            if self._queued_by not in (None, threading.get_ident()):
                raise Crash("an IExecutionContext is used by a thread while another's work runs")
            yield
        finally:
            self._in_use.release()

    @property
    def engine(self) -> ICudaEngine:
        return self._engine

    @property
    def profiler(self) -> IProfiler | None:
        return self._profiler

    @profiler.setter
    def profiler(self, profiler: IProfiler) -> None:
        self._profiler = profiler

    @property
    def enqueue_emits_profile(self) -> bool:
        return self._emits

    @enqueue_emits_profile.setter
    def enqueue_emits_profile(self, emits: bool) -> None:
        self._emits = emits

    def report_to_profiler(self) -> bool:
        """Report the last execution, which must be done; its time is divided among the layers."""
        with self._alone():
            took_ms, self._took_ms = self._took_ms, None
            bad = self._profiler is None or self._queued_by is not None or took_ms is None
            if bad or MACHINE.faulty("report_to_profiler"):
                self._error("IExecutionContext::reportToProfiler", 3, "Parameter check failed")
                return False
            layers = self._engine._header["layers"]
            for layer in layers:
                self._profiler.report_layer_time(layer["Name"], took_ms / len(layers))
            return True

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        with self._alone():
            if not 0 <= profile_index < len(self._engine._header["profiles"]):
                self._error("IExecutionContext::setOptimizationProfileAsync", 3,
                            "Parameter check failed")  # fmt: skip
                return False
            self._profile = profile_index
            self._shapes = {
                name: shape
                for name, shape in self._shapes.items()
                if -1 not in self._engine._tensors[name]["shape"]
            }
            return True

    def set_device_memory(self, memory: int, size: int) -> None:
        with self._alone():
            needed = self._engine._header["activation_bytes"]
            if self._memory or memory % _ADDRESS_ALIGNMENT or size < needed:
                self._error(
                    "IExecutionContext::setDeviceMemoryV2", 3,
                    f"Parameter check failed: {size} bytes at {memory:#x}, needed are {needed}.",
                )  # fmt: skip
                return
            self._scratch = (memory, size)

    def set_input_shape(self, name: str, shape: Any) -> bool:
        with self._alone():
            where = "IExecutionContext::setInputShape"
            if name not in self._engine._inputs:
                self._error(where, 3, f"Parameter check failed: {name} is no input.")
                return False
            dims = tuple(int(dim) for dim in shape)
            profile = self._engine._header["profiles"][self._profile]
            low, _, high = profile[name]
            if len(dims) != len(low) or not all(
                a <= dim <= b for a, dim, b in zip(low, dims, high, strict=True)
            ):
                self._error(
                    where, 3, f"Parameter check failed. Set dimension {list(dims)} for tensor "
                    f"{name} does not satisfy any optimization profiles. Valid range for profile "
                    f"{self._profile}: {list(low)}..{list(high)}.",
                )  # fmt: skip
                return False
            self._shapes[name] = dims
            self._warm = False
            return True

    def infer_shapes(self) -> list[str]:
        with self._alone():
            missing = [name for name in self._engine._inputs if name not in self._shapes]
            if not missing and self._outputs() is None:
                raise RuntimeError("infer_shapes error code: -1")
            return missing

    def _outputs(self) -> dict[str, tuple[int, ...]] | None:
        try:
            graph = self._engine._graph
            return graph.shapes({graph.original(n): s for n, s in self._shapes.items()})
        except InvalidShapes as error:
            self._error("IExecutionContext::inferShapes", 7, str(error), "Internal Error")
            return None

    def get_tensor_shape(self, name: str) -> Dims:
        with self._alone():
            if name in self._engine._inputs:
                return Dims(self._shapes.get(name, self._engine._tensors[name]["shape"]))
            complete = all(name in self._shapes for name in self._engine._inputs)
            outputs = self._outputs() if complete else None
            return Dims(outputs[name] if outputs else self._engine._tensors[name]["shape"])

    def set_tensor_address(self, name: str, memory: int) -> bool:
        with self._alone():
            if name not in self._engine._tensors or memory % _ADDRESS_ALIGNMENT or not memory:
                self._error("IExecutionContext::setTensorAddress", 3, "Parameter check failed")
                return False
            self._addresses[name] = memory
            return True

    def set_output_allocator(self, name: str, output_allocator: IOutputAllocator) -> bool:
        with self._alone():
            if name not in self._engine._outputs:
                return False
            self._allocators[name] = output_allocator
            return True

    def set_communicator(self, communicator: Any) -> bool:
        """Collective, as the real one says of itself: it waits for all ranks to come."""
        with self._alone():
            pointer = _pointer(communicator, b"ncclComm_t")
            found = nccl().found(pointer)
            ranks = set(self._engine._graph.ranks.values())
            where = "IExecutionContext::setCommunicator"
            if not found.is_blocking:
                self._error(where, 3, "NCCL's calls are in progress when they return.")
                return False
            if ranks and ranks != {found.world_size}:
                self._error(where, 3, f"The engine is of {ranks} ranks, not {found.world_size}.")
                return False
            try:
                found.local.meet("setCommunicator", None)
            except CommunicatorError as error:
                self._error(where, 1, str(error), "NCCL")
                return False
            self._communicator = pointer
            return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        with self._alone():
            queue = MACHINE.streams.get(stream_handle)
            if queue is None:
                raise Crash(f"stream {stream_handle:#x} does not exist (or is the default stream)")
            ready = self._check()
            if ready is None:
                return False
            if not self._memory:
                self._occupy(queue)
            if MACHINE.faulty("execute"):
                self._error("IExecutionContext::enqueueV3", 2, "Requested size was 4096 bytes.",
                            "OutOfMemory")  # fmt: skip
                return False
            if queue.recording is not None and not self._warm:
                self._error("IExecutionContext::enqueueV3", 1, "Shapes were changed: it has to run "
                            "once before it is captured.", "Cuda Runtime")  # fmt: skip
                return False
            if self._engine._graph.collectives():
                return self._launch(queue, ready)
            self._warm = True
            if any(-1 in shape for shape in ready.values()):
                return self._run_growing(queue, ready)
            shapes, addresses = dict(self._shapes), dict(self._addresses)
            if queue.recording is None:
                self._queued_by = threading.get_ident()
            itself = weakref.ref(self)  # what is queued keeps nothing alive

            def work() -> None:
                context = itself()
                if context is not None:  # else it was destroyed while it ran, which is noted
                    context._compute(shapes, addresses, ready)

            queue.put(work)
            return True

    def _launch(self, queue: Queue, ready: dict[str, tuple[int, ...]]) -> bool:
        """Queue an engine with collectives inside, which goes on by itself, as on a device."""
        where = "IExecutionContext::enqueueV3"
        if not self._communicator:
            self._error(where, 3, "Parameter check failed. No communicator is set.")
            return False
        if queue.recording is not None:
            self._error(where, 1, "operation not permitted when stream is capturing", "NCCL")
            return False
        library = nccl()
        found = library.found(self._communicator)  # a Crash where it was freed
        shapes, addresses = dict(self._shapes), dict(self._addresses)
        self._queued_by = threading.get_ident()

        def work() -> None:
            with exchanging(functools.partial(library.inside, found)):
                self._compute(shapes, addresses, ready)

        library.launch(found, queue, work)
        return True

    def _occupy(self, queue: Queue) -> None:
        """Use the user's scratch memory; Crash where work on another stream uses it too."""
        assert self._device is not None
        memory, size = self._scratch
        if size:
            self._device.bytes(memory, size)
        other = MACHINE.scratch.get(memory)
        if other is not None and other is not queue and not other.is_done:
            raise Crash(f"scratch memory {memory:#x} is used by two streams at once")
        MACHINE.scratch[memory] = queue

    def _check(self) -> dict[str, tuple[int, ...]] | None:
        """Return the outputs' shapes; None, with a logged error, where something is not set."""
        where = "IExecutionContext::enqueueV3"
        if not self._scratch[0]:
            self._error(where, 3, "Parameter check failed. Device memory is not set.")
            return None
        for name in self._engine._tensors:
            kind = "input" if name in self._engine._inputs else "output"
            if not self._addresses.get(name) and self._allocators.get(name) is None:
                self._error(
                    where, 3, f"Parameter check failed. Neither address or allocator is set for "
                    f"{kind} tensor {name}. Call set{kind.title()}TensorAddress, setTensorAddress "
                    "or setOutputAllocator before enqueue/execute.",
                )  # fmt: skip
                return None
        missing = [name for name in self._engine._inputs if name not in self._shapes]
        if missing:
            self._error(where, 3, f"Parameter check failed. Input shapes of {missing} are not set.")
            return None
        shapes = self._outputs()
        if shapes is None:
            return None
        for name, shape in shapes.items():
            if -1 in shape and self._allocators.get(name) is None:
                self._error(where, 3, f"Parameter check failed. Output {name} depends on the data "
                                      "and has no allocator.")  # fmt: skip
                return None
        return shapes

    def _inputs(
        self, shapes: dict[str, tuple[int, ...]], addresses: dict[str, int]
    ) -> dict[str, np.ndarray[Any, Any]]:
        assert self._device is not None
        values = {}
        for name, shape in shapes.items():
            dtype = np.dtype(_NUMPY[self._engine._tensors[name]["dtype"]])
            nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            memory = self._device.bytes(addresses[name], nbytes).copy()
            values[self._engine._graph.original(name)] = memory.view(dtype).reshape(shape)
        return values

    def _compute(
        self,
        shapes: dict[str, tuple[int, ...]],
        addresses: dict[str, int],
        outputs: dict[str, tuple[int, ...]],
    ) -> None:
        assert self._device is not None
        try:
            results = self._timed(self._inputs(shapes, addresses))
            for name, result in zip(self._engine._outputs, results, strict=True):
                if result.shape != outputs[name]:
                    raise Crash(f"{name} is {result.shape}, but inferred was {outputs[name]}")
                flat = np.ascontiguousarray(result).reshape(-1).view(np.uint8)
                self._device.bytes(addresses[name], flat.nbytes)[:] = flat
        finally:
            self._queued_by = None

    def _timed(self, inputs: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        begin_s = time.perf_counter()
        try:
            return self._engine._kernels(inputs)
        finally:
            self._took_ms = 1e3 * (time.perf_counter() - begin_s)

    def _run_growing(self, queue: Queue, outputs: dict[str, tuple[int, ...]]) -> bool:
        """Run now: the shapes of some outputs come out of the data; their memory is asked for."""
        assert self._device is not None
        queue.run()
        results = self._timed(self._inputs(self._shapes, self._addresses))
        for name, result in zip(self._engine._outputs, results, strict=True):
            flat = np.ascontiguousarray(result).reshape(-1).view(np.uint8)
            address = self._addresses.get(name, 0)
            if -1 in outputs[name]:
                address = self._allocators[name].reallocate_output_async(
                    name, address, flat.nbytes, _ADDRESS_ALIGNMENT, queue.handle
                )
                if not address:
                    text = f"Requested size was {flat.nbytes} bytes."
                    self._error("IExecutionContext::enqueueV3", 2, text, "OutOfMemory")
                    return False
                self._allocators[name].notify_shape(name, Dims(result.shape))
            self._device.bytes(address, flat.nbytes)[:] = flat
        return True
