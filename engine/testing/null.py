"""The null backend: a whole backend in two short files, which needs no device.

Read this one first if you write a backend. A plugin is a module whose functions are hooks; what
each takes, returns and raises stands in `engine.hookspecs`, and the names of the arguments are
part of that: an implementation may leave out those it does not need. The package that ships it
says in its pyproject.toml:

    [project.entry-points."engine.backends.v1"]
    null = "engine.testing.null"

This module imports nothing heavy, because the core imports it only to ask who it is. What needs
the runtime (here onnx's reference implementation, slow and exact) is in the module beside it.
Its options, which users set in section [null_context], are in OPTIONS.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from engine import __version__
from engine.hookspecs import hookimpl
from engine.options import refuse_unknown
from engine.types import (
    BackendInfo,
    Capability,
    Check,
    CompileOptions,
    Device,
    DeviceInfo,
    Devices,
    Executable,
    LoadedModel,
    ModelSource,
    Values,
)

if TYPE_CHECKING:
    from engine.reference.evaluator import EvaluatorContext, EvaluatorModel

DEVICE = Device("null", 0)
OPTIONS: Mapping[str, str] = {
    "unsupported_ops": "operators to refuse, for example Relu,Tanh",
    "delay_s": "how long each predict takes at least, in seconds",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of OPTIONS, read."""

    unsupported_ops: frozenset[str] = frozenset()
    delay_s: float = 0.0

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Settings:
        """Read the user's settings; ValueError for an unknown name or a value that is none."""
        refuse_unknown(options, OPTIONS)
        names = options.get("unsupported_ops", "").replace(" ", "").split(",")
        text = options.get("delay_s", "0")
        try:
            delay_s = float(text)
        except ValueError:
            delay_s = math.nan
        if not 0 <= delay_s < math.inf:
            raise ValueError(f"option 'delay_s': expected seconds, 0 or more, got {text!r}")
        return cls(frozenset(name for name in names if name), delay_s)


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
                Capability.MIXED_PLACEMENT,
                Capability.FILES_IN_MEMORY,
            }
        ),
    )


@hookimpl
def engine_devices() -> Devices:
    """A missing runtime is an answer with a fix, not an exception."""
    if find_spec("onnx") is None:
        return Devices(reason="the onnx package is missing", fix="run: pip install onnx")
    return Devices(found=(DeviceInfo(DEVICE, "onnx's reference implementation"),))


@hookimpl
def engine_diagnose() -> Sequence[Check]:
    """Each line of the null backend's diagnosis, with the fix where something is wrong."""
    devices = engine_devices()
    return [Check("onnx can be imported", bool(devices.found), devices.reason, devices.fix)]


@hookimpl
def engine_load(source: ModelSource, options: CompileOptions) -> LoadedModel:
    """Read a model; this is the first call that may import the runtime."""
    from engine.reference.evaluator import Host, load

    settings = Settings.parse(options.options)
    return load(source, Host("null", DEVICE, settings.unsupported_ops, settings.delay_s))


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
