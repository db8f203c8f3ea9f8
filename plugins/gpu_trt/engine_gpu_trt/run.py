"""One execution context: host arrays through pinned memory to the device, and back.

A predict copies the inputs into pinned memory, queues their copies to the device, the network
and the copies of the results on the context's own stream, waits for it once, and copies the
results out. Buffers grow to the largest shape seen and stay. Shapes, addresses and the profile
are told to TensorRT only when shapes change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from engine.errors import BackendUnavailable, InputError, ModelError
from engine.types import ShapeRange, TensorSpec, Values
from engine_gpu_trt import messages
from engine_gpu_trt.cuda import Bytes, DeviceMemory, Gpu, PinnedMemory
from engine_gpu_trt.engines import Engine
from engine_gpu_trt.profiles import fits

Array = npt.NDArray[Any]
Shapes = tuple[tuple[int, ...], ...]


class Slot:
    """Where one input or output lies: the same bytes in pinned host memory and on the device.

    name: the engine's name. bytes: the pinned bytes in use; view: these as an array.
    allocator: gives the device memory of an output whose shape depends on the data.
    """

    def __init__(self, gpu: Gpu, name: str, spec: TensorSpec) -> None:
        self.gpu = gpu
        self.name = name
        self.spec = spec
        self.dtype = spec.dtype.numpy
        self.capacity = -1
        self.device: DeviceMemory | None = None
        self.pinned: PinnedMemory | None = None
        self.allocator: Any = None
        self.bytes: Bytes = np.empty(0, np.uint8)
        self.view: Array = np.empty(0, self.dtype)

    @property
    def pointer(self) -> int:
        """The device address."""
        device = self.device if self.allocator is None else self.allocator.memory
        return device.pointer if device is not None else 0

    @property
    def device_bytes(self) -> int:
        """Device memory held."""
        return max(0, self.capacity if self.allocator is None else self.allocator.capacity)

    def resize(self, shape: tuple[int, ...]) -> None:
        """Make room for `shape`, inside `with gpu`.

        Raises BackendUnavailable where memory is short; then there is none, until the next call.
        """
        nbytes = self.dtype.itemsize * math.prod(shape)
        if nbytes > self.capacity:
            self.close()  # first: the old and the new together may be too much
            self.pinned = self.gpu.pin(nbytes)
            if self.allocator is None:
                self.device = self.gpu.allocate(nbytes)
            self.capacity = nbytes
        assert self.pinned is not None
        self.bytes = self.pinned.array[:nbytes]
        self.view = self.bytes.view(self.dtype).reshape(shape)

    def close(self) -> None:
        """Free both memories, inside `with gpu`."""
        self.bytes = np.empty(0, np.uint8)
        self.view = np.empty(0, self.dtype)
        device, pinned = self.device, self.pinned
        self.device = self.pinned = None
        self.capacity = -1
        with ExitStack() as closing:  # the second also where the first fails
            for memory in (device, pinned):
                if memory is not None:
                    closing.callback(memory.close)


class Run:
    """A context's memory, stream and TensorRT context; `TrtContext` owns it."""

    def __init__(
        self,
        engine: Engine,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        names: Mapping[str, str],
    ) -> None:
        self.gpu = gpu = engine.gpu
        self.engine = engine
        self.inputs = [Slot(gpu, names.get(spec.name, spec.name), spec) for spec in inputs]
        self.outputs = [Slot(gpu, spec.name, spec) for spec in outputs]
        # TensorRT may have dropped an input that nothing reads.
        self._fed = [slot for slot in self.inputs if slot.name in engine.inputs]
        self._shapes: Shapes | None = None
        self._profile = 0
        self._closed = False
        self._context: Any = None
        mark = messages.mark()
        with gpu, ExitStack() as undo:
            self._stream = gpu.stream()
            undo.callback(self._stream.close)
            self._context = engine.engine.create_execution_context()
            self.activation_bytes = int(engine.engine.device_memory_size_v2)
            if self._context is None:
                raise BackendUnavailable(
                    f"{gpu.name}: TensorRT makes no execution context: "
                    f"{gpu.shortage(f'{self.activation_bytes} bytes to run in')}; "
                    f"TensorRT says: {messages.since(mark)}",
                    "gpu_trt",
                )
            undo.pop_all()
        engine.runs[id(self)] = self

    @property
    def device_bytes(self) -> int:
        """Device memory that this context holds."""
        slots = (*self.inputs, *self.outputs)
        return 0 if self._closed else self.activation_bytes + sum(s.device_bytes for s in slots)

    def predict(self, inputs: Values, outputs: Values | None) -> Values:
        """See engine_predict; the arrays are as the core has checked them."""
        arrays = cast("list[Array]", inputs)
        stream = self._stream
        if self._closed:
            raise BackendUnavailable("the context is closed; open another one", "gpu_trt")
        with self.gpu as gpu:
            try:
                shapes = tuple([array.shape for array in arrays])
                if shapes != self._shapes:
                    self._reshape(shapes)
                for slot, array in zip(self.inputs, arrays, strict=True):
                    np.copyto(slot.view, array)
                for slot in self._fed:
                    if slot.bytes.size:
                        gpu.copy_in(slot.pointer, slot.bytes, stream.raw)
                mark = messages.mark()
                if not self._context.execute_async_v3(stream.handle):
                    raise self._failure(messages.since(mark))
                for slot in self.outputs:
                    if slot.allocator is not None:
                        slot.resize(slot.allocator.shape)
                    if slot.bytes.size:
                        gpu.copy_out(slot.bytes, slot.pointer, stream.raw)
                stream.synchronize()
            except BaseException as error:
                self._shapes = None  # whatever TensorRT was told: the next call tells it anew
                with suppress(gpu.Error):  # what is queued still uses this context's memory
                    stream.synchronize()
                if isinstance(error, gpu.Error):
                    raise gpu.unavailable(error, "a predict") from error
                raise
        if outputs is None:
            return [slot.view.copy() for slot in self.outputs]  # the caller owns the result
        results = [
            slot.view.copy() if given is None else _filled(slot, cast("Array", given))
            for slot, given in zip(self.outputs, outputs, strict=True)
        ]
        return outputs if all(given is not None for given in outputs) else results

    def close(self) -> None:
        """Free everything, whatever of it fails to be freed; twice does nothing."""
        if self._closed:
            return
        self._closed = True
        self.engine.runs.pop(id(self), None)
        with self.gpu, ExitStack() as closing:
            # Last in, first out: TensorRT's context goes before the memory that it points to.
            for slot in (*self.inputs, *self.outputs):
                closing.callback(slot.close)
                if slot.allocator is not None:
                    closing.callback(slot.allocator.close)
            closing.callback(self._stream.close)
            self._context = None

    # ------------------------------------------------------------------------------ one predict

    def _reshape(self, shapes: Shapes) -> None:
        """Tell TensorRT the inputs' new shapes, and make room for them and what comes of them."""
        mark = messages.mark()
        self._choose_profile(shapes)
        for slot, shape in zip(self.inputs, shapes, strict=True):
            slot.resize(shape)
        for slot in self._fed:
            if not self._context.set_input_shape(slot.name, slot.view.shape):
                raise InputError(
                    f"input {slot.spec.name!r}: TensorRT does not take the shape "
                    f"{list(slot.view.shape)}: {messages.since(mark)}",
                    slot.spec.name,
                )
            self._set_address(slot)
        try:
            missing = self._context.infer_shapes()
        except RuntimeError as error:  # the shapes contradict each other inside the network
            raise ModelError(f"TensorRT cannot run these shapes: {messages.since(mark)}") from error
        assert not missing, f"TensorRT misses the shapes of {missing}"
        for slot in self.outputs:
            shape = tuple(self._context.get_tensor_shape(slot.name))
            if -1 not in shape:
                slot.resize(shape)
                self._set_address(slot)
            elif slot.allocator is None:
                # Its shape depends on the data: TensorRT asks for memory when it knows it.
                slot.allocator = _allocator(self.engine.trt)(self.gpu)
                self._context.set_output_allocator(slot.name, slot.allocator)
        self._shapes = shapes

    def _choose_profile(self, shapes: Shapes) -> None:
        wanted = {slot.name: shape for slot, shape in zip(self.inputs, shapes, strict=True)}
        fitting = (
            index
            for index, profile in enumerate(self.engine.profiles)
            if all(fits(wanted[name], ranges) for name, ranges in profile.items())
        )
        index = next(fitting, None)
        if index is None:
            raise self._outside(wanted)
        if index != self._profile:
            if not self._context.set_optimization_profile_async(index, self._stream.handle):
                raise BackendUnavailable(f"TensorRT does not switch to profile {index}", "gpu_trt")
            self._stream.synchronize()
            self._profile = index

    def _outside(self, shapes: Mapping[str, tuple[int, ...]]) -> InputError:
        for slot in self._fed:
            ranges = [profile[slot.name] for profile in self.engine.profiles]
            if not any(fits(shapes[slot.name], each) for each in ranges):
                return InputError(
                    f"input {slot.spec.name!r}: shape {list(shapes[slot.name])} is outside "
                    f"{' and '.join(map(_text, ranges))}, which the model was compiled for; "
                    "compile it for a wider range",
                    slot.spec.name,
                )
        return InputError(
            "the inputs' shapes fit different profiles, and one must fit them all: "
            f"{ {name: list(shape) for name, shape in shapes.items()} }"
        )

    def _set_address(self, slot: Slot) -> None:
        if not self._context.set_tensor_address(slot.name, slot.pointer):
            raise BackendUnavailable(
                f"TensorRT does not take the address of {slot.name!r}", "gpu_trt"
            )

    def _failure(self, heard: messages.Heard) -> Exception:
        for slot in self.outputs:
            if slot.allocator is not None and slot.allocator.error is not None:
                error: Exception = slot.allocator.error
                return error
        if heard.out_of_memory:
            return BackendUnavailable(
                f"{self.gpu.name}: out of memory while predicting: "
                f"{self.gpu.shortage('room for the activations')}; TensorRT says: {heard}",
                "gpu_trt",
            )
        return ModelError(f"TensorRT cannot run the model on these inputs: {heard}")


