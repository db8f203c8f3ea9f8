"""The CPUs that this process may use: the smaller of its affinity mask and its cgroup's quota."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from engine.host.interrupts import pass_interrupt

background: set[int] = set()
"""Processes that work for this one with a low priority and end soon; their starter notes them."""


def usable_cpus(
    cgroup_root: Path = Path("/sys/fs/cgroup"),
    proc_cgroup: Path = Path("/proc/self/cgroup"),
    processes: int = 1,
) -> int:
    """The CPUs this process may keep busy: at least 1, a fractional quota rounded up.

    processes: how many share the machine and its quota. An affinity mask smaller than the machine
    is this process's own part already (a launcher that binds its ranks) and is not shared again.
    """
    machine = os.cpu_count() or 1
    try:
        affinity = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        affinity = machine
    cpus = min(affinity, max(1, machine // processes))
    quota = cgroup_quota(cgroup_root, proc_cgroup)
    if quota is not None:
        cpus = min(cpus, -int(-quota / processes // 1))
    return max(1, cpus)


def cgroup_quota(root: Path, proc_cgroup: Path) -> float | None:
    """The CPU quota of this process's cgroup or any above it, in CPUs; None without a limit.

    root: where cgroups are mounted. proc_cgroup: a file in the format of /proc/self/cgroup.
    Reads v2's cpu.max and v1's cpu.cfs_quota_us and cpu.cfs_period_us (Linux kernel,
    admin-guide/cgroup-v2 and cgroup-v1).
    """
    try:
        with open(proc_cgroup, "rb", buffering=0) as file:
            groups = os.fsdecode(file.read())
    except OSError as error:
        pass_interrupt(error)
        return None
    quotas = (read(folder) for read, folder in _limits(root, groups))
    return min((quota for quota in quotas if quota is not None), default=None)


@lru_cache(8)
def _limits(root: Path, groups: str) -> tuple[tuple[Callable[[str], float | None], str], ...]:
    """Return the quota files of these groups, each with its reader.

    Remembered: the quotas change while a process runs, the folders do not, and most have none.
    """
    found: dict[tuple[Callable[[str], float | None], str], None] = {}
    for version, folder in cgroup_folders(root, groups, "cpu"):
        file, read = ("cpu.max", _v2_quota) if version == 2 else ("cpu.cfs_quota_us", _v1_quota)
        if os.path.exists(f"{folder}/{file}"):
            found[read, str(folder)] = None
    return tuple(found)


def cgroup_folders(root: Path, groups: str, controller: str) -> Iterator[tuple[int, Path]]:
    """Yield the folders of a process's cgroups and of all above them, each after its version.

    root: where cgroups are mounted. groups: the content of the process's file /proc/PID/cgroup.
    """
    for line in groups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, inside = rest.partition(":")
        if controllers == "":
            version, bases = 2, [root, root / "unified"]
        elif controller in controllers.split(","):
            version, bases = 1, [root / controllers, root / controller]
        else:
            continue
        for base in dict.fromkeys(bases):
            # In a container the path may be the host's, absent here: the mount's root then counts.
            folder = base / inside.lstrip("/")
            for place in (folder, *folder.parents):
                if place.is_relative_to(base):
                    yield version, place


def _v2_quota(folder: str) -> float | None:
    fields = _read(f"{folder}/cpu.max").split()
    if len(fields) != 2 or fields[0] == "max":
        return None
    return _ratio(fields[0], fields[1])


def _v1_quota(folder: str) -> float | None:
    return _ratio(_read(f"{folder}/cpu.cfs_quota_us"), _read(f"{folder}/cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    try:
        microseconds, each = int(quota), int(period)
    except ValueError:
        return None
    return microseconds / each if microseconds > 0 and each > 0 else None


def _read(path: str | Path) -> str:
    try:
        with open(path, "rb", buffering=0) as file:  # text takes three times as long
            return file.read().decode(errors="replace").strip()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        pass_interrupt(error)
        return ""


def preferred_cores(
    mode: int, count: int, cpus: str = "/sys/devices/system/cpu"
) -> tuple[int, ...]:
    """The CPUs to pin `count` threads to: mode 1 the fastest, mode 2 the middle ones; 0 none.

    Speed is the kernel's cpu_capacity, else the highest frequency. Where all CPUs are equal there
    is nothing to prefer and pinning only hinders the scheduler: () then.
    """
    if mode == 0:
        return ()
    speeds = {core: _speed(Path(cpus) / f"cpu{core}") for core in sorted(os.sched_getaffinity(0))}
    kinds = sorted(set(speeds.values()), reverse=True)
    if len(kinds) < 2:
        return ()
    if mode == 2:
        # Middle cores first: the fastest kind goes to the end of the line.
        kinds = kinds[1:] + kinds[:1]
    ranked = sorted(speeds, key=lambda core: (kinds.index(speeds[core]), core))
    return tuple(ranked[:count])


def _speed(cpu: Path) -> int:
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        text = _read(cpu / name)
        if text.isdecimal():
            return int(text)
    return 0
