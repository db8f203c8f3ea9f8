"""One line of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    NOTE = "note"  # worth knowing, or a doubt; stops nothing that is installed
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked fact, its result, and the command or step that helps."""

    status: Status
    name: str
    detail: str
    fix: str = ""
