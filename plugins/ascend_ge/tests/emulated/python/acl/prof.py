"""The emulated module `acl.prof`: the subscription to the times of a model's operators.

A pipe gets records of DESC_SIZE bytes, which only the functions here can read. Times are
in nanoseconds of a clock of the device's own. The run's time is divided among the nodes of the
model evenly: the emulator does not know better.
"""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import dataclass
from typing import Any

import onnx
from emulated_ascend.device import Model
from emulated_ascend.machine import OK, api, destroyer, errors, machine

DESC_SIZE = 512
_NO_METRICS = 0xFF
_BOOT_NS = 10**15  # the device's clock is ahead of the host's by so much


@dataclass(slots=True)
class SubscribeConfig:
    """The facts to tell of a model, and the pipe for them."""

    is_timed: bool
    metrics: int
    descriptor: int


@api("prof.create_subscribe_config")
def create_subscribe_config(time_info_switch: int, aicore_metrics: int, fd: int) -> int:
    if time_info_switch not in (0, 1):
        return 0
    return machine.new(SubscribeConfig(bool(time_info_switch), aicore_metrics, fd))


destroy_subscribe_config = destroyer("prof.destroy_subscribe_config", SubscribeConfig)


@api("prof.model_subscribe")
def model_subscribe(model_id: int, config: int) -> int:
    wish = machine.get(config, SubscribeConfig)
    model = machine.models.get(model_id)
    if model is None:
        return errors.INVALID_MODEL_ID
    if wish.metrics != _NO_METRICS:
        return errors.FEATURE_UNSUPPORTED
    if model.on_run is not None:
        return errors.PROF_REPEAT_SUBSCRIBE
    try:
        os.fstat(wish.descriptor)
    except OSError:
        return errors.INVALID_PARAM
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


@api("prof.model_unsubscribe")
def model_unsubscribe(model_id: int) -> int:
    model = machine.models.get(model_id)
    if model is None or model.on_run is None:
        return errors.INVALID_MODEL_ID
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


@api("prof.get_op_num")
def get_op_num(op_info: int, op_info_len: int) -> tuple[int, int]:
    if op_info_len % DESC_SIZE:
        return 0, errors.INVALID_PARAM
    return op_info_len // DESC_SIZE, OK


def _record(pointer: int, nbytes: int, index: int) -> Any:
    if not 0 <= index < nbytes // DESC_SIZE:
        raise machine.fault(f"operator {index} of {nbytes // DESC_SIZE} was asked for")
    return json.loads(ctypes.string_at(pointer + index * DESC_SIZE, DESC_SIZE).rstrip())


def _reader(name: str, read: Any) -> Any:
    return api(f"prof.{name}")(lambda at, nbytes, index: read(*_record(at, nbytes, index)))


get_op_desc_size = api("prof.get_op_desc_size")(lambda: (DESC_SIZE, OK))
get_op_name_v2 = _reader("get_op_name_v2", lambda model, name, kind, start, end: (name, OK))
get_op_type_v2 = _reader("get_op_type_v2", lambda model, name, kind, start, end: (kind, OK))
get_op_start = _reader("get_op_start", lambda model, name, kind, start, end: start)
get_op_end = _reader("get_op_end", lambda model, name, kind, start, end: end)
get_op_duration = _reader("get_op_duration", lambda model, name, kind, start, end: end - start)
get_model_id = _reader("get_model_id", lambda model, name, kind, start, end: model)
