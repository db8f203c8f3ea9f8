"""The emulated module `acl.mdl`: loading models, describing them, running them."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from emulated_ascend.device import (
    GEAR_INPUT,
    DataBuffer,
    Dataset,
    LoadConfig,
    LoadedBundle,
    Model,
    ModelDesc,
    Stream,
    TensorDesc,
)
from emulated_ascend.machine import (
    API_NOT_SUPPORT,
    CONTEXT_NULL,
    DEVICE_OOM,
    DYNAMIC_ADDR_INVALID,
    DYNAMIC_LENGTH_INVALID,
    DYNAMIC_SIZE_INVALID,
    GE_FAILURE,
    GE_PARAM_INVALID,
    INVALID_PARAM,
    MODEL_CONTEXT,
    MODEL_DATA_SIZE_INVALID,
    MODEL_ID_INVALID,
    OK,
    STREAM_CONTEXT,
    Context,
    api,
    machine,
)
from emulated_ascend.omfile import Om, Value, read_bundle

from acl.rt import _context, _no_context

_INT64 = 9

# ------------------------------------------------------------------------------------- loading


@api("mdl.query_size", "value, value, ret")
def query_size(path: str) -> tuple[int, int, int]:
    return _sizes(_read_file(path))


@api("mdl.query_size_from_mem", "value, value, ret")
def query_size_from_mem(model: int, size: int) -> tuple[int, int, int]:
    return _sizes(_read(ctypes.string_at(model, size)))


@api("mdl.load_from_file", "value, ret")
def load_from_file(path: str) -> tuple[int, int]:
    return _load(_read_file(path), 0, 0, 0, 0)


@api("mdl.load_from_mem", "value, ret")
def load_from_mem(model: int, size: int) -> tuple[int, int]:
    return _load(_read(ctypes.string_at(model, size)), 0, 0, 0, 0)


@api("mdl.load_from_file_with_mem", "value, ret")
def load_from_file_with_mem(
    path: str, work: int, work_size: int, weight: int, weight_size: int
) -> tuple[int, int]:
    return _load(_read_file(path), work, work_size, weight, weight_size)


@api("mdl.load_from_mem_with_mem", "value, ret")
def load_from_mem_with_mem(
    model: int, size: int, work: int, work_size: int, weight: int, weight_size: int
) -> tuple[int, int]:
    return _load(_read(ctypes.string_at(model, size)), work, work_size, weight, weight_size)


@api("mdl.create_config_handle", "handle")
def create_config_handle() -> int:
    return machine.new(LoadConfig())


@api("mdl.set_config_opt", "ret")
def set_config_opt(handle: int, attribute: int, value: any) -> int:
    config = machine.get(handle, LoadConfig)
    if not 0 <= attribute <= 14:
        return INVALID_PARAM
    config.values[attribute] = value
    return OK


@api("mdl.load_with_config", "value, ret")
def load_with_config(handle: int) -> tuple[int, int]:
    config = machine.get(handle, LoadConfig)
    values = config.values
    if values.get(1) != 4:  # ACL_MDL_LOAD_FROM_MEM_WITH_MEM; the others are not emulated
        return 0, API_NOT_SUPPORT
    try:
        om = _read(ctypes.string_at(values[3], values[4]))
        places = values[7], values[8], values[5], values[6]
    except KeyError as error:
        machine.say(f"E10001: attribute {error} is not set")
        return 0, INVALID_PARAM
    return _load(om, *places, config.external)


@api("mdl.destroy_config_handle", "ret")
def destroy_config_handle(handle: int) -> int:
    machine.drop(handle, LoadConfig)
    return OK


@api("mdl.unload", "ret")
def unload(model_id: int) -> int:
    model = machine.models.get(model_id)
    if model is None:
        return MODEL_ID_INVALID
    if not machine.current:
        return _no_context()
    if model.busy_on is not None:
        raise machine.fault("a model is unloaded while it runs")
    if model.on_run is not None:
        raise machine.fault("a model is unloaded while somebody subscribes to it")
    del machine.models[model_id]
    machine.get(model.context, Context).models.discard(model_id)
    for allocation in model.pinned:
        allocation.pins -= 1
    for address in model.owned:
        machine.memory.free(address)
    return OK


def _read_file(path: str) -> Om | int:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        machine.say(f"E13001: open file {path} failed: {error.strerror}")
        return GE_PARAM_INVALID
    return _read(data)


def _read(data: bytes) -> Om | int:
    try:
        return Om.read(data)
    except ValueError as error:
        machine.say(f"E13018: the model file is invalid: {error}")
        return MODEL_DATA_SIZE_INVALID


def _sizes(om: Om | int) -> tuple[int, int, int]:
    return (0, 0, om) if isinstance(om, int) else (om.work_size, om.weight_size, OK)


def _load(
    om: Om | int,
    work: int,
    work_size: int,
    weight: int,
    weight_size: int,
    external: dict[str, tuple[int, int]] | None = None,
) -> tuple[int, int]:
    context = _context()
    if context is None:
        return 0, _no_context()
    if isinstance(om, int):
        return 0, om
    if om.soc != machine.soc:
        machine.say(
            f"E10001: Value {om.soc} for parameter soc_version is invalid. Reason: Model soc "
            "version is not support in this device."
        )
        return 0, GE_FAILURE
    if (weight and weight_size < om.weight_size) or (work and work_size < om.work_size):
        machine.say(f"E13025: the weight size of the model is {om.weight_size}, got {weight_size}")
        return 0, GE_PARAM_INVALID
    addresses: dict[str, int] = {}
    for name, _, size in om.external:
        pointer, room = (external or {}).get(name, (0, 0))
        if room < size or room % 32 or not pointer:
            machine.say(f"E13001: open file {name} failed: No such file or directory")
            return 0, GE_FAILURE
        machine.memory.find(pointer, room)
        addresses[name] = pointer
    owned = []
    wanted = [(0 if weight else om.weight_size), (0 if work else om.work_size)]
    if machine.memory.used_bytes(context.device) + sum(wanted) > machine.memory_bytes:
        return 0, DEVICE_OOM
    if wanted[0]:
        weight = machine.memory.allocate(context.device, om.weight_size)
        owned.append(weight)
    if wanted[1]:
        work = machine.memory.allocate(context.device, om.work_size)
        owned.append(work)
    for address in (weight, work):
        if address and machine.memory.find(address).device != context.device:
            raise machine.fault(f"memory at {address:#x} is of another device than the model's")
    if om.weight_size:
        # As GE does at every load, also of weights that are there already.
        view = machine.memory.at(weight, om.weight_size)
        ctypes.memmove(view.ctypes.data, om.blob, om.weight_size)
    model_id = machine.add_model(
        Model(om, machine.current, work, weight if om.weight_size else 0, owned, addresses)
    )
    context.models.add(model_id)
    return model_id, OK


# ------------------------------------------------------------------------------------- bundles


@api("mdl.bundle_load_from_file", "value, ret")
def bundle_load_from_file(path: str) -> tuple[int, int]:
    try:
        models = read_bundle(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        machine.say(f"E13018: the bundle is invalid: {error}")
        return 0, GE_PARAM_INVALID
    ids: list[int] = []
    for om in models:
        model_id, code = _load(om, 0, 0, 0, 0)
        if code != OK:
            for loaded in ids:
                unload(loaded)
            return 0, code
        ids.append(model_id)
    return machine.new(LoadedBundle(ids)), OK


@api("mdl.bundle_get_model_num", "value, ret")
def bundle_get_model_num(bundle: int) -> tuple[int, int]:
    return len(machine.get(bundle, LoadedBundle).models), OK


@api("mdl.bundle_get_model_id", "value, ret")
def bundle_get_model_id(bundle: int, index: int) -> tuple[int, int]:
    models = machine.get(bundle, LoadedBundle).models
    return (models[index], OK) if 0 <= index < len(models) else (0, INVALID_PARAM)


@api("mdl.bundle_unload", "ret")
def bundle_unload(bundle: int) -> int:
    for model_id in machine.drop(bundle, LoadedBundle).models:
        unload(model_id)
    return OK


# ---------------------------------------------------------------------------------- describing


@api("mdl.create_desc", "handle")
def create_desc() -> int:
    return machine.new(ModelDesc())


@api("mdl.destroy_desc", "ret")
def destroy_desc(desc: int) -> int:
    machine.drop(desc, ModelDesc)
    return OK


@api("mdl.get_desc", "ret")
def get_desc(desc: int, model_id: int) -> int:
    description = machine.get(desc, ModelDesc)
    model = machine.models.get(model_id)
    if model is None:
        return MODEL_ID_INVALID
    description.om, description.model = model.om, model_id
    return OK


@api("mdl.get_desc_from_file", "ret")
def get_desc_from_file(desc: int, path: str) -> int:
    om = _read_file(path)
    if isinstance(om, int):
        return om
    description = machine.get(desc, ModelDesc)
    description.om, description.model = om, 0
    return OK


def _inputs(desc: int) -> list[Value]:
    om = machine.get(desc, ModelDesc).om
    if om is None:
        return []
    if not om.gears:
        return list(om.inputs)
    count = len(om.gears[0])
    return [*om.inputs, Value(GEAR_INPUT, _INT64, [count], 8 * count)]


def _outputs(desc: int) -> list[Value]:
    om = machine.get(desc, ModelDesc).om
    return list(om.outputs) if om is not None else []


def _pick(values: list[Value], index: int) -> Value | None:
    return values[index] if 0 <= index < len(values) else None


def _dims(value: Value | None) -> tuple[dict[str, Any], int]:
    if value is None:
        return {}, INVALID_PARAM
    return {"name": value.name[:127], "dimCount": len(value.dims), "dims": list(value.dims)}, OK


@api("mdl.get_num_inputs", "value")
def get_num_inputs(desc: int) -> int:
    return len(_inputs(desc))


@api("mdl.get_num_outputs", "value")
def get_num_outputs(desc: int) -> int:
    return len(_outputs(desc))


@api("mdl.get_input_name_by_index", "value")
def get_input_name_by_index(desc: int, index: int) -> str:
    value = _pick(_inputs(desc), index)
    return value.name if value else ""


@api("mdl.get_output_name_by_index", "value")
def get_output_name_by_index(desc: int, index: int) -> str:
    value = _pick(_outputs(desc), index)
    return value.name if value else ""


@api("mdl.get_input_index_by_name", "value, ret")
def get_input_index_by_name(desc: int, name: str) -> tuple[int, int]:
    names = [value.name for value in _inputs(desc)]
    return (names.index(name), OK) if name in names else (0, INVALID_PARAM)


@api("mdl.get_input_size_by_index", "value")
def get_input_size_by_index(desc: int, index: int) -> int:
    value = _pick(_inputs(desc), index)
    return value.nbytes if value else 0


@api("mdl.get_output_size_by_index", "value")
def get_output_size_by_index(desc: int, index: int) -> int:
    value = _pick(_outputs(desc), index)
    return value.nbytes if value else 0


@api("mdl.get_input_dims", "value, ret")
def get_input_dims(desc: int, index: int) -> tuple[dict[str, Any], int]:
    return _dims(_pick(_inputs(desc), index))


@api("mdl.get_output_dims", "value, ret")
def get_output_dims(desc: int, index: int) -> tuple[dict[str, Any], int]:
    return _dims(_pick(_outputs(desc), index))


@api("mdl.get_input_dims_range", "value, ret")
def get_input_dims_range(desc: int, index: int) -> tuple[dict[str, Any], int]:
    value = _pick(_inputs(desc), index)
    if value is None:
        return {"rangeCount": 0, "range": []}, INVALID_PARAM
    return {"rangeCount": len(value.ranges), "range": [list(r) for r in value.ranges]}, OK


@api("mdl.get_input_data_type", "value")
def get_input_data_type(desc: int, index: int) -> int:
    value = _pick(_inputs(desc), index)
    return value.dtype if value else -1


@api("mdl.get_output_data_type", "value")
def get_output_data_type(desc: int, index: int) -> int:
    value = _pick(_outputs(desc), index)
    return value.dtype if value else -1


# --------------------------------------------------------------------------------------- gears


@api("mdl.get_input_dynamic_gear_count", "value, ret")
def get_input_dynamic_gear_count(desc: int, index: int) -> tuple[int, int]:
    om = machine.get(desc, ModelDesc).om
    return (len(om.gears), OK) if om is not None else (0, INVALID_PARAM)


@api("mdl.get_input_dynamic_dims", "value, ret")
def get_input_dynamic_dims(
    desc: int, index: int, gear_count: int
) -> tuple[list[dict[str, Any]], int]:
    om = machine.get(desc, ModelDesc).om
    if om is None or gear_count < len(om.gears):
        return [], INVALID_PARAM
    rows = []
    for gear in om.gears:
        sizes = iter(gear)
        dims = [dim if dim >= 0 else next(sizes) for value in om.inputs for dim in value.dims]
        rows.append({"name": "", "dimCount": len(dims), "dims": dims})
    return rows, OK


@api("mdl.set_input_dynamic_dims", "ret")
def set_input_dynamic_dims(model_id: int, dataset: int, index: int, dims: dict) -> int:
    model = machine.models.get(model_id)
    if model is None:
        return MODEL_ID_INVALID
    if not machine.current:
        return CONTEXT_NULL
    values = machine.get(dataset, Dataset)
    sizes = dims["dims"]
    if not isinstance(sizes, list) or not all(isinstance(value, int) for value in sizes):
        raise TypeError("the dims of fourth parameter is not list of int")
    if not 0 <= index < len(values.buffers):
        return INVALID_PARAM
    buffer = machine.get(values.buffers[index], DataBuffer)
    if not buffer.pointer:
        return INVALID_PARAM
    om = model.om
    if not om.gears or index != len(om.inputs):
        return DYNAMIC_ADDR_INVALID
    declared = [dim for value in om.inputs for dim in value.dims]
    if dims["dimCount"] != len(declared) or len(sizes) != len(declared):
        machine.say(f"E19999: {len(sizes)} dims, the inputs have {len(declared)}")
        return DYNAMIC_LENGTH_INVALID
    if any(dim >= 0 and dim != size for dim, size in zip(declared, sizes, strict=True)):
        machine.say("E19999: Static dims should be same")
        return DYNAMIC_LENGTH_INVALID
    gear = [size for dim, size in zip(declared, sizes, strict=True) if dim < 0]
    if gear not in om.gears:
        machine.say(f"E10001: {gear} does not match the gear of the model")
        return DYNAMIC_SIZE_INVALID
    if buffer.nbytes < 8 * len(gear):
        return DYNAMIC_LENGTH_INVALID
    view = machine.memory.at(buffer.pointer, 8 * len(gear))
    view[:] = memoryview(b"".join(value.to_bytes(8, "little") for value in gear))
    values.gear = gear
    model.gear = gear
    return OK


@api("mdl.get_cur_output_dims", "value, ret")
def get_cur_output_dims(desc: int, index: int) -> tuple[dict[str, Any], int]:
    description = machine.get(desc, ModelDesc)
    model = machine.models.get(description.model)
    if model is None:
        return {}, MODEL_ID_INVALID
    value = _pick(_outputs(desc), index)
    if model.om.is_ranged:
        return {}, API_NOT_SUPPORT
    if value is None or not model.om.gears or model.gear is None:
        return _dims(value)
    dims = model.om.gear_outputs[model.om.gears.index(model.gear)][index]
    return {"name": value.name[:127], "dimCount": len(dims), "dims": list(dims)}, OK


# ------------------------------------------------------------------------------------ datasets


@api("mdl.create_dataset", "handle")
def create_dataset() -> int:
    return machine.new(Dataset())


@api("mdl.destroy_dataset", "ret")
def destroy_dataset(dataset: int) -> int:
    thing = machine.drop(dataset, Dataset)
    for desc in thing.descs.values():
        machine.drop(desc, TensorDesc)
    return OK


@api("mdl.add_dataset_buffer", "value, ret")
def add_dataset_buffer(dataset: int, data_buffer: int) -> tuple[int, int]:
    values = machine.get(dataset, Dataset)
    if data_buffer == 0:
        return dataset, INVALID_PARAM
    machine.get(data_buffer, DataBuffer)
    values.buffers.append(data_buffer)
    return dataset, OK


@api("mdl.get_dataset_num_buffers", "value")
def get_dataset_num_buffers(dataset: int) -> int:
    return len(machine.get(dataset, Dataset).buffers)


@api("mdl.get_dataset_buffer", "handle")
def get_dataset_buffer(dataset: int, index: int) -> int:
    buffers = machine.get(dataset, Dataset).buffers
    return buffers[index] if 0 <= index < len(buffers) else 0


@api("mdl.set_dataset_tensor_desc", "value, ret")
def set_dataset_tensor_desc(dataset: int, desc: int, index: int) -> tuple[int, int]:
    values = machine.get(dataset, Dataset)
    if not 0 <= index < len(values.buffers):
        return dataset, INVALID_PARAM
    given = machine.get(desc, TensorDesc)
    old = values.descs.pop(index, 0)
    if old:
        machine.drop(old, TensorDesc)
    values.descs[index] = machine.new(TensorDesc(given.dtype, list(given.dims)))
    return dataset, OK


@api("mdl.get_dataset_tensor_desc", "handle")
def get_dataset_tensor_desc(dataset: int, index: int) -> int:
    return machine.get(dataset, Dataset).descs.get(index, 0)


# ------------------------------------------------------------------------------------- running


@api("mdl.execute_async", "ret")
def execute_async(model_id: int, inputs: int, outputs: int, stream: int) -> int:
    return _execute(model_id, inputs, outputs, stream, waits=False)


@api("mdl.execute", "ret")
def execute(model_id: int, inputs: int, outputs: int) -> int:
    if not machine.current:
        return _no_context()
    # On a stream of its own that ends with the call; nobody else gets the GIL meanwhile.
    own = machine.new(Stream(machine.current, has_thread=False))
    try:
        code = _execute(model_id, inputs, outputs, own, waits=True)
        return code or machine.get(own, Stream).wait(None)
    finally:
        machine.drop(own, Stream).close()


def _execute(model_id: int, inputs: int, outputs: int, stream: int, waits: bool) -> int:
    if not machine.current:
        return _no_context()
    model = machine.models.get(model_id)
    if model is None:
        return MODEL_ID_INVALID
    if machine.get(stream, Stream).context != machine.current:
        machine.say("EE1001: the stream is not in the current context")
        return STREAM_CONTEXT
    if model.context != machine.current:
        machine.say("EE1001: the model is not in the current context")
        return MODEL_CONTEXT
    code: int = model.execute(
        machine.get(inputs, Dataset), machine.get(outputs, Dataset), stream, waits
    )
    return code
