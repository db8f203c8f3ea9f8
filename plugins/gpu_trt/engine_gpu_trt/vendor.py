"""Find NVIDIA's two packages, and prove a device before TensorRT is touched.

Without a driver TensorRT hands out objects that wrap a null pointer, and the next call on one is
a segmentation fault. So nothing here calls TensorRT before pycuda has shown a device.
"""

from __future__ import annotations

import ctypes
import importlib
import re
import threading
from importlib.util import find_spec
from typing import Any

from engine.errors import BackendUnavailable

DRIVER_LIBRARY = "libcuda.so.1"
INSTALL = 'run: pip install "inference-engine[gpu-trt]"'
DRIVER_FIX = (
    "install the NVIDIA driver so that nvidia-smi lists a GPU; in a container, start it with the "
    "NVIDIA container toolkit (docker run --gpus all)"
)
OLDEST, NEWEST = (10, 16), (12, 0)
"""TensorRT versions that this backend is written for: from the first, below the second."""

_initialising = threading.Lock()


class Missing(Exception):
    """Something that this backend needs is not there. Its text is the reason; `fix` helps."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(" ".join(reason.split()))  # one line, whatever an importer said
        self.fix = fix


def pycuda_driver() -> Any:
    """Return the module pycuda.driver, initialised. Raises Missing."""
    if find_spec("pycuda") is None:
        also = "" if driver_library() else f"; no NVIDIA driver either ({DRIVER_LIBRARY})"
        raise Missing(f"pycuda is not installed{also}", INSTALL if not also else DRIVER_FIX)
    with _initialising:
        try:
            driver = importlib.import_module("pycuda.driver")
        except ImportError as error:
            if DRIVER_LIBRARY.partition(".")[0] in str(error):
                raise Missing(f"no NVIDIA driver: {error}", DRIVER_FIX) from error
            raise Missing(
                f"pycuda cannot be imported: {error}",
                "run: pip install --force-reinstall --no-binary pycuda pycuda",
            ) from error
        try:
            driver.init()
        except driver.Error as error:
            raise Missing(f"the NVIDIA driver does not start: {error}", DRIVER_FIX) from error
    return driver


def device_count(driver: Any) -> int:
    """Count the devices that the driver shows this process. Raises Missing where it shows none."""
    try:
        count = int(driver.Device.count())
    except driver.Error as error:
        raise Missing(f"the NVIDIA driver finds no device: {error}", DRIVER_FIX) from error
    if not count:
        raise Missing(
            "the NVIDIA driver shows no device to this process",
            "run nvidia-smi; unset or correct CUDA_VISIBLE_DEVICES",
        )
    return count


def tensorrt() -> Any:
    """Return the module tensorrt, of a version that fits. Call it after a device is proven.

    Raises Missing.
    """
    if find_spec("tensorrt") is None:
        raise Missing("tensorrt is not installed", INSTALL)
    try:
        module = importlib.import_module("tensorrt")
    except (ImportError, OSError) as error:
        raise Missing(
            f"tensorrt cannot be imported: {error}",
            "run: pip install --force-reinstall tensorrt",
        ) from error
    match = re.match(r"(\d+)\.(\d+)", module.__version__)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if not OLDEST <= version < NEWEST:
        raise Missing(
            f"tensorrt {module.__version__} is installed, but this backend needs "
            f"{OLDEST[0]}.{OLDEST[1]} or newer, below {NEWEST[0]}",
            'run: pip install "tensorrt>=10.16,<12"',
        )
    return module


def usable_tensorrt() -> Any:
    """Return the module tensorrt; see `tensorrt`. Raises BackendUnavailable."""
    try:
        return tensorrt()
    except Missing as error:
        raise BackendUnavailable(
            f"backend 'gpu_trt' cannot run: {error}; {error.fix}", "gpu_trt"
        ) from error


def driver_library() -> bool:
    """Tell whether the NVIDIA driver's library can be loaded."""
    try:
        ctypes.CDLL(DRIVER_LIBRARY)
    except OSError:
        return False
    return True
