"""A backend on JAX: the graph becomes a function that XLA compiles for each set of shapes."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from engine import types
from engine.errors import BackendUnavailable, one_line
from engine.hookspecs import hookimpl
from engine.options import parsed
from engine.types import Capability, CompileOptions, Device, Devices, DType, Value, Values

if TYPE_CHECKING:
    from engine_jax.executable import JaxContext, JaxExecutable
    from engine_jax.model import JaxModel

_KEPT = "how many sets of input shapes keep their compiled program"
OPTIONS = {"kept_programs": types.Option(text=_KEPT, type=int, lowest=1, default="64")}
CAPABILITIES = {
    Capability.DYNAMIC_SHAPES, Capability.MIXED_PLACEMENT, Capability.DEVICE_BUFFERS,
    Capability.COMPILE_CACHE, Capability.PREPARE, Capability.NODE_GROUPS,
    Capability.STRIDED_BUFFERS, Capability.SEVERAL_DEVICES,
}  # fmt: skip


@hookimpl
def engine_backend() -> types.BackendInfo:
    return types.BackendInfo(
        name="jax", version="0.1.0", device_types=("jax",), providers=("xla",), options=OPTIONS,
        capabilities=frozenset(CAPABILITIES), level=4,
    )  # fmt: skip


@hookimpl
def engine_devices() -> Devices:
    if find_spec("jax") is None:
        return Devices(reason="the jax package is missing", fix="run: pip install jax")
    try:
        from engine_jax.runtime import jax

        devices = jax.local_devices()
    except Exception as error:  # jaxlib of another version, a driver that does not start
        return Devices(reason=one_line(error), fix="run: python -c 'import jax; jax.devices()'")
    lacks = {Capability.DEVICE_BUFFERS: "JAX cannot write into memory of an accelerator in place"}
    infos = [
        types.DeviceInfo(
            Device("jax", each.id), f"{each.device_kind} of platform {each.platform}",
            lacks={} if each.platform == "cpu" else lacks,
        )
        for each in devices
    ]  # fmt: skip
    return Devices(found=tuple(infos))


@hookimpl
def engine_load(source: types.ModelSource, options: CompileOptions) -> JaxModel:
    parsed(options.options, OPTIONS)
    from engine_jax.model import JaxModel

    return JaxModel(source)


@hookimpl
def engine_compile(loaded: JaxModel, options: CompileOptions) -> JaxExecutable:
    from engine_jax.executable import JaxExecutable

    return JaxExecutable(loaded, options, parsed(options.options, OPTIONS)["kept_programs"])


@hookimpl
def engine_predict(context: JaxContext, inputs: Values, outputs: Values | None) -> Values:
    return context.run(inputs, outputs)


@hookimpl
def engine_buffer(device: Device, dtype: DType, shape: tuple[int, ...], on_host: bool) -> Value:
    from engine_jax import memory

    if dtype.bits < 8:  # text has none
        raise BackendUnavailable(f"{dtype} has no place in XLA's memory here", "jax")
    contents = memory.array(dtype, shape)
    return contents if on_host else memory.buffer(contents, device)


@hookimpl
def engine_copy(source: Value, target: Value) -> bool:
    from engine_jax import memory

    np.copyto(memory.view(target), memory.view(source))
    return True


@hookimpl
def engine_order(device: Device, earlier: int, later: int | None) -> bool:
    return True  # every value is complete when it is handed over: there are no streams


@hookimpl
def engine_compiled_key(options: CompileOptions) -> Mapping[str, str]:
    from engine_jax import runtime

    return runtime.compiled_key(options)
