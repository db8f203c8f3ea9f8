"""Faults of what a backend tells of a device: its memory, its element types."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from engine.types import DeviceMemory, Devices, DType
from faulty import Faulty, caught_by

IN_BYTES = "test_memory_of_a_device_is_in_bytes"
COUNTED = "test_memory_that_is_allocated_is_counted"
TYPES = "test_declared_element_types_arrive_to_the_last_bit"


@caught_by(IN_BYTES, says="free_bytes is -1")
class OwesMemory(Faulty):
    """Where nothing is left it tells how much is missing."""

    def memory(self, device):
        return replace(super().memory(device), free_bytes=-1)


@caught_by(IN_BYTES, says="used_bytes is 0.5")
class CountsInGigabytes(Faulty):
    def memory(self, device):
        return DeviceMemory(used_bytes=0.5)  # type: ignore[arg-type]


@caught_by(COUNTED, says="used_bytes did not become more")
class CountsWhatItOnceUsed(Faulty):
    """Reads its own numbers once, as a cache of device properties would."""

    def memory(self, device):
        return DeviceMemory(free_bytes=None, used_bytes=5 << 20, own_bytes=5 << 20)


@caught_by(COUNTED, says="free_bytes did not become less")
class TakesUsedForFree(Faulty):
    def memory(self, device):
        found = super().memory(device)
        return replace(found, free_bytes=found.used_bytes)


class Declares(Faulty):
    """A backend that declares types beside float32."""

    also: frozenset[DType]

    def devices(self) -> Devices:
        [found] = super().devices().found
        return Devices((replace(found, dtypes=self.also | {DType.FLOAT32}),))


@caught_by(TYPES, says="int64 did not arrive to the last bit")
class DeclaresInt64AndHas32Bits(Declares):
    also = frozenset({DType.INT64})

    def predict(self, context, inputs, outputs, deadline_s):
        inputs = [
            value.astype(np.int32).astype(np.int64)
            if isinstance(value, np.ndarray) and value.dtype == np.int64
            else value
            for value in inputs
        ]
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by(TYPES, says="bool is not one that this runtime has")
class DeclaresATypeThatItRefuses(Declares):
    also = frozenset({DType.BOOL})

    def load(self, source, options):
        loaded = super().load(source, options)
        if any(spec.dtype is DType.BOOL for spec in loaded.inputs):
            loaded.unsupported[0] = "bool is not one that this runtime has"
        return loaded


@caught_by(TYPES, says="'int' is no element type")
class DeclaresAWordOfItsOwn(Declares):
    also = frozenset({"int"})  # type: ignore[arg-type]
