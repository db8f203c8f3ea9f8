"""Discovery of devices, and the diagnosis of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

from engine.types import Check, Device, DeviceInfo, Devices
from engine_gpu_trt import vendor
from engine_gpu_trt.vendor import Missing


def find_devices() -> Devices:
    """Find the GPUs that can be used now; where there is none, say the first thing to mend.

    No device lacks anything that the manifest announces: what this backend uses is the same in all
    versions of TensorRT that `vendor` accepts.
    """
    try:
        driver = vendor.pycuda_driver()
        count = vendor.device_count(driver)
        vendor.tensorrt()
        return Devices(tuple(_device(driver, id) for id in range(count)))
    except Missing as error:
        return Devices(reason=str(error), fix=error.fix)


def diagnose() -> Sequence[Check]:
    """Check driver, pycuda, devices, TensorRT, environment, in the order in which to mend them."""
    return [*_driver_checks(), _tensorrt_check(), _visible_check()]


def _driver_checks() -> list[Check]:
    try:
        driver = vendor.pycuda_driver()
    except Missing as error:
        has_driver = vendor.driver_library()
        return [
            Check(
                "NVIDIA driver",
                ok=has_driver,
                detail=f"{vendor.DRIVER_LIBRARY} " + ("loads" if has_driver else "is not there"),
                fix="" if has_driver else vendor.DRIVER_FIX,
            ),
            Check("pycuda", ok=False, detail=str(error), fix=error.fix),
            Check(
                "CUDA device",
                ok=False,
                detail="not looked for: it takes the driver and pycuda",
                fix="mend the lines above",
            ),
        ]
    version = driver.get_driver_version()
    checks = [
        Check(
            "NVIDIA driver",
            ok=True,
            detail=f"for CUDA {version // 1000}.{version % 1000 // 10} and older",
        ),
        Check("pycuda", ok=True, detail=".".join(map(str, driver.get_version())) + " (CUDA)"),
    ]
    try:
        devices = [_device(driver, id) for id in range(vendor.device_count(driver))]
    except Missing as error:
        return [*checks, Check("CUDA device", ok=False, detail=str(error), fix=error.fix)]
    names = ", ".join(f"{device.device} {device.name}" for device in devices)
    return [*checks, Check("CUDA device", ok=True, detail=names)]


def _tensorrt_check() -> Check:
    try:
        module = vendor.tensorrt()
    except Missing as error:
        return Check("TensorRT", ok=False, detail=str(error), fix=error.fix)
    return Check("TensorRT", ok=True, detail=module.__version__)


def _visible_check() -> Check:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = visible is not None and visible.strip() in ("", "-1", "NoDevFiles")
    return Check(
        "CUDA_VISIBLE_DEVICES",
        ok=not hidden,
        detail="not set: every device is visible" if visible is None else f"is {visible!r}",
        fix="unset it, or name the devices to use" if hidden else "",
    )


def _device(driver: object, id: int) -> DeviceInfo:
    device = driver.Device(id)  # type: ignore[attr-defined]  # pycuda has no types
    return DeviceInfo(Device("gpu", id), str(device.name()), int(device.total_memory()))
