"""Ascend NPUs by CANN: ONNX models compiled with ATC, GE's offline compiler, and run by pyACL.

devices, diagnose    what is there; what is missing, and how to mend it
options, shapes      what the user asked for, in ATC's terms; sections: GE's raw options
atc                  an ONNX model to an .om file, in a process of its own
om, layout           an .om file, and how its inputs and outputs fit the model file's
compiled             the compiled form on disk, and what it depends on
model                read and compiled models
loading, external    their loads, on one copy of the weights; weights in files beside an .om
bundle               .om files of several models
lending              weights that other processes use, too
run, gears, outputs  an execution context: one load of the model, predict; where results go
buffers, workspace   the inputs and outputs of a context; its stream and scratch memory
profiling            times of operators
memory, streams      memory with an owner; order between streams, copies
communicator, peers  a group of ranks: joining, waiting, failing; who the others are
collectives, hccl    the hooks of what they do together; the library that does it
hccl_codes           its return codes
runtime, acl_call    ACL's start and end; calling pyACL; codes: what its return codes mean

Nothing of CANN is imported before a device is looked for or a model is read.
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
from engine_ascend_ge.collectives import (  # their hooks
    engine_allgather as engine_allgather,
)
from engine_ascend_ge.collectives import (
    engine_allreduce as engine_allreduce,
)
from engine_ascend_ge.collectives import (
    engine_alltoall as engine_alltoall,
)
from engine_ascend_ge.collectives import (
    engine_broadcast as engine_broadcast,
)
from engine_ascend_ge.collectives import (
    engine_receive as engine_receive,
)
from engine_ascend_ge.collectives import (
    engine_reduce_scatter as engine_reduce_scatter,
)
from engine_ascend_ge.collectives import (
    engine_send as engine_send,
)
from engine_ascend_ge.options import OPTIONS, PROVIDERS

if TYPE_CHECKING:
    from engine_ascend_ge.model import AscendExecutable, AscendModel
    from engine_ascend_ge.run import AscendContext

__version__ = "0.1.0"


@hookimpl
def engine_backend() -> BackendInfo:
    return BackendInfo(
        name="ascend_ge",
        version=__version__,
        device_types=("ascend",),
        providers=PROVIDERS,
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
                Capability.SHARE_WEIGHTS,
                Capability.COLLECTIVES,
                Capability.QUEUED_COLLECTIVES,
                Capability.PROFILE,
                Capability.DEVICE_MEMORY,
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
    ready("engine_ascend_ge.memory")
    from engine_ascend_ge import memory

    return memory.new_buffer(device, dtype, shape, on_host)


@hookimpl
def engine_copy(source: Value, target: Value, stream: int | None) -> bool:
    ready("engine_ascend_ge.streams")
    from engine_ascend_ge import streams

    streams.copy(source, target, stream)
    return True


@hookimpl
def engine_order(device: Device, earlier: int, later: int | None) -> bool:
    ready("engine_ascend_ge.streams")
    from engine_ascend_ge import streams

    streams.order(device.id, earlier, later)
    return True


@hookimpl
def engine_memory(device: Device) -> DeviceMemory:
    from engine_ascend_ge import memory

    return memory.left(device)


@hookimpl
def engine_compiled_key(options: CompileOptions) -> Mapping[str, str]:
    from engine_ascend_ge import compiled

    return compiled.key(options, __version__)


@hookimpl
def engine_share_weights(executable: AscendExecutable, pids: Sequence[int] | None) -> SharedWeights:
    return executable.share(pids)


@hookimpl
def engine_communicator(options: CommunicatorOptions) -> Communicator:
    from engine_ascend_ge import communicator

    return communicator.HcclCommunicator(options)
