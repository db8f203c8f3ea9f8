"""Calling pyACL: what its numbers mean, and its return codes as errors.

pyACL's conventions: handles, pointers and sizes are plain ints; a function returns a code (0 is
success), a value and a code, or, where it makes a small object, that handle alone (0 is failure).
`done`, `got` and `made` take the three forms and raise, with what was being done, the code's
name, what CANN last said of it, and what to do (`codes`).
"""

from __future__ import annotations

import sys
from typing import Any, Final

from engine.errors import BackendUnavailable, DeadlineExceeded, EngineError, ModelError
from engine.types import DType
from engine_ascend_ge.codes import NAMES, OF_THE_MACHINE, advice

# aclrtMemcpyKind, aclrtMemAttr, aclrtMemMallocPolicy, aclFormat, aclrtEvent*Status, aclError
HOST_TO_DEVICE: Final = 1
DEVICE_TO_HOST: Final = 2
DEVICE_TO_DEVICE: Final = 3
DDR_MEMORY: Final = 0
HBM_MEMORY: Final = 1
HUGE_FIRST: Final = 0
FORMAT_ND: Final = 2
RECORD_COMPLETE: Final = 1
WAIT_COMPLETE: Final = 0
ALREADY_INITIALIZED: Final = 100002
STREAM_ABORT: Final = 107023
SYNC_TIMEOUT: Final = 507046

DTYPES: Final = {
    0: DType.FLOAT32,
    1: DType.FLOAT16,
    2: DType.INT8,
    3: DType.INT32,
    4: DType.UINT8,
    6: DType.INT16,
    7: DType.UINT16,
    8: DType.UINT32,
    9: DType.INT64,
    10: DType.UINT64,
    11: DType.FLOAT64,
    12: DType.BOOL,
    16: DType.COMPLEX64,
    17: DType.COMPLEX128,
    27: DType.BFLOAT16,
    35: DType.FLOAT8E5M2,
    36: DType.FLOAT8E4M3FN,
    37: DType.FLOAT8E8M0,
}
"""aclDataType -> the contract's type, for the types whose elements fill whole bytes."""

NUMBERS: Final = {dtype: number for number, dtype in DTYPES.items()}

# The functions that this plugin calls, by module. `runtime.start` checks that they are there, so
# that a CANN too old, or another package named acl, is said so and not met in mid-flight.
CALLS: Final = {
    "": (
        "init",
        "finalize",
        "get_soc_name",
        "get_version",
        "get_recent_err_msg",
        "create_data_buffer",
        "destroy_data_buffer",
        "update_data_buffer",
        "get_data_buffer_addr",
        "create_tensor_desc",
        "destroy_tensor_desc",
        "get_tensor_desc_num_dims",
        "get_tensor_desc_dim_v2",
    ),
    "rt": (
        "get_device_count",
        "set_device",
        "reset_device",
        "get_context",
        "set_context",
        "create_stream",
        "destroy_stream",
        "synchronize_stream",
        "synchronize_stream_with_timeout",
        "malloc",
        "free",
        "malloc_host",
        "free_host",
        "memcpy",
        "memcpy_async",
        "create_event",
        "destroy_event",
        "record_event",
        "stream_wait_event",
        "query_event_status",
        "query_event_wait_status",
    ),
    "mdl": (
        "query_size_from_mem",
        "load_from_mem_with_mem",
        "unload",
        "create_desc",
        "get_desc",
        "destroy_desc",
        "get_num_inputs",
        "get_num_outputs",
        "get_input_name_by_index",
        "get_output_name_by_index",
        "get_input_size_by_index",
        "get_output_size_by_index",
        "get_input_dims",
        "get_output_dims",
        "get_input_data_type",
        "get_output_data_type",
        "get_input_index_by_name",
        "get_input_dynamic_gear_count",
        "get_input_dynamic_dims",
        "set_input_dynamic_dims",
        "get_cur_output_dims",
        "create_dataset",
        "add_dataset_buffer",
        "destroy_dataset",
        "set_dataset_tensor_desc",
        "get_dataset_tensor_desc",
        "execute",
        "execute_async",
    ),
}


def error(
    code: int, doing: str, path: str = "", otherwise: type[EngineError] = ModelError
) -> EngineError:
    """Return the error that a return code means; it says what was being done.

    doing: the step that failed, "load the model". path: the model's name.
    otherwise: the class for codes that are not about the machine.
    """
    what = f"could not {doing}: {NAMES.get(code, 'CANN returned')} {code}"
    text = f"{_text(what, path)}; {advice(code)}"
    if code == SYNC_TIMEOUT:
        return DeadlineExceeded(text)
    return _as(BackendUnavailable if code in OF_THE_MACHINE else otherwise, text, path)


def done(code: int, doing: str, path: str = "", otherwise: type[EngineError] = ModelError) -> None:
    """Raise unless the code of a call that gives nothing back is success."""
    if code != 0:
        raise error(code, doing, path, otherwise)


def got(
    answer: tuple[Any, int], doing: str, path: str = "", otherwise: type[EngineError] = ModelError
) -> Any:
    """Return the value of a call that gives (value, code), or raise."""
    value, code = answer
    if code != 0:
        raise error(code, doing, path, otherwise)
    return value


def made(
    handle: int, doing: str, path: str = "", otherwise: type[EngineError] = BackendUnavailable
) -> int:
    """Return the handle of a call that gives only that, or raise where it is 0: it failed."""
    if handle == 0:
        raise _as(otherwise, _text(f"could not {doing}: CANN gave nothing back", path), path)
    return handle


def _text(what: str, path: str) -> str:
    message = recent_message()
    return f"{f'{path}: ' if path else ''}{what}{f'; CANN says: {message}' if message else ''}"


def _as(kind: type[EngineError], text: str, path: str) -> EngineError:
    if kind is ModelError:
        return ModelError(text, path)
    return BackendUnavailable(text, "ascend_ge") if kind is BackendUnavailable else kind(text)


def recent_message() -> str:
    """Return what CANN last reported in this thread, on one line; reading it clears it."""
    acl = sys.modules.get("acl")
    message = acl.get_recent_err_msg() if acl is not None else None
    return " ".join(message.split()) if isinstance(message, str) else ""
