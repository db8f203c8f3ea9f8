"""The checks of the diagnosis, in the order in which one would mend them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

from engine.errors import EngineError
from engine.types import Check
from engine_ascend_ge import devices, external, hccl, runtime
from engine_ascend_ge.atc import find_compiler

DRIVER = Path("/usr/local/Ascend/driver/version.info")
DEVICE_NODES = Path("/dev")


def checks() -> Sequence[Check]:
    """Check the driver, CANN, its environment, pyACL, devices, SoC, atc, kernels, HCCL, sharing."""
    found = devices.find()
    soc = _soc_name()
    return [
        _driver(),
        _toolkit(),
        _environment(),
        _module(),
        Check(
            "Ascend devices",
            bool(found.found),
            ", ".join(f"{info.device} ({info.name})" for info in found.found) or found.reason,
            found.fix,
        ),
        Check(
            "SoC name",
            bool(soc),
            soc or "CANN does not say which SoC this is",
            "" if soc else f"{devices.CHECK_DRIVER}, or set soc_version in [ascend_ge_context]",
        ),
        _compiler(),
        _kernels(soc),
        _hccl(),
        _sharing(),
    ]


def _driver() -> Check:
    nodes = sorted(path.name for path in DEVICE_NODES.glob("davinci[0-9]*"))
    version = devices.read_value(DRIVER, "Version")
    if not nodes:
        detail = f"driver {version}, but no {DEVICE_NODES}/davinci*" if version else "not installed"
        return Check("Ascend driver", False, detail, devices.CHECK_DRIVER)
    return Check("Ascend driver", True, f"version {version or 'unknown'}, {', '.join(nodes)}")


def _toolkit() -> Check:
    folder = devices.home()
    script = devices.set_env_script()
    if folder is None and script is not None:
        folder = script.parent
    if folder is None or not folder.is_dir():
        detail = f"{folder} is not a folder" if folder else "not found"
        return Check("CANN toolkit", False, detail, devices.INSTALL_CANN)
    return Check(
        "CANN toolkit", True, f"version {devices.toolkit_version(folder) or 'unknown'} in {folder}"
    )


def _environment() -> Check:
    script = devices.set_env_script() or "<CANN>/set_env.sh"
    missing = [name for name in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH") if not os.environ.get(name)]
    if missing:
        return Check(
            "set_env.sh sourced", False, f"{', '.join(missing)} not set", f"run: source {script}"
        )
    return Check("set_env.sh sourced", True, f"ASCEND_HOME_PATH={os.environ['ASCEND_HOME_PATH']}")


def _module() -> Check:
    name = "module acl (pyACL)"
    if importlib.util.find_spec("acl") is None:
        return Check(name, False, "not found on PYTHONPATH", "run: source <CANN>/set_env.sh")
    try:
        acl = runtime.start()
    except EngineError as failure:
        return Check(name, False, str(failure), devices.CHECK_DRIVER)
    return Check(name, True, str(getattr(acl, "__file__", "built in")))


def _compiler() -> Check:
    try:
        command = find_compiler("")
    except EngineError as failure:
        return Check("atc", False, str(failure), devices.INSTALL_CANN)
    return Check("atc", True, " ".join(command))


def _kernels(soc: str) -> Check:
    name = "kernels package"
    root = os.environ.get("ASCEND_OPP_PATH", "")
    if not root:
        return Check(name, False, "ASCEND_OPP_PATH not set", "run: source <CANN>/set_env.sh")
    folder = Path(root) / "built-in/op_impl/ai_core/tbe/kernel"
    there = (
        sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    )
    # The folders are families, "ascend910b"; the SoC is a member, "Ascend910B3".
    fitting = [family for family in there if family != "config" and soc.lower().startswith(family)]
    if soc and fitting:
        return Check(name, True, str(folder / fitting[-1]))
    if not soc and there:
        return Check(name, True, f"{', '.join(there)} in {folder}; the SoC is not known")
    return Check(
        name,
        False,
        f"none for {soc or 'any SoC'} in {folder}",
        "install the CANN kernels package (Ascend-cann-kernels-<soc>) of the toolkit's version",
    )


def _hccl() -> Check:
    name = "HCCL (ranks)"
    try:
        library = hccl.Hccl()
    except EngineError as failure:
        return Check(name, False, str(failure), "run: source <CANN>/set_env.sh")
    is_fixed = library.HcclSetConfig is not None
    order = "" if is_fixed else "; its results may differ in the last bits: no HcclSetConfig"
    return Check(name, True, f"{hccl.LIBRARY}{order}")


def _sharing() -> Check:
    name = "weights of several models or processes"
    if not runtime.is_started():
        return Check(name, False, "not known without pyACL", "run: source <CANN>/set_env.sh")
    why = external.is_there(runtime.start())
    detail = why or f"by {external.LIBRARY} and acl.rt.ipc_mem_*"
    return Check(name, not why, detail, "install CANN 8.1 or newer" if why else "")


def _soc_name() -> str:
    if not runtime.is_started():
        return ""
    return runtime.start().get_soc_name() or ""
