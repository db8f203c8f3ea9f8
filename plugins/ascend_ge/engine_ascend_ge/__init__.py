"""Ascend NPUs by CANN: ONNX models compiled with ATC, GE's offline compiler, and run by pyACL.

devices, diagnose    what is there; what is missing, and how to mend it
options, shapes      what the user asked for, in ATC's terms
atc                  an ONNX model to an .om file, in a process of its own
om, layout           an .om file, and how its inputs and outputs fit the model file's
compiled             the compiled form on disk, and what it depends on
model                read and compiled models: the weights, once for all contexts
run, gears           an execution context: one load of the model, predict
buffers, workspace   the inputs and outputs of a context; its stream and scratch memory
memory, streams      memory with an owner; order between streams, copies
runtime, acl_call    ACL's start and end; pyACL's return codes as errors

Nothing of CANN is imported before a device is looked for or a model is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from engine.hookspecs import hookimpl
from engine.types import (
    BackendInfo,
    Capability,
    Check,
    CompileOptions,
    Device,
    Devices,
    DType,
    Executable,
    LoadedModel,
    ModelSource,
    Value,
    Values,
)
from engine_ascend_ge.options import OPTIONS

if TYPE_CHECKING:
    from engine_ascend_ge.model import AscendModel
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
            {
                Capability.DYNAMIC_SHAPES,
                Capability.DEADLINES,
                Capability.CANCEL_COMPILE,
                Capability.CANCEL_PREDICT,
                Capability.DEVICE_BUFFERS,
                Capability.COMPILE_CACHE,
                Capability.SHARE_WORKSPACE,
            }
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
    from engine_ascend_ge import model

    return model.load(source, options)


@hookimpl
def engine_compile(loaded: AscendModel, options: CompileOptions) -> Executable:
    return loaded.compile(options)


@hookimpl
def engine_predict(
    context: AscendContext, inputs: Values, outputs: Values | None, deadline_s: float | None
) -> Values:
    return context.run(inputs, outputs, deadline_s)


@hookimpl
def engine_buffer(device: Device, dtype: DType, shape: tuple[int, ...], on_host: bool) -> Value:
    from engine_ascend_ge import memory

    return memory.new_buffer(device, dtype, shape, on_host)


@hookimpl
def engine_copy(source: Value, target: Value, stream: int | None) -> bool:
    from engine_ascend_ge import streams

    streams.copy(source, target, stream)
    return True


@hookimpl
def engine_order(device: Device, earlier: int, later: int | None) -> bool:
    from engine_ascend_ge import streams

    streams.order(device.id, earlier, later)
    return True


@hookimpl
def engine_compiled_key(options: CompileOptions) -> Mapping[str, str]:
    from engine_ascend_ge import compiled

    return compiled.key(options)
