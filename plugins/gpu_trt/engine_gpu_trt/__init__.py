"""The gpu_trt backend of inference-engine: TensorRT on NVIDIA GPUs, through pycuda.

This file is the backend's hooks; what they do lies beside it:

    vendor.py      finding pycuda, a device and TensorRT, in this order
    devices.py     what there is, and what is missing
    cuda.py        the CUDA driver: contexts, memory, streams
    messages.py    TensorRT's log and errors
    options.py     the user's settings
    dtypes.py      element types
    network.py     load: a parsed network, or a compiled engine
    precision.py   preferred_fp16: the model rewritten
    profiles.py    the shapes to compile for
    build.py       compile: from network to engine
    engines.py     an engine in memory
    executable.py  what compile returns
    run.py         one execution context: how arrays reach the device and come back

Nothing of NVIDIA's is imported before a device is asked for.
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
from engine_gpu_trt.options import OPTIONS

if TYPE_CHECKING:
    from engine_gpu_trt.executable import TrtContext
    from engine_gpu_trt.network import TrtModel

__version__ = "0.1.0"


@hookimpl
def engine_backend() -> BackendInfo:
    return BackendInfo(
        name="gpu_trt",
        version=__version__,
        device_types=("gpu",),
        providers=("tensorrt",),
        formats=("onnx", "plan"),
        capabilities=frozenset(
            {
                Capability.DYNAMIC_SHAPES,  # within the ranges that were compiled: see profiles.py
                Capability.CANCEL_COMPILE,
                Capability.MIXED_PLACEMENT,
            }
        ),
        suffixes={".engine": "plan", ".plan": "plan"},
        options=OPTIONS,
    )


@hookimpl
def engine_devices() -> Devices:
    from engine_gpu_trt.devices import find_devices

    return find_devices()


@hookimpl
def engine_diagnose() -> Sequence[Check]:
    from engine_gpu_trt.devices import diagnose

    return diagnose()


@hookimpl
def engine_load(source: ModelSource, options: CompileOptions) -> LoadedModel:
    from engine_gpu_trt.network import load

    return load(source, options)


@hookimpl
def engine_compile(loaded: TrtModel, options: CompileOptions) -> Executable:
    from engine_gpu_trt.build import compile_model

    return compile_model(loaded, options)


@hookimpl
def engine_predict(
    context: TrtContext, inputs: Values, outputs: Values | None, deadline_s: float | None
) -> Values:
    return context.run.predict(inputs, outputs)  # deadlines are not announced: none comes
