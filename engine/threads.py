"""How many host threads this process should use.

The usable CPUs are the smaller of the affinity mask and the cgroup's CPU quota, and they are
shared out among the processes that a launcher started together on this machine and among the
workers of one process, instead of being taken whole by each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

# What launchers say of the number of ranks on this host: this project's own, Open MPI, MPICH's
# hydra, Slurm.
_LOCAL_SIZE = (
    "ENGINE_LOCAL_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_NTASKS_PER_NODE",
)


def usable_cpus(
    cgroup_root: str = "/sys/fs/cgroup",
    proc_cgroup: str = "/proc/self/cgroup",
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
    quota = cgroup_quota(Path(cgroup_root), Path(proc_cgroup))
    if quota is not None:
        cpus = min(cpus, -int(-quota / processes // 1))
    return max(1, cpus)


def local_processes() -> int:
    """The processes of this job on this machine, as the launcher says; 1 without a launcher."""
    for variable in _LOCAL_SIZE:
        value = os.environ.get(variable, "")
        if value.isdecimal() and len(value) < 7 and int(value) > 0:
            return int(value)
    return 1


def threads_per_worker(workers: int = 1) -> int:
    """The threads each of `workers` in this process gets: at least 1."""
    return max(1, usable_cpus(processes=local_processes()) // max(1, workers))


def cgroup_quota(root: Path, proc_cgroup: Path) -> float | None:
    """The CPU quota of this process's cgroup or any above it, in CPUs; None without a limit.

    root: where cgroups are mounted. proc_cgroup: a file in the format of /proc/self/cgroup.
    Reads v2's cpu.max and v1's cpu.cfs_quota_us and cpu.cfs_period_us (Linux kernel,
    admin-guide/cgroup-v2 and cgroup-v1).
    """
    try:
        with open(proc_cgroup, errors="surrogateescape") as file:
            groups = file.read()
    except OSError:
        return None
    quotas = (read(folder) for read, folder in _limits(root, groups))
    return min((quota for quota in quotas if quota is not None), default=None)


@lru_cache(8)
def _limits(root: Path, groups: str) -> tuple[tuple[Callable[[str], float | None], str], ...]:
    """Where these groups have files with a quota, and what reads them.

    Remembered: the quotas change while a process runs, the folders do not, and most have none.
    """
    found: dict[tuple[Callable[[str], float | None], str], None] = {}
    for line in groups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, inside = rest.partition(":")
        if controllers == "":
            bases, file, read = [root, root / "unified"], "cpu.max", _v2_quota
        elif "cpu" in controllers.split(","):
            bases, file, read = [root / controllers, root / "cpu"], "cpu.cfs_quota_us", _v1_quota
        else:
            continue
        for base in bases:
            # In a container the path may be the host's, absent here: the mount's root then counts.
            for folder in _upwards(base / inside.lstrip("/"), base):
                if os.path.exists(f"{folder}/{file}"):
                    found[read, str(folder)] = None
    return tuple(found)


def _upwards(folder: Path, base: Path) -> list[Path]:
    chain = [folder, *folder.parents]
    return chain[: chain.index(base) + 1]


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
        with open(path, errors="replace") as file:
            return file.read().strip()
    except (OSError, ValueError):  # ValueError: a NUL in the path
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
