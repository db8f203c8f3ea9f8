"""Threads fit the machine: affinity, cgroup quota, and sharing among processes and workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.errors import CommunicatorError
from engine.host import cpus, threads

CPUS = len(os.sched_getaffinity(0))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def quota(tmp_path: Path, lines: str) -> float | None:
    write(tmp_path / "proc", lines)
    return cpus.cgroup_quota(tmp_path / "cgroup", tmp_path / "proc")


V1 = "cpu,cpuacct/app/cpu.cfs"


@pytest.mark.parametrize(
    ("files", "process", "expected"),
    [
        ({"app/cpu.max": "150000 100000"}, "0::/app", 1.5),
        ({"pod/cpu.max": "50000 100000", "pod/app/cpu.max": "max 100000"}, "0::/pod/app", 0.5),
        (
            {f"{V1}_quota_us": "300000", f"{V1}_period_us": "100000"},
            "4:memory:/app\n3:cpu,cpuacct:/app\n0::/",
            3.0,
        ),
        (
            {"cpu.max": "max 100000", "cpu/cpu.cfs_quota_us": "-1",
             "cpu/cpu.cfs_period_us": "100000"},
            "0::/\n1:cpu:/",
            None,
        ),
        ({"cpu.max": "100000 100000"}, "0::/system.slice/docker-1f.scope", 1.0),
    ],
    ids=["v2", "the tightest of all parents", "v1", "none", "a container's own at the root"],
)  # fmt: skip
def test_the_quota_of_a_cgroup_counts(
    tmp_path: Path, files: dict[str, str], process: str, expected: float | None
) -> None:
    for name, text in files.items():
        write(tmp_path / "cgroup" / name, text)
    assert quota(tmp_path, process) == expected


@pytest.mark.parametrize("text", ["", "nonsense", "100000", "a b", "0 100000", "5 0"])
def test_an_unreadable_quota_is_no_limit(tmp_path: Path, text: str) -> None:
    write(tmp_path / "cgroup/cpu.max", text)
    assert quota(tmp_path, "0::/") is None


def test_usable_cpus_never_fall_below_one_nor_above_the_affinity_mask(tmp_path: Path) -> None:
    write(tmp_path / "proc", "0::/")
    for text, expected in (("10000 100000", 1), ("9900000 100000", CPUS), ("max 100000", CPUS)):
        write(tmp_path / "cgroup/cpu.max", text)
        found = cpus.usable_cpus(tmp_path / "cgroup", tmp_path / "proc")
        assert found == expected


@pytest.mark.parametrize(
    "variable", ["ENGINE_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"]
)
def test_ranks_of_one_machine_share_its_cpus(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(cpus, "cgroup_quota", lambda root, proc: None)
    monkeypatch.setenv(variable, "4")
    assert threads.threads_per_worker() == 4
    assert threads.threads_per_worker(workers=2) == 2
    assert threads.threads_per_worker(workers=100) == 1


def test_a_rank_that_its_launcher_has_bound_keeps_its_whole_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 5, 6, 7})
    monkeypatch.setattr(cpus, "cgroup_quota", lambda root, proc: None)
    monkeypatch.setenv("ENGINE_LOCAL_SIZE", "4")
    assert threads.threads_per_worker() == 4
    monkeypatch.setattr(cpus, "cgroup_quota", lambda root, proc: 8.0)
    assert threads.threads_per_worker() == 2


@pytest.mark.parametrize("text", ["x", "0", "-1", "1.5", " 2", "9" * 5000])
def test_a_number_of_processes_that_is_none_is_refused_by_the_variables_name(text: str) -> None:
    with pytest.raises(CommunicatorError, match=r"^ENGINE_LOCAL_SIZE='.*': expected a whole"):
        threads.local_processes({"ENGINE_LOCAL_SIZE": text, "MPI_LOCALNRANKS": "2"})


def test_an_empty_number_of_processes_and_what_other_launchers_mean_are_left_alone() -> None:
    assert threads.local_processes({"ENGINE_LOCAL_SIZE": "", "MPI_LOCALNRANKS": "2"}) == 2
    assert threads.local_processes({"SLURM_NTASKS_PER_NODE": "2(x3)"}) == 1


def test_big_cores_come_first_in_mode_1_and_middle_ones_in_mode_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 4})
    for core, capacity in enumerate([160, 160, 490, 490, 1024]):
        write(tmp_path / f"cpu{core}/cpu_capacity", str(capacity))
    assert cpus.preferred_cores(1, 3, str(tmp_path)) == (4, 2, 3)
    assert cpus.preferred_cores(2, 3, str(tmp_path)) == (2, 3, 0)
    assert cpus.preferred_cores(0, 3, str(tmp_path)) == ()


def test_equal_cores_are_not_pinned(tmp_path: Path) -> None:
    assert cpus.preferred_cores(1, 2, str(tmp_path)) == ()
