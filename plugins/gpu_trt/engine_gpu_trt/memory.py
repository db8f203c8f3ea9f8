"""Device memory for the core: allocate, copy, order, and how much is left; four of the hooks."""

from __future__ import annotations

from contextlib import ExitStack
from typing import cast

import numpy as np

from engine.types import Device, DeviceBuffer, DeviceMemory, DType, Value
from engine_gpu_trt.cuda import Gpu, Stream, as_bytes, is_pinned, open_gpu
from engine_gpu_trt.slots import Array


def allocate(device: Device, dtype: DType, shape: tuple[int, ...], on_host: bool) -> Value:
    """Allocate memory for one tensor; see engine_buffer."""
    gpu = open_gpu(device.id)
    buffer = DeviceBuffer(0, shape, dtype, device)
    with gpu:
        if on_host:
            array: Array = np.asarray(gpu.pin(buffer.nbytes))[: buffer.nbytes]
            return array.view(dtype.numpy).reshape(shape)
        memory = gpu.allocate(buffer.nbytes)
    return DeviceBuffer(memory.pointer, shape, dtype, device, owner=memory)


def left(device: Device) -> DeviceMemory:
    """Return a device's memory now; see engine_memory. CUDA does not tell what one process has."""
    gpu = open_gpu(device.id)
    with gpu:
        try:
            free, total = gpu.memory()
        except gpu.Error as error:
            raise gpu.unavailable(error, "a look at its memory") from error
    return DeviceMemory(free_bytes=free, used_bytes=total - free)


def copy(source: Value, target: Value, stream: int | None) -> bool:
    """Copy a tensor; see engine_copy.

    Complete on return also where `stream` is not of this backend, or ordinary host memory takes
    part: the copy then goes through page-locked memory.
    """
    buffers = [value for value in (source, target) if isinstance(value, DeviceBuffer)]
    nbytes = buffers[0].nbytes
    if not nbytes:
        return True
    gpus = [open_gpu(buffer.device.id) for buffer in buffers]
    gpu = gpus[-1]  # the target's, where both are on a device
    with gpu, ExitStack() as closing:
        try:
            on = gpu.find_stream(stream) if stream else None
            is_queued = on is not None
            if on is None:
                on = gpu.stream()
                closing.callback(on.close)
                if stream is not None:
                    gpus[0].order(stream, on)
            for buffer, owner in zip(buffers, gpus, strict=True):
                if buffer.stream is not None:
                    owner.order(buffer.stream, on)
            if len(buffers) == 2:
                _between(buffers[0], buffers[1], nbytes, gpus, on)
            else:
                array = cast("Array", target if isinstance(source, DeviceBuffer) else source)
                to_host = target is array
                is_queued = _with_host(buffers[0], array, gpu, on, to_host) and is_queued
            if not is_queued:
                on.synchronize()
        except gpu.Error as error:
            raise gpu.unavailable(error, f"a copy of {nbytes} bytes") from error
    return True


def _between(
    source: DeviceBuffer, target: DeviceBuffer, nbytes: int, gpus: list[Gpu], on: Stream
) -> None:
    origin, gpu = gpus
    if origin is gpu:
        gpu.copy_within(target.pointer, source.pointer, nbytes, on.raw)
    else:
        gpu.copy_across(target.pointer, source.pointer, nbytes, origin, on)


def _with_host(buffer: DeviceBuffer, array: Array, gpu: Gpu, on: Stream, to_host: bool) -> bool:
    """Copy between a device and the host. Return whether it may still be queued."""
    host = as_bytes(array)
    if is_pinned(array):
        if to_host:
            gpu.copy_out(host, buffer.pointer, on.raw)
        else:
            gpu.copy_in(buffer.pointer, host, on.raw)
        return True
    pinned = gpu.pin(host.nbytes)
    try:
        staged = pinned.array[: host.nbytes]
        if to_host:
            gpu.copy_out(staged, buffer.pointer, on.raw)
            on.synchronize()
            host[:] = staged
        else:
            staged[:] = host
            gpu.copy_in(buffer.pointer, staged, on.raw)
            on.synchronize()
    finally:
        pinned.close()
    return False


def order(device: Device, earlier: int, later: int | None) -> bool:
    """Order one stream after another; see engine_order.

    Where `later` is not of this backend, the calling thread waits: pycuda cannot name it.
    """
    gpu = open_gpu(device.id)
    stream = gpu.find_stream(later) if later else None
    if stream is not None:
        gpu.order(earlier, stream)
    elif earlier != later:
        with gpu:
            gpu.wait(earlier)
    return True
