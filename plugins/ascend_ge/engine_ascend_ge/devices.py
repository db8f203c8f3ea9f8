"""The Ascend devices that this machine has now, or why none can be used."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.types import Capability, Device, DeviceInfo, Devices
from engine_ascend_ge import external, profiling, runtime
from engine_ascend_ge.acl_call import error

INSTALL_CANN = (
    "install the Ascend driver and the CANN toolkit with its kernels package "
    "(https://www.hiascend.com/cann), then source its set_env.sh"
)
CHECK_DRIVER = "run: npu-smi info; if it fails, install or repair the Ascend driver and firmware"


def find() -> Devices:
    """Return the devices that can be used now, with the SoC's name.

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
    lacks = missing_capabilities(acl, name)
    return Devices(
        found=tuple(
            DeviceInfo(Device("ascend", number), name, lacks=lacks) for number in range(count)
        )
    )


def missing_capabilities(acl: Any, soc: str) -> dict[str, str]:
    """Return the announced capabilities that this CANN or SoC does not have, and why."""
    lacks: dict[str, str] = {}
    if why := cannot_abort(acl, soc):
        lacks[Capability.CANCEL_PREDICT] = lacks[Capability.QUEUED_COLLECTIVES] = why
    if why := external.is_there(acl):
        lacks[Capability.SHARE_WEIGHTS] = why
    if not hasattr(acl.rt, "get_mem_info"):
        lacks[Capability.DEVICE_MEMORY] = "pyACL has no acl.rt.get_mem_info: CANN is too old"
    if why := profiling.is_there(acl):
        lacks[Capability.PROFILE] = why
    return lacks


def cannot_abort(acl: Any, soc: str = "") -> str:
    """Return why the work on a stream cannot be discarded; "" where it can."""
    # CANN 8.x and 9.0 document aclrtStreamAbort for the A2 and A3 series only: Ascend910B,
    # Ascend910_93 and what came later.
    if not hasattr(acl.rt, "stream_abort"):
        return "pyACL has no acl.rt.stream_abort: CANN is too old"
    soc = soc or acl.get_soc_name() or ""
    if re.match(r"Ascend(310|910(A|ProA|$))", soc):
        return f"{soc} does not have CANN's aclrtStreamAbort"
    return ""


def is_environment_set() -> bool:
    """Return whether CANN's set_env.sh was sourced in the shell that started this process."""
    return bool(os.environ.get("ASCEND_HOME_PATH") or os.environ.get("ASCEND_TOOLKIT_HOME"))


def home() -> Path | None:
    """Return CANN's folder, as set_env.sh names it."""
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        text = os.environ.get(name)
        if text:
            return Path(text)
    return None


def set_env_script() -> Path | None:
    """Return an installed CANN's set_env.sh, from the places that its installer uses."""
    for root in (Path("/usr/local/Ascend"), Path.home() / "Ascend"):
        for folder in ("cann", "ascend-toolkit", "nnae", "nnrt"):
            script = root / folder / "set_env.sh"
            if script.is_file():
                return script
    return None


def toolkit_version(folder: Path) -> str:
    """Return the toolkit's version, from the file of its installer, whose place has moved."""
    patterns = ("*-linux/ascend_toolkit_install.info", "version.cfg", "compiler/version.info")
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            for key in ("version", "Version", "toolkit_running_version"):
                version = read_value(path, key)
                if version:
                    return version
    return ""


def read_value(path: Path, key: str) -> str:
    """Return the value of `key=value` in a small text file, "" where there is none."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and name.strip() == key:
            return value.strip().strip('[]"')
    return ""
