"""The gpu_trt backend of inference-engine: TensorRT on NVIDIA GPUs, through pycuda.

This file is the backend's hooks, but those of the collectives; what they do lies beside it:

    vendor.py      finding pycuda, a device and TensorRT, in this order
    devices.py     what there is, and what is missing
    cuda.py        the CUDA driver: contexts, memory, streams
    cuda_bindings.py   pycuda's names over cuda.bindings, where pycuda is not installed
    memory.py      device memory for the core: allocate, copy, order
    messages.py    TensorRT's log and errors
    options.py     the user's settings
    dtypes.py      element types
    network.py     load: a parsed network, or a compiled engine
    model.py       what load hands to compile
    precision.py   preferred_fp16: the model rewritten
    profiles.py    the shapes to compile for
    build.py       compile: from network to engine
    timing.py      the timing cache
    form.py        compiled forms on disk, and what they depend on
    engines.py     an engine in memory
    layers.py      the layers of an engine, and which nodes they compute
    placement.py   what became of each node
    profile.py     how long each layer takes
    executable.py  what compile returns
    outside.py     weights that are inputs of the network
    lending.py     these on the device, once for several models or processes
    refit.py       weights that are exchanged in an engine
    turns.py       predicts at once, or an update alone
    run.py         one execution context: how values reach the device and come back
    bound.py       TensorRT's part of it, and what it has been told
    graphs.py      executions recorded as CUDA graphs
    extras.py      what a user may ask for beside plain execution
    slots.py       where one input or output lies
    collectives.py the hooks of collectives between ranks, on device memory
    communicator.py a group of ranks: joining, waiting, failing together
    membership.py  where the ranks of a group are
    in_graph.py    collectives inside an engine: the model rewritten
    graph_group.py the ranks that these are between
    handle.py      what a group holds of NCCL and CUDA
    nccl.py        NCCL's C interface
    workspace.py   stream and scratch memory, which contexts can share

Nothing of NVIDIA's is imported before a device is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from engine.hookspecs import hookimpl
from engine.host.imports import ready
from engine.types import (
    BackendInfo,
    Capability,
    Check,
    Communicator,
    CommunicatorOptions,
    CompileOptions,
    Device,
    DeviceMemory,
    Devices,
    DType,
    Executable,
    LoadedModel,
    ModelSource,
    SharedWeights,
    Value,
    Values,
)
from engine_gpu_trt.collectives import (  # their hooks
    engine_allgather as engine_allgather,
)
from engine_gpu_trt.collectives import (
    engine_allreduce as engine_allreduce,
)
from engine_gpu_trt.collectives import (
    engine_alltoall as engine_alltoall,
)
from engine_gpu_trt.collectives import (
    engine_broadcast as engine_broadcast,
)
from engine_gpu_trt.collectives import (
    engine_receive as engine_receive,
)
from engine_gpu_trt.collectives import (
    engine_reduce_scatter as engine_reduce_scatter,
)
from engine_gpu_trt.collectives import (
    engine_send as engine_send,
)
from engine_gpu_trt.options import OPTIONS, PROVIDERS

if TYPE_CHECKING:
    from engine_gpu_trt.executable import TrtContext, TrtExecutable
    from engine_gpu_trt.model import TrtModel

__version__ = "0.1.0"


@hookimpl
def engine_backend() -> BackendInfo:
    return BackendInfo(
        name="gpu_trt",
        version=__version__,
        device_types=("gpu",),
        providers=PROVIDERS,
        formats=("onnx", "plan"),
        capabilities=frozenset(
            {
                Capability.DYNAMIC_SHAPES,  # within the ranges that were compiled: see profiles.py
                Capability.CANCEL_COMPILE,
                Capability.MIXED_PLACEMENT,
                Capability.DEVICE_BUFFERS,
                Capability.COMPILE_CACHE,
                Capability.SHARE_WORKSPACE,
                Capability.COLLECTIVES,
                Capability.QUEUED_COLLECTIVES,
                Capability.GRAPH_COLLECTIVES,  # where in_graph_collectives asks for it
                Capability.UPDATE_WEIGHTS,
                Capability.SHARE_WEIGHTS,
                Capability.PROFILE,
                Capability.DEVICE_MEMORY,
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
    # Deadlines are not announced: one comes only where there are collectives inside.
    return context.run.predict(inputs, outputs, deadline_s)


@hookimpl
def engine_compiled_key(options: CompileOptions) -> Mapping[str, str]:
    from engine_gpu_trt.form import compiled_key

    return compiled_key(options, __version__)


@hookimpl
def engine_buffer(device: Device, dtype: DType, shape: tuple[int, ...], on_host: bool) -> Value:
    ready("engine_gpu_trt.memory")
    from engine_gpu_trt.memory import allocate

    return allocate(device, dtype, shape, on_host)


@hookimpl
def engine_copy(source: Value, target: Value, stream: int | None) -> bool:
    ready("engine_gpu_trt.memory")
    from engine_gpu_trt.memory import copy

    return copy(source, target, stream)


@hookimpl
def engine_order(device: Device, earlier: int, later: int | None) -> bool:
    ready("engine_gpu_trt.memory")
    from engine_gpu_trt.memory import order

    return order(device, earlier, later)


@hookimpl
def engine_memory(device: Device) -> DeviceMemory:
    from engine_gpu_trt.memory import left

    return left(device)


@hookimpl
def engine_update_weights(
    executable: TrtExecutable, weights: Mapping[str, Value], additive: bool
) -> bool:
    return executable.update_weights(weights, additive)


@hookimpl
def engine_share_weights(executable: TrtExecutable) -> SharedWeights:
    return executable.share()  # CUDA knows no list of pids; the core guards the handle


@hookimpl
def engine_communicator(options: CommunicatorOptions) -> Communicator:
    from engine_gpu_trt.communicator import NcclCommunicator

    return NcclCommunicator(options)
