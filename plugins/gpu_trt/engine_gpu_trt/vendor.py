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
PACKAGES = {
    "tensorrt": ((10, 16), (12, 0), INSTALL),
    "tensorrt_rtx": ((1, 4), (2, 0), "run: pip install tensorrt_rtx"),
}
"""The providers: a package of NVIDIA's each, with the versions that this backend is written for
(from the first, below the second) and how to get it. They have the same interface: TensorRT, and
TensorRT for RTX, which compiles on the processor and finishes on the GPU when it is loaded."""

_initialising = threading.Lock()


class Missing(Exception):
    """Something that this backend needs is not there. Its text is the reason; `fix` helps."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(" ".join(reason.split()))  # one line, whatever an importer said
        self.fix = fix


def cuda_package() -> str:
    """Return the package by which CUDA is called: pycuda, or else cuda-bindings; "" for none."""
    if find_spec("pycuda") is not None:
        return "pycuda"
    try:
        found = find_spec("cuda.bindings")
    except ImportError:  # no package of that family
        found = None
    return "cuda-bindings" if found is not None else ""


def cuda_driver() -> Any:
    """Return the module pycuda.driver, or what stands for it, initialised. Raises Missing."""
    package = cuda_package()
    if not package:
        also = "" if driver_library() else f"; no NVIDIA driver either ({DRIVER_LIBRARY})"
        raise Missing(
            f"pycuda is not installed, nor is cuda-bindings{also}",
            INSTALL if not also else DRIVER_FIX,
        )
    name = "pycuda.driver" if package == "pycuda" else "engine_gpu_trt.cuda_bindings"
    with _initialising:
        try:
            driver = importlib.import_module(name)
            driver.init()
        except ImportError as error:
            if DRIVER_LIBRARY.partition(".")[0] in str(error):
                raise Missing(f"no NVIDIA driver: {error}", DRIVER_FIX) from error
            source = "--no-binary pycuda " if package == "pycuda" else ""
            raise Missing(
                f"{package} cannot be imported: {error}",
                f"run: pip install --force-reinstall {source}{package}",
            ) from error
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


def tensorrt(package: str = "tensorrt") -> Any:
    """Return a provider's module, of a version that fits. Call it after a device is proven.

    Raises Missing.
    """
    oldest, newest, install = PACKAGES[package]
    if find_spec(package) is None:
        raise Missing(f"{package} is not installed", install)
    try:
        module = importlib.import_module(package)
    except (ImportError, OSError) as error:
        raise Missing(
            f"{package} cannot be imported: {error}",
            f"run: pip install --force-reinstall {package}",
        ) from error
    if not oldest <= version_of(module) < newest:
        lowest = ".".join(map(str, oldest))
        raise Missing(
            f"{package} {module.__version__} is installed, but this backend needs {lowest} or "
            f"newer, below {newest[0]}",
            f'run: pip install "{package}>={lowest},<{newest[0]}"',
        )
    return module


def any_tensorrt() -> Any:
    """Return the first provider's module that is installed; see `tensorrt`. Raises Missing."""
    return tensorrt(next((name for name in PACKAGES if find_spec(name) is not None), "tensorrt"))


def cuda_bindings() -> Any:
    """Return the module cuda.bindings.driver, for what pycuda has not. Call it after cuda_driver.

    Raises BackendUnavailable.
    """
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise BackendUnavailable(
            f"cuda_graphs needs the package cuda-bindings: {error}; run: pip install "
            "cuda-bindings, of the CUDA version that is here, or set cuda_graphs = off",
            "gpu_trt",
        ) from error


def version_of(trt: Any) -> tuple[int, int]:
    """Return TensorRT's version: (11, 4)."""
    match = re.match(r"(\d+)\.(\d+)", trt.__version__)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def usable_tensorrt(package: str) -> Any:
    """Return a provider's module; see `tensorrt`. Raises BackendUnavailable."""
    try:
        return tensorrt(package)
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
