"""The null backend with all that is optional: a device's memory, compiled forms, collectives.

It is `null.py` with the optional hooks, and is found under the same name, "null", as an entry point
`null = "engine_testing.null_device"`. The device is not there, so its parts are emulated:

    null_run.py      executable and context: the evaluator's, whose values go to the device
    fake_device.py   memory that the host cannot read, streams that run late
    fake_queue.py    predicts that no thread waits for
    fake_ranks.py    collectives between processes, over the core's store
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np

from engine import __version__
from engine.hookspecs import hookimpl
from engine.options import parsed
from engine.types import (
    BackendInfo,
    Capability,
    CommunicatorOptions,
    CompileOptions,
    Device,
    DeviceMemory,
    Done,
    DType,
    Executable,
    LoadedModel,
    ModelSource,
    Option,
    PredictOptions,
    ReduceOp,
    Value,
    Values,
)
from engine_testing import null as _null  # not for who imports all names of this
from engine_testing.null import DEVICE
from engine_testing.null import engine_devices as engine_devices
from engine_testing.null import engine_diagnose as engine_diagnose
from engine_testing.null import host as host

if TYPE_CHECKING:
    from engine.reference.evaluator import EvaluatorModel
    from engine_testing.fake_device import FakeDevice
    from engine_testing.fake_ranks import StoreCommunicator
    from engine_testing.null_run import NullContext, NullExecutable

OPTIONS: Mapping[str, Option] = {
    **_null.OPTIONS,
    "concurrency": Option(
        text="how many predicts at once are worth having, 0 for any number",
        type=int,
        lowest=0,
        default="0",
    ),
    "together": Option(text="operators whose nodes run only together, for example Mul,Add"),
    "least_nodes": Option(
        text="how many nodes a segment has at least", type=int, lowest=1, default="1"
    ),
}
ALSO = {
    Capability.NODE_GROUPS,
    Capability.DEVICE_BUFFERS,
    Capability.STRIDED_BUFFERS,
    Capability.COMPILE_CACHE,
    Capability.SHARE_WORKSPACE,
    Capability.UPDATE_WEIGHTS,
    Capability.PREPARE,
    Capability.COLLECTIVES,
    Capability.QUEUED_COLLECTIVES,
    Capability.DEVICE_MEMORY,
    Capability.ASYNC_PREDICT,
}


@hookimpl
def engine_backend() -> BackendInfo:
    """Say who this is: the null backend, with more options and capabilities."""
    found = _null.engine_backend()
    return replace(found, options=OPTIONS, capabilities=found.capabilities | ALSO)


# ------------------------------------------------------------------------- one model, one device


@hookimpl
def engine_load(source: ModelSource, options: CompileOptions) -> LoadedModel:
    """Read a model or its compiled form; write that where the core asks for it."""
    from engine_testing.null_run import read_compiled, with_groups, write_compiled

    settings = parsed(options.options, OPTIONS)  # all are checked, before the file is read
    own = {name: value for name, value in options.options.items() if name in _null.OPTIONS}
    if source.compiled is not None:
        source = read_compiled(source)
    loaded = _null.engine_load(source, replace(options, options=own))
    if options.save_to is not None and not source.is_secret:
        write_compiled(options.save_to, loaded)
    return with_groups(loaded, settings["together"], settings["least_nodes"])


@hookimpl
def engine_compile(loaded: EvaluatorModel, options: CompileOptions) -> Executable:
    """Compile for the one device that there is."""
    from engine_testing.null_run import NullExecutable

    settings = parsed(options.options, OPTIONS)
    inner = loaded.compile(options)
    return NullExecutable(inner, fake_device(), options, settings["concurrency"])


@hookimpl
def engine_compiled_key(options: CompileOptions) -> Mapping[str, str]:
    """Name the versions: the form is the model as onnx reads it, and no option matters."""
    return {"null": __version__, "onnx": version("onnx")}


@hookimpl
def engine_update_weights(
    executable: NullExecutable, weights: Mapping[str, Value], additive: bool
) -> bool:
    """Exchange weights between two predicts."""
    executable.update(weights, additive)
    return True


@hookimpl
def engine_predict(
    context: NullContext,
    inputs: Values,
    outputs: Values | None,
    deadline_s: float | None,
    options: PredictOptions | None = None,
) -> Values:
    """Run once."""
    context.told = options
    return context.run(inputs, outputs, deadline_s)


@hookimpl
def engine_predict_async(
    context: NullContext,
    inputs: Values,
    outputs: Values | None,
    deadline_s: float | None,
    done: Done,
    options: PredictOptions | None = None,
) -> bool:
    """Queue a predict, due after the option's `delay_s`; the highest priority runs first then."""
    context.told = options
    context.begin(inputs, outputs, deadline_s, done)
    return True


# ---------------------------------------------------------------------------------- device memory


@cache
def fake_device() -> FakeDevice:
    """Return the memory and streams of the one device."""
    from engine_testing.fake_device import FakeDevice

    return FakeDevice(DEVICE)


@hookimpl
def engine_buffer(device: Device, dtype: DType, shape: tuple[int, ...], on_host: bool) -> Value:
    """Allocate; any host memory will do for a device that is not there."""
    if on_host:
        return np.empty(shape, dtype.numpy)
    return fake_device().allocate(dtype, shape)


@hookimpl
def engine_copy(source: Value, target: Value, stream: int | None) -> bool:
    """Copy now, or in the stream's turn."""
    fake_device().copy(source, target, stream)
    return True


@hookimpl
def engine_order(device: Device, earlier: int, later: int | None) -> bool:
    """Order two streams; without this, `later` would find garbage."""
    fake_device().order(earlier, later)
    return True


@hookimpl
def engine_memory() -> DeviceMemory:
    """Tell what is left: this process has all that is used."""
    device = fake_device()
    used = device.held_bytes
    return DeviceMemory(free_bytes=device.memory_bytes - used, used_bytes=used, own_bytes=used)


# ------------------------------------------------------------------------------------ collectives


@hookimpl
def engine_communicator(options: CommunicatorOptions) -> StoreCommunicator:
    """Join over the store; there is nothing else to find each other by."""
    from engine_testing.fake_ranks import StoreCommunicator

    return StoreCommunicator(options, fake_device())


@hookimpl
def engine_allreduce(
    comm: StoreCommunicator,
    send: Value,
    receive: Value,
    op: ReduceOp,
    stream: int | None,
    deadline_s: float | None,
) -> bool:
    """Reduce; always deterministically, so that argument is left out."""
    comm.allreduce(send, receive, op, stream, deadline_s)
    return True


@hookimpl
def engine_allgather(
    comm: StoreCommunicator,
    send: Value,
    receive: Value,
    stream: int | None,
    deadline_s: float | None,
) -> bool:
    """Join the parts on the host."""
    comm.allgather(send, receive, stream, deadline_s)
    return True


@hookimpl
def engine_send(comm: StoreCommunicator, buffer: Value, peer: int, stream: int | None) -> bool:
    """Leave it in the store, where it waits for its reader."""
    comm.send(buffer, peer, stream)
    return True


@hookimpl
def engine_receive(
    comm: StoreCommunicator, buffer: Value, peer: int, stream: int | None, deadline_s: float | None
) -> bool:
    """Wait for it in the store."""
    comm.receive(buffer, peer, stream, deadline_s)
    return True
