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
from emulated_ascend.machine import OK, Context, api, destroyer, errors, machine, maker
from emulated_ascend.omfile import Om, Value, read_bundle

from acl.rt import _context, _no_context

_INT64 = 9


query_size = api("mdl.query_size")(lambda path: _sizes(_read_file(path)))
query_size_from_mem = api("mdl.query_size_from_mem")(lambda at, size: _sizes(_read(at, size)))
load_from_file = api("mdl.load_from_file")(lambda path: _load(_read_file(path)))
load_from_file_with_mem = api("mdl.load_from_file_with_mem")(
    lambda path, work, work_size, at, size: _load(_read_file(path), work, work_size, at, size)
)
load_from_mem_with_mem = api("mdl.load_from_mem_with_mem")(
    lambda om, nbytes, work, work_size, at, size: _load(
        _read(om, nbytes), work, work_size, at, size
    )
)
create_config_handle = maker("mdl.create_config_handle", LoadConfig)
destroy_config_handle = destroyer("mdl.destroy_config_handle", LoadConfig)


@api("mdl.set_config_opt")
def set_config_opt(handle: int, attribute: int, value: any) -> int:
    config = machine.get(handle, LoadConfig)
    if not 0 <= attribute <= 14:
        return errors.INVALID_PARAM
    config.values[attribute] = value
    return OK


@api("mdl.load_with_config")
def load_with_config(handle: int) -> tuple[int, int]:
    config = machine.get(handle, LoadConfig)
    values = config.values
    if values.get(1) != 4:  # ACL_MDL_LOAD_FROM_MEM_WITH_MEM; the others are not emulated
        return 0, errors.API_NOT_SUPPORT
    try:
        om = _read(values[3], values[4])
        places = values[7], values[8], values[5], values[6]
    except KeyError as error:
        machine.say(f"E10001: attribute {error} is not set")
        return 0, errors.INVALID_PARAM
    return _load(om, *places, config.external)


@api("mdl.unload")
def unload(model_id: int) -> int:
    model = machine.models.get(model_id)
    if model is None:
        return errors.GE_EXEC_MODEL_ID_INVALID
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
        return errors.GE_PARAM_INVALID
    return _parse(data)


def _read(pointer: int, size: int) -> Om | int:
    return _parse(ctypes.string_at(pointer, size))


def _parse(data: bytes) -> Om | int:
    try:
        return Om.read(data)
    except ValueError as error:
        machine.say(f"E13018: the model file is invalid: {error}")
        return errors.GE_EXEC_MODEL_DATA_SIZE_INVALID


def _sizes(om: Om | int) -> tuple[int, int, int]:
    return (0, 0, om) if isinstance(om, int) else (om.work_size, om.weight_size, OK)


def _load(
    om: Om | int, work: int = 0, work_size: int = 0, weight: int = 0, weight_size: int = 0,
    external: dict[str, tuple[int, int]] | None = None,
) -> tuple[int, int]:  # fmt: skip
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
        return 0, errors.GE_FAILURE
    if (weight and weight_size < om.weight_size) or (work and work_size < om.work_size):
        machine.say(f"E13025: the weight size of the model is {om.weight_size}, got {weight_size}")
        return 0, errors.GE_PARAM_INVALID
    addresses: dict[str, int] = {}
    for name, _, size in om.external:
        pointer, room = (external or {}).get(name, (0, 0))
        if room < size or room % 32 or not pointer:
            machine.say(f"E13001: open file {name} failed: No such file or directory")
            return 0, errors.GE_FAILURE
        machine.memory.find(pointer, room)
        addresses[name] = pointer
    owned = []
    wanted = [(0 if weight else om.weight_size), (0 if work else om.work_size)]
    if machine.memory.used_bytes(context.device) + sum(wanted) > machine.memory_bytes:
        return 0, errors.RT_DEVICE_OOM
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


