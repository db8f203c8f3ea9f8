"""The core's conformance kit for this backend; `engine plugins check cpu` runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from engine_testing import BackendConformance, sometimes

_OWN_BITS = sometimes(
    "onnxruntime quantizes the activations of such weights by itself, and this backend gives its "
    "bits; [cpu_context] session.qdq_matmulnbits_accuracy_level = 1 computes in float32, but slower"
)
_SATURATES = sometimes(
    "onnxruntime adds products of uint8 and int8 in 16 bits on x86 without VNNI, and this backend "
    "gives its bits: docs/convert.md, Saturation"
)


class TestCpu(BackendConformance):
    """All of the kit, with gaps in quantized products."""

    backend = "cpu"
    vendor_modules = ("onnxruntime",)
    option = "spin_us"
    gaps: ClassVar[Mapping[str, str]] = {
        "test_weights_stored_as_int8_are_computed_in_float[DequantizeLinear]": _OWN_BITS,
        "test_integer_products_are_exact": _SATURATES,
        "test_quantized_products_are_within_half_a_quantum[QLinearMatMul]": _SATURATES,
        "test_quantized_products_are_within_half_a_quantum[QDQ]": _SATURATES,
        "test_sums_of_extreme_products_do_not_saturate[uint8]": _SATURATES,
    }
