"""One execution context: how values reach the device, run through it, and come back.

A host array is copied into page-locked memory and from there to the device; a DeviceBuffer of
this device is used where it lies. All of a predict is queued on the context's stream: copies in,
the network, copies out. It waits for the stream only where somebody must find a result complete:
outputs on the host, and buffers that are not ordered by a stream of this backend. Buffers grow to
the largest shape seen and stay; `bound.py` is TensorRT's part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, cast

import numpy as np

from engine.errors import BackendUnavailable, ModelError
from engine.types import Device, DeviceBuffer, TensorSpec, Value, Values
from engine_gpu_trt import messages
from engine_gpu_trt.bound import Bound
from engine_gpu_trt.cuda import DeviceMemory, as_bytes, is_pinned
from engine_gpu_trt.engines import Engine
from engine_gpu_trt.extras import Extras
from engine_gpu_trt.graph_group import GraphGroup
from engine_gpu_trt.graphs import Recorder
from engine_gpu_trt.lending import Outside
from engine_gpu_trt.profile import Watch
from engine_gpu_trt.slots import ALIGNMENT, Array, Slot
from engine_gpu_trt.workspace import Workspace

_ON_HOST = (type(None), np.ndarray)


class Run:
    """A context's memory and TensorRT context; `TrtContext` owns it.

    names: the engine's name of each input by the model's. resident: outputs that stay here.
    beside: the context whose stream and scratch memory it works with; None for its own.
    extras: recording and profiling, where the user asked for them. outside: weights that are not
    in the engine. group: the ranks that the engine's collectives are between.
    """

    def __init__(
        self,
        engine: Engine,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        names: Mapping[str, str],
        resident: frozenset[str] = frozenset(),
        beside: Run | None = None,
        extras: Extras | None = None,
        outside: Outside | None = None,
        group: GraphGroup | None = None,
    ) -> None:
        self.gpu = gpu = engine.gpu
        self.engine = engine
        self.inputs = [Slot(gpu, names.get(spec.name, spec.name), spec) for spec in inputs]
        self.outputs = [Slot(gpu, spec.name, spec) for spec in outputs]
        self._device = Device("gpu", gpu.id)
        self._resident = [spec.name in resident for spec in outputs]
        self._outside = outside  # its memory is read as long as this is there
        self._is_lent = outside is not None and bool(outside.lenders)
        self._group = group
        self._is_attached = False  # TensorRT has been given the group's communicator
        self._pending = False  # work is queued that nobody has waited for
        self._must_wait = False  # this predict has to be complete on return
        self._closed = False
        self._recorder = Recorder(gpu, extras.driver) if extras and extras.driver else None
        self._watch: Watch | None = None  # where the times of layers are asked for
        self._owns_workspace = beside is None
        with ExitStack() as undo:
            if beside is None:
                self.workspace = Workspace(gpu)
                undo.callback(self._discard)
            else:
                self.workspace = beside.workspace
            with gpu:
                addresses = outside.addresses if outside is not None else {}
                self._bound = Bound(engine, self.inputs, self.outputs, addresses, self.workspace)
                if extras is not None and extras.measured is not None:
                    self._watch = extras.measured.watch(self._bound.context)
                try:
                    self.workspace.enter(self._bound.needed)
                except BaseException:
                    self._bound.close()
                    self._watch = None
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

    def predict(self, inputs: Values, outputs: Values | None, deadline_s: float | None) -> Values:
        """See engine_predict; the values are as the core has checked them.

        deadline_s: only where there are collectives inside: nothing else can be ended.
        """
        if self.engine.turns is None:
            return self._together(inputs, outputs, deadline_s)
        with self.engine.turns.shared():
            if self.engine.broken:
                raise ModelError(self.engine.broken)
            return self._together(inputs, outputs, deadline_s)

    def _together(self, inputs: Values, outputs: Values | None, deadline_s: float | None) -> Values:
        """Predict, with the other ranks where there are collectives inside."""
        if self._group is None:
            return self._predict(inputs, outputs)
        with self._group.watched(deadline_s):
            if not self._is_attached:
                with self.gpu:
                    self._group.attach(self._bound)
                self._is_attached = True
            return self._predict(inputs, outputs)

    def _predict(self, inputs: Values, outputs: Values | None) -> Values:
        if self._closed:
            raise BackendUnavailable("the context is closed; open another one", "gpu_trt")
        if self._is_lent and self._outside is not None:
            self._outside.check()
        values = cast("list[Array | DeviceBuffer]", inputs)
        wanted: Sequence[Any] = [None] * len(self.outputs) if outputs is None else outputs
        with self.gpu as gpu:
            try:
                shapes = tuple([value.shape for value in values])
                if shapes != self._bound.shapes:
                    if self._pending:
                        self._settle()  # memory is about to be exchanged
                    self._bound.reshape(shapes)
                self._bound.use_scratch()
                self._must_wait = self._group is not None  # nobody else would hear that it failed
                foreign: list[DeviceBuffer] = []  # buffers of the caller's, to order with
                for slot, value, is_fed in zip(self.inputs, values, self._bound.fed, strict=True):
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
                if self._watch is not None:
                    self._settle()  # copies are no layers
                    self._watch.begin()
                mark = messages.mark()
                if not self._execute():
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
                if self._watch is not None:
                    self._settle()
                    self._watch.end(self._bound.context)
            except BaseException as error:
                self._bound.forget()  # whatever TensorRT was told: the next call tells it anew
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

    def _execute(self) -> bool:
        """Queue the network."""
        if self._recorder is None or any(slot.growing is not None for slot in self.outputs):
            return bool(self._bound.context.execute_async_v3(self._stream.handle))
        execute = self._bound.context.execute_async_v3
        return self._recorder.execute(self._bound.state, self._stream, execute)

    def forget_recording(self) -> None:
        """Drop what a recorded execution has of the engine, with nothing under way."""
        if self._recorder is not None:
            with self.gpu:
                self._recorder.drop()

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
            if self._recorder is not None:
                self._recorder.drop()
            self._bound.close()
            self._outside = None

    # ------------------------------------------------------------------------------ one predict

    def _send(self, slot: Slot, array: Array) -> None:
        """Queue the copy of a host array into the slot's memory."""
        is_plain = array.base is None or not is_pinned(array)
        if slot.is_settled and is_plain and not self._pending:
            np.copyto(slot.view, array)
            self.gpu.copy_in(slot.address, slot.bytes, self._stream.raw)
            return
        pointer = slot.ensure_memory()
        self._bound.bind(slot, pointer)
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
        self._bound.bind(slot, pointer)

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
                    self._bound.bind(slot, entry.pointer)
                    return entry
        elif isinstance(entry, Device) and slot.growing is None:
            memory = self.gpu.allocate(slot.nbytes)
            self._bound.bind(slot, memory.pointer)
            return self._own(slot, memory)
        if slot.growing is None:
            self._bound.bind(slot, slot.ensure_memory())
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
