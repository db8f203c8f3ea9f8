"""An execution context: one load of the model, its inputs and outputs, and predict."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Protocol

import numpy as np

from engine.errors import Cancelled, DeadlineExceeded
from engine.types import Device, DeviceBuffer, Value, Values
from engine_ascend_ge import runtime, streams
from engine_ascend_ge.acl_call import (
    DEVICE_TO_DEVICE,
    FORMAT_ND,
    HOST_TO_DEVICE,
    NUMBERS,
    STREAM_ABORT,
    SYNC_TIMEOUT,
    done,
    made,
)
from engine_ascend_ge.buffers import Dataset, Stage
from engine_ascend_ge.gears import GearChoice
from engine_ascend_ge.layout import Input, Layout, resolved, settled
from engine_ascend_ge.om import describe
from engine_ascend_ge.outputs import Outputs
from engine_ascend_ge.workspace import Workspace

if TYPE_CHECKING:
    from engine_ascend_ge.loading import Loader
    from engine_ascend_ge.profiling import Stopwatch

Shape = tuple[int, ...]


class Compiled(Protocol):
    """The executable, as its contexts see it.

    resident: outputs that stay on the device. is_part: of a plan of several. is_queued: its runs
    are queued on the stream, and nobody waits for their end.
    """

    name: str
    device_id: int
    resident: frozenset[str]
    is_part: bool
    is_queued: bool
    loader: Loader
    stopwatch: Stopwatch | None

    def forget(self, context: AscendContext) -> None:
        """Drop a context that is closed, or as far closed as it could be."""


class AscendContext:
    """Runs one predict at a time, in whichever thread calls.

    beside: a context of the same device whose stream and scratch memory this one shares.
    ACL's current context belongs to a thread, so every use begins by making the device's current.
    """

    def __init__(self, executable: Compiled, beside: AscendContext | None = None) -> None:
        self._executable = executable
        self._name = executable.name
        self._device = Device("ascend", executable.device_id)
        self._acl, self._home = acl, home = runtime.use_device(executable.device_id)
        self._is_cancelled = False
        self.is_stuck = False  # the model could not be unloaded, or may still run
        self._bound_shapes: dict[int, Shape] = {}  # of open inputs, by index
        self._own_stages: list[Stage] = []
        self._is_sharing = beside is not None
        with ExitStack() as stack:
            self.workspace: Workspace = (
                beside.workspace
                if beside is not None
                else Workspace(acl, home, executable.device_id)
            )
            self.workspace.join()
            stack.callback(self.workspace.leave)
            self._loader = executable.loader
            work = self.workspace.scratch(self._loader.work_bytes, self._name)
            self._model = self._loader.load(work)
            stack.callback(self._unload)
            self._desc = made(acl.mdl.create_desc(), "create a description", self._name)
            stack.callback(self._release, acl.mdl.destroy_desc, "destroy the description")
            self.description = describe(acl, self._model, self._desc, self._name)
            self._closing: ExitStack | None = stack.pop_all()

    def prepare(self, layout: Layout) -> None:
        """Name the inputs and outputs to ACL, and allocate their memory where it will be needed.

        A part of a plan mostly gets and gives memory on the device: what it needs itself comes
        with the first predict that needs it, as for open shapes. So it does beside another
        context, which may be running in the memory that they share.
        """
        closing = self._closing
        assert closing is not None, "prepare after close"
        self._layout = layout
        ports = [*self.description.inputs]
        chooser = self.description.gear_input
        if chooser is not None:
            ports.append(chooser)
            ports.sort(key=lambda port: port.index)
        self._inputs = Dataset(
            self._acl,
            self._home,
            self._name,
            [
                (f"input {port.name!r}", self._stage("input", port.index, port is chooser))
                for port in ports
            ],
        )
        closing.callback(self._inputs.close)
        resident = {
            out.port.index for out in layout.outs if out.spec.name in self._executable.resident
        }
        outputs = Dataset(
            self._acl,
            self._home,
            self._name,
            [
                (f"output {port.name!r}", self._stage("output", port.index, port.index in resident))
                for port in self.description.outputs
            ],
        )
        closing.callback(outputs.close)
        self._outputs = Outputs(
            self._acl,
            self._home,
            self._name,
            self._device,
            layout,
            outputs,
            self._executable.resident,
        )
        if not self._executable.is_part and not self._is_sharing:
            for port, buffer in (
                *zip(ports, self._inputs.buffers, strict=True),
                *zip(self.description.outputs, outputs.buffers, strict=True),
            ):
                if not (layout.is_ranged and port.is_open):
                    buffer.fit(port.nbytes)
        self._gears: GearChoice | None = None
        if chooser is not None:
            self._inputs.buffers[chooser.index].fit(chooser.nbytes)
            self._gears = GearChoice(
                self._acl, self._name, self._model, self._desc, layout, self.description
            )
        self._fixed_shapes = [
            None if out.port.is_open else settled(out.spec.shape, out.port.dims)
            for out in layout.outs
        ]

    def _stage(self, kind: str, index: int, is_own: bool) -> Stage:
        """Return the memory for an input or output.

        is_own: its contents last from one predict to the next, so no other context may share it.
        """
        if not is_own:
            return self.workspace.stage(kind, index)
        assert self._closing is not None, "prepare after close"
        stage = Stage(self._acl, self._home)
        self._closing.callback(stage.release)
        self._own_stages.append(stage)
        return stage

    @property
    def workspace_bytes(self) -> int:
        """Device memory of this context: its own, and its workspace unless it is another's."""
        if self._closing is None:
            return 0
        workspace = 0 if self._is_sharing else self.workspace.nbytes
        return workspace + sum(stage.nbytes for stage in self._own_stages)

    def run(self, inputs: Values, outputs: Values | None, deadline_s: float | None) -> Values:
        """Run the model once; engine_predict says how."""
        assert self._closing is not None, "predict after close"
        if deadline_s is not None and time.monotonic() >= deadline_s:
            raise DeadlineExceeded("the deadline passed before the model was started")
        if self._is_cancelled:
            raise Cancelled("the predict was cancelled before the model was started")
        done(self._acl.rt.set_context(self._home), "use the context", self._name)
        workspace = self.workspace
        follows = workspace.may_follow(self) and all(map(_is_bindable, inputs))
        if workspace.pending is not None and not follows:
            self._wait(deadline_s)
        if self._gears is not None:
            self._gears.choose(inputs, self._inputs.handle)
        given = outputs if outputs is not None else [None] * len(self._layout.outs)
        self._send(inputs)
        shapes = self._expected_shapes(inputs)
        fresh = self._outputs.bind(inputs, given, shapes, workspace.stream)
        try:
            stopwatch = self._executable.stopwatch
            measured = nullcontext() if stopwatch is None else stopwatch.measured(self._model)
            with measured:
                has_ended = self._execute((*inputs, *given, *fresh.values()), given, deadline_s)
            stream = None if has_ended else workspace.stream
            results = self._outputs.collect(given, shapes, fresh, stream)
        finally:
            self._outputs.drop_results()
        is_all_given = all(isinstance(entry, np.ndarray | DeviceBuffer) for entry in given)
        return outputs if outputs is not None and is_all_given else results

    def cancel(self) -> None:
        """Stop the predict that runs; any thread may call. The device must have stream_abort."""
        self._is_cancelled = True
        with runtime.borrowed(self._acl, self._home):
            self._abort()

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
                code = self._acl.rt.set_context(self._home)
                if code != 0:
                    self._give_up()
                done(code, "use the context", self._name)
                if not self.workspace.finish():
                    self._give_up()
                    runtime.abandon(self, closing.pop_all())
        finally:
            self._executable.forget(self)

    # ---------------------------------------------------------------------- before the run

    def _send(self, inputs: Values) -> None:
        """Copy host inputs to the device, bind those that are there, and set the open shapes."""
        for item, value in zip(self._layout.ins, inputs, strict=True):
            port = item.port
            if port is None:
                continue
            buffer = self._inputs.buffers[port.index]
            is_ranged = self._layout.is_ranged and port.is_open
            if is_ranged:
                self._set_shape(item, _shape(value))
            if isinstance(value, np.ndarray):
                address, kind = int(value.ctypes.data), HOST_TO_DEVICE
            else:
                assert isinstance(value, DeviceBuffer)
                address, kind = value.pointer, DEVICE_TO_DEVICE
                is_bound = _is_bindable(value)
                if value.stream is not None:
                    later = self.workspace.stream if is_bound else None
                    streams.order(self._device.id, value.stream, later)
                if is_bound:
                    buffer.bind(address, value.nbytes)
                    continue
            buffer.fit(value.nbytes if is_ranged else port.nbytes)
            if value.nbytes:
                done(
                    self._acl.rt.memcpy(buffer.pointer, buffer.nbytes, address, value.nbytes, kind),
                    f"copy input {item.spec.name!r} to the device",
                    self._name,
                )

    def _set_shape(self, item: Input, shape: Shape) -> None:
        port = item.port
        assert port is not None
        if self._bound_shapes.get(port.index) == shape:
            return
        acl = self._acl
        doing = f"set the shape of input {item.spec.name!r} to {list(shape)}"
        desc = made(
            acl.create_tensor_desc(NUMBERS[port.dtype], list(shape), FORMAT_ND), doing, self._name
        )
        try:  # the dataset keeps a copy
            _, code = acl.mdl.set_dataset_tensor_desc(self._inputs.handle, desc, port.index)
        finally:
            acl.destroy_tensor_desc(desc)
        done(code, doing, self._name)
        self._bound_shapes[port.index] = shape

    def _expected_shapes(self, inputs: Values) -> Sequence[Shape | None]:
        """Return the outputs' shapes as far as they are known before the run."""
        if self._gears is not None:
            return self._gears.output_shapes
        if not self._layout.is_ranged:
            return self._fixed_shapes
        sizes = {
            dim: size
            for item, value in zip(self._layout.ins, inputs, strict=True)
            for dim, size in zip(item.spec.shape or (), _shape(value), strict=True)
            if isinstance(dim, str)
        }
        return [
            fixed if fixed is not None else resolved(out.spec.shape, sizes)
            for out, fixed in zip(self._layout.outs, self._fixed_shapes, strict=True)
        ]

    # ---------------------------------------------------------------------- the run and after

    def _execute(self, used: tuple[object, ...], given: Values, deadline_s: float | None) -> bool:
        """Run the model on what is bound. used: what must live until the run has ended.

        Returns whether it has: a part of a rank's model whose results stay here is left queued.
        """
        mdl, stream = self._acl.mdl, self.workspace.stream
        datasets = (self._inputs.handle, self._outputs.handle)
        if not self._outputs.all_bound:
            # Only the synchronous call hands over memory that CANN allocated for a result. It
            # holds the GIL, so it is for outputs whose size nobody can know beforehand. It does
            # not run on the stream: what that was to wait for is waited for here.
            self._wait(deadline_s)
            done(mdl.execute(self._model, *datasets), "run the model", self._name)
        else:
            # Queued and waited for, because waiting lets the GIL go and `execute` does not.
            is_queued = self._executable.is_queued and self._outputs.stay(given)
            code = mdl.execute_async(self._model, *datasets, stream)
            if code == 0:
                self.workspace.hold(used, self if is_queued else None)
            done(code, "run the model", self._name)
            if is_queued and not self._is_cancelled:
                return False
            if self._is_cancelled:
                self._abort()  # `cancel` may have come before there was anything to abort
            self._wait(deadline_s)
        if self._is_cancelled:
            raise Cancelled("the predict was cancelled")
        return True

    def _abort(self) -> None:
        """Discard what is on the stream; the wait for it then ends with STREAM_ABORT."""
        abort = getattr(self._acl.rt, "stream_abort", None)
        if abort is not None:
            abort(self.workspace.stream)  # where it fails the run ends by itself

    def _wait(self, deadline_s: float | None) -> None:
        """Wait for the stream. At a deadline the run is left to end on the device.

        Nothing of it is fetched then, and the next use of the context waits for its end first.
        """
        code = streams.wait(self._acl, self.workspace.stream, deadline_s)
        if code == SYNC_TIMEOUT and deadline_s is not None:
            raise DeadlineExceeded("the model did not finish by its deadline")
        if code in (0, STREAM_ABORT):
            # After any other error it stands, and the next use waits once more.
            self.workspace.passed(self.workspace.stream)
        if code == STREAM_ABORT:
            raise Cancelled("the predict was cancelled")
        done(code, "run the model", self._name)

    # ------------------------------------------------------------------------------- the end

    def _unload(self) -> None:
        if self.is_stuck:
            return
        code = self._loader.unload(self._model)
        if code != 0:
            self._give_up()
        done(code, "unload the model", self._name)

    def _give_up(self) -> None:
        """Leave the model loaded, and with it the memory that it uses."""
        self.is_stuck = True
        self.workspace.abandon()

    def _release(self, release: Callable[[int], int], doing: str) -> None:
        if not self.is_stuck:
            done(release(self._desc), doing, self._name)


def _shape(value: Value) -> Shape:
    """Return the shape of a tensor; Ascend devices have no other values."""
    assert isinstance(value, np.ndarray | DeviceBuffer)
    return value.shape


def _is_bindable(value: Value) -> bool:
    """Return whether a model reads an input where it lies."""
    if not isinstance(value, DeviceBuffer):
        return False
    return bool(value.nbytes) and value.pointer % streams.ALIGNMENT == 0
