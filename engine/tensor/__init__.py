"""Values on host and devices: Tensor, its memory, DLPack. The API is MindSpore Lite's."""

from engine.tensor.description import TensorMeta
from engine.tensor.enums import DataType, Format
from engine.tensor.tensor import Tensor

__all__ = ["DataType", "Format", "Tensor", "TensorMeta"]
