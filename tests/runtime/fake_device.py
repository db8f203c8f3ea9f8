"""A backend with a device whose memory the host cannot read: a pointer is a number, no address.

It computes with onnx's reference evaluator. Its acts are noted in `copies`, `orders` and `given`;
memory is freed with its owner. `announced` and `slots` change it before a model is built, `delay_s`
at any time, also for the runs there are.
"""

from __future__ import annotations

import itertools
import threading
import time
from operator import is_

import numpy as np

from engine.errors import Cancelled
from engine.hookspecs import hookimpl
from engine.reference.evaluator import Host, load
from engine.types import BackendInfo, Capability, Device, DeviceBuffer, DeviceInfo, Devices, DType

DEVICE = Device("fake", 0)
memory: dict[int, np.ndarray] = {}
orders: list[tuple[int, int | None]] = []
copies: list[tuple[str, str]] = []
given: list[tuple[list[object], list[object] | None]] = []
contexts: list[FakeContext] = []
numbers = itertools.count(2**40, 2**20)
announced = {Capability.DYNAMIC_SHAPES, Capability.DEADLINES, Capability.DEVICE_BUFFERS} | {
    Capability.CANCEL_PREDICT
}
slots = 0
delay_s = 0.0
at_once: list[int] = []
running: set[int] = set()


class Owner:
    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def __del__(self) -> None:
        memory.pop(self.pointer, None)


def where(value: object) -> str:
    return "device" if isinstance(value, DeviceBuffer) else "host"


def contents(value):
    if isinstance(value, DeviceBuffer):
        return memory[value.pointer].reshape(value.shape)
    return value


@hookimpl
def engine_backend():
    return BackendInfo(
        name="fake", version="0", device_types=("fake",), capabilities=frozenset(announced)
    )


@hookimpl
def engine_devices():
    return Devices(found=(DeviceInfo(DEVICE, "a device of tests"),))


@hookimpl
def engine_load(source, options):
    return load(source, Host("fake", DEVICE, frozenset(), 0.0))


@hookimpl
def engine_compile(loaded, options):
    return FakeExecutable(loaded.compile(options))


@hookimpl
def engine_buffer(device, dtype, shape, on_host):
    pointer = next(numbers)
    memory[pointer] = np.full(shape, 77, dtype.numpy)  # undefined contents, for certain
    return DeviceBuffer(pointer, shape, dtype, device, None, Owner(pointer))


@hookimpl
def engine_copy(source, target, stream):
    copies.append((where(source), where(target)))
    contents(target)[...] = contents(source)
    return True


@hookimpl
def engine_order(device, earlier, later):
    orders.append((earlier, later))
    return True


@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    return context.run(inputs, outputs, deadline_s)


class FakeExecutable:
    def __init__(self, inner) -> None:
        self.inner = inner
        self.inputs, self.outputs = inner.inputs, inner.outputs
        self.placement, self.memory, self.close = inner.placement, inner.memory, inner.close
        self.concurrency = slots

    def open_context(self):
        context = FakeContext(self.inner.open_context())
        contexts.append(context)
        return context


class FakeContext:
    def __init__(self, inner) -> None:
        self.inner = inner
        self.closed = self.resets = 0
        self.stopped = threading.Event()

    def run(self, inputs, outputs, deadline_s):
        assert not self.closed
        assert id(self) not in running, "two predicts in one context"
        running.add(id(self))
        at_once.append(len(running))
        try:
            given.append((list(inputs), None if outputs is None else list(outputs)))
            begin = time.monotonic()
            while time.monotonic() < begin + delay_s:
                if self.stopped.wait(0.005):
                    raise Cancelled("stopped")
            results = self.inner.run([contents(value) for value in inputs], None, deadline_s)
            filled = [
                self.put(result, place)
                for result, place in zip(results, outputs or [None] * len(results), strict=True)
            ]
            if outputs and all(map(is_, filled, outputs)):
                return outputs
            return filled
        finally:
            running.discard(id(self))

    def put(self, result, place):
        if place is None:
            return result
        if isinstance(place, Device):
            place = engine_buffer(place, DType.from_numpy(result.dtype), result.shape, False)
        contents(place)[...] = result
        return place

    def reset(self):
        self.resets += 1

    def cancel(self):
        self.stopped.set()

    def close(self):
        self.closed += 1
