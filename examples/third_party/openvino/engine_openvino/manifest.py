"""The backend's manifest, its device, and what its options mean to OpenVINO."""

import functools
from importlib.metadata import version
from typing import Any

from engine import types
from engine.errors import one_line
from engine.hookspecs import hookimpl
from engine.options import parsed
from engine_openvino.nodes import DTYPES

VERSION = "0.1.0"
DEVICE = types.Device("cpu", 0)
CAPABILITIES = "async_predict cancel_predict compile_cache deadlines dynamic_shapes mixed_placement"
_SHORTER = {"float16": ("f16", "FP16"), "bfloat16": ("bf16", "BF16")}
_PRECISION = "type in which float32 is computed; f32 by default"
_STREAMS = "predicts at once, which share the threads"
OPTIONS = {
    "precision": types.Option(text=_PRECISION, choices=("f32", "bf16", "f16")),
    "streams": types.Option(text=_STREAMS, type=int, lowest=1, default="1"),
}


@functools.cache
def core() -> Any:
    """Return OpenVINO itself, one a process."""
    import openvino

    return openvino.Core()


@hookimpl
def engine_backend() -> types.BackendInfo:
    return types.BackendInfo(
        name="openvino", version=VERSION, level=3, device_types=("cpu",), providers=("cpu",),
        options=OPTIONS, capabilities=frozenset(CAPABILITIES.split()),
    )  # fmt: skip


@hookimpl
def engine_devices() -> types.Devices:
    try:
        name = f"{core().get_property('CPU', 'FULL_DEVICE_NAME')} (OpenVINO {version('openvino')})"
    except Exception as error:  # ImportError; of a broken library OSError, RuntimeError
        return types.Devices(
            reason=f"OpenVINO cannot be used: {one_line(error)}", fix="run: pip install openvino"
        )
    return types.Devices(found=(types.DeviceInfo(DEVICE, name, dtypes=DTYPES),))


@hookimpl
def engine_diagnose() -> list[types.Check]:
    found = engine_devices()
    return [types.Check("OpenVINO's CPU device", bool(found.found), found.reason, found.fix)]


def settings(options: types.CompileOptions) -> dict[str, Any]:
    """Return OpenVINO's properties for one compile."""
    chosen = parsed(options.options, OPTIONS)
    name, needed = _SHORTER.get(options.arithmetic or "", ("f32", "FP32"))
    default = name if needed in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "f32"
    return {
        "INFERENCE_PRECISION_HINT": chosen["precision"] or default,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,  # else activations meet int8 weights in 8 bits
        "INFERENCE_NUM_THREADS": options.threads.intra_op,
        "NUM_STREAMS": chosen["streams"],
        "ENABLE_CPU_PINNING": False,  # which CPUs a process uses is for its user to say
    }


@hookimpl
def engine_compiled_key(options: types.CompileOptions) -> dict[str, str]:
    names = ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES")
    key = {**settings(options), **{name: core().get_property("CPU", name) for name in names}}
    key |= {"plugin": VERSION, "openvino": version("openvino")}
    return {name: str(value) for name, value in key.items()}
