"""The conformance kit on this backend: `engine plugins check jax`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from engine_testing import BackendConformance, sometimes


class TestJax(BackendConformance):
    """All levels."""

    backend = "jax"
    vendor_modules = ("jax", "jaxlib", "onnx")
    option = "kept_programs"
    gaps: ClassVar[Mapping[str, str]] = {
        "test_text_arrives_as_str": "XLA has no text",
        "op:NonZero": "XLA compiles for shapes that are known before: it is another backend's",
        "op:If": "only with a condition that does not depend on data",
        "test_a_model_uses_the_threads_it_is_given": sometimes(
            "XLA has one pool of threads a process: one thread or all"
        ),
    }
