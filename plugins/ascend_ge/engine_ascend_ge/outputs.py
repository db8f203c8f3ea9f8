"""The outputs of a context: where the model writes each, and how it comes to the caller."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.errors import InputError, ModelError
from engine.types import Device, DeviceBuffer, Value, Values
from engine_ascend_ge import streams
from engine_ascend_ge.acl_call import DEVICE_TO_DEVICE, DEVICE_TO_HOST, done, got, made
from engine_ascend_ge.buffers import Buffer, Dataset
from engine_ascend_ge.layout import Layout, Output, settled
from engine_ascend_ge.memory import DeviceMemory

Shape = tuple[int, ...]


class Outputs:
    """The outputs of one load of a model.

    dataset: names their memory to ACL; somebody else closes it. resident: those that stay in this
    context's memory. ACL's current context is the device's in every method.
    """

    def __init__(
        self,
        acl: Any,
        home: int,
        name: str,
        device: Device,
        layout: Layout,
        dataset: Dataset,
        resident: frozenset[str],
    ) -> None:
        self._acl = acl
        self._home = home
        self._name = name
        self._device = device
        self.layout = layout
        self._dataset = dataset
        self._resident_names = resident
        self._resident: dict[int, DeviceBuffer] = {}  # by the output's index

    @property
    def handle(self) -> int:
        """Return the dataset's handle."""
        return self._dataset.handle

    @property
    def all_bound(self) -> bool:
        """Return whether the model has memory to write to for each; else CANN allocates it."""
        return all(buffer.pointer for buffer in self._dataset.buffers)

    def stay(self, given: Values) -> bool:
        """Return whether all results stay here, in memory that is used as long as the stream is.

        Not where only a run that has ended says how large they are.
        """
        return not self.layout.is_ranged and all(
            entry is None and out.spec.name in self._resident_names
            for out, entry in zip(self.layout.outs, given, strict=True)
        )

    def bind(
        self, inputs: Values, given: Values, shapes: Sequence[Shape | None], stream: int
    ) -> dict[int, DeviceMemory]:
        """Bind where the model writes each output to: given memory, new memory, or its own.

        stream: where the run is queued next. Returns the new memory, by the output's index; it is
        the caller's in the end.
        """
        fresh: dict[int, DeviceMemory] = {}
        read = [
            (value.pointer, value.pointer + value.nbytes)
            for value in inputs
            if isinstance(value, DeviceBuffer)
        ]
        for index, (out, entry, shape) in enumerate(
            zip(self.layout.outs, given, shapes, strict=True)
        ):
            buffer = self._dataset.buffers[out.port.index]
            nbytes = math.prod(shape) * out.spec.dtype.bits // 8 if shape is not None else 0
            if isinstance(entry, DeviceBuffer):
                is_direct = (
                    entry.shape == shape
                    and nbytes > 0
                    and entry.pointer % streams.ALIGNMENT == 0
                    and not _overlaps(entry.pointer, nbytes, read)
                )
                if entry.stream is not None:
                    later = stream if is_direct else None
                    streams.order(self._device.id, entry.stream, later)
                if is_direct:
                    buffer.bind(entry.pointer, nbytes)
                    continue
            if isinstance(entry, Device) and shape is not None:
                what = f"output {out.spec.name!r}"
                memory = DeviceMemory.allocate(self._acl, self._home, nbytes, what, self._name)
                fresh[index] = memory
                buffer.bind(memory.pointer, memory.nbytes)
            elif shape is None and not out.port.nbytes:
                buffer.bind(0, 0)  # CANN allocates memory for the result
            else:
                # Of open shapes CANN may know no more than an upper bound.
                is_exact = shape is not None and self.layout.is_ranged and out.port.is_open
                own = buffer.fit(nbytes if is_exact else out.port.nbytes)
                if _overlaps(own.pointer, own.nbytes, read):
                    # A result that this context gave as resident is its input now: it stays whole.
                    buffer.stage.release()
                    buffer.fit(buffer.nbytes)
        return fresh

    def drop_results(self) -> None:
        """Free what CANN allocated for results, unless it is somebody's by now."""
        for buffer in self._dataset.buffers:
            memory = None if buffer.pointer else buffer.take_result(0)
            if memory is not None:
                memory.close()

    def collect(
        self,
        given: Values,
        expected: Sequence[Shape | None],
        fresh: dict[int, DeviceMemory],
        stream: int | None,
    ) -> Values:
        """Return the results where they were wanted: on the host, or on the device.

        stream: what they are to be ordered after; None where the run has ended.
        """
        layout = self.layout
        shapes = [
            self._actual_shape(out, shape) for out, shape in zip(layout.outs, expected, strict=True)
        ]
        for out, shape, entry in zip(layout.outs, shapes, given, strict=True):
            if isinstance(entry, np.ndarray | DeviceBuffer) and entry.shape != shape:
                raise InputError(
                    f"output {out.spec.name!r}: expected a buffer of shape {list(shape)}, "
                    f"got {list(entry.shape)}",
                    out.spec.name,
                )
        results: list[Value] = []
        for index, (out, shape, entry) in enumerate(zip(layout.outs, shapes, given, strict=True)):
            if isinstance(entry, Device):
                results.append(self._on_device(out, shape, fresh.get(index), stream))
            elif entry is None and out.spec.name in self._resident_names:
                results.append(self._as_resident(index, out, shape, stream))
            else:
                target = np.empty(shape, out.spec.dtype.numpy) if entry is None else entry
                assert isinstance(target, np.ndarray | DeviceBuffer)
                self._fetch(out, target)
                results.append(target)
        return results

    def _fetch(self, out: Output, target: np.ndarray[Any, Any] | DeviceBuffer) -> None:
        """Copy a result into `target`, unless the model has written it there."""
        buffer = self._dataset.buffers[out.port.index]
        is_host = isinstance(target, np.ndarray)
        address = int(target.ctypes.data) if isinstance(target, np.ndarray) else target.pointer
        source = self._result_pointer(buffer)
        if not target.nbytes or source == address:
            return
        kind = DEVICE_TO_HOST if is_host else DEVICE_TO_DEVICE
        done(
            self._acl.rt.memcpy(address, target.nbytes, source, target.nbytes, kind),
            f"copy output {out.spec.name!r} from the device",
            self._name,
        )

    def _on_device(
        self, out: Output, shape: Shape, memory: DeviceMemory | None, stream: int | None
    ) -> DeviceBuffer:
        """Return a result in memory of its own on the device: new, or what CANN allocated."""
        buffer = self._dataset.buffers[out.port.index]
        nbytes = math.prod(shape) * out.spec.dtype.bits // 8
        if memory is None and not buffer.pointer:
            memory = buffer.take_result(nbytes)
        if memory is None:
            what = f"output {out.spec.name!r}"
            memory = DeviceMemory.allocate(self._acl, self._home, nbytes, what, self._name)
            result = self._buffer(memory, out, shape, None)
            self._fetch(out, result)
            return result
        return self._buffer(memory, out, shape, stream)

    def _as_resident(
        self, index: int, out: Output, shape: Shape, stream: int | None
    ) -> DeviceBuffer:
        """Return a result where it is, in this context's own memory: the same object if it can."""
        buffer = self._dataset.buffers[out.port.index]
        memory = buffer.stage.memory
        if not buffer.pointer or memory is None:
            return self._on_device(out, shape, None, stream)
        before = self._resident.get(index)
        known = (before.owner, before.shape, before.stream) if before is not None else None
        if before is None or known != (memory, shape, stream):
            before = self._resident[index] = self._buffer(memory, out, shape, stream)
            buffer.stage.is_lent = True
        return before

    def _buffer(
        self, memory: DeviceMemory, out: Output, shape: Shape, stream: int | None
    ) -> DeviceBuffer:
        return DeviceBuffer(memory.pointer, shape, out.spec.dtype, self._device, stream, memory)

    def _result_pointer(self, buffer: Buffer) -> int:
        """Return where a result is, also one that CANN allocated; 0 if it allocated nothing."""
        pointer: int = buffer.pointer or self._acl.get_data_buffer_addr(buffer.handle)
        return pointer

    def _actual_shape(self, out: Output, expected: Shape | None) -> Shape:
        """Return the shape of a result of the run that just ended."""
        if not out.port.is_open or not self.layout.is_ranged:
            assert expected is not None
            return expected
        acl = self._acl
        doing = f"read the shape of output {out.spec.name!r}"
        desc = made(  # the dataset's own: not ours to destroy
            acl.mdl.get_dataset_tensor_desc(self._dataset.handle, out.port.index),
            doing,
            self._name,
            ModelError,
        )
        axes = range(acl.get_tensor_desc_num_dims(desc))
        dims = [got(acl.get_tensor_desc_dim_v2(desc, axis), doing, self._name) for axis in axes]
        return settled(out.spec.shape, tuple(dims))


def _overlaps(pointer: int, nbytes: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(pointer < end and start < pointer + nbytes for start, end in ranges)
