"""The emulated module `acl.prof`: the subscription to the times of a model's operators.

What a pipe gets are records of DESC_SIZE bytes, which only the functions here can read. Times are
in nanoseconds of a clock of the device's own. The run's time is divided among the nodes of the
model evenly: the emulator does not know better.
"""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import dataclass

import onnx
from emulated_ascend.device import Model
from emulated_ascend.machine import (
    FEATURE_UNSUPPORTED,
    INVALID_MODEL_ID,
    INVALID_PARAM,
    OK,
    PROF_REPEAT_SUBSCRIBE,
    api,
    machine,
)

DESC_SIZE = 512
_NO_METRICS = 0xFF
_BOOT_NS = 10**15  # the device's clock is ahead of the host's by so much


@dataclass(slots=True)
class SubscribeConfig:
    """What is to be told of a model, and into which pipe."""

    is_timed: bool
    metrics: int
    descriptor: int


@api("prof.create_subscribe_config", "handle")
def create_subscribe_config(time_info_switch: int, aicore_metrics: int, fd: int) -> int:
    if time_info_switch not in (0, 1):
        return 0
    return machine.new(SubscribeConfig(bool(time_info_switch), aicore_metrics, fd))


@api("prof.destroy_subscribe_config", "ret")
def destroy_subscribe_config(config: int) -> int:
    machine.drop(config, SubscribeConfig)
    return OK


@api("prof.model_subscribe", "ret")
def model_subscribe(model_id: int, config: int) -> int:
    wish = machine.get(config, SubscribeConfig)
    model = machine.models.get(model_id)
    if model is None:
        return INVALID_MODEL_ID
    if wish.metrics != _NO_METRICS:
        return FEATURE_UNSUPPORTED
    if model.on_run is not None:
        return PROF_REPEAT_SUBSCRIBE
    try:
        os.fstat(wish.descriptor)
    except OSError:
        return INVALID_PARAM
    names = _names(model)
    model.subscription = wish.descriptor

    def on_run(begin_ns: int, end_ns: int) -> None:
        each_ns = (end_ns - begin_ns) // max(1, len(names))
        with machine.lock:
            if model.on_run is on_run:  # not when nobody subscribes any more
                tell(begin_ns, each_ns)

    def tell(begin_ns: int, each_ns: int) -> None:
        for index, (name, op_type) in enumerate(names if wish.is_timed else ()):
            start = begin_ns + index * each_ns + _BOOT_NS
            record = json.dumps([model_id, name, op_type, start, start + each_ns]).encode()
            if len(record) > DESC_SIZE:
                raise machine.fault(f"a record of {len(record)} bytes")
            os.write(wish.descriptor, record.ljust(DESC_SIZE))

    model.on_run = on_run
    return OK


@api("prof.model_unsubscribe", "ret")
def model_unsubscribe(model_id: int) -> int:
    model = machine.models.get(model_id)
    if model is None or model.on_run is None:
        return INVALID_MODEL_ID
    model.on_run = None
    os.close(model.subscription)  # the system does it, once all data is sent
    return OK


def _names(model: Model) -> list[tuple[str, str]]:
    """Return operators as GE's parser names them: nodes without a name after their type."""
    unnamed = 0
    names = []
    for node in onnx.load_model_from_string(model.om.graph).graph.node:
        name = node.name
        if not name:
            name, unnamed = f"{node.op_type}_{unnamed}", unnamed + 1
        names.append((name, node.op_type))
    return names


@api("prof.get_op_desc_size", "value, ret")
def get_op_desc_size() -> tuple[int, int]:
    return DESC_SIZE, OK


@api("prof.get_op_num", "value, ret")
def get_op_num(op_info: int, op_info_len: int) -> tuple[int, int]:
    if op_info_len % DESC_SIZE:
        return 0, INVALID_PARAM
    return op_info_len // DESC_SIZE, OK


@api("prof.get_op_type_v2", "value, ret")
def get_op_type_v2(op_info: int, op_info_len: int, index: int) -> tuple[str, int]:
    return str(_record(op_info, op_info_len, index)[2]), OK


@api("prof.get_op_name_v2", "value, ret")
def get_op_name_v2(op_info: int, op_info_len: int, index: int) -> tuple[str, int]:
    return str(_record(op_info, op_info_len, index)[1]), OK


@api("prof.get_op_start", "value")
def get_op_start(op_info: int, op_info_len: int, index: int) -> int:
    return int(_record(op_info, op_info_len, index)[3])


@api("prof.get_op_end", "value")
def get_op_end(op_info: int, op_info_len: int, index: int) -> int:
    return int(_record(op_info, op_info_len, index)[4])


@api("prof.get_op_duration", "value")
def get_op_duration(op_info: int, op_info_len: int, index: int) -> int:
    _, _, _, start, end = _record(op_info, op_info_len, index)
    return int(end) - int(start)


@api("prof.get_model_id", "value")
def get_model_id(op_info: int, op_info_len: int, index: int) -> int:
    return int(_record(op_info, op_info_len, index)[0])


def _record(pointer: int, nbytes: int, index: int) -> list[int | str]:
    if not 0 <= index < nbytes // DESC_SIZE:
        raise machine.fault(f"operator {index} of {nbytes // DESC_SIZE} was asked for")
    record: list[int | str] = json.loads(
        ctypes.string_at(pointer + index * DESC_SIZE, DESC_SIZE).rstrip()
    )
    return record
