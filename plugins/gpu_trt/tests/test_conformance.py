"""The core's conformance kit, on the emulated GPU."""

from __future__ import annotations

from typing import ClassVar

from engine.testing import BackendConformance

_NO_TYPE = "TensorRT has no {} tensors; the model is refused by name"


class TestGpuTrt(BackendConformance):
    backend = "gpu_trt"
    vendor_modules = ("pycuda", "tensorrt")
    option = "workspace_bytes"
    gaps: ClassVar = {
        "test_numbers_are_computed_in_their_type[float64]": _NO_TYPE.format("float64"),
        "test_whole_numbers_arrive_to_the_last_bit[int16]": _NO_TYPE.format("int16"),
        "test_whole_numbers_arrive_to_the_last_bit[uint16]": _NO_TYPE.format("uint16"),
        "test_whole_numbers_arrive_to_the_last_bit[uint32]": _NO_TYPE.format("uint32"),
        "test_whole_numbers_arrive_to_the_last_bit[uint64]": _NO_TYPE.format("uint64"),
        "test_whole_numbers_arrive_to_the_last_bit[uint8]": "TensorRT only casts uint8, it does "
        "not transpose it; the node is refused by name",
        "test_text_arrives_as_str": _NO_TYPE.format("string"),
    }
