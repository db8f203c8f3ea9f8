"""TensorRT's execution context, and what it has been told: profile, shapes, addresses, scratch.

It is told only what has changed; after an error, everything anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import BackendUnavailable, InputError, ModelError
from engine_gpu_trt import messages
from engine_gpu_trt.cuda import DeviceMemory
from engine_gpu_trt.engines import Engine
from engine_gpu_trt.profiles import fitting_profile, outside_error
from engine_gpu_trt.slots import Shape, Slot, growing_output
from engine_gpu_trt.workspace import Workspace

Shapes = tuple[Shape, ...]


class Bound:
    """An execution context with the slots of its inputs and outputs. All inside `with gpu`.

    fed: which inputs the engine has: TensorRT may have dropped one that nothing reads. shapes: the
    inputs' as told; None where they have to be told. state: another number after whatever was told.
    needed: bytes of scratch memory.
    """

    def __init__(
        self,
        engine: Engine,
        inputs: Sequence[Slot],
        outputs: Sequence[Slot],
        addresses: Mapping[str, int],
        workspace: Workspace,
    ) -> None:
        gpu, trt = engine.gpu, engine.trt
        self._engine = engine
        self._workspace = workspace
        self._inputs = inputs
        self._outputs = outputs
        self.fed = [slot.name in engine.inputs for slot in inputs]
        self.shapes: Shapes | None = None
        self.state = 0
        self._profile = 0
        self._scratch: DeviceMemory | None = None
        self.needed = int(engine.engine.device_memory_size_v2)
        mark = messages.mark()
        self.context: Any = engine.engine.create_execution_context(
            trt.ExecutionContextAllocationStrategy.USER_MANAGED
        )
        if self.context is None:
            raise BackendUnavailable(
                f"{gpu.name}: TensorRT makes no execution context: "
                f"{gpu.shortage(f'{self.needed} bytes to run in')}; "
                f"TensorRT says: {messages.since(mark)}",
                "gpu_trt",
            )
        for name, pointer in addresses.items():
            self.context.set_tensor_address(name, pointer)

    def bind(self, slot: Slot, pointer: int) -> None:
        """Tell a tensor's address, unless that one has been told."""
        if slot.address == pointer:
            return
        slot.is_settled = False
        if not self.context.set_tensor_address(slot.name, pointer):
            raise BackendUnavailable(
                f"TensorRT does not take the address of {slot.name!r}", "gpu_trt"
            )
        slot.address = pointer
        self.state += 1

    def use_scratch(self) -> None:
        """Tell the scratch memory, which other contexts may have made grow."""
        memory = self._workspace.memory
        if memory is not self._scratch:
            assert memory is not None
            self.context.set_device_memory(memory.pointer, self._workspace.nbytes)
            self._scratch = memory
            self.state += 1

    def reshape(self, shapes: Shapes) -> None:
        """Tell the inputs' new shapes, and the slots what comes of them; with nothing queued."""
        self.state += 1
        mark = messages.mark()
        self._choose_profile(shapes)
        for slot, shape, is_fed in zip(self._inputs, shapes, self.fed, strict=True):
            slot.reshape(shape)
            if is_fed and not self.context.set_input_shape(slot.name, shape):
                raise InputError(
                    f"input {slot.spec.name!r}: TensorRT does not take the shape "
                    f"{list(shape)}: {messages.since(mark)}",
                    slot.spec.name,
                )
        try:
            missing = self.context.infer_shapes()
        except RuntimeError as error:  # the shapes contradict each other inside the network
            raise ModelError(f"TensorRT cannot run these shapes: {messages.since(mark)}") from error
        assert not missing, f"TensorRT misses the shapes of {missing}"
        for slot in self._outputs:
            shape = tuple(self.context.get_tensor_shape(slot.name))
            if -1 not in shape:
                slot.reshape(shape)
            elif slot.growing is None:
                # Its shape depends on the data: TensorRT asks for memory when it knows it.
                slot.growing = growing_output(self._engine.trt)(self._engine.gpu)
                self.context.set_output_allocator(slot.name, slot.growing)
        self.shapes = shapes

    def _choose_profile(self, shapes: Shapes) -> None:
        wanted = {slot.name: shape for slot, shape in zip(self._inputs, shapes, strict=True)}
        profiles, stream = self._engine.profiles, self._workspace.stream
        index = fitting_profile(profiles, wanted)
        if index is None:
            originals = {slot.name: slot.spec.name for slot in self._inputs}
            raise outside_error(profiles, wanted, originals)
        if index != self._profile:
            if not self.context.set_optimization_profile_async(index, stream.handle):
                raise BackendUnavailable(f"TensorRT does not switch to profile {index}", "gpu_trt")
            stream.synchronize()
            self._profile = index

    def forget(self) -> None:
        """Tell everything anew at the next predict."""
        self.state += 1
        self.shapes = None
        for slot in (*self._inputs, *self._outputs):
            slot.address, slot.is_settled = 0, False

    def close(self) -> None:
        """Free TensorRT's context."""
        self._scratch = self.context = None