@api("mdl.bundle_load_from_file")
def bundle_load_from_file(path: str) -> tuple[int, int]:
    try:
        models = read_bundle(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        machine.say(f"E13018: the bundle is invalid: {error}")
        return 0, errors.GE_PARAM_INVALID
    ids: list[int] = []
    for om in models:
        model_id, code = _load(om)
        if code != OK:
            for loaded in ids:
                unload(loaded)
            return 0, code
        ids.append(model_id)
    return machine.new(LoadedBundle(ids)), OK


bundle_get_model_num = api("mdl.bundle_get_model_num")(
    lambda bundle: (len(machine.get(bundle, LoadedBundle).models), OK)
)


@api("mdl.bundle_get_model_id")
def bundle_get_model_id(bundle: int, index: int) -> tuple[int, int]:
    models = machine.get(bundle, LoadedBundle).models
    return (models[index], OK) if 0 <= index < len(models) else (0, errors.INVALID_PARAM)


@api("mdl.bundle_unload")
def bundle_unload(bundle: int) -> int:
    for model_id in machine.drop(bundle, LoadedBundle).models:
        unload(model_id)
    return OK


create_desc = maker("mdl.create_desc", ModelDesc)
destroy_desc = destroyer("mdl.destroy_desc", ModelDesc)


@api("mdl.get_desc")
def get_desc(desc: int, model_id: int) -> int:
    description = machine.get(desc, ModelDesc)
    model = machine.models.get(model_id)
    if model is None:
        return errors.GE_EXEC_MODEL_ID_INVALID
    description.om, description.model = model.om, model_id
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
        return {}, errors.INVALID_PARAM
    return {"name": value.name[:127], "dimCount": len(value.dims), "dims": list(value.dims)}, OK


def _reader(name: str, values: Any, read: Any, missing: Any = None) -> Any:
    """Return a function of pyACL that reads something of a description's input or output."""

    def get(desc: int, index: int) -> Any:
        value = _pick(values(desc), index)
        return missing if value is None else read(value)

    return api(f"mdl.{name}")(get)


get_num_inputs = api("mdl.get_num_inputs")(lambda desc: len(_inputs(desc)))
get_num_outputs = api("mdl.get_num_outputs")(lambda desc: len(_outputs(desc)))
get_input_name_by_index = _reader("get_input_name_by_index", _inputs, lambda v: v.name, "")
get_output_name_by_index = _reader("get_output_name_by_index", _outputs, lambda v: v.name, "")
get_input_size_by_index = _reader("get_input_size_by_index", _inputs, lambda v: v.nbytes, 0)
get_output_size_by_index = _reader("get_output_size_by_index", _outputs, lambda v: v.nbytes, 0)
get_input_data_type = _reader("get_input_data_type", _inputs, lambda v: v.dtype, -1)
get_output_data_type = _reader("get_output_data_type", _outputs, lambda v: v.dtype, -1)
get_input_dims = _reader("get_input_dims", _inputs, lambda v: _dims(v), ({}, errors.INVALID_PARAM))
get_output_dims = _reader(
    "get_output_dims", _outputs, lambda v: _dims(v), ({}, errors.INVALID_PARAM)
)
get_input_dims_range = _reader(
    "get_input_dims_range", _inputs,
    lambda v: ({"rangeCount": len(v.ranges), "range": [list(r) for r in v.ranges]}, OK),
    ({"rangeCount": 0, "range": []}, errors.INVALID_PARAM),
)  # fmt: skip


@api("mdl.get_input_index_by_name")
def get_input_index_by_name(desc: int, name: str) -> tuple[int, int]:
    names = [value.name for value in _inputs(desc)]
    return (names.index(name), OK) if name in names else (0, errors.INVALID_PARAM)


@api("mdl.get_input_dynamic_gear_count")
def get_input_dynamic_gear_count(desc: int, index: int) -> tuple[int, int]:
    om = machine.get(desc, ModelDesc).om
    return (len(om.gears), OK) if om is not None else (0, errors.INVALID_PARAM)


@api("mdl.get_input_dynamic_dims")
def get_input_dynamic_dims(
    desc: int, index: int, gear_count: int
) -> tuple[list[dict[str, Any]], int]:
    om = machine.get(desc, ModelDesc).om
    if om is None or gear_count < len(om.gears):
        return [], errors.INVALID_PARAM
    rows = []
    for gear in om.gears:
        sizes = iter(gear)
        dims = [dim if dim >= 0 else next(sizes) for value in om.inputs for dim in value.dims]
        rows.append({"name": "", "dimCount": len(dims), "dims": dims})
    return rows, OK


@api("mdl.set_input_dynamic_dims")
def set_input_dynamic_dims(model_id: int, dataset: int, index: int, dims: dict) -> int:
    model = machine.models.get(model_id)
    if model is None:
        return errors.GE_EXEC_MODEL_ID_INVALID
    if not machine.current:
        return errors.RT_CONTEXT_NULL
    values = machine.get(dataset, Dataset)
    sizes = dims["dims"]
    if not isinstance(sizes, list) or not all(isinstance(value, int) for value in sizes):
        raise TypeError("the dims of fourth parameter is not list of int")
    if not 0 <= index < len(values.buffers):
        return errors.INVALID_PARAM
    buffer = machine.get(values.buffers[index], DataBuffer)
    if not buffer.pointer:
        return errors.INVALID_PARAM
    om = model.om
    if not om.gears or index != len(om.inputs):
        return errors.GE_DYNAMIC_INPUT_ADDR_INVALID
    declared = [dim for value in om.inputs for dim in value.dims]
    if dims["dimCount"] != len(declared) or len(sizes) != len(declared):
        machine.say(f"E19999: {len(sizes)} dims, the inputs have {len(declared)}")
        return errors.GE_DYNAMIC_INPUT_LENGTH_INVALID
    if any(dim >= 0 and dim != size for dim, size in zip(declared, sizes, strict=True)):
        machine.say("E19999: Static dims should be same")
        return errors.GE_DYNAMIC_INPUT_LENGTH_INVALID
    gear = [size for dim, size in zip(declared, sizes, strict=True) if dim < 0]
    if gear not in om.gears:
        machine.say(f"E10001: {gear} does not match the gear of the model")
        return errors.GE_DYNAMIC_BATCH_SIZE_INVALID
    if buffer.nbytes < 8 * len(gear):
        return errors.GE_DYNAMIC_INPUT_LENGTH_INVALID
    view = machine.memory.at(buffer.pointer, 8 * len(gear))
    view[:] = memoryview(b"".join(value.to_bytes(8, "little") for value in gear))
    values.gear = gear
    model.gear = gear
    return OK


@api("mdl.get_cur_output_dims")
def get_cur_output_dims(desc: int, index: int) -> tuple[dict[str, Any], int]:
    description = machine.get(desc, ModelDesc)
    model = machine.models.get(description.model)
    if model is None:
        return {}, errors.GE_EXEC_MODEL_ID_INVALID
    value = _pick(_outputs(desc), index)
    if model.om.is_ranged:
        return {}, errors.API_NOT_SUPPORT
    if value is None or not model.om.gears or model.gear is None:
        return _dims(value)
    dims = model.om.gear_outputs[model.om.gears.index(model.gear)][index]
    return {"name": value.name[:127], "dimCount": len(dims), "dims": list(dims)}, OK


create_dataset = maker("mdl.create_dataset", Dataset)


@api("mdl.destroy_dataset")
def destroy_dataset(dataset: int) -> int:
    thing = machine.drop(dataset, Dataset)
    for desc in thing.descs.values():
        machine.drop(desc, TensorDesc)
    return OK


@api("mdl.add_dataset_buffer")
def add_dataset_buffer(dataset: int, data_buffer: int) -> tuple[int, int]:
    values = machine.get(dataset, Dataset)
    if data_buffer == 0:
        return dataset, errors.INVALID_PARAM
    machine.get(data_buffer, DataBuffer)
    values.buffers.append(data_buffer)
    return dataset, OK


@api("mdl.set_dataset_tensor_desc")
def set_dataset_tensor_desc(dataset: int, desc: int, index: int) -> tuple[int, int]:
    values = machine.get(dataset, Dataset)
    if not 0 <= index < len(values.buffers):
        return dataset, errors.INVALID_PARAM
    given = machine.get(desc, TensorDesc)
    old = values.descs.pop(index, 0)
    if old:
        machine.drop(old, TensorDesc)
    values.descs[index] = machine.new(TensorDesc(given.dtype, list(given.dims)))
    return dataset, OK


get_dataset_tensor_desc = api("mdl.get_dataset_tensor_desc")(
    lambda dataset, index: machine.get(dataset, Dataset).descs.get(index, 0)
)


execute_async = api("mdl.execute_async")(
    lambda model, inputs, outputs, stream: _execute(model, inputs, outputs, stream, waits=False)
)


@api("mdl.execute")
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
        return errors.GE_EXEC_MODEL_ID_INVALID
    if machine.get(stream, Stream).context != machine.current:
        machine.say("EE1001: the stream is not in the current context")
        return errors.RT_STREAM_CONTEXT
    if model.context != machine.current:
        machine.say("EE1001: the model is not in the current context")
        return errors.RT_MODEL_CONTEXT
    code: int = model.execute(
        machine.get(inputs, Dataset), machine.get(outputs, Dataset), stream, waits
    )
    return code
