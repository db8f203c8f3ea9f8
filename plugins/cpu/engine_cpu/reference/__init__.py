"""The reference backend: all of ONNX, slowly, on the host's processor.

It runs onnx's reference evaluator. The cpu backend names it as the one that completes it: nodes
for which ONNX Runtime has no kernel run here, and only those. It is a target of its own too, for
a second opinion on a result: `target="reference"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

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
from engine_cpu import __version__

if TYPE_CHECKING:
    from engine.reference.evaluator import EvaluatorContext, EvaluatorModel

DEVICE = Device("cpu", 0)


@hookimpl
def engine_backend() -> BackendInfo:
    return BackendInfo(
        name="reference",
        version=__version__,
        device_types=("cpu",),
        providers=("reference",),
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
    if find_spec("onnx") is None:
        return Devices(reason="the onnx package is missing", fix="run: pip install onnx")
    return Devices(found=(DeviceInfo(DEVICE, "onnx's reference evaluator"),))


@hookimpl
def engine_diagnose() -> Sequence[Check]:
    devices = engine_devices()
    return [Check("onnx can be imported", bool(devices.found), devices.reason, devices.fix)]


@hookimpl
def engine_load(source: ModelSource, options: CompileOptions) -> LoadedModel:
    from engine.reference.evaluator import Host, load

    refuse_unknown(options.options, ())
    if options.provider not in ("", "reference"):
        raise ValueError(f"provider must be 'reference' or '', but got {options.provider!r}")
    return load(source, Host("reference", DEVICE))


@hookimpl
def engine_compile(loaded: EvaluatorModel, options: CompileOptions) -> Executable:
    return loaded.compile(options)


@hookimpl
def engine_predict(
    context: EvaluatorContext, inputs: Values, outputs: Values | None, deadline_s: float | None
) -> Values:
    return context.run(inputs, outputs, deadline_s)
