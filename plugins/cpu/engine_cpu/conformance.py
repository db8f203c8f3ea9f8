"""The core's conformance kit for this backend; `engine plugins check cpu` runs it."""

from __future__ import annotations

from engine_testing import BackendConformance


class TestCpu(BackendConformance):
    """All of the kit, without a gap."""

    backend = "cpu"
    vendor_modules = ("onnxruntime",)
    option = "spin_us"
