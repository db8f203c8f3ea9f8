"""Diagnosis of this machine and of each backend: problems, and their fixes.

`engine doctor` prints it. Each backend is examined in a process of its own, so that one that
crashes or hangs is a finding like any other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from engine.backends import OFFICIAL, BackendRecord, BackendState, installed, known, record
from engine.backends.isolation.probe import TIME_LIMIT_S, Examination, examine_all
from engine.config.text import html_tables, plain, size
from engine.report.diagnosis.finding import Finding, Status
from engine.report.diagnosis.machine import look_at_machine
from engine.report.diagnosis.packages import Packages
from engine.types import Check, DeviceMemory

__all__ = ["BackendDiagnosis", "Diagnosis", "Finding", "Status", "diagnose", "doctor"]


@dataclass(frozen=True, slots=True)
class BackendDiagnosis:
    """A backend's record, and the findings on it."""

    record: BackendRecord
    findings: tuple[Finding, ...]

    @property
    def title(self) -> str:
        """The backend's name, with its distribution and version where these are known."""
        parts = (self.record.name, self.record.distribution, self.record.version)
        return plain(" ".join(part for part in parts if part))


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """Findings about this machine and environment, and about each backend. Prints as text."""

    machine: tuple[Finding, ...]
    backends: tuple[BackendDiagnosis, ...]

    def __str__(self) -> str:
        lines: list[str] = []
        for title, findings in self._parts():
            lines.append(title)
            for finding in findings:
                detail = f": {finding.detail}" if finding.detail else ""
                lines.append(f"  {finding.status:<7}  {plain(finding.name + detail)}")
                if finding.fix:
                    lines.append(f"           fix: {plain(finding.fix)}")
        return "\n".join([*lines, self.verdict])

    def __repr__(self) -> str:
        return str(self)  # what a prompt shows

    def _repr_html_(self) -> str:
        tables = [
            (title, [(each.status, each.name, each.detail, each.fix) for each in found])
            for title, found in self._parts()
        ]
        return html_tables(self.verdict, tables)

    def _parts(self) -> list[tuple[str, tuple[Finding, ...]]]:
        backends = [(backend.title, backend.findings) for backend in self.backends]
        return [("machine", self.machine), *backends]

    @property
    def verdict(self) -> str:
        """One line that names the parts with problems."""
        return (
            f"problems with: {', '.join(map(plain, self.ailing))}" if self.ailing else "no problem"
        )

    @property
    def ailing(self) -> list[str]:
        """Names of the parts with problems: "machine" and backends."""
        parts = {"machine": self.machine}
        parts |= {backend.record.name: backend.findings for backend in self.backends}
        return [
            name
            for name, findings in parts.items()
            if any(finding.status is Status.PROBLEM for finding in findings)
        ]


def doctor(*names: str, time_limit_s: float = TIME_LIMIT_S) -> Diagnosis:
    """Find out what is wrong with this machine and the backends, and what would help; print it.

    names: backends' names or device types; without any, all that are installed. time_limit_s: how
    long the process of one backend may take.
    """
    return diagnose(names, time_limit_s)


def diagnose(names: Sequence[str] = (), time_limit_s: float = TIME_LIMIT_S) -> Diagnosis:
    """Look at this machine and the named backends; without names at all that are installed.

    names: backends' names or the device types that this project's own serve; one that cannot be
        used is a problem. Without names, what is not installed or disabled on purpose is a note.
    time_limit_s: how long the process of one backend may take.
    """
    meant = [_backend(name) for name in names] or [*known(), *OFFICIAL.values()]
    wanted = list(dict.fromkeys(meant))
    here = [name for name in wanted if name in installed()]
    examined = {finding.record.name: finding for finding in examine_all(here, time_limit_s)}
    packages = Packages()
    return Diagnosis(
        tuple(look_at_machine(packages, os.environ)),
        tuple(
            _judge(examined.get(name) or Examination(record(name)), packages, bool(names))
            for name in wanted
        ),
    )


def _backend(name: str) -> str:
    """Return the backend that a target stands for: "gpu" is this project's gpu_trt."""
    if not isinstance(name, str):
        raise TypeError(f"names must be text, as in engine.doctor('cpu', 'gpu'), got {name!r}")
    name = name.lower() if name.lower() in OFFICIAL else name
    return name if name in installed() else OFFICIAL.get(name, name)


def _judge(examined: Examination, packages: Packages, is_named: bool) -> BackendDiagnosis:
    backend_record = examined.record
    findings = [_state(backend_record, is_named)]
    findings += [
        Finding(Status.OK, "memory", f"{device}: {_memory(memory)}")
        for device, memory in backend_record.memory.items()
    ]
    findings += [Finding(Status.NOTE, "hooks", text) for text in backend_record.warnings]
    if backend_record.state is not BackendState.DISABLED:
        findings += packages.look_at(backend_record.distribution)
    findings += [
        Finding(_status(check), check.name, check.detail, check.fix) for check in examined.checks
    ]
    if examined.fault:
        fix = f"report it to the authors of {backend_record.distribution or backend_record.name}"
        findings.append(Finding(Status.PROBLEM, "diagnosis", examined.fault, fix))
    return BackendDiagnosis(backend_record, tuple(findings))


def _memory(memory: DeviceMemory) -> str:
    parts = {"free": memory.free_bytes, "used": memory.used_bytes}
    known = [f"{size(nbytes)} {word}" for word, nbytes in parts.items() if nbytes is not None]
    return ", ".join(known) or "not known"


def _status(check: Check) -> Status:
    """Return a check's severity: what is well, but has a fix, is worth knowing."""
    if not check.ok:
        return Status.PROBLEM
    return Status.NOTE if check.fix else Status.OK


def _state(record: BackendRecord, is_named: bool) -> Finding:
    state = record.state.replace("_", " ")
    if record.state is BackendState.READY:
        devices = record.devices.found if record.devices else ()
        names = ", ".join(f"{device.device} ({device.name})" for device in devices)
        return Finding(Status.OK, "state", f"{state}, with {names}")
    intended = record.state in (BackendState.NOT_INSTALLED, BackendState.DISABLED)
    status = Status.NOTE if intended and not is_named else Status.PROBLEM
    fix = record.fix
    if "engine doctor" in fix:  # that is where we are
        fix = (
            f"run: pip install --force-reinstall {record.distribution or record.name}; "
            "if that does not help, report it to its authors"
        )
    return Finding(status, "state", f"{state}: {record.reason}", fix)
