"""Findings that belong to no one backend: Python, platform, core, processors, element types."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from importlib_metadata import PackageNotFoundError, version

from engine.backends import installed
from engine.backends.install import pip_install
from engine.errors import CommunicatorError
from engine.host.cpus import cgroup_quota, usable_cpus
from engine.host.threads import local_processes
from engine.host.version import __version__
from engine.report.diagnosis.finding import Finding, Status
from engine.report.diagnosis.packages import CORE, Packages
from engine.report.diagnosis.variables import look_at_variables
from engine.types import DType

_PACKAGE = Path(__file__).parents[2]


def look_at_machine(packages: Packages, environ: Mapping[str, str]) -> list[Finding]:
    """Return the findings on this machine and process, in the order to fix them."""
    return [
        _python(),
        _platform(),
        _core(),
        *_shadows(Path.cwd, environ.get("PYTHONPATH", "")),
        *packages.look_at(CORE),
        _backends(),
        _processors(),
        _element_types(),
        *look_at_variables(environ),
    ]


def _python() -> Finding:
    detail = f"{platform.python_version()} ({platform.python_implementation()}), {sys.executable}"
    return Finding(Status.OK, "Python", detail)


def _platform() -> Finding:
    if sys.platform != "linux":
        detail = f"{platform.platform()}; this version is tested on Linux only"
        return Finding(Status.NOTE, "platform", detail)
    return Finding(Status.OK, "platform", platform.platform())


def _core() -> Finding:
    folder = _PACKAGE
    try:
        there = version(CORE)
    except PackageNotFoundError:
        detail = f"{__version__} in {folder}, imported without being installed"
        return Finding(Status.NOTE, "core", detail)
    if there != __version__:
        return Finding(
            Status.PROBLEM,
            "core",
            f"{folder} is imported, version {__version__}; installed is {there}",
            f"take {folder.parent} off PYTHONPATH, or run: pip install --force-reinstall {CORE}",
        )
    return Finding(Status.OK, "core", f"{CORE} {__version__} in {folder}")


def _shadows(current: Callable[[], Path], python_path: str) -> list[Finding]:
    """Return findings on what is named engine where Python looks first, and is not the core.

    current: gives the folder where people start scripts. python_path: the variable PYTHONPATH.
    """
    places: dict[Path, str] = {}
    with suppress(OSError):  # it is gone
        places[current()] = "scripts in this folder import {} in place of the package"
    for text in filter(None, python_path.split(os.pathsep)):
        places.setdefault(
            Path(text).absolute(), f"PYTHONPATH names {text}, where {{}} hides the package"
        )
    own = _PACKAGE.resolve()
    return [
        Finding(
            Status.PROBLEM,
            "import",
            f"{said.format(path.name)}: Python looks there first",
            f"rename {path}",
        )
        for folder, said in places.items()
        for path in (folder / "engine.py", folder / "engine")
        if path.exists() and path.resolve() != own and (path.is_file() or _is_package(path))
    ]


def _is_package(path: Path) -> bool:
    return (path / "__init__.py").is_file()


def _backends() -> Finding:
    names = installed()
    if not names:
        fix = f"run: {pip_install('cpu')}"
        return Finding(Status.PROBLEM, "backends", "none is installed; no model can run", fix)
    return Finding(Status.OK, "backends", ", ".join(names))


def _processors() -> Finding:
    try:
        processes = local_processes()
    except CommunicatorError:  # a finding of its own, on the variable
        processes = 1
    facts = [f"{usable_cpus(processes=processes)} of {os.cpu_count()} usable by this process"]
    if hasattr(os, "sched_getaffinity"):
        facts.append(f"{len(os.sched_getaffinity(0))} in its affinity mask")
    quota = cgroup_quota(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))
    facts.append("no cgroup quota" if quota is None else f"cgroup quota {quota:g}")
    if processes > 1:
        facts.append(f"shared by {processes} processes of this job")
    return Finding(Status.OK, "processors", ", ".join(facts))


def _element_types() -> Finding:
    missing: list[str] = []
    fix = ""
    for dtype in DType:
        try:
            _ = dtype.numpy
        except ImportError:
            missing.append(dtype)
            fix = "run: pip install ml_dtypes"
        except AttributeError:  # ml_dtypes is there and too old to know it
            missing.append(dtype)
            fix = "run: pip install --upgrade ml_dtypes"
    if missing:
        return Finding(Status.NOTE, "element types", f"no arrays of {', '.join(missing)}", fix)
    return Finding(Status.OK, "element types", "all of ONNX's")
