"""An execution context: one ACL context, one stream, one load of the model, and its buffers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import BackendUnavailable, DeadlineExceeded, InputError, ModelError
from engine.types import Value, Values
from engine_ascend_ge import runtime
from engine_ascend_ge.acl_call import (
    DEVICE_TO_HOST,
    FORMAT_ND,
    HOST_TO_DEVICE,
    HUGE_FIRST,
    NUMBERS,
    SYNC_TIMEOUT,
    done,
    got,
    made,
)
from engine_ascend_ge.buffers import Buffer, Dataset
from engine_ascend_ge.layout import Input, Layout, Output, resolved, settled
from engine_ascend_ge.om import describe

if TYPE_CHECKING:
    from engine_ascend_ge.model import AscendExecutable

_GEARS_SHOWN = 20


class AscendContext:
    """Runs one predict at a time, in whichever thread calls.

    ACL's current context belongs to a thread, so every use begins by making this one's current.
    """

    def __init__(self, executable: AscendExecutable) -> None:
        self._executable = executable
        self._name = executable.name
        self._acl = acl = executable.acl
        self._is_running = False  # a predict passed its deadline and may not have ended
        self.is_stuck = False  # a model or stream could not be given back
        self._gear: tuple[int, ...] = ()  # the one that the model was last told
        self._gear_shapes: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        self._told: dict[int, tuple[int, ...]] = {}  # shapes of open inputs, by index
        device = f"ascend:{executable.device_id}"
        with ExitStack() as stack:
            self._context = got(
                acl.rt.create_context(executable.device_id),
                f"create a context on {device}",
                otherwise=BackendUnavailable,
            )
            self._undo(stack, acl.rt.destroy_context, self._context, "destroy the context")
            self._stream = got(
                acl.rt.create_stream(), f"create a stream on {device}", otherwise=BackendUnavailable
            )
            self._undo(
                stack, acl.rt.destroy_stream, self._stream, "destroy the stream", is_user=True
            )
            work = 0
            if executable.work_bytes:
                work = got(
                    acl.rt.malloc(executable.work_bytes, HUGE_FIRST),
                    f"allocate {executable.work_bytes} bytes of working memory on {device}",
                    self._name,
                )
                self._undo(stack, acl.rt.free, work, "free the working memory")
            self._model = got(
                acl.mdl.load_from_mem_with_mem(
                    executable.om.pointer,
                    executable.om.nbytes,
                    work,
                    executable.work_bytes,
                    executable.weight_pointer,
                    executable.weight_bytes,
                ),
                f"load the compiled model on {device}",
                self._name,
            )
            self._undo(stack, acl.mdl.unload, self._model, "unload the model", is_user=True)
            self._desc = made(acl.mdl.create_desc(), "create a description", self._name)
            self._undo(stack, acl.mdl.destroy_desc, self._desc, "destroy the description")
            self.description = describe(acl, self._model, self._desc, self._name)
            self._closing: ExitStack | None = stack.pop_all()

    def prepare(self, layout: Layout) -> None:
        """Allocate memory for inputs and outputs, as far as its size is known beforehand.

        The ACL context is this one's still: the thread that made it calls.
        """
        closing = self._closing
        assert closing is not None, "prepare after close"
        self._layout = layout
        found = self.description
        ports = [*found.inputs]
        if found.gear_input is not None:
            ports.append(found.gear_input)
            ports.sort(key=lambda port: port.index)
        self._inputs = Dataset(
            self._acl,
            self._name,
            [f"input {port.name!r}" for port in ports],
            [None if layout.is_ranged and port.is_open else port.nbytes for port in ports],
        )
        closing.callback(self._inputs.close)
        self._outputs = Dataset(
            self._acl,
            self._name,
            [f"output {port.name!r}" for port in found.outputs],
            [None if layout.is_ranged and port.is_open else port.nbytes for port in found.outputs],
        )
        closing.callback(self._outputs.close)

    @property
    def workspace_bytes(self) -> int:
        """Device memory that this context holds, in bytes: working memory, inputs, outputs."""
        if self._closing is None:
            return 0
        return self._executable.work_bytes + self._inputs.nbytes + self._outputs.nbytes

    def run(self, inputs: Values, outputs: Values | None, deadline_s: float | None) -> Values:
        """Run the model once; engine_predict says how."""
        assert self._closing is not None, "predict after close"
        if deadline_s is not None and time.monotonic() >= deadline_s:
            raise DeadlineExceeded("the deadline passed before the model was started")
        done(self._acl.rt.set_context(self._context), "use the context", self._name)
        if self._is_running:
            self._wait(deadline_s)
        layout = self._layout
        if layout.gears:
            self._choose_gear(inputs)
        self._send(inputs)
        unknown = self._make_room(inputs) if layout.is_ranged else []
        try:
            self._execute(bool(unknown), deadline_s)
            return self._fetch(outputs)
        finally:
            for buffer in unknown:
                buffer.drop_result()

    def close(self) -> None:
        """Give everything back; twice does nothing, and so does the first in a forked process."""
        closing, self._closing = self._closing, None
        if closing is None:
            return
        if not runtime.is_started():
            closing.pop_all()
            return
        try:
            with closing:
                code = self._acl.rt.set_context(self._context)
                self.is_stuck = code != 0  # nothing can be given back then
                done(code, "use the context", self._name)
                if self._is_running:
                    self._wait(None)
        finally:
            self._executable.forget(self)

    # ---------------------------------------------------------------------- before the run

    def _choose_gear(self, inputs: Values) -> None:
        """Tell the model the shapes of this predict, which must be those of one of its gears."""
        gear: tuple[int, ...] = ()
        for each, value in zip(self._layout.ins, inputs, strict=True):
            if each.port is not None:
                gear += _array(value).shape
        if gear == self._gear:
            return
        if gear not in self._layout.gears:
            raise self._no_such_gear(gear)
        chooser = self.description.gear_input
        assert chooser is not None  # gears come with it
        mdl = self._acl.mdl
        self._gear = ()
        done(
            mdl.set_input_dynamic_dims(
                self._model,
                self._inputs.handle,
                chooser.index,
                {"name": "", "dimCount": len(gear), "dims": list(gear)},
            ),
            f"choose the gear {list(gear)}",
            self._name,
        )
        if gear not in self._gear_shapes:
            self._gear_shapes[gear] = [self._gear_shape(out) for out in self._layout.outs]
        self._gear = gear

    def _gear_shape(self, out: Output) -> tuple[int, ...]:
        dims = got(
            self._acl.mdl.get_cur_output_dims(self._desc, out.port.index),
            f"read the shape of output {out.spec.name!r}",
            self._name,
        )
        return tuple(dims["dims"])

    def _no_such_gear(self, gear: tuple[int, ...]) -> InputError:
        open_axes = [
            (each.spec.name, axis, dim < 0)
            for each in self._layout.ins
            if each.port is not None
            for axis, dim in enumerate(each.port.dims)
        ]

        def sizes(row: tuple[int, ...]) -> list[int]:
            return [size for size, (_, _, is_open) in zip(row, open_axes, strict=True) if is_open]

        axes = [(name, axis) for name, axis, is_open in open_axes if is_open]
        gears = [sizes(row) for row in self.description.gears]
        more = f" and {len(gears) - _GEARS_SHOWN} more" if len(gears) > _GEARS_SHOWN else ""
        return InputError(
            f"{', '.join(f'dim {axis} of input {name!r}' for name, axis in axes)}: got "
            f"{sizes(gear)}, but the model was compiled for the gears "
            f"{', '.join(map(str, gears[:_GEARS_SHOWN]))}{more}; pad the inputs to one of them, or "
            "add it to option 'dynamic_dims'",
            axes[0][0],
        )

    def _send(self, inputs: Values) -> None:
        """Copy the inputs to the device, and say how large the open ones are."""
        for each, value in zip(self._layout.ins, inputs, strict=True):
            port = each.port
            if port is None:
                continue
            array = _array(value)
            buffer = self._inputs.buffers[port.index]
            if self._layout.is_ranged and port.is_open:
                self._tell_shape(each, array.shape)
                buffer.fit(array.nbytes)
            if array.nbytes:
                done(
                    self._acl.rt.memcpy(
                        buffer.pointer,
                        buffer.nbytes,
                        array.ctypes.data,
                        array.nbytes,
                        HOST_TO_DEVICE,
                    ),
                    f"copy input {each.spec.name!r} to the device",
                    self._name,
                )

    def _tell_shape(self, each: Input, shape: tuple[int, ...]) -> None:
        port = each.port
        assert port is not None
        if self._told.get(port.index) == shape:
            return
        acl = self._acl
        doing = f"set the shape of input {each.spec.name!r} to {list(shape)}"
        desc = made(
            acl.create_tensor_desc(NUMBERS[port.dtype], list(shape), FORMAT_ND), doing, self._name
        )
        try:  # the dataset keeps a copy
            _, code = acl.mdl.set_dataset_tensor_desc(self._inputs.handle, desc, port.index)
        finally:
            acl.destroy_tensor_desc(desc)
        done(code, doing, self._name)
        self._told[port.index] = shape

    def _make_room(self, inputs: Values) -> list[Buffer]:
        """Make the open outputs' memory as large as this predict needs.

        Returns the buffers whose size only the run will show; CANN allocates memory for those.
        """
        sizes = {
            dim: size
            for each, value in zip(self._layout.ins, inputs, strict=True)
            for dim, size in zip(each.spec.shape or (), _array(value).shape, strict=True)
            if isinstance(dim, str)
        }
        unknown = []
        for out in self._layout.outs:
            if not out.port.is_open:
                continue
            buffer = self._outputs.buffers[out.port.index]
            shape = resolved(out.spec.shape, sizes)
            if shape is not None:
                buffer.fit(math.prod(shape) * out.spec.dtype.bits // 8)
            elif out.port.nbytes:
                buffer.fit(out.port.nbytes)  # CANN knows an upper bound
            else:
                buffer.leave_to_cann()
                unknown.append(buffer)
        return unknown

    # ---------------------------------------------------------------------- the run and after

    def _execute(self, has_unknown: bool, deadline_s: float | None) -> None:
        mdl = self._acl.mdl
        datasets = (self._inputs.handle, self._outputs.handle)
        if has_unknown:
            # Only the synchronous call hands over memory that CANN allocated for a result. It
            # holds the GIL, so it is for outputs whose size nobody can know beforehand.
            done(mdl.execute(self._model, *datasets), "run the model", self._name)
            return
        # Queued and waited for, because waiting lets the GIL go and `execute` does not.
        done(mdl.execute_async(self._model, *datasets, self._stream), "run the model", self._name)
        self._wait(deadline_s)

    def _wait(self, deadline_s: float | None) -> None:
        """Wait for the stream. At a deadline the run is left to end on the device.

        Nothing of it is fetched then, and the next use of the context waits for its end first.
        """
        rt = self._acl.rt
        self._is_running = True
        if deadline_s is None:
            code = rt.synchronize_stream(self._stream)
        else:
            left_ms = max(1, math.ceil((deadline_s - time.monotonic()) * 1000))
            code = rt.synchronize_stream_with_timeout(self._stream, left_ms)
            if code == SYNC_TIMEOUT:
                raise DeadlineExceeded("the model did not finish by its deadline")
        self._is_running = code != 0  # then the next use waits again, to be sure
        done(code, "run the model", self._name)

    def _fetch(self, outputs: Values | None) -> Values:
        """Copy the results to the host, into the buffers that were given or into new ones."""
        layout = self._layout
        shapes = [self._shape(place, out) for place, out in enumerate(layout.outs)]
        given = outputs if outputs is not None else [None] * len(shapes)
        for out, shape, buffer in zip(layout.outs, shapes, given, strict=True):
            if buffer is not None and _array(buffer).shape != shape:
                raise InputError(
                    f"output {out.spec.name!r}: expected a buffer of shape {list(shape)}, "
                    f"got {list(_array(buffer).shape)}",
                    out.spec.name,
                )
        results: list[Value] = []
        for out, shape, buffer in zip(layout.outs, shapes, given, strict=True):
            array = np.empty(shape, out.spec.dtype.numpy) if buffer is None else _array(buffer)
            if array.nbytes:
                done(
                    self._acl.rt.memcpy(
                        array.ctypes.data,
                        array.nbytes,
                        self._outputs.buffers[out.port.index].collect(),
                        array.nbytes,
                        DEVICE_TO_HOST,
                    ),
                    f"copy output {out.spec.name!r} from the device",
                    self._name,
                )
            results.append(array)
        is_all_given = outputs is not None and all(buffer is not None for buffer in given)
        return outputs if outputs is not None and is_all_given else results

    def _shape(self, place: int, out: Output) -> tuple[int, ...]:
        """The shape of a result of the run that just ended."""
        if not out.port.is_open:
            return settled(out.spec.shape, out.port.dims)
        if self._gear:
            return settled(out.spec.shape, self._gear_shapes[self._gear][place])
        acl = self._acl
        doing = f"read the shape of output {out.spec.name!r}"
        desc = made(  # the dataset's own: not ours to destroy
            acl.mdl.get_dataset_tensor_desc(self._outputs.handle, out.port.index),
            doing,
            self._name,
            ModelError,
        )
        axes = range(acl.get_tensor_desc_num_dims(desc))
        dims = [got(acl.get_tensor_desc_dim_v2(desc, axis), doing, self._name) for axis in axes]
        return settled(out.spec.shape, tuple(dims))

    def _undo(
        self,
        stack: ExitStack,
        release: Callable[[int], int],
        handle: int,
        doing: str,
        is_user: bool = False,
    ) -> None:
        """Have `handle` given back when the stack unwinds.

        is_user: it uses what was made before it, which must stay if this cannot be given back.
        """

        def give_back() -> None:
            if self.is_stuck:
                return
            code = release(handle)
            self.is_stuck = is_user and code != 0
            done(code, doing, self._name)

        stack.callback(give_back)


def _array(value: Value) -> np.ndarray[Any, Any]:
    """A host value; the backend announces no device buffers, so it is given nothing else."""
    assert isinstance(value, np.ndarray)
    return value
