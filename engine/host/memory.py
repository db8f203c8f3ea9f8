"""Memory of this machine as this process may use it: the kernel's numbers, within its cgroup."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from engine.host.cpus import cgroup_folders
from engine.types import DeviceMemory

_ROOT = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
# By version of cgroups: the files of limit and usage, and the line of memory.stat that says which
# of the usage is cached files that the kernel gives up first.
_FILES = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def host_memory(root: Path = _ROOT, proc: Path = _PROC) -> DeviceMemory:
    """Return the host's memory: what is free and used, and what is resident of this process.

    A limit of the process's cgroup, or of one above it, counts as the machine's memory where it
    leaves less. root: where cgroups are mounted. proc: the kernel's /proc. None for what the system
    does not tell.
    """
    total, free = _of_machine(proc)
    used = None if total is None or free is None else total - free
    for limit, held in _limits(root, proc):
        left = max(0, limit - held)
        if free is None or left < free:
            free, used = left, held
    return DeviceMemory(free_bytes=free, used_bytes=used, own_bytes=_resident(proc))


def trim(kept_bytes: int = 0) -> None:
    """Give memory that was freed back to the system, where libc can (glibc).

    kept_bytes: stays at the heap's end for who takes memory next.
    """
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is not None:
        release(ctypes.c_size_t(kept_bytes))


def _of_machine(proc: Path) -> tuple[int | None, int | None]:
    """Return MemTotal and MemAvailable, in bytes."""
    sizes = {}
    for line in _read(proc / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            sizes[name] = int(words[0]) * 1024  # "kB" is KiB there
    return sizes.get("MemTotal"), sizes.get("MemAvailable")


def _resident(proc: Path) -> int | None:
    words = _read(proc / "self/statm").split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if len(words) > 1 else None


def _limits(root: Path, proc: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit and the use of each cgroup around this process that has a limit."""
    for version, folder in cgroup_folders(root, _read(proc / "self/cgroup"), "memory"):
        limit_file, usage_file, cached_name = _FILES[version]
        limit, usage = _read(folder / limit_file), _read(folder / usage_file)
        if limit.isdecimal() and usage.isdecimal():
            yield int(limit), max(0, int(usage) - _cached(folder, cached_name))


def _cached(folder: Path, name: str) -> int:
    for line in _read(folder / "memory.stat").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
