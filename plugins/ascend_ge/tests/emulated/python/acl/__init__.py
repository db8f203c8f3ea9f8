"""The emulated module `acl`: pyACL's functions over an emulated machine. No NPU is involved."""

from __future__ import annotations

from emulated_ascend import libraries
from emulated_ascend.device import DataBuffer, TensorDesc
from emulated_ascend.machine import (
    INVALID_PARAM,
    OK,
    REPEAT_FINALIZE,
    REPEAT_INITIALIZE,
    UNINITIALIZED,
    api,
    machine,
)
from emulated_ascend.omfile import SIZES

from acl import mdl, prof, rt, util

__all__ = ["mdl", "prof", "rt", "util"]

libraries.install()


@api("init", "ret")
def init(config: str = "") -> int:
    if machine.is_finalized:
        raise machine.fault("acl.init after acl.finalize in one process")
    if machine.is_initialized:
        return REPEAT_INITIALIZE
    machine.is_initialized = True
    return OK


@api("finalize", "ret")
def finalize() -> int:
    if not machine.is_initialized:
        return REPEAT_FINALIZE if machine.is_finalized else UNINITIALIZED
    left = machine.live()
    left.pop("HostMemory", None)  # the process's end frees it, and until then it can be read
    if left:
        raise machine.fault(f"acl.finalize while things are alive: {left}")
    machine.is_initialized = False
    machine.is_finalized = True
    return OK


@api("get_soc_name", "value")
def get_soc_name() -> str | None:
    return machine.soc


@api("get_version", "value, value, value, ret")
def get_version() -> tuple[int, int, int, int]:
    return 1, 14, 0, OK


@api("get_recent_err_msg", "value")
def get_recent_err_msg() -> str | None:
    return machine.take_message()


@api("data_type_size", "value")
def data_type_size(data_type: int) -> int:
    return SIZES.get(data_type, 0)


@api("create_data_buffer", "handle")
def create_data_buffer(pointer: int, size: int) -> int:
    return machine.new(DataBuffer(pointer, size))


@api("destroy_data_buffer", "ret")
def destroy_data_buffer(data_buffer: int) -> int:
    machine.drop(data_buffer, DataBuffer)
    return OK


@api("update_data_buffer", "ret")
def update_data_buffer(data_buffer: int, pointer: int, size: int) -> int:
    buffer = machine.get(data_buffer, DataBuffer)
    buffer.pointer, buffer.nbytes = pointer, size
    return OK


@api("get_data_buffer_addr", "value")
def get_data_buffer_addr(data_buffer: int) -> int:
    pointer: int = machine.get(data_buffer, DataBuffer).pointer
    return pointer


@api("get_data_buffer_size_v2", "value")
def get_data_buffer_size_v2(data_buffer: int) -> int:
    nbytes: int = machine.get(data_buffer, DataBuffer).nbytes
    return nbytes


@api("create_tensor_desc", "handle")
def create_tensor_desc(data_type: int, dims: list, tensor_format: int) -> int:
    if not all(isinstance(dim, int) for dim in dims):
        raise TypeError(f"acl.create_tensor_desc: dims must be a list of int, got {dims}")
    return machine.new(TensorDesc(data_type, list(dims)))


@api("destroy_tensor_desc", "none")
def destroy_tensor_desc(desc: int) -> None:
    machine.drop(desc, TensorDesc)


@api("get_tensor_desc_num_dims", "value")
def get_tensor_desc_num_dims(desc: int) -> int:
    return len(machine.get(desc, TensorDesc).dims)


@api("get_tensor_desc_dim_v2", "value, ret")
def get_tensor_desc_dim_v2(desc: int, index: int) -> tuple[int, int]:
    dims = machine.get(desc, TensorDesc).dims
    return (dims[index], OK) if 0 <= index < len(dims) else (0, INVALID_PARAM)


@api("get_tensor_desc_size", "value")
def get_tensor_desc_size(desc: int) -> int:
    shape = machine.get(desc, TensorDesc)
    size = SIZES.get(shape.dtype, 0)
    for dim in shape.dims:
        size *= dim
    return size
