"""The gpu_trt backend of inference-engine: TensorRT on NVIDIA GPUs, through pycuda.

This file is the backend's hooks; what they do lies beside it:

    vendor.py      finding pycuda, a device and TensorRT, in this order
    devices.py     what there is, and what is missing
    cuda.py        the CUDA driver: contexts, memory, streams
    memory.py      device memory for the core: allocate, copy, order
    messages.py    TensorRT's log and errors
    options.py     the user's settings
    dtypes.py      element types
    network.py     load: a parsed network, or a compiled engine
    precision.py   preferred_fp16: the model rewritten
    profiles.py    the shapes to compile for
    build.py       compile: from network to engine
    timing.py      the timing cache
    form.py        compiled forms on disk, and what they depend on
    engines.py     an engine in memory
    placement.py   what became of each node
    executable.py  what compile returns
    run.py         one execution context: how values reach the device and come back
    slots.py       where one input or output lies
    workspace.py   stream and scratch memory, which contexts can share

Nothing of NVIDIA's is imported before a device is asked for.
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
                Capability.DEVICE_BUFFERS,
                Capability.COMPILE_CACHE,
                Capability.SHARE_WORKSPACE,
                # Neither DEADLINES nor CANCEL_PREDICT: see executable.TrtContext.
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


@hookimpl
def engine_compiled_key(options: CompileOptions) -> Mapping[str, str]:
    from engine_gpu_trt.form import compiled_key

    return compiled_key(options, __version__)


@hookimpl
def engine_buffer(device: Device, dtype: DType, shape: tuple[int, ...], on_host: bool) -> Value:
    from engine_gpu_trt.memory import allocate

    return allocate(device, dtype, shape, on_host)


@hookimpl
def engine_copy(source: Value, target: Value, stream: int | None) -> bool:
    from engine_gpu_trt.memory import copy

    return copy(source, target, stream)


@hookimpl
def engine_order(device: Device, earlier: int, later: int | None) -> bool:
    from engine_gpu_trt.memory import order

    return order(device, earlier, later)
