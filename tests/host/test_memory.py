"""The host's memory: the kernel's numbers, and the limits of the cgroups around the process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.host.memory import host_memory
from engine.types import DeviceMemory

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PAGE = os.sysconf("SC_PAGE_SIZE")
MEMINFO = (
    "MemTotal:       16777216 kB\nMemFree:  1024 kB\nMemAvailable:    12582912 kB\nHugePages: 0"
)
OF_MACHINE = (12 * GIB, 4 * GIB)


def memory(tmp_path: Path, groups: str, **files: str) -> DeviceMemory:
    """Return what is read of these files; the machine has 16 GiB, of which 12 are free."""
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    for path, text in {
        proc / "meminfo": MEMINFO,
        proc / "self/statm": "900 25 7 1 0 50 0",
        proc / "self/cgroup": groups,
        **{root / name: text for name, text in files.items()},
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return host_memory(root, proc)


def test_without_a_limit_the_machine_counts(tmp_path: Path) -> None:
    found = memory(tmp_path, "0::/app", **{"app/memory.max": "max", "app/memory.current": "5"})
    assert (found.free_bytes, found.used_bytes) == OF_MACHINE
    assert found.own_bytes == 25 * PAGE


@pytest.mark.parametrize(
    ("groups", "files", "free", "used"),
    [
        (
            "0::/app",
            {"app/memory.max": f"{2 * GIB}", "app/memory.current": f"{GIB}"},
            GIB, GIB,
        ),
        (  # cached files are given up first
            "0::/app",
            {
                "app/memory.max": f"{2 * GIB}", "app/memory.current": f"{GIB}",
                "app/memory.stat": f"anon 7\ninactive_file {GIB // 4}\nactive_file 9",
            },
            GIB + GIB // 4, GIB - GIB // 4,
        ),
        (  # the tightest of all around it
            "0::/pod/app",
            {
                "pod/memory.max": f"{GIB}", "pod/memory.current": f"{GIB - MIB}",
                "pod/app/memory.max": f"{2 * GIB}", "pod/app/memory.current": f"{MIB}",
            },
            MIB, GIB - MIB,
        ),
        (  # version 1, in a container whose folder is not there
            "4:cpu:/x\n3:memory:/docker/abc\n0::/",
            {
                "memory/memory.limit_in_bytes": f"{3 * GIB}",
                "memory/memory.usage_in_bytes": f"{2 * GIB}",
                "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}",
            },
            2 * GIB, GIB,
        ),
        (  # more is used than the limit, which was lowered
            "0::/app",
            {"app/memory.max": f"{MIB}", "app/memory.current": f"{GIB}"},
            0, GIB,
        ),
        (  # a limit that leaves more than the machine has
            "0::/app",
            {"app/memory.max": f"{64 * GIB}", "app/memory.current": f"{GIB}"},
            *OF_MACHINE,
        ),
        ("0::/app", {"app/memory.max": "rubbish", "app/memory.current": "5"}, *OF_MACHINE),
    ],
)  # fmt: skip
def test_a_limit_of_a_cgroup_counts_where_it_leaves_less(
    tmp_path: Path, groups: str, files: dict[str, str], free: int, used: int
) -> None:
    found = memory(tmp_path, groups, **files)
    assert (found.free_bytes, found.used_bytes) == (free, used)


def test_a_system_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    assert host_memory(tmp_path / "no", tmp_path / "none") == DeviceMemory()


@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="no /proc/meminfo")
def test_what_this_process_holds_is_counted() -> None:
    before = host_memory()
    held = bytearray(os.urandom(1) * (64 * MIB))
    after = host_memory()
    assert before.own_bytes is not None
    assert after.own_bytes is not None
    assert after.own_bytes - before.own_bytes > 32 * MIB
    assert before.free_bytes is not None
    assert before.free_bytes > 0
    del held
