"""The core's conformance kit for this backend; `engine plugins check gpu_trt` runs it.

TensorRT compiles for ranges of shapes. The kit's tests run in ranges as a user of this backend
gives them, not in the default ones, which are too narrow for some tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from engine.types import ModelSource, ShapeRange
from engine_testing import BackendConformance
from engine_testing.level import Trial

_NO_TYPE = "TensorRT has no {} tensors; the model is refused by name"


class RangedTrial(Trial):
    """A trial that gives every open dim the range that TensorRT wants: 0 to 1000, or its size."""

    def shapes(self, source: ModelSource, inputs: Sequence[Any]) -> dict[str, ShapeRange]:
        """See Trial."""
        assert source.graph is not None
        ranges = {}
        for index, spec in enumerate(source.graph.inputs):
            sizes = inputs[index].shape if index < len(inputs) else [2] * len(spec.shape or ())
            axes = [
                (dim, dim, dim) if isinstance(dim, int) else (0, size, max(size, 1000))
                for dim, size in zip(spec.shape or (), sizes, strict=True)
            ]
            ranges[spec.name] = ShapeRange(*(tuple(axis[end] for axis in axes) for end in range(3)))
        return ranges


class TestGpuTrt(BackendConformance):
    """The kit on the machine's own GPU, or, where there is none, what needs no device of it."""

    backend = "gpu_trt"
    vendor_modules = ("pycuda", "tensorrt")
    option = "workspace_bytes"
    trials = RangedTrial
    shares_devices = False  # NCCL refuses two ranks on one GPU
    gaps: ClassVar[Mapping[str, str]] = {
        "test_numbers_are_computed_in_their_type[float64]": _NO_TYPE.format("float64"),
        "test_whole_numbers_arrive_to_the_last_bit[int16]": _NO_TYPE.format("int16"),
        "test_whole_numbers_arrive_to_the_last_bit[uint16]": _NO_TYPE.format("uint16"),
        "test_whole_numbers_arrive_to_the_last_bit[uint32]": _NO_TYPE.format("uint32"),
        "test_whole_numbers_arrive_to_the_last_bit[uint64]": _NO_TYPE.format("uint64"),
        "test_whole_numbers_arrive_to_the_last_bit[uint8]": "TensorRT only casts uint8, it does "
        "not transpose it; the node is refused by name",
        "test_text_arrives_as_str": _NO_TYPE.format("string"),
    }
    crashes: ClassVar[Mapping[str, str]] = {
        "test_an_index_out_of_range_is_an_error": "TensorRT reports no index out of range, and "
        "what it reads then is undefined"
    }
