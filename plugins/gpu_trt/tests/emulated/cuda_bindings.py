"""Surface of cuda.bindings.driver, as far as this backend uses it, read from the real package.

`python cuda_bindings.py` prints the table of the package that is installed, or unpacked on
PYTHONPATH with cuda-pathfinder: it imports without a driver. `cuda_bindings.json` is that of 13.5.
"""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

FUNCTIONS = (
    "cuCtxGetCurrent", "cuCtxPopCurrent", "cuCtxPushCurrent", "cuCtxSynchronize", "cuDeviceGet",
    "cuDeviceGetAttribute", "cuDeviceGetCount", "cuDeviceGetName", "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem", "cuDriverGetVersion", "cuEventCreate", "cuEventDestroy", "cuEventQuery",
    "cuEventRecord", "cuGetErrorName", "cuGetErrorString", "cuGraphDestroy", "cuGraphExecDestroy",
    "cuGraphInstantiate", "cuGraphLaunch", "cuInit", "cuIpcCloseMemHandle", "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle", "cuMemAlloc", "cuMemFree", "cuMemFreeHost", "cuMemGetInfo",
    "cuMemHostAlloc", "cuMemcpyDtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync",
    "cuMemcpyPeerAsync", "cuStreamBeginCapture", "cuStreamCreate", "cuStreamDestroy",
    "cuStreamEndCapture", "cuStreamQuery", "cuStreamSynchronize", "cuStreamWaitEvent",
)  # fmt: skip
ENUMS = {
    "CUresult": (
        "CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_OUT_OF_MEMORY",
        "CUDA_ERROR_NOT_INITIALIZED", "CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_INVALID_DEVICE",
        "CUDA_ERROR_INVALID_CONTEXT", "CUDA_ERROR_INVALID_HANDLE", "CUDA_ERROR_NOT_READY",
        "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
    ),
    "CUdevice_attribute": (
        "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
        "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
    ),
    "CUipcMem_flags": ("CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS",),
    "CUstreamCaptureMode": ("CU_STREAM_CAPTURE_MODE_THREAD_LOCAL",),
}  # fmt: skip
HANDLES = ("CUcontext", "CUdeviceptr", "CUevent", "CUgraph", "CUgraphExec", "CUstream")


def read(module: ModuleType) -> dict[str, Any]:
    """Return parameter names of functions, the handles that are there, values of enums."""
    return {
        "functions": {
            name: list(inspect.signature(getattr(module, name)).parameters) for name in FUNCTIONS
        },
        "version": int(module.CUDA_VERSION),
        "ipc_handle": [name for name in dir(module.CUipcMemHandle) if not name.startswith("_")],
        "handles": [name for name in HANDLES if int(getattr(module, name)(7)) == 7],
        "enums": {
            name: {key: int(getattr(module, name).__members__[key]) for key in keys}
            for name, keys in ENUMS.items()
        },
    }


if __name__ == "__main__":
    import tables

    print(tables.write(read(importlib.import_module("cuda.bindings.driver"))))
