"""NCCL's C interface, as far as this backend needs it: declared here, loaded when it is asked for.

By ctypes, because the C interface has stayed the same since NCCL 2.14 and one declaration serves
every library of this major version: NVIDIA's wheel, PyTorch's, a system package. NVIDIA's own
Python binding belongs to one version of the library each.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_void_p
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine.types import DType, ReduceOp
from engine_gpu_trt.vendor import Missing

LIBRARY = "libnccl.so.2"
PACKAGES = "nvidia-nccl-cu13 (or nvidia-nccl-cu12)"
OLDEST = 21900
"""Version 2.19, as NCCL counts: TensorRT's own collectives ask for that one too."""

UNIQUE_ID_BYTES = 128


class UniqueId(ctypes.Structure):
    """Id by which the ranks of one communicator find each other; passed by value."""

    _fields_ = (("internal", ctypes.c_char * UNIQUE_ID_BYTES),)

    @classmethod
    def of(cls, data: bytes) -> UniqueId:
        """Return the id that `bytes(id)` was made of."""
        return cls.from_buffer_copy(data)


class Config(ctypes.Structure):
    """The settings of a communicator, in the form that they had in version 2.14.

    NCCL reads `size` bytes of it and takes its own defaults for all that came later.
    """

    _fields_ = (
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("blocking", c_int),
    )

    @classmethod
    def of(cls, *, is_blocking: bool) -> Config:
        """Return settings with which calls wait for other ranks, or none does."""
        return cls(cls.blocking.offset + cls.blocking.size, 0xCAFEBEEF, 21400, int(is_blocking))


# Results. IN_PROGRESS: the call goes on by itself; ncclCommGetAsyncError says when it is over.
SUCCESS, IN_PROGRESS = 0, 7

SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (POINTER(c_int),),
    "ncclGetUniqueId": (POINTER(UniqueId),),
    "ncclCommInitRankConfig": (POINTER(c_void_p), c_int, UniqueId, c_int, POINTER(Config)),
    "ncclCommFinalize": (c_void_p,),
    "ncclCommDestroy": (c_void_p,),
    "ncclCommAbort": (c_void_p,),
    "ncclCommGetAsyncError": (c_void_p, POINTER(c_int)),
    "ncclGetErrorString": (c_int,),
    "ncclGetLastError": (c_void_p,),
    "ncclAllReduce": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclReduce": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_int, c_void_p, c_void_p),
    "ncclBroadcast": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclAllGather": (c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p),
    "ncclReduceScatter": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclSend": (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclRecv": (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
}
"""Argument types by function. All return a result but those of RETURNS."""

RETURNS = {"ncclGetErrorString": c_char_p, "ncclGetLastError": c_char_p}

OPS = {
    ReduceOp.SUM: 0,
    ReduceOp.PROD: 1,
    ReduceOp.MAX: 2,
    ReduceOp.MIN: 3,
    ReduceOp.MEAN: 4,
}
DTYPES = {
    DType.INT8: 0,
    DType.UINT8: 1,
    DType.INT32: 2,
    DType.UINT32: 3,
    DType.INT64: 4,
    DType.UINT64: 5,
    DType.FLOAT16: 6,
    DType.FLOAT32: 7,
    DType.FLOAT64: 8,
    DType.BFLOAT16: 9,
    DType.FLOAT8E4M3FN: 10,
    DType.FLOAT8E5M2: 11,
}
"""Types that NCCL computes with. Any other can be moved, as bytes."""
BYTE = DTYPES[DType.UINT8]


@cache
def library() -> Any:
    """Return NCCL's library, its functions declared. Raises Missing."""
    fix = f"run: pip install {PACKAGES.partition(' ')[0]}, for the CUDA version that is here"
    try:
        loaded = ctypes.CDLL(_path())
    except OSError as error:
        raise Missing(f"NCCL cannot be loaded: {error}", fix) from error
    try:
        for name, arguments in SIGNATURES.items():
            function = getattr(loaded, name)
            function.argtypes = arguments
            function.restype = RETURNS.get(name, c_int)
    except AttributeError as error:
        raise Missing(f"{LIBRARY} is older than 2.19: {error}", fix) from error
    if version(loaded) < OLDEST:
        raise Missing(f"{LIBRARY} is of version {spelt(version(loaded))}, older than 2.19", fix)
    return loaded


def version(loaded: Any) -> int:
    """Return the library's version, as NCCL counts: 22907 is 2.29.7."""
    number = c_int()
    loaded.ncclGetVersion(ctypes.byref(number))
    return number.value


def spelt(number: int) -> str:
    """Return a version as it is written: "2.29.7"."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _path() -> str:
    """Return where the library is: in NVIDIA's wheel, or wherever the system has it."""
    try:
        spec = find_spec("nvidia.nccl")
    except ImportError:  # no package of NVIDIA's at all
        spec = None
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / "lib" / LIBRARY
        if path.exists():
            return str(path)
    return LIBRARY
