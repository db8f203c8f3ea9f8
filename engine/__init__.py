"""Run a trained model on any hardware, at any scale, from one Python script.

>>> import engine
>>> model = engine.load("m.onnx", target="cpu")  # doctest: +SKIP
>>> outputs = model(x=array)  # doctest: +SKIP

The classes are MindSpore Lite's: a script that says `import mindspore_lite as mslite` runs with
`import engine as mslite`. Importing this package loads no backend and no runtime.
"""

from engine.cancel import CancelToken
from engine.context import Context
from engine.converter import Converter
from engine.enums import DataType, FmkType, Format, ModelGroupFlag
from engine.errors import (
    BackendError,
    BackendIncompatible,
    BackendNotInstalled,
    BackendUnavailable,
    Cancelled,
    CommunicatorError,
    CompiledFormError,
    DeadlineExceeded,
    EngineError,
    ExtensionError,
    InputError,
    ModelError,
    ModelStateError,
    QueueFull,
)
from engine.model import Model, ModelType
from engine.shortcut import load
from engine.tensor import Tensor, TensorMeta

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "BackendIncompatible",
    "BackendNotInstalled",
    "BackendUnavailable",
    "CancelToken",
    "Cancelled",
    "CommunicatorError",
    "CompiledFormError",
    "Context",
    "Converter",
    "DataType",
    "DeadlineExceeded",
    "EngineError",
    "ExtensionError",
    "FmkType",
    "Format",
    "InputError",
    "Model",
    "ModelError",
    "ModelGroupFlag",
    "ModelStateError",
    "ModelType",
    "QueueFull",
    "Tensor",
    "TensorMeta",
    "__version__",
    "load",
]
