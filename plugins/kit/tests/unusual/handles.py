"""Device memory that is no address: handles, and buffers that are never written again."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from faulty import Executable, Faulty

from engine.errors import InputError
from engine.types import Capability, DeviceBuffer
from engine_testing.fake_device import FakeDevice
from engine_testing.null_device import DEVICE

# Tests of device memory or of several contexts are the emulated device's, not these two's.
NOT_HERE = {
    Capability.COLLECTIVES, Capability.QUEUED_COLLECTIVES, Capability.SHARE_WEIGHTS,
    Capability.SHARE_WORKSPACE, Capability.UPDATE_WEIGHTS, Capability.DEVICE_MEMORY,
    Capability.STRIDED_BUFFERS,
}  # fmt: skip


class Held:
    """The owner of a handle: the contents go with it."""

    def __init__(self, table: dict[int, bytes], handle: int) -> None:
        self.table, self.handle = table, handle

    def __del__(self) -> None:
        self.table.pop(self.handle, None)


class HandleDevice(FakeDevice):
    """Memory behind small numbers that mean nothing: no part of a buffer has one.

    Contents are bytes that nobody can write to: who fills a buffer puts others behind its handle.
    """

    def __init__(self) -> None:
        super().__init__(DEVICE)
        self._contents: dict[int, bytes] = {}
        self._numbers = itertools.count(1)

    def allocate(self, dtype, shape, stream=None):
        handle = next(self._numbers)
        nbytes = (prod(shape) * dtype.bits + 7) // 8
        self._contents[handle] = b"\xa5" * nbytes
        owner = Held(self._contents, handle)
        return DeviceBuffer(handle, shape, dtype, self.device, stream, owner)

    def _memory(self, buffer: DeviceBuffer) -> memoryview:
        found = self._contents.get(buffer.pointer)
        if found is None or len(found) != buffer.nbytes:
            raise InputError(
                f"{self.device}: {buffer.pointer} is no handle of {buffer.nbytes} bytes; a part "
                "of a buffer has none"
            )
        return memoryview(found)

    def write(self, value: Any, contents: Any) -> None:
        if isinstance(value, np.ndarray):
            np.copyto(value, contents)
            return
        self._memory(value)
        data = np.ascontiguousarray(contents).reshape(-1).view(np.uint8).tobytes()
        self._contents[value.pointer] = data


class OpaqueHandles(Faulty):
    """A runtime that gives handles where others give addresses."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.handles = HandleDevice()

    def manifest(self):
        info = super().manifest()
        return replace(info, capabilities=info.capabilities - NOT_HERE)

    def compile(self, loaded, options):
        from engine_testing.null_run import NullExecutable  # importing a plugin imports no runtime

        inner = loaded.compile(options)
        return Executable(self, NullExecutable(inner, self.handles, options, 0), options=options)

    def buffer(self, device, dtype, shape, on_host):
        return np.empty(shape, dtype.numpy) if on_host else self.handles.allocate(dtype, shape)

    def copy(self, source, target, stream):
        self.handles.copy(source, target, stream)
        return True

    def order(self, device, earlier, later):
        self.handles.order(earlier, later)
        return True


class ImmutableBuffers(OpaqueHandles):
    """A runtime whose results are complete, new in every predict, and read-only on the host."""

    def predict(self, context, inputs, outputs, deadline_s):
        context.inner._resident.clear()  # what was given out is never written again
        results = super().predict(context, inputs, outputs, deadline_s)
        given = [None] * len(results) if outputs is None else outputs
        values = []
        for value, wanted in zip(results, given, strict=True):
            if isinstance(value, DeviceBuffer) and value is not wanted:
                self.handles.synchronise(value.stream)
                values.append(replace(value, stream=None))
            elif isinstance(value, np.ndarray) and wanted is None:
                value.flags.writeable = False
                values.append(value.copy())  # the contract: it belongs to the caller
            else:
                values.append(value)
        return outputs if outputs is not None and results is outputs else values
