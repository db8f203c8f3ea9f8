"""HCCL, CANN's collective communication library, called through ctypes.

pyACL does not have it. Handles and addresses are plain ints, as they are in pyACL; a call that
HCCL answers with another code than success is a CommunicatorError with the code's name, what CANN
last said, and what to do (`hccl_codes`).
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int32, c_uint32, c_uint64, c_void_p
from typing import Any, Final

from engine.errors import CommunicatorError
from engine.types import DType, ReduceOp
from engine_ascend_ge.acl_call import recent_message
from engine_ascend_ge.hccl_codes import NAMES, advice

LIBRARY: Final = "libhccl.so"
ROOT_INFO_BYTES: Final = 4108
SET_DETERMINISTIC: Final = 0  # HcclConfig
AGAIN: Final = 20
BYTES: Final = 0  # HCCL_DATA_TYPE_INT8: what is moved and not reduced goes as bytes

DTYPES: Final = {
    DType.INT8: 0,
    DType.INT16: 1,
    DType.INT32: 2,
    DType.FLOAT16: 3,
    DType.FLOAT32: 4,
    DType.INT64: 5,
    DType.UINT64: 6,
    DType.UINT8: 7,
    DType.UINT16: 8,
    DType.UINT32: 9,
    DType.FLOAT64: 10,
    DType.BFLOAT16: 11,
}
"""The contract's type -> HcclDataType, for what HCCL reduces."""

OPS: Final = {ReduceOp.SUM: 0, ReduceOp.PROD: 1, ReduceOp.MAX: 2, ReduceOp.MIN: 3}
"""The contract's operation -> HcclReduceOp; HCCL has no mean."""


class ConfigValue(ctypes.Structure):
    """HcclConfigValue: a union of one member, which is passed as that member is."""

    _fields_ = (("value", c_int32),)


_COMM, _STREAM = c_void_p, c_void_p
FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "HcclGetRootInfo": (c_void_p,),
    "HcclCommInitRootInfo": (c_uint32, c_void_p, c_uint32, POINTER(_COMM)),
    "HcclCommInitClusterInfo": (c_char_p, c_uint32, POINTER(_COMM)),
    "HcclCommDestroy": (_COMM,),
    "HcclGetRankSize": (_COMM, POINTER(c_uint32)),
    "HcclGetRankId": (_COMM, POINTER(c_uint32)),
    "HcclGetCommAsyncError": (_COMM, POINTER(c_int)),
    "HcclAllReduce": (c_void_p, c_void_p, c_uint64, c_int, c_int, _COMM, _STREAM),
    "HcclReduceScatter": (c_void_p, c_void_p, c_uint64, c_int, c_int, _COMM, _STREAM),
    "HcclAllGather": (c_void_p, c_void_p, c_uint64, c_int, _COMM, _STREAM),
    "HcclBroadcast": (c_void_p, c_uint64, c_int, c_uint32, _COMM, _STREAM),
    "HcclSend": (c_void_p, c_uint64, c_int, c_uint32, _COMM, _STREAM),
    "HcclRecv": (c_void_p, c_uint64, c_int, c_uint32, _COMM, _STREAM),
    "HcclAlltoAll": (c_void_p, c_uint64, c_int, c_void_p, c_uint64, c_int, _COMM, _STREAM),
}
"""The functions that this plugin needs, with their arguments; all return an HcclResult."""

OPTIONAL: Final[dict[str, tuple[Any, ...]]] = {
    "HcclSetConfig": (c_int, ConfigValue),  # not in the oldest
}


class Hccl:
    """The library, loaded. Its functions return codes; `done` makes errors of them."""

    def __init__(self) -> None:
        """Load it; CommunicatorError saying what is missing and what to do."""
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise CommunicatorError(
                f"{LIBRARY} cannot be loaded: {error}; source CANN's set_env.sh, and look at: "
                "engine doctor ascend_ge"
            ) from error
        missing = [name for name in FUNCTIONS if not hasattr(library, name)]
        if missing:
            raise CommunicatorError(
                f"{LIBRARY} lacks {', '.join(missing)}: this CANN is too old to run ranks"
            )
        for name, arguments in {**FUNCTIONS, **OPTIONAL}.items():
            function = getattr(library, name, None)
            if function is not None:
                function.argtypes = arguments
                function.restype = c_int
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)  # for the type checker: __init__ sets what the tables name


def done(code: int, doing: str) -> None:
    """Raise unless a call was successful. doing: the step that failed, "join the group"."""
    if code != 0:
        raise error(code, doing)


def error(code: int, doing: str) -> CommunicatorError:
    """Return the error that a code means."""
    said = recent_message()
    return CommunicatorError(
        f"could not {doing}: {NAMES.get(code, 'HCCL returned')} {code}"
        f"{f'; CANN says: {said}' if said else ''}; {advice(code)}"
    )
