"""One execution context: how values reach the device, run through it, and come back.

A host array is copied into page-locked memory and from there to the device; a DeviceBuffer of
this device is used where it lies. All of a predict is queued on the context's stream: copies in,
the network, copies out. It waits for the stream only where somebody must find a result complete:
outputs on the host, and buffers that are not ordered by a stream of this backend. Buffers grow to
the largest shape seen and stay; TensorRT is told shapes, addresses and the profile only when they
change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, cast

import numpy as np

from engine.errors import BackendUnavailable, InputError, ModelError
from engine.types import Device, DeviceBuffer, TensorSpec, Value, Values
from engine_gpu_trt import messages
from engine_gpu_trt.cuda import DeviceMemory, as_bytes, is_pinned
from engine_gpu_trt.engines import Engine
from engine_gpu_trt.profiles import fitting_profile, outside_error
from engine_gpu_trt.slots import ALIGNMENT, Array, Shape, Slot, growing_output
from engine_gpu_trt.workspace import Workspace

Shapes = tuple[Shape, ...]
_ON_HOST = (type(None), np.ndarray)


class Run:
    """A context's memory and TensorRT context; `TrtContext` owns it.

    names: the engine's name of each input by the model's. resident: outputs that stay here.
    beside: the context whose stream and scratch memory it works with; None for its own.
    """

    def __init__(
        self,
        engine: Engine,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        names: Mapping[str, str],
        resident: frozenset[str] = frozenset(),
        beside: Run | None = None,
    ) -> None:
        self.gpu = gpu = engine.gpu
        self.engine = engine
        self.inputs = [Slot(gpu, names.get(spec.name, spec.name), spec) for spec in inputs]
        self.outputs = [Slot(gpu, spec.name, spec) for spec in outputs]
        self._device = Device("gpu", gpu.id)
        self._resident = [spec.name in resident for spec in outputs]
        # TensorRT may have dropped an input that nothing reads.
        self._fed = [slot.name in engine.inputs for slot in self.inputs]
        self._shapes: Shapes | None = None
        self._profile = 0
        self._pending = False  # work is queued that nobody has waited for
        self._must_wait = False  # this predict has to be complete on return
        self._closed = False
        self._context: Any = None
        self._scratch: DeviceMemory | None = None  # what TensorRT was told
        self._owns_workspace = beside is None
        trt = engine.trt
        mark = messages.mark()
        with ExitStack() as undo:
            if beside is None:
                self.workspace = Workspace(gpu)
                undo.callback(self._discard)
            else:
                self.workspace = beside.workspace
            with gpu:
                self._needed = int(engine.engine.device_memory_size_v2)
                self._context = engine.engine.create_execution_context(
                    trt.ExecutionContextAllocationStrategy.USER_MANAGED
                )
                if self._context is None:
                    raise BackendUnavailable(
                        f"{gpu.name}: TensorRT makes no execution context: "
                        f"{gpu.shortage(f'{self._needed} bytes to run in')}; "
                        f"TensorRT says: {messages.since(mark)}",
                        "gpu_trt",
                    )
                try:
                    self.workspace.enter(self._needed)
                except BaseException:
                    self._context = None
                    raise
            self._stream = self.workspace.stream
            undo.pop_all()
        engine.runs[id(self)] = self

    def _discard(self) -> None:
        with self.gpu:
            self.workspace.discard()

    @property
    def device_bytes(self) -> int:
        """Device memory that this context holds; scratch memory counts where it was opened."""
        if self._closed:
            return 0
        scratch = self.workspace.nbytes if self._owns_workspace else 0
        return scratch + sum(slot.device_bytes for slot in (*self.inputs, *self.outputs))

    def predict(self, inputs: Values, outputs: Values | None) -> Values:
        """See engine_predict; the values are as the core has checked them."""
        if self._closed:
            raise BackendUnavailable("the context is closed; open another one", "gpu_trt")
        values = cast("list[Array | DeviceBuffer]", inputs)
        wanted: Sequence[Any] = [None] * len(self.outputs) if outputs is None else outputs
        with self.gpu as gpu:
            try:
                shapes = tuple([value.shape for value in values])
                if shapes != self._shapes:
                    self._reshape(shapes)
                self._tell_scratch()
                self._must_wait = False
                foreign: list[DeviceBuffer] = []  # buffers of the caller's, to order with
                for slot, value, is_fed in zip(self.inputs, values, self._fed, strict=True):
                    if not is_fed:
                        continue
                    if isinstance(value, DeviceBuffer):
                        self._use(slot, value)
                        foreign.append(value)
                    else:
                        self._send(slot, value)
                targets = [
                    None
                    if slot.is_settled and not is_resident and type(entry) in _ON_HOST
                    else self._prepare(slot, entry, is_resident, values, foreign)
                    for slot, entry, is_resident in zip(
                        self.outputs, wanted, self._resident, strict=True
                    )
                ]
                mark = messages.mark()
                if not self._context.execute_async_v3(self._stream.handle):
                    raise self._failure(messages.since(mark))
                self._pending = True
                results = [
                    self._fetch(slot, entry, target)
                    for slot, entry, target in zip(self.outputs, wanted, targets, strict=True)
                ]
                if foreign:
                    self._order_after(foreign)
                if self._must_wait:
                    self._settle()
            except BaseException as error:
                self._shapes = None  # whatever TensorRT was told: the next call tells it anew
                for slot in (*self.inputs, *self.outputs):
                    slot.address, slot.is_settled = 0, False
                with suppress(gpu.Error):  # what is queued still uses this context's memory
                    self._stream.synchronize()
                self._pending = False
                if isinstance(error, gpu.Error):
                    raise gpu.unavailable(error, "a predict") from error
                raise
        for index, (slot, entry) in enumerate(zip(self.outputs, wanted, strict=True)):
            if results[index] is None:  # on the host, in page-locked memory
                if entry is None:
                    results[index] = slot.view.copy()  # the caller owns the result
                else:
                    np.copyto(entry, slot.view)
                    results[index] = entry
        if outputs is not None and all(a is b for a, b in zip(results, outputs, strict=True)):
            return outputs
        return results

    def settle(self) -> None:
        """Wait for what is queued: another thread is to use the context."""
        if self._pending and not self._closed:
            with self.gpu as gpu:
                try:
                    self._settle()
                except gpu.Error as error:
                    raise gpu.unavailable(error, "a predict") from error

    def close(self) -> None:
        """Free everything, whatever of it fails to be freed; twice does nothing."""
        if self._closed:
            return
        self._closed = True
        self.engine.runs.pop(id(self), None)
        with self.gpu as gpu, ExitStack() as closing:
            # Last in, first out: TensorRT's context goes before the memory that it points to.
            closing.callback(self.workspace.leave)
            for slot in (*self.inputs, *self.outputs):
                closing.callback(slot.close)
            if self._pending:
                with suppress(gpu.Error):
                    self._stream.synchronize()
            self._scratch = None
            self._context = None

    # ------------------------------------------------------------------------------ one predict

    def _send(self, slot: Slot, array: Array) -> None:
        """Queue the copy of a host array into the slot's memory."""
        is_plain = array.base is None or not is_pinned(array)
        if slot.is_settled and is_plain and not self._pending:
            np.copyto(slot.view, array)
            self.gpu.copy_in(slot.address, slot.bytes, self._stream.raw)
            return
        pointer = slot.ensure_memory()
        self._bind(slot, pointer)
        if not slot.nbytes:
            pass
        elif not is_plain:
            self.gpu.copy_in(pointer, as_bytes(array), self._stream.raw)
            self._must_wait = True  # the caller may write it again
        else:
            if self._pending:  # an earlier copy may still read the page-locked memory
                if not self._stream.is_done:
                    self._stream.synchronize()
                self._pending = False
            if not slot.staged:
                slot.stage()
            np.copyto(slot.view, array)
            self.gpu.copy_in(pointer, slot.bytes, self._stream.raw)
            slot.is_settled = True

    def _use(self, slot: Slot, buffer: DeviceBuffer) -> None:
        """Take an input where it lies, after what its stream has queued."""
        if buffer.stream is not None:
            self.gpu.order(buffer.stream, self._stream)
        pointer = buffer.pointer
        if pointer % ALIGNMENT or not pointer:
            pointer = slot.ensure_memory()
            if slot.nbytes:
                self.gpu.copy_within(pointer, buffer.pointer, slot.nbytes, self._stream.raw)
        self._bind(slot, pointer)

    def _prepare(
        self,
        slot: Slot,
        entry: Any,
        is_resident: bool,
        inputs: Iterable[Value],
        foreign: list[DeviceBuffer],
    ) -> DeviceBuffer | None:
        """Tell TensorRT where to write an output. Return the buffer of the result.

        None where it is not known yet, or on the host.
        """
        if isinstance(entry, DeviceBuffer):
            if entry.stream is not None:
                self.gpu.order(entry.stream, self._stream)
            foreign.append(entry)
            if slot.growing is None:
                slot.check_shape(entry.shape)
                is_aligned = entry.pointer and not entry.pointer % ALIGNMENT
                if is_aligned and not _overlaps(entry, inputs):
                    self._bind(slot, entry.pointer)
                    return entry
        elif isinstance(entry, Device) and slot.growing is None:
            memory = self.gpu.allocate(slot.nbytes)
            self._bind(slot, memory.pointer)
            return self._own(slot, memory)
        if slot.growing is None:
            self._bind(slot, slot.ensure_memory())
            if entry is None and is_resident:
                return slot.lend(self._device, self._stream.handle)
        return None

    def _fetch(
        self, slot: Slot, entry: Any, target: DeviceBuffer | None
    ) -> Array | DeviceBuffer | None:
        """Return an output that is on the device; queue the copy of one that is not.

        Returns None for an output that will be in page-locked memory.
        """
        if target is not None:
            return target
        if entry is None and slot.is_settled:
            self._must_wait = True
            self.gpu.copy_out(slot.bytes, slot.address, self._stream.raw)
            return None
        if slot.growing is not None:
            slot.reshape(slot.growing.shape)
            if entry is None and self._is_resident(slot):
                return slot.lend(self._device, self._stream.handle)
        if isinstance(entry, DeviceBuffer | Device):
            if isinstance(entry, Device):
                buffer = self._own(slot, self.gpu.allocate(slot.nbytes))
            else:
                buffer = entry
            slot.check_shape(buffer.shape)
            if slot.nbytes:
                self.gpu.copy_within(
                    buffer.pointer, slot.ensure_memory(), slot.nbytes, self._stream.raw
                )
            return buffer
        self._must_wait = True
        if entry is not None:
            slot.check_shape(entry.shape)
            if slot.nbytes and is_pinned(entry):
                self.gpu.copy_out(as_bytes(entry), slot.ensure_memory(), self._stream.raw)
                return cast("Array", entry)
        if not slot.staged:
            slot.stage()
        if slot.nbytes:
            self.gpu.copy_out(slot.bytes, slot.ensure_memory(), self._stream.raw)
            slot.is_settled = slot.growing is None
        return None

    def _is_resident(self, slot: Slot) -> bool:
        return self._resident[self.outputs.index(slot)]

    def _own(self, slot: Slot, memory: DeviceMemory) -> DeviceBuffer:
        return DeviceBuffer(
            memory.pointer, slot.shape, slot.spec.dtype, self._device, self._stream.handle, memory
        )

    def _order_after(self, buffers: Iterable[DeviceBuffer]) -> None:
        """Make the streams of the caller's buffers wait for this predict.

        Whoever writes an input again, or reads an output, through the buffer's stream then comes
        after it. A buffer that has no stream, or one that is not of this backend, cannot be told:
        for it the predict is complete on return.
        """
        for buffer in buffers:
            if buffer.stream == self._stream.handle:
                continue
            stream = self.gpu.find_stream(buffer.stream) if buffer.stream else None
            if stream is None:
                self._must_wait = True
            else:
                self.gpu.order(self._stream.handle, stream)

    def _settle(self) -> None:
        self._stream.synchronize()
        self._pending = False

    def _bind(self, slot: Slot, pointer: int) -> None:
        """Tell TensorRT a tensor's address, unless it has been told that one."""
        if slot.address == pointer:
            return
        slot.is_settled = False
        if not self._context.set_tensor_address(slot.name, pointer):
            raise BackendUnavailable(
                f"TensorRT does not take the address of {slot.name!r}", "gpu_trt"
            )
        slot.address = pointer

    def _tell_scratch(self) -> None:
        memory = self.workspace.memory
        if memory is not self._scratch:
            assert memory is not None
            self._context.set_device_memory(memory.pointer, self.workspace.nbytes)
            self._scratch = memory

    # ----------------------------------------------------------------------------------- shapes

    def _reshape(self, shapes: Shapes) -> None:
        """Tell TensorRT the inputs' new shapes, and the slots what comes of them."""
        if self._pending:
            self._settle()  # memory is about to be exchanged
        mark = messages.mark()
        self._choose_profile(shapes)
        for slot, shape, is_fed in zip(self.inputs, shapes, self._fed, strict=True):
            slot.reshape(shape)
            if is_fed and not self._context.set_input_shape(slot.name, shape):
                raise InputError(
                    f"input {slot.spec.name!r}: TensorRT does not take the shape "
                    f"{list(shape)}: {messages.since(mark)}",
                    slot.spec.name,
                )
        try:
            missing = self._context.infer_shapes()
        except RuntimeError as error:  # the shapes contradict each other inside the network
            raise ModelError(f"TensorRT cannot run these shapes: {messages.since(mark)}") from error
        assert not missing, f"TensorRT misses the shapes of {missing}"
        for slot in self.outputs:
            shape = tuple(self._context.get_tensor_shape(slot.name))
            if -1 not in shape:
                slot.reshape(shape)
            elif slot.growing is None:
                # Its shape depends on the data: TensorRT asks for memory when it knows it.
                slot.growing = growing_output(self.engine.trt)(self.gpu)
                self._context.set_output_allocator(slot.name, slot.growing)
        self._shapes = shapes

    def _choose_profile(self, shapes: Shapes) -> None:
        wanted = {slot.name: shape for slot, shape in zip(self.inputs, shapes, strict=True)}
        index = fitting_profile(self.engine.profiles, wanted)
        if index is None:
            originals = {slot.name: slot.spec.name for slot in self.inputs}
            raise outside_error(self.engine.profiles, wanted, originals)
        if index != self._profile:
            if not self._context.set_optimization_profile_async(index, self._stream.handle):
                raise BackendUnavailable(f"TensorRT does not switch to profile {index}", "gpu_trt")
            self._stream.synchronize()
            self._profile = index

    def _failure(self, heard: messages.Heard) -> Exception:
        """Build the error for an execution that TensorRT refused."""
        for slot in self.outputs:
            if slot.growing is not None and slot.growing.error is not None:
                error: Exception = slot.growing.error
                return error
        if heard.out_of_memory:
            return BackendUnavailable(
                f"{self.gpu.name}: out of memory while predicting: "
                f"{self.gpu.shortage('room for the activations')}; TensorRT says: {heard}",
                "gpu_trt",
            )
        return ModelError(f"TensorRT cannot run the model on these inputs: {heard}")


def _overlaps(buffer: DeviceBuffer, inputs: Iterable[Value]) -> bool:
    """Tell whether an output's buffer shares memory with an input that the network still reads."""
    end = buffer.pointer + buffer.nbytes
    return any(
        value.pointer < end and buffer.pointer < value.pointer + value.nbytes
        for value in inputs
        if isinstance(value, DeviceBuffer)
    )
