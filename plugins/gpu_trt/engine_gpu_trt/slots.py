"""Memory for one input or output of a context, on the host and on the device."""

from __future__ import annotations

import math
from contextlib import ExitStack
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import BackendUnavailable, InputError
from engine.types import Device, DeviceBuffer, TensorSpec
from engine_gpu_trt.cuda import Bytes, DeviceMemory, Gpu, PinnedMemory

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

ALIGNMENT = 256
"""Bytes that TensorRT wants a tensor's address to be a multiple of."""


class Slot:
    """Memory for one input or output: device memory, and page-locked memory to copy through.

    Both are made when they are first needed, grow to the largest shape seen, and stay.

    name: the engine's name. shape, nbytes: of the tensor in the current predict.
    bytes: the page-locked bytes in use; view: these as an array; only after `stage`.
    address: what TensorRT was told last. is_settled: that is this memory, and it is staged, so
    that a host array needs only its copies. growing: gives the memory of an output whose shape
    depends on the data; None for any other.
    """

    def __init__(self, gpu: Gpu, name: str, spec: TensorSpec) -> None:
        self.gpu = gpu
        self.name = name
        self.spec = spec
        self.dtype = spec.dtype.numpy
        self.shape: Shape = ()
        self.nbytes = 0
        self.address = 0
        self.growing: Any = None
        self.memory: DeviceMemory | None = None
        self.buffer: DeviceBuffer | None = None
        self.staged = False
        self.is_settled = False
        self.bytes: Bytes = np.empty(0, np.uint8)
        self.view: Array = np.empty(0, self.dtype)
        self._capacity = -1
        self._pinned: PinnedMemory | None = None
        self._pinned_capacity = -1
        self._is_lent = False

    @property
    def device_bytes(self) -> int:
        """Device memory held."""
        return max(0, self._capacity if self.growing is None else self.growing.capacity)

    def reshape(self, shape: Shape) -> None:
        """Take another shape; memory follows when it is needed."""
        self.shape = shape
        self.nbytes = self.dtype.itemsize * math.prod(shape)
        self.staged = self.is_settled = False
        self.buffer = None

    def ensure_memory(self) -> int:
        """Return the address of device memory for the current shape, inside `with gpu`.

        Raises BackendUnavailable where memory is short; then there is none, until the next call.
        """
        if self.growing is not None:
            return self.growing.memory.pointer if self.growing.memory is not None else 0
        if self.memory is None or self.nbytes > self._capacity:
            self._drop()  # first: the old and the new together may be too much
            self.memory = self.gpu.allocate(self.nbytes)
            self._capacity = self.nbytes
        return self.memory.pointer

    def stage(self) -> None:
        """Make page-locked memory for the current shape, inside `with gpu`; as `place` raises."""
        if self.nbytes > self._pinned_capacity:
            self.bytes, self.view = np.empty(0, np.uint8), np.empty(0, self.dtype)
            pinned, self._pinned, self._pinned_capacity = self._pinned, None, -1
            if pinned is not None:
                pinned.close()
            self._pinned = self.gpu.pin(self.nbytes)
            self._pinned_capacity = self.nbytes
        assert self._pinned is not None
        self.bytes = self._pinned.array[: self.nbytes]
        self.view = self.bytes.view(self.dtype).reshape(self.shape)
        self.staged = True

    def check_shape(self, given: Shape) -> None:
        """Raise InputError where a buffer for this output has another shape."""
        if given != self.shape:
            raise InputError(
                f"output {self.spec.name!r}: expected a buffer of {self.spec.dtype}"
                f"{list(self.shape)}, got {list(given)}",
                self.spec.name,
            )

    def lend(self, device: Device, stream: int) -> DeviceBuffer:
        """Return the device memory as a value: the very same one until the shape changes."""
        pointer = self.ensure_memory()
        if self.buffer is None or self.buffer.pointer != pointer:
            owner = self.memory if self.growing is None else self.growing.lend()
            self.buffer = DeviceBuffer(pointer, self.shape, self.spec.dtype, device, stream, owner)
            self._is_lent = True
        return self.buffer

    def _drop(self) -> None:
        """Let go of the device memory; it is freed now unless somebody was lent it."""
        memory, self.memory, self.buffer = self.memory, None, None
        self._capacity, self.address, self.is_settled = -1, 0, False
        if memory is not None and not self._is_lent:
            memory.close()
        self._is_lent = False

    def close(self) -> None:
        """Free both memories, inside `with gpu` and with nothing queued on them."""
        self.staged = False
        self.bytes, self.view = np.empty(0, np.uint8), np.empty(0, self.dtype)
        pinned, self._pinned, self._pinned_capacity = self._pinned, None, -1
        with ExitStack() as closing:  # each also where another fails
            if pinned is not None:
                closing.callback(pinned.close)
            if self.growing is not None:
                closing.callback(self.growing.close)
            closing.callback(self._drop)


@cache
def growing_output(trt: Any) -> Any:
    """Return the class that gives TensorRT memory for one output as it learns how much it needs."""

    class GrowingOutput(trt.IOutputAllocator):  # type: ignore[misc]  # of a module without types
        def __init__(self, gpu: Gpu) -> None:
            trt.IOutputAllocator.__init__(self)
            self._gpu = gpu
            self.capacity = -1
            self.memory: DeviceMemory | None = None
            self.shape: Shape = ()
            self.error: BackendUnavailable | None = None
            self._is_lent = False

        def reallocate_output_async(
            self, tensor_name: str, memory: int, size: int, alignment: int, stream: int
        ) -> int:
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def reallocate_output(
            self, tensor_name: str, memory: int, size: int, alignment: int
        ) -> int:
            self.error = None
            if self.memory is None or size > self.capacity:
                with self._gpu:
                    self.close()
                    try:
                        self.memory = self._gpu.allocate(size)
                    except BackendUnavailable as error:
                        self.error = error  # TensorRT prints what is raised: 0 tells it no
                        return 0
                self.capacity = size
            return self.memory.pointer

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            self.shape = tuple(shape)

        def lend(self) -> DeviceMemory:
            """Return the memory, which is freed when whoever got it lets go too."""
            assert self.memory is not None
            self._is_lent = True
            return self.memory

        def close(self) -> None:
            """Let go of the memory; it is freed now unless somebody was lent it."""
            memory, self.memory, self.capacity = self.memory, None, -1
            if memory is not None and not self._is_lent:
                memory.close()
            self._is_lent = False

    return GrowingOutput
