"""The null backend: a whole backend in one short file, which needs no device.

Read this one first if you write a backend. A plugin is a module whose functions are hooks; what
each takes, returns and raises stands in `engine.hookspecs`, and the names of the arguments are
part of that: an implementation may leave out those it does not need. The package that ships it
says in its pyproject.toml:

    [project.entry-points."engine.backends.v1"]
    null = "engine_testing.null"

This module imports nothing heavy, because the core imports it only to ask who it is. The runtime,
onnx's reference evaluator, is imported with the first model; its classes in
`engine.reference.evaluator` are the executable and the context. The optional hooks (device memory,
compiled forms, weights that are updated, collectives) are in `null_device.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from engine import __version__
from engine.hookspecs import hookimpl
from engine.options import parsed
from engine.types import (
    BackendInfo,
    Capability,
    Check,
    CompileOptions,
    Device,
    DeviceInfo,
    Devices,
    Executable,
    ModelSource,
    Option,
    Values,
)

if TYPE_CHECKING:
    from engine.reference.evaluator import EvaluatorContext, EvaluatorModel, Host

DEVICE = Device("null", 0)
OPTIONS: Mapping[str, Option] = {
    "unsupported_ops": Option(text="operators to refuse, for example Relu,Tanh"),
    "delay_s": Option(
        text="how long each predict takes at least, in seconds", type=float, lowest=0, default="0"
    ),
}


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
                Capability.MIXED_PLACEMENT,
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


@hookimpl
def engine_load(source: ModelSource, options: CompileOptions) -> EvaluatorModel:
    """Read a model; this is the first call that may import the runtime."""
    from engine.reference.evaluator import load

    return load(source, host("null", DEVICE, options.options))


def host(name: str, device: Device, options: Mapping[str, str]) -> Host:
    """Return what the evaluator is told of a backend: its name, its device, the user's settings.

    Raises ValueError for an option that is misspelt or has a value that is none.
    """
    from engine.reference.evaluator import Host

    settings = parsed(options, OPTIONS)
    names = settings["unsupported_ops"].replace(" ", "").split(",")
    return Host(name, device, frozenset(filter(None, names)), settings["delay_s"])


@hookimpl
def engine_compile(loaded: EvaluatorModel, options: CompileOptions) -> Executable:
    """Compile for the one device that there is."""
    return loaded.compile(options)


@hookimpl
def engine_predict(
    context: EvaluatorContext, inputs: Values, outputs: Values | None, deadline_s: float | None
) -> Values:
    """Run once. No checks here: the core has made them."""
    return context.run(inputs, outputs, deadline_s)
