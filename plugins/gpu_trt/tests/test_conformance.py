"""The core's conformance kit, on the emulated GPU."""

from __future__ import annotations

from engine.testing import BackendConformance


class TestGpuTrt(BackendConformance):
    backend = "gpu_trt"
    vendor_modules = ("pycuda", "tensorrt")
    option = "workspace_bytes"
