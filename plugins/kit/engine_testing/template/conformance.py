"""The conformance kit for this backend; `engine plugins check mine` runs it."""

from engine_testing import BackendConformance


class TestMine(BackendConformance):
    backend = "mine"
    vendor_modules = ("onnx",)  # importing the plugin must not import these
    option = "unsupported_ops"  # one of the backend's options; the kit misspells it
