"""ONNX without the onnx package: what a model file says, and whether it is safe to hand on."""

from engine.formats.onnx.model import OnnxModel, read_model

__all__ = ["OnnxModel", "read_model"]
