"""Which Ascend devices this machine has now, or why none can be used."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from engine.errors import EngineError
from engine.types import Device, DeviceInfo, Devices
from engine_ascend_ge import runtime
from engine_ascend_ge.acl_call import error

INSTALL_CANN = (
    "install the Ascend driver and the CANN toolkit with its kernels package "
    "(https://www.hiascend.com/cann), then source its set_env.sh"
)
CHECK_DRIVER = "run: npu-smi info; if it fails, install or repair the Ascend driver and firmware"


def find() -> Devices:
    """The devices that can be used now, with the SoC's name.

    Looks without opening any device, which takes seconds and memory; total memory is therefore
    not known.
    """
    if importlib.util.find_spec("acl") is None:
        script = set_env_script()
        if script is not None and not is_environment_set():
            return Devices(
                reason="CANN is installed but its environment is not set: no module 'acl'",
                fix=f"run: source {script}",
            )
        return Devices(reason="CANN is not installed: no module 'acl'", fix=INSTALL_CANN)
    try:
        acl = runtime.start()
    except EngineError as failure:
        script = set_env_script()
        is_set = is_environment_set() or script is None
        fix = CHECK_DRIVER if is_set else f"run: source {script}"
        return Devices(reason=str(failure), fix=fix)
    count, code = acl.rt.get_device_count()
    if code != 0:
        return Devices(reason=str(error(code, "count the Ascend devices")), fix=CHECK_DRIVER)
    if count == 0:
        visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
        hidden = f" (ASCEND_RT_VISIBLE_DEVICES={visible!r})" if visible is not None else ""
        return Devices(reason=f"CANN finds no Ascend device{hidden}", fix=CHECK_DRIVER)
    name = acl.get_soc_name() or "Ascend"
    return Devices(
        found=tuple(DeviceInfo(Device("ascend", number), name) for number in range(count))
    )


def is_environment_set() -> bool:
    """Whether CANN's set_env.sh was sourced in the shell that started this process."""
    return bool(os.environ.get("ASCEND_HOME_PATH") or os.environ.get("ASCEND_TOOLKIT_HOME"))


def home() -> Path | None:
    """CANN's folder, as set_env.sh names it."""
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        text = os.environ.get(name)
        if text:
            return Path(text)
    return None


def set_env_script() -> Path | None:
    """Where an installed CANN keeps its set_env.sh, in the places that its installer uses."""
    for root in (Path("/usr/local/Ascend"), Path.home() / "Ascend"):
        for folder in ("cann", "ascend-toolkit", "nnae", "nnrt"):
            script = root / folder / "set_env.sh"
            if script.is_file():
                return script
    return None
