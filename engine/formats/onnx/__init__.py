"""ONNX without the onnx package: what a model file says, and whether it is safe to hand on.

Everything that a runtime looks at for inference is read: graphs, subgraphs, functions, tensors in
attributes. Training information, documentation and annotations are passed over.
"""

from engine.formats.onnx.model import OnnxModel, read_model

__all__ = ["OnnxModel", "read_model"]
