"""A null backend with a device whose memory the host cannot read: pointers are handles.

For `install(name, extra=SOURCE, capabilities=CAPABILITIES)`. The module notes `copies`, the pairs
of kinds that engine_copy was called with; `given`, the options of each load; `ran`, for each
predict the context, its inputs and its outputs; `neighbours`, what each context was opened beside.
While `hold` is set, a predict waits until its context is cancelled.
"""

CAPABILITIES = frozenset(
    {
        "dynamic_shapes",
        "mixed_placement",
        "files_in_memory",
        "device_buffers",
        "share_workspace",
        "cancel_predict",
    }
)

SOURCE = """
import itertools
import threading
import time

import numpy as np

from engine.errors import Cancelled
from engine.reference.evaluator import load as _load
from engine.types import Device, DeviceBuffer, DType

memory = {}
copies, given, ran, neighbours = [], [], [], []
hold, waiting = threading.Event(), threading.Event()
_pointers = itertools.count(4096, 4096)


class Owner:
    def __init__(self, pointer):
        self.pointer = pointer

    def __del__(self):
        memory.pop(self.pointer, None)


def allocate(array, device):
    pointer = next(_pointers)
    memory[pointer] = array
    dtype = DType.from_numpy(array.dtype)
    return DeviceBuffer(pointer, array.shape, dtype, device, owner=Owner(pointer))


class Loaded:
    def __init__(self, inner, options):
        self.inner, self.options = inner, options
        self.inputs, self.outputs, self.unsupported = inner.inputs, inner.outputs, inner.unsupported

    def compile(self, options):
        assert options is self.options, "load and compile get the same object"
        return FakeExecutable(self.inner.compile(options), options)

    def close(self):
        self.inner.close()


class FakeExecutable:
    def __init__(self, inner, options):
        self.inner, self.options = inner, options
        self.inputs, self.outputs = inner.inputs, inner.outputs
        self.placement, self.memory, self.close = inner.placement, inner.memory, inner.close

    def open_context(self, beside=None):
        context = FakeContext(self)
        neighbours.append((context, beside))
        return context


class FakeContext:
    def __init__(self, executable):
        self.executable = executable
        self.inner = executable.inner.open_context()
        self.resident = {}
        self.cancelled = False

    def cancel(self):
        self.cancelled = True

    def close(self):
        self.inner.close()

    def run(self, inputs, outputs, deadline_s):
        while hold.is_set() and not self.cancelled:
            waiting.set()
            time.sleep(0.001)
        if self.cancelled:
            raise Cancelled("cancelled")
        device = self.executable.options.device
        arrays = [memory[v.pointer] if isinstance(v, DeviceBuffer) else v for v in inputs]
        results = []
        found = self.inner.run(arrays, None, deadline_s)
        for index, (array, spec) in enumerate(zip(found, self.executable.outputs, strict=True)):
            entry = outputs[index] if outputs is not None else None
            if spec.name in self.executable.options.resident:
                assert entry is None
                kept = self.resident.get(spec.name)
                if kept is None or kept.shape != array.shape:
                    kept = self.resident[spec.name] = allocate(np.empty_like(array), device)
                memory[kept.pointer][...] = array
                results.append(kept)
            elif isinstance(entry, Device):
                results.append(allocate(array, entry))
            elif isinstance(entry, DeviceBuffer):
                memory[entry.pointer][...] = array
                results.append(entry)
            elif entry is not None:
                assert entry.shape == array.shape
                entry[...] = array
                results.append(entry)
            else:
                results.append(array)
        ran.append((self, list(inputs), list(results)))
        given = outputs is not None and all(a is b for a, b in zip(results, outputs))
        return outputs if given else results


@hookimpl
def engine_load(source, options):
    given.append(options)
    return Loaded(_load(source, host({name!r}, DEVICE, options.options)), options)


@hookimpl
def engine_compile(loaded, options):
    return loaded.compile(options)


@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    return context.run(inputs, outputs, deadline_s)


@hookimpl
def engine_buffer(device, dtype, shape, on_host):
    array = np.empty(shape, dtype.numpy)
    return array if on_host else allocate(array, device)


@hookimpl
def engine_copy(source, target, stream):
    copies.append((type(source).__name__, type(target).__name__))
    array = memory[source.pointer] if isinstance(source, DeviceBuffer) else source
    into = memory[target.pointer] if isinstance(target, DeviceBuffer) else target
    into[...] = array
    return True


@hookimpl
def engine_order(device, earlier, later):
    return True
"""
