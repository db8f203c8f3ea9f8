"""Ascend NPUs by CANN: ONNX models compiled with ATC, GE's offline compiler, and run by pyACL.

devices, diagnose    what is there; what is missing, and how to mend it
options, shapes      what the user asked for, in ATC's terms
atc                  an ONNX model to an .om file, in a process of its own
om, layout           an .om file, and how its inputs and outputs fit the model file's
model                read and compiled models: the weights, once for all contexts
run, buffers         an execution context: one load of the model, predict
runtime, acl_call    ACL's start and end; pyACL's return codes as errors

Nothing of CANN is imported before a device is looked for or a model is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.hookspecs import hookimpl
from engine.types import (
    BackendInfo,
    Capability,
    Check,
    CompileOptions,
    Devices,
    Executable,
    LoadedModel,
    ModelSource,
    Values,
)
from engine_ascend_ge.options import OPTIONS

if TYPE_CHECKING:
    from engine_ascend_ge.model import OmModel, OnnxModel
    from engine_ascend_ge.run import AscendContext

__version__ = "0.1.0"


@hookimpl
def engine_backend() -> BackendInfo:
    return BackendInfo(
        name="ascend_ge",
        version=__version__,
        device_types=("ascend",),
        providers=("ge",),
        formats=("onnx", "om"),
        suffixes={".om": "om"},
        options=OPTIONS,
        capabilities=frozenset(
            {Capability.DYNAMIC_SHAPES, Capability.DEADLINES, Capability.CANCEL_COMPILE}
        ),
    )


@hookimpl
def engine_devices() -> Devices:
    from engine_ascend_ge import devices

    return devices.find()


@hookimpl
def engine_diagnose() -> Sequence[Check]:
    from engine_ascend_ge import diagnose

    return diagnose.checks()


@hookimpl
def engine_load(source: ModelSource, options: CompileOptions) -> LoadedModel:
    from engine_ascend_ge.model import OmModel, OnnxModel

    return OmModel(source, options) if source.format == "om" else OnnxModel(source, options)


@hookimpl
def engine_compile(loaded: OnnxModel | OmModel, options: CompileOptions) -> Executable:
    return loaded.compile(options)


@hookimpl
def engine_predict(
    context: AscendContext, inputs: Values, outputs: Values | None, deadline_s: float | None
) -> Values:
    return context.run(inputs, outputs, deadline_s)
