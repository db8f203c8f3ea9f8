from engine.testing import BackendConformance


class TestCpu(BackendConformance):
    backend = "cpu"
    vendor_modules = ("onnxruntime",)
    option = "spin_us"
