"""The cpu backend of inference-engine: ONNX Runtime on the host's processor.

This file is the backend's hooks; what they do lies beside it:

    options.py       the user's settings -> ONNX Runtime's
    entries.py       which of ONNX Runtime's own entries it knows
    thread_pool.py   one pool of threads for the process; spin.py: how long idle ones wait
    workspace.py     one arena of activations for several sessions
    load.py          load: a session, or the nodes that there can be none for
    session.py       sessions as ONNX Runtime makes them
    executable.py    compile: the session with its placement and memory
    compiled.py      its compiled form on disk: the optimised graph and packed weights
    compiled_session.py  sessions that write such a form, and are opened from it
    common_weights.py  where weights lie in such a form, and what several have in common, stored
                     once in weights_pool.py; mapped.py: what is in memory
    node_states.py   which nodes run, are fused or folded: read off the optimised graph
    prescreen.py     risks of a model, found before a session is made of it; risk.py: which models
                     have none, as most
    node_rules.py    what its nodes must keep to; nodes.py, element_types.py: what they are
    known_issues.py  kernels that are not used; issue.py: what is known of one
    prepare/         models that ONNX Runtime refuses as they are: written in other terms
    rewrites/        models that it takes, written otherwise for its faster kernels
    prepared.py      what that answers; ranks.py: contexts that check inputs of no declared rank
    run.py           one execution context: how arrays reach the session, come back;
                     layout.py: the names and types that all of a session have in common
    bound.py         arrays that stay bound in a session between runs
    values.py        the same for what ONNX Runtime's Python interface has no arrays of
    deadline.py      stopping a run that takes too long
    shutdown.py      how a process that has loaded ONNX Runtime ends
    reference/       a backend of its own, for the nodes that ONNX Runtime cannot run
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from engine.errors import one_line
from engine.hookspecs import hookimpl
from engine.types import (
    BackendInfo,
    Capability,
    Check,
    CompileOptions,
    Device,
    DeviceInfo,
    DeviceMemory,
    Devices,
    ModelSource,
    PredictOptions,
    Values,
)
from engine_cpu.options import OPTIONS

if TYPE_CHECKING:
    from engine_cpu.executable import CpuExecutable
    from engine_cpu.run import CpuContext
    from engine_cpu.session import CpuModel

__version__ = "0.1.0"

# ONNX Runtime reports each session to its makers, by way of a database in the user's cache folder:
# the model's graph name, its producer, messages of failed runs. A model's content, an encrypted
# one at that, stays here unless the user sets this to 0. It is read when onnxruntime is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_REINSTALL = "run: pip install --force-reinstall onnxruntime"


@hookimpl
def engine_backend() -> BackendInfo:
    return BackendInfo(
        name="cpu",
        version=__version__,
        device_types=("cpu",),
        providers=("onnxruntime",),
        formats=("onnx",),
        options=OPTIONS,
        capabilities=frozenset(
            {
                Capability.DYNAMIC_SHAPES,
                Capability.DEADLINES,
                Capability.CANCEL_COMPILE,
                Capability.CANCEL_PREDICT,
                Capability.COMPILE_CACHE,
                Capability.MIXED_PLACEMENT,
                Capability.FILES_IN_MEMORY,
                Capability.PROFILE,
                Capability.DEVICE_MEMORY,
            }
        ),
        completed_by=("reference",),
    )


@hookimpl
def engine_devices() -> Devices:
    try:
        from engine_cpu.runtime import ort as onnxruntime

        providers, version = onnxruntime.get_available_providers(), onnxruntime.__version__
    except Exception as error:  # a folder that an uninstall has left imports, and has nothing in it
        reason = "cannot be imported" if isinstance(error, ImportError) else "is damaged"
        return Devices(reason=f"onnxruntime {reason}: {one_line(error)}", fix=_REINSTALL)
    if "CPUExecutionProvider" not in providers:
        reason = f"onnxruntime {version} was built without its CPU provider"
        return Devices(reason=reason, fix=_REINSTALL)
    from engine.host import processor

    device = DeviceInfo(
        device=Device("cpu"),
        name=processor.name(),
        memory_bytes=_memory_bytes(),
        lacks=_lacks(onnxruntime),
    )
    return Devices((device,))


@hookimpl
def engine_diagnose() -> Sequence[Check]:
    devices = engine_devices()
    if not devices.found:
        return (Check("onnxruntime", ok=False, detail=devices.reason, fix=devices.fix),)
    from engine_cpu.runtime import ort as onnxruntime

    folder = os.path.dirname(onnxruntime.__file__)
    return (Check("onnxruntime", ok=True, detail=f"{onnxruntime.__version__} in {folder}"),)


@hookimpl
def engine_load(source: ModelSource, options: CompileOptions) -> CpuModel:
    from engine_cpu.load import load_model

    return load_model(source, options)


@hookimpl
def engine_compile(loaded: CpuModel, options: CompileOptions) -> CpuExecutable:
    from engine_cpu.executable import compile_model

    return compile_model(loaded, options)


@hookimpl
def engine_compiled_key(options: CompileOptions) -> Mapping[str, str]:
    from engine_cpu.compiled import compiled_key

    return compiled_key(options, __version__)


@hookimpl
def engine_predict(
    context: CpuContext,
    inputs: Values,
    outputs: Values | None,
    deadline_s: float | None,
    options: PredictOptions | None = None,
) -> Values:
    if options is not None and options.id:
        return context.run_named(options.id, inputs, outputs, deadline_s)  # type: ignore[no-any-return]
    return context.run(inputs, outputs, deadline_s)  # type: ignore[no-any-return]


@hookimpl
def engine_memory() -> DeviceMemory:
    from engine.host.memory import host_memory

    return host_memory()


def _lacks(onnxruntime: ModuleType) -> dict[str, str]:
    """Return what we announce and this version of ONNX Runtime cannot do."""
    if hasattr(onnxruntime.SessionOptions, "set_load_cancellation_flag"):
        return {}
    return {
        Capability.CANCEL_COMPILE: f"onnxruntime {onnxruntime.__version__} cannot stop while it "
        "makes a session; run: pip install --upgrade onnxruntime"
    }


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
