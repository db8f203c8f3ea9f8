"""Run a trained model on any hardware, at any scale, from one Python script.

>>> import engine
>>> model = engine.load("m.onnx", target="cpu")  # doctest: +SKIP
>>> outputs = model(x=array)  # doctest: +SKIP

The classes are MindSpore Lite's: a script that says `import mindspore_lite as mslite` runs with
`import engine as mslite`. Importing this package loads no backend and no runtime.
"""

import sys
import typing

from engine.context import Context
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
    ModelNotFound,
    ModelStateError,
    QueueFull,
    RequestRefused,
    SettingError,
    SharingError,
    SharingRefused,
)
from engine.host.version import __version__
from engine.model import Model, ModelType
from engine.model.shortcut import load
from engine.tensor import Tensor, TensorMeta
from engine.tensor.enums import DataType, FmkType, Format, ModelGroupFlag

if typing.TYPE_CHECKING:
    from engine.backends.isolation.listing import backends
    from engine.converter.converter import Converter
    from engine.model.group import ModelGroup
    from engine.report.comparison import compare
    from engine.report.diagnosis import doctor
    from engine.report.explanation.explaining import explain
    from engine.report.fault.diff import diff
    from engine.report.inspection import inspect
    from engine.report.machine import devices
    from engine.report.measurement import bench
    from engine.report.tuning.tuning import tune
    from engine.serving.multi_model import ModelExecutor, MultiModelRunner
    from engine.serving.parallel_runner import ModelParallelRunner
    from engine.types import CancelToken
    from engine.workers.multi_device import MultiDeviceRunner

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
    "ModelExecutor",
    "ModelGroup",
    "ModelGroupFlag",
    "ModelNotFound",
    "ModelParallelRunner",
    "ModelStateError",
    "ModelType",
    "MultiDeviceRunner",
    "MultiModelRunner",
    "QueueFull",
    "RequestRefused",
    "SettingError",
    "SharingError",
    "SharingRefused",
    "Tensor",
    "TensorMeta",
    "__version__",
    "backends",
    "bench",
    "compare",
    "devices",
    "diff",
    "doctor",
    "explain",
    "inspect",
    "load",
    "tune",
]

_LATE = {
    "CancelToken": "engine.types",
    "backends": "engine.backends",  # the module itself: see there
}
"""Names that most processes do without: a module is imported when one is asked for."""

_WINGS = (
    "Converter", "ModelExecutor", "ModelGroup", "ModelParallelRunner", "MultiDeviceRunner",
    "MultiModelRunner", "bench", "compare", "devices", "diff", "doctor", "explain", "inspect",
    "tune",
)  # fmt: skip
"""Names that a wing has."""

_MODULES = {"converter": "engine.converter"}
"""Modules of MindSpore Lite's that scripts reach by the package; the others are imported by it."""

if not typing.TYPE_CHECKING:  # for a type checker it would offer every name

    def __getattr__(name):
        if name in _WINGS:
            from engine.wings import wing

            found = wing(name)
        elif where := _LATE.get(name) or _MODULES.get(name):
            from importlib import import_module

            module = import_module(where)
            found = module if where == f"{__name__}.{name}" else getattr(module, name)
        else:
            text = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=sys.modules[__name__])
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """Return what `engine.<Tab>` is to offer: not the modules that hold it."""
    return [*__all__]
