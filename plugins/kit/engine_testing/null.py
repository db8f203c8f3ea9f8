"""The null backend: a whole backend in a few short files, which needs no device.

Read this one first if you write a backend. A plugin is a module whose functions are hooks; what
each takes, returns and raises stands in `engine.hookspecs`, and the names of the arguments are
part of that: an implementation may leave out those it does not need. The package that ships it
says in its pyproject.toml:

    [project.entry-points."engine.backends.v1"]
    null = "engine_testing.null"

This module imports nothing heavy, because the core imports it only to ask who it is. What needs
the runtime is in the modules beside it:

    null_run.py      executable and context: onnx's reference evaluator, slow and exact
    fake_device.py   memory that the host cannot read, streams that run late
    fake_ranks.py    collectives between processes, over the core's store

Its options, which users set in section [null_context], are in OPTIONS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from engine import __version__
from engine.hookspecs import hookimpl
from engine.options import parsed
from engine.types import (
    BackendInfo,
    Capability,
    Check,
    CommunicatorOptions,
    CompileOptions,
    Device,
    DeviceInfo,
    Devices,
    DType,
    Executable,
    LoadedModel,
    ModelSource,
    Option,
    ReduceOp,
    Value,
    Values,
)

if TYPE_CHECKING:
    from engine.reference.evaluator import EvaluatorModel
    from engine_testing.fake_device import FakeDevice
    from engine_testing.fake_ranks import StoreCommunicator
    from engine_testing.null_run import NullContext, NullExecutable

DEVICE = Device("null", 0)
OPTIONS: Mapping[str, Option] = {
    "unsupported_ops": Option(text="operators to refuse, for example Relu,Tanh"),
    "delay_s": Option(
        text="how long each predict takes at least, in seconds", type=float, lowest=0, default="0"
    ),
    "concurrency": Option(
        text="how many predicts at once are worth having, 0 for any number",
        type=int,
        lowest=0,
        default="0",
    ),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of OPTIONS, read."""

    unsupported_ops: frozenset[str] = frozenset()
    delay_s: float = 0.0
    concurrency: int = 0

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Settings:
        """Read the user's settings; ValueError for an unknown name or a value that is none."""
        values = parsed(options, OPTIONS)
        names = values["unsupported_ops"].replace(" ", "").split(",")
        refused = frozenset(name for name in names if name)
        return cls(refused, values["delay_s"], values["concurrency"])


@hookimpl
def engine_backend() -> BackendInfo:
    """Say who this is; announce only what is really done."""
    return BackendInfo(
        name="null",
        version=__version__,
        device_types=("null",),
        providers=("reference",),
        options=OPTIONS,
        capabilities=frozenset(
            {
                Capability.DYNAMIC_SHAPES,
                Capability.DEADLINES,
                Capability.CANCEL_COMPILE,
                Capability.CANCEL_PREDICT,
                Capability.DEVICE_BUFFERS,
                Capability.MIXED_PLACEMENT,
                Capability.COMPILE_CACHE,
                Capability.SHARE_WORKSPACE,
                Capability.UPDATE_WEIGHTS,
                Capability.COLLECTIVES,
                Capability.QUEUED_COLLECTIVES,
                Capability.FILES_IN_MEMORY,
                Capability.PROFILE,
            }
        ),
    )


@hookimpl
def engine_devices() -> Devices:
    """Find the device; a missing runtime is an answer with a fix, not an exception."""
    if find_spec("onnx") is None:
        return Devices(reason="the onnx package is missing", fix="run: pip install onnx")
    return Devices(found=(DeviceInfo(DEVICE, "onnx's reference implementation"),))


@hookimpl
def engine_diagnose() -> Sequence[Check]:
    """Check what the null backend needs, with the fix where something is wrong."""
    devices = engine_devices()
    return [Check("onnx can be imported", bool(devices.found), devices.reason, devices.fix)]


# ------------------------------------------------------------------------- one model, one device


@hookimpl
def engine_load(source: ModelSource, options: CompileOptions) -> LoadedModel:
    """Read a model; this is the first call that may import the runtime."""
    from engine.reference.evaluator import Host, load
    from engine_testing.null_run import read_compiled, write_compiled

    settings = Settings.parse(options.options)
    if source.compiled is not None:
        source = read_compiled(source)
    loaded = load(source, Host("null", DEVICE, settings.unsupported_ops, settings.delay_s))
    if options.save_to is not None and not source.is_secret:
        write_compiled(options.save_to, loaded)
    return loaded


@hookimpl
def engine_compile(loaded: EvaluatorModel, options: CompileOptions) -> Executable:
    """Compile for the one device that there is."""
    from engine_testing.null_run import NullExecutable

    settings = Settings.parse(options.options)
    return NullExecutable(loaded.compile(options), fake_device(), options, settings.concurrency)


@hookimpl
def engine_predict(
    context: NullContext, inputs: Values, outputs: Values | None, deadline_s: float | None
) -> Values:
    """Run once. No checks here: the core has made them."""
    return context.run(inputs, outputs, deadline_s)


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
