"""Return codes of ACL (`aclError`): their names, and what a user does about them.

After CANN's published table "aclError" (versions 8.0 to 9.1) and the headers of its runtime. A
code's first digit says what is wrong: 1 the environment or the program, 2 a resource that is
used up or that this hardware does not have, 3 the service, 5 CANN, the driver or the device.
"""

from __future__ import annotations

from typing import Final

FULL = "the device is full: close other models or processes (npu-smi info)"
_GONE = "run: engine plugins"
LOG = (
    "see CANN's log (~/ascend/log, or ASCEND_PROCESS_LOG_PATH); if it stays, Huawei's support "
    "needs that log"
)
TROUBLED = f"look at the device's health (npu-smi info); {LOG}"
_REBUILD = (
    "the compiled model is damaged or of another CANN: compile it anew with this machine's CANN "
    "(engine cache clear, for those that were kept)"
)
OLD = "this SoC, driver or CANN does not have it: update driver and CANN together"
_SET_ENV = "CANN's environment is incomplete: source its set_env.sh, then run: engine doctor"
OURS = "this should not happen: please report it with CANN's log (~/ascend/log)"
_SHAPE = "give sizes that the model was compiled for (input_shape, dynamic_dims)"
_SLOW = "an operator took longer than CANN allows: try a smaller input; " + LOG
_OVERFLOW = "a number became too large for its type: try precision_mode = enforce_fp32"
OTHERS = (
    "the other device or its process has failed, or the link to it: look at its error first, then "
    "try again"
)
PROFILING = "another profile of this device is running: end it (msprof, or an acl.json) and retry"

