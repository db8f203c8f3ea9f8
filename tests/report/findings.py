"""Findings of `engine doctor`."""

from __future__ import annotations

from collections.abc import Sequence

from engine.report.diagnosis import Finding, Status

OK, NOTE, PROBLEM = Status.OK, Status.NOTE, Status.PROBLEM


def found(findings: Sequence[Finding], name: str) -> Finding:
    """Return the one finding of this name."""
    [finding] = [each for each in findings if each.name == name]
    return finding