@cache
def _allocator(trt: Any) -> Any:
    """The class that gives TensorRT memory for one output as it learns how much it needs."""

    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]  # of a module without types
        def __init__(self, gpu: Gpu) -> None:
            trt.IOutputAllocator.__init__(self)
            self._gpu = gpu
            self.capacity = -1
            self.memory: DeviceMemory | None = None
            self.shape: tuple[int, ...] = ()
            self.error: BackendUnavailable | None = None

        def reallocate_output_async(
            self, tensor_name: str, memory: int, size: int, alignment: int, stream: int
        ) -> int:
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def reallocate_output(
            self, tensor_name: str, memory: int, size: int, alignment: int
        ) -> int:
            self.error = None
            if size > self.capacity:
                with self._gpu:
                    self.close()
                    try:
                        self.memory = self._gpu.allocate(size)
                    except BackendUnavailable as error:
                        self.error = error  # TensorRT prints what is raised: 0 tells it no
                        return 0
                self.capacity = size
            assert self.memory is not None
            return self.memory.pointer

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            self.shape = tuple(shape)

        def close(self) -> None:
            self.capacity = -1
            if self.memory is not None:
                self.memory.close()
                self.memory = None

    return Allocator


def _filled(slot: Slot, given: Array) -> Array:
    if given.shape != slot.view.shape:
        raise InputError(
            f"output {slot.spec.name!r}: expected a buffer of {slot.spec.dtype}"
            f"{list(slot.view.shape)}, got {list(given.shape)}",
            slot.spec.name,
        )
    np.copyto(given, slot.view)
    return given


def _text(ranges: ShapeRange) -> str:
    return f"{list(ranges.lowest)}..{list(ranges.highest)}"