_TABLE: Final[dict[str, dict[int, str]]] = {
    FULL: {
        200000: "ACL_ERROR_BAD_ALLOC",
        207001: "ACL_ERROR_RT_MEMORY_ALLOCATION",
        207005: "ACL_ERROR_RT_RESOURCE_ALLOC_FAIL",
        207007: "ACL_ERROR_RT_NO_EVENT_RESOURCE",
        207008: "ACL_ERROR_RT_NO_STREAM_RESOURCE",
        207009: "ACL_ERROR_RT_NO_NOTIFY_RESOURCE",
        207010: "ACL_ERROR_RT_NO_MODEL_RESOURCE",
        207011: "ACL_ERROR_RT_NO_CDQ_RESOURCE",
        207018: "ACL_ERROR_RT_DEVICE_OOM",
        245000: "ACL_ERROR_GE_MEMORY_ALLOCATION",
        245002: "ACL_ERROR_GE_DEVICE_MEMORY_ALLOCATION_FAILED",
        300000: "ACL_ERROR_STORAGE_OVER_LIMIT",
        507032: "ACL_ERROR_RT_PROGRAM_USE_OUT",
    },
    _GONE: {
        100001: "ACL_ERROR_UNINITIALIZE",
        107001: "ACL_ERROR_RT_INVALID_DEVICEID",
        145001: "ACL_ERROR_GE_EXEC_NOT_INIT",
        200002: "ACL_ERROR_INVALID_DEVICE",
        207004: "ACL_ERROR_RT_NO_DEVICE",
    },
    "the user of this process may not: join the group that owns the device files (/dev/davinci*), "
    "and, for lent weights, be in the lender's list of pids": {
        207006: "ACL_ERROR_RT_NO_PERMISSION",
    },
    TROUBLED: {
        500004: "ACL_ERROR_DRV_FAILURE",
        507001: "ACL_ERROR_RT_TS_ERROR",
        507010: "ACL_ERROR_RT_LOST_HEARTBEAT",
        507013: "ACL_ERROR_RT_SYS_DMA",
        507033: "ACL_ERROR_RT_DEV_SETUP_ERROR",
        507053: "ACL_ERROR_RT_DEVICE_MEM_ERROR",
        507054: "ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR",
        507899: "ACL_ERROR_RT_DRV_INTERNAL_ERROR",
        507901: "ACL_ERROR_RT_SOCKET_CLOSE",
    },
    OTHERS: {
        507022: "ACL_ERROR_RT_IPC_ERROR",
        507055: "ACL_ERROR_RT_SUSPECT_DEVICE_MEM_ERROR",
        507056: "ACL_ERROR_RT_LINK_ERROR",
        507057: "ACL_ERROR_RT_SUSPECT_REMOTE_ERROR",
        507904: "ACL_ERROR_RT_COMM_OP_RETRY_FAIL",
    },
    _REBUILD: {
        100005: "ACL_ERROR_INVALID_FILE_SIZE",
        100006: "ACL_ERROR_PARSE_FILE",
        100012: "ACL_ERROR_DESERIALIZE_MODEL",
        100013: "ACL_ERROR_PARSE_MODEL",
        100015: "ACL_ERROR_MODEL_SIZE_INVALID",
        100016: "ACL_ERROR_MODEL_MISSING_ATTR",
        145006: "ACL_ERROR_GE_EXEC_MODEL_DATA_SIZE_INVALID",
        545001: "ACL_ERROR_GE_LOAD_MODEL",
        545002: "ACL_ERROR_GE_EXEC_LOAD_MODEL_PARTITION_FAILED",
        545003: "ACL_ERROR_GE_EXEC_LOAD_WEIGHT_PARTITION_FAILED",
        545004: "ACL_ERROR_GE_EXEC_LOAD_TASK_PARTITION_FAILED",
        545005: "ACL_ERROR_GE_EXEC_LOAD_KERNEL_PARTITION_FAILED",
    },
    "the file must exist, and this process must be able to read it": {
        100003: "ACL_ERROR_INVALID_FILE",
        100014: "ACL_ERROR_READ_MODEL_FAILURE",
        107009: "ACL_ERROR_RT_FILE_OPEN",
        145002: "ACL_ERROR_GE_EXEC_MODEL_PATH_INVALID",
    },
    "its folder must exist, have room, and let this process write": {
        100004: "ACL_ERROR_WRITE_FILE",
        107010: "ACL_ERROR_RT_FILE_WRITE",
    },
    _SET_ENV: {
        100039: "ACL_ERROR_COMPILING_STUB_MODE",
        145019: "ACL_ERROR_GE_PLGMGR_PATH_INVALID",
        148049: "ACL_ERROR_INVALID_OPP_PATH",
        507008: "ACL_ERROR_RT_SOC_VERSION",
    },
    OLD: {
        200001: "ACL_ERROR_API_NOT_SUPPORT",
        200006: "ACL_ERROR_FEATURE_UNSUPPORTED",
        200007: "ACL_ERROR_PROF_MODULES_UNSUPPORTED",
        207000: "ACL_ERROR_RT_FEATURE_NOT_SUPPORT",
        207019: "ACL_ERROR_RT_FEATURE_NOT_SUPPORT_UPDATE_OP",
        507009: "ACL_ERROR_RT_TASK_TYPE_NOT_SUPPORT",
    },
    _SHAPE: {
        100017: "ACL_ERROR_MODEL_INPUT_NOT_MATCH",
        100018: "ACL_ERROR_MODEL_OUTPUT_NOT_MATCH",
        100019: "ACL_ERROR_MODEL_NOT_DYNAMIC",
        145012: "ACL_ERROR_GE_DYNAMIC_INPUT_LENGTH_INVALID",
        145013: "ACL_ERROR_GE_DYNAMIC_BATCH_SIZE_INVALID",
        145014: "ACL_ERROR_GE_AIPP_BATCH_EMPTY",
        145021: "ACL_ERROR_GE_SHAPE_INVALID",
        148050: "ACL_ERROR_OP_UNSUPPORTED_DYNAMIC",
    },
    "the AIPP file (insert_op_config_file_path) does not fit the model": {
        145015: "ACL_ERROR_GE_AIPP_NOT_EXIST",
        145016: "ACL_ERROR_GE_AIPP_MODE_INVALID",
    },
    "the NPU has no such tensors; convert the model": {
        100026: "ACL_ERROR_UNSUPPORTED_DATA_TYPE",
        100027: "ACL_ERROR_FORMAT_NOT_MATCH",
        145020: "ACL_ERROR_GE_FORMAT_INVALID",
        145022: "ACL_ERROR_GE_DATATYPE_INVALID",
    },
    _SLOW: {
        107019: "ACL_ERROR_RT_WAIT_TIMEOUT",
        107020: "ACL_ERROR_RT_TASK_TIMEOUT",
        507012: "ACL_ERROR_RT_REPORT_TIMEOUT",
        507014: "ACL_ERROR_RT_AICORE_TIMEOUT",
        507017: "ACL_ERROR_RT_AICPU_TIMEOUT",
        507034: "ACL_ERROR_RT_VECTOR_CORE_TIMEOUT",
        507048: "ACL_ERROR_RT_FFTS_PLUS_TIMEOUT",
        545601: "ACL_ERROR_GE_MODEL_EXECUTE_TIMEOUT",
    },
    "give it more time (timeout_s)": {
        507046: "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT",
        507047: "ACL_ERROR_RT_EVENT_SYNC_TIMEOUT",
    },
    _OVERFLOW: {
        207003: "ACL_ERROR_RT_AICORE_OVER_FLOW",
        207016: "ACL_ERROR_RT_AIVEC_OVER_FLOW",
        207017: "ACL_ERROR_RT_OVER_FLOW",
    },
    "the configuration file that ACL was started with is wrong": {
        100007: "ACL_ERROR_FILE_MISSING_ATTR",
        100008: "ACL_ERROR_FILE_ATTR_INVALID",
        100009: "ACL_ERROR_INVALID_DUMP_CONFIG",
        100010: "ACL_ERROR_INVALID_PROFILING_CONFIG",
        148048: "ACL_ERROR_INVALID_MAX_OPQUEUE_NUM_CONFIG",
    },
    PROFILING: {
        100042: "ACL_ERROR_PROF_ALREADY_RUN",
        100043: "ACL_ERROR_PROF_NOT_RUN",
        148046: "ACL_ERROR_PROF_REPEAT_SUBSCRIBE",
        148047: "ACL_ERROR_PROF_API_CONFLICT",
    },
    "another thread is discarding the work on the device; try again": {
        107022: "ACL_ERROR_RT_DEVICE_TASK_ABORT",
        107023: "ACL_ERROR_RT_STREAM_ABORT",
        107035: "ACL_ERROR_RT_TASK_ABORT_STOP",
        507023: "ACL_ERROR_RT_MODEL_ABORT_NORMAL",
    },
    "CANN is moving its services to other devices; try again": {
        345102: "ACL_ERROR_GE_SUBHEALTHY",
        545602: "ACL_ERROR_GE_REDEPLOYING",
    },
    "an operator failed on this data, or on this SoC; " + LOG: {
        507011: "ACL_ERROR_RT_MODEL_EXECUTE",
        507015: "ACL_ERROR_RT_AICORE_EXCEPTION",
        507016: "ACL_ERROR_RT_AICORE_TRAP_EXCEPTION",
        507018: "ACL_ERROR_RT_AICPU_EXCEPTION",
        507035: "ACL_ERROR_RT_VECTOR_CORE_EXCEPTION",
        507036: "ACL_ERROR_RT_VECTOR_CORE_TRAP_EXCEPTION",
        507042: "ACL_ERROR_RT_AICORE_TRAP_READ_OVERFLOW",
        507043: "ACL_ERROR_RT_AICORE_TRAP_WRITE_OVERFLOW",
        507044: "ACL_ERROR_RT_VECTOR_CORE_TRAP_READ_OVERFLOW",
        507045: "ACL_ERROR_RT_VECTOR_CORE_TRAP_WRITE_OVERFLOW",
        507049: "ACL_ERROR_RT_FFTS_PLUS_EXCEPTION",
        507050: "ACL_ERROR_RT_FFTS_PLUS_TRAP_EXCEPTION",
        507900: "ACL_ERROR_RT_AICPU_INTERNAL_ERROR",
        507902: "ACL_ERROR_RT_AICPU_INFO_LOAD_RSP_ERR",
    },
    LOG: {
        207002: "ACL_ERROR_RT_MEMORY_FREE",
        245001: "ACL_ERROR_GE_MEMORY_OPERATE_FAILED",
        500000: "ACL_ERROR_INTERNAL_ERROR",
        500001: "ACL_ERROR_FAILURE",
        500002: "ACL_ERROR_GE_FAILURE",
        500003: "ACL_ERROR_RT_FAILURE",
        500005: "ACL_ERROR_PROFILING_FAILURE",
        507000: "ACL_ERROR_RT_INTERNAL_ERROR",
        507002: "ACL_ERROR_RT_STREAM_TASK_FULL",
        507007: "ACL_ERROR_RT_CONTEXT_RELEASE_ERROR",
        507020: "ACL_ERROR_RT_AICPU_MODEL_RSP_ERR",
        507021: "ACL_ERROR_RT_PROFILING_ERROR",
        507052: "ACL_ERROR_RT_COPY_DATA",
        545000: "ACL_ERROR_GE_INTERNAL_ERROR",
        545006: "ACL_ERROR_GE_EXEC_RELEASE_MODEL_DATA",
        545007: "ACL_ERROR_GE_COMMAND_HANDLE",
        545008: "ACL_ERROR_GE_GET_TENSOR_INFO",
        545009: "ACL_ERROR_GE_UNLOAD_MODEL",
    },
    OURS: {
        100000: "ACL_ERROR_INVALID_PARAM",
        100002: "ACL_ERROR_REPEAT_INITIALIZE",
        100011: "ACL_ERROR_INVALID_MODEL_ID",
        100037: "ACL_ERROR_REPEAT_FINALIZE",
        107000: "ACL_ERROR_RT_PARAM_INVALID",
        107002: "ACL_ERROR_RT_CONTEXT_NULL",
        107003: "ACL_ERROR_RT_STREAM_CONTEXT",
        107004: "ACL_ERROR_RT_MODEL_CONTEXT",
        107005: "ACL_ERROR_RT_STREAM_MODEL",
        107006: "ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID",
        107007: "ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL",
        107008: "ACL_ERROR_RT_ADDR_UNALIGNED",
        107016: "ACL_ERROR_RT_INVALID_MEMORY_TYPE",
        107017: "ACL_ERROR_RT_INVALID_HANDLE",
        107018: "ACL_ERROR_RT_INVALID_MALLOC_TYPE",
        107037: "ACL_ERROR_RT_MODEL_RUNNING",
        145000: "ACL_ERROR_GE_PARAM_INVALID",
        145003: "ACL_ERROR_GE_EXEC_MODEL_ID_INVALID",
        145007: "ACL_ERROR_GE_EXEC_MODEL_ADDR_INVALID",
        145009: "ACL_ERROR_GE_EXEC_LOAD_MODEL_REPEATED",
        145011: "ACL_ERROR_GE_DYNAMIC_INPUT_ADDR_INVALID",
        148053: "ACL_ERROR_INVALID_BUNDLE_MODEL_ID",
        200003: "ACL_ERROR_MEMORY_ADDRESS_UNALIGNED",
        200004: "ACL_ERROR_RESOURCE_NOT_MATCH",
        200005: "ACL_ERROR_INVALID_RESOURCE_HANDLE",
    },
}  # fmt: skip

NAMES: Final = {code: name for codes in _TABLE.values() for code, name in codes.items()}
"""Every code that this plugin's calls can meet, by CANN's name for it."""

_ADVICE: Final = {code: text for text, codes in _TABLE.items() for code in codes}
_BY_DIGIT: Final = {1: OURS, 2: OLD, 3: LOG, 5: LOG}

OF_THE_MACHINE: Final = frozenset(
    code for text in (FULL, _GONE, TROUBLED) for code in _TABLE[text]
) | {207006, 507022, 507055, 507056, 507057, *_TABLE[_SET_ENV]}
"""Codes that say something of the machine and nothing of the model."""


def advice(code: int) -> str:
    """Return what to do about a return code, as far as its number tells."""
    return _ADVICE.get(code) or _BY_DIGIT.get(code // 100_000, LOG)
