from engine.testing import BackendConformance


class TestMine(BackendConformance):
    backend = "mine"
    vendor_modules = ("onnx",)  # what importing the plugin must not import
    option = "unsupported_ops"  # one of your options, for the kit to misspell
