"""Discovery of devices, and the diagnosis of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from engine.host.peers import HAS_PEERS
from engine.types import Capability, Check, Device, DeviceInfo, Devices
from engine_gpu_trt import nccl, refit, vendor
from engine_gpu_trt.vendor import Missing


def find_devices() -> Devices:
    """Find the GPUs that can be used now; where there is none, say the first thing to mend.

    A device lacks what needs NCCL where that is not there, and what its TensorRT does wrong.
    """
    try:
        driver = vendor.cuda_driver()
        count = vendor.device_count(driver)
        module = vendor.any_tensorrt()
        lacks = _lacks(module)
        return Devices(tuple(_device(driver, id, lacks) for id in range(count)))
    except Missing as error:
        return Devices(reason=str(error), fix=error.fix)


def diagnose() -> Sequence[Check]:
    """Check all that this backend needs, in the order in which to mend it."""
    return [*_driver_checks(), _tensorrt_check(), *_nccl_checks(), _visible_check()]


def _driver_checks() -> list[Check]:
    try:
        driver = vendor.cuda_driver()
    except Missing as error:
        has_driver = vendor.driver_library()
        return [
            Check(
                "NVIDIA driver",
                ok=has_driver,
                detail=f"{vendor.DRIVER_LIBRARY} " + ("loads" if has_driver else "is not there"),
                fix="" if has_driver else vendor.DRIVER_FIX,
            ),
            Check(vendor.cuda_package() or "pycuda", ok=False, detail=str(error), fix=error.fix),
            Check(
                "CUDA device",
                ok=False,
                detail="not looked for: it takes the driver and pycuda or cuda-bindings",
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
        Check(
            vendor.cuda_package(),
            ok=True,
            detail=".".join(map(str, driver.get_version())) + " (CUDA)",
        ),
    ]
    try:
        devices = [_device(driver, id) for id in range(vendor.device_count(driver))]
    except Missing as error:
        return [*checks, Check("CUDA device", ok=False, detail=str(error), fix=error.fix)]
    names = ", ".join(f"{device.device} {device.name}" for device in devices)
    return [*checks, Check("CUDA device", ok=True, detail=names)]


def _tensorrt_check() -> Check:
    try:
        module = vendor.any_tensorrt()
    except Missing as error:
        return Check("TensorRT", ok=False, detail=str(error), fix=error.fix)
    name = "" if module.__name__ == "tensorrt" else f" ({module.__name__}: set provider to it)"
    return Check("TensorRT", ok=True, detail=f"{module.__version__}{name}")


def _visible_check() -> Check:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = visible is not None and visible.strip() in ("", "-1", "NoDevFiles")
    return Check(
        "CUDA_VISIBLE_DEVICES",
        ok=not hidden,
        detail="not set: every device is visible" if visible is None else f"is {visible!r}",
        fix="unset it, or name the devices to use" if hidden else "",
    )


def _lacks(trt: Any) -> dict[str, str]:
    lacks = {}
    try:
        nccl.library()
    except Missing as error:
        for capability in (Capability.COLLECTIVES, Capability.GRAPH_COLLECTIVES):
            lacks[str(capability)] = f"{error}; {error.fix}"
    if not HAS_PEERS:
        lacks[str(Capability.SHARE_WEIGHTS)] = "this system cannot watch the process that lends"
    if vendor.version_of(trt) == refit.UNSOUND:
        lacks[str(Capability.UPDATE_WEIGHTS)] = (
            f"engines of TensorRT {trt.__version__} that can be refitted may drop a bias"
        )
    return lacks


def _nccl_checks() -> list[Check]:
    """Look for NCCL, which only ranks whose values stay on their devices need.

    Without a driver that cannot be told, and nothing is said of it.
    """
    try:
        vendor.cuda_driver()
    except Missing:
        return []
    try:
        version = nccl.spelt(nccl.version(nccl.library()))
    except Missing as error:
        detail = f"{error}; ranks exchange tensors through host memory"
        return [Check("NCCL", ok=True, detail=detail, fix=error.fix)]
    return [Check("NCCL", ok=True, detail=version)]


def _device(driver: object, id: int, lacks: Mapping[str, str] | None = None) -> DeviceInfo:
    device = driver.Device(id)  # type: ignore[attr-defined]  # pycuda has no types
    memory_bytes = int(device.total_memory())
    return DeviceInfo(Device("gpu", id), str(device.name()), memory_bytes, lacks or {})
