"""The emulated module `acl`: pyACL's functions over an emulated machine. No NPU is involved."""

from __future__ import annotations

from emulated_ascend import libraries
from emulated_ascend.device import DataBuffer, TensorDesc
from emulated_ascend.machine import OK, api, destroyer, errors, machine

from acl import mdl, prof, rt, util

__all__ = ["mdl", "prof", "rt", "util"]

libraries.install()


@api("init")
def init(config: str = "") -> int:
    if machine.is_finalized:
        raise machine.fault("acl.init after acl.finalize in one process")
    if machine.is_initialized:
        return errors.REPEAT_INITIALIZE
    machine.is_initialized = True
    return OK


@api("finalize")
def finalize() -> int:
    if not machine.is_initialized:
        return errors.REPEAT_FINALIZE if machine.is_finalized else errors.UNINITIALIZE
    left = machine.live()
    left.pop("HostMemory", None)  # the process's end frees it, and until then it can be read
    if left:
        raise machine.fault(f"acl.finalize while things are alive: {left}")
    machine.is_initialized = False
    machine.is_finalized = True
    return OK


get_soc_name = api("get_soc_name")(lambda: machine.soc)


get_version = api("get_version")(lambda: (1, 14, 0, OK))


get_recent_err_msg = api("get_recent_err_msg")(machine.take_message)


create_data_buffer = api("create_data_buffer")(lambda at, size: machine.new(DataBuffer(at, size)))
destroy_data_buffer = destroyer("destroy_data_buffer", DataBuffer)
get_data_buffer_addr = api("get_data_buffer_addr")(lambda b: machine.get(b, DataBuffer).pointer)


@api("update_data_buffer")
def update_data_buffer(data_buffer: int, pointer: int, size: int) -> int:
    buffer = machine.get(data_buffer, DataBuffer)
    buffer.pointer, buffer.nbytes = pointer, size
    return OK


@api("create_tensor_desc")
def create_tensor_desc(data_type: int, dims: list, tensor_format: int) -> int:
    if not all(isinstance(dim, int) for dim in dims):
        raise TypeError(f"acl.create_tensor_desc: dims must be a list of int, got {dims}")
    return machine.new(TensorDesc(data_type, list(dims)))


@api("destroy_tensor_desc")
def destroy_tensor_desc(desc: int) -> None:
    machine.drop(desc, TensorDesc)


@api("get_tensor_desc_num_dims")
def get_tensor_desc_num_dims(desc: int) -> int:
    return len(machine.get(desc, TensorDesc).dims)


@api("get_tensor_desc_dim_v2")
def get_tensor_desc_dim_v2(desc: int, index: int) -> tuple[int, int]:
    dims = machine.get(desc, TensorDesc).dims
    return (dims[index], OK) if 0 <= index < len(dims) else (0, errors.INVALID_PARAM)
