"""Faults of values on the device: memory, copies, streams."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from engine.types import Device, DeviceBuffer
from engine_testing.null_device import fake_device
from faulty import Faulty, caught_by

CHAIN = "test_a_chain_on_the_device_needs_no_host"


@caught_by("test_a_copy_to_the_device_and_back_changes_nothing", says="Arrays are not equal")
class CopiesDoublesAsFloats(Faulty):
    def copy(self, source, target, stream):
        if isinstance(source, np.ndarray) and source.dtype == np.int64:
            source = np.minimum(source, 50, out=np.empty_like(source))
        return super().copy(source, target, stream)


@caught_by("test_a_part_of_a_buffer_can_be_copied", says="Arrays are not equal")
class TakesPointersForHandles(Faulty):
    """Finds the memory by its owner, so every part of a buffer is its beginning."""

    def copy(self, source, target, stream):
        def whole(value: Any) -> Any:
            if not isinstance(value, DeviceBuffer):
                return value
            return replace(value, pointer=value.pointer >> 36 << 36)

        return super().copy(whole(source), whole(target), stream)


@caught_by("test_host_memory_for_the_device_is_an_array", says="expected an array")
class HasNoHostMemory(Faulty):
    def buffer(self, device, dtype, shape, on_host):
        return super().buffer(device, dtype, shape, False)


@caught_by("test_memory_is_freed_with_its_last_owner", says="MiB more are held")
class FreesNothing(Faulty):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.kept: list[Any] = []

    def buffer(self, device, dtype, shape, on_host):
        value = super().buffer(device, dtype, shape, on_host)
        self.kept.append(value)
        return value


@caught_by("test_inputs_may_be_on_the_device", says="Not equal to tolerance", control=CHAIN)
class ComputesInPlaceOnTheDevice(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        results = super().predict(context, inputs, outputs, deadline_s)
        for value in inputs:
            if isinstance(value, DeviceBuffer) and value.stream is None:
                fake_device().write(value, np.zeros(value.shape, value.dtype.numpy))
        return results


@caught_by("test_inputs_on_host_and_device_may_be_mixed", says="all inputs must be on one side")
class WantsInputsOnOneSide(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        if len({isinstance(value, DeviceBuffer) for value in inputs}) > 1:
            raise RuntimeError("all inputs must be on one side")
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by(
    "test_a_buffer_may_have_another_shape_than_it_was_made_with", says="expected a buffer of shape"
)
class KeepsTheShapeThatMemoryWasMadeWith(Faulty):
    """As a runtime whose handles know their own shape."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.made: dict[int, tuple[int, ...]] = {}

    def buffer(self, device, dtype, shape, on_host):
        value = super().buffer(device, dtype, shape, on_host)
        if isinstance(value, DeviceBuffer):
            self.made[value.pointer] = shape
        return value

    def predict(self, context, inputs, outputs, deadline_s):
        inputs = [
            replace(value, shape=self.made.get(value.pointer, value.shape))
            if isinstance(value, DeviceBuffer)
            else value
            for value in inputs
        ]
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_given_device_buffers_are_filled_and_returned", says="but their list was not")
class GivesBuffersOfItsOwn(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        given = outputs and [v.device if isinstance(v, DeviceBuffer) else v for v in outputs]
        return super().predict(context, inputs, given, deadline_s)


@caught_by(
    "test_outputs_are_allocated_on_the_device_that_is_named",
    says="expected a DeviceBuffer, got",
)
class TakesADeviceForNothing(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        given = outputs and [None if isinstance(v, Device) else v for v in outputs]
        return super().predict(context, inputs, given, deadline_s)


@caught_by("test_results_on_the_device_belong_to_the_caller", says="are the same memory")
class GivesTheSameMemoryAgain(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        kept = context.notes.get("kept")
        if kept is not None and outputs and isinstance(outputs[0], Device):
            return super().predict(context, inputs, [kept], deadline_s)
        results = super().predict(context, inputs, outputs, deadline_s)
        context.notes["kept"] = results[0]
        return results


@caught_by("test_resident_outputs_stay_on_the_device", says="expected a DeviceBuffer, got")
class BringsEverythingHome(Faulty):
    def compile(self, loaded, options):
        return super().compile(loaded, replace(options, resident=frozenset()))


@caught_by(
    "test_a_resident_output_costs_no_more_than_one_on_the_host", says="at best", control=CHAIN
)
class CopiesResidentOutputs(Faulty):
    """To the host and back, and not in one piece."""

    def predict(self, context, inputs, outputs, deadline_s):
        results = list(super().predict(context, inputs, outputs, deadline_s))
        if outputs is None and all(isinstance(value, DeviceBuffer) for value in results):
            memory = fake_device()
            for index, value in enumerate(results):
                memory.synchronise(value.stream)
                found = memory.read(value)
                items = np.array(found.reshape(-1).tolist(), found.dtype)
                results[index] = memory.allocate(value.dtype, value.shape)
                memory.write(results[index], items.reshape(found.shape))
        return results


@caught_by(CHAIN, says="Not equal to tolerance")
class DoesNotWaitForItsInputs(Faulty):
    def predict(self, context, inputs, outputs, deadline_s):
        inputs = [replace(v, stream=None) if isinstance(v, DeviceBuffer) else v for v in inputs]
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_a_queued_copy_comes_after_what_it_copies", says="Not equal to tolerance")
class CopiesAtOnce(Faulty):
    """Copies past the given stream, and past those of the buffers."""

    def copy(self, source, target, stream):
        if stream is None:
            return super().copy(source, target, stream)
        source, target = (
            replace(v, stream=None) if isinstance(v, DeviceBuffer) else v for v in (source, target)
        )
        return super().copy(source, target, None)


@caught_by("test_a_stream_waits_for_another", says="Not equal to tolerance", control=CHAIN)
class OrdersNothing(Faulty):
    def order(self, device, earlier, later):
        return True if later is not None else super().order(device, earlier, later)


@caught_by("test_what_was_waited_for_is_complete", says="Not equal to tolerance", control=CHAIN)
class DoesNotWait(Faulty):
    def order(self, device, earlier, later):
        return True if later is None else super().order(device, earlier, later)
