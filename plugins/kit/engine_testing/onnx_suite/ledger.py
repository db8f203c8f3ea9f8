"""A ledger: a committed file that lists the tests that do not pass on a backend, each with why.

    [versions]            # what it holds for: installed distributions
    onnx = "1.23.2"
    runtime = ["1.31", "1.32"]   # each with its releases

    [refused]             # a status, and the tests that end so
    test_name = "why"

It has to be right in both directions: `mistakes` names what is listed and passes, and what does
not pass, or otherwise, and is not listed.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from engine_testing.onnx_suite.score import Score, Status

__all__ = ["Ledger", "mistakes", "read", "write"]


@dataclass(frozen=True, slots=True)
class Ledger:
    """versions: those that it holds for, by distribution; "1.2" stands for 1.2.0 and 1.2.1 too.

    reasons: by status, for each test by name.
    """

    versions: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    reasons: Mapping[Status, Mapping[str, str]] = field(default_factory=dict)

    def other_versions(self) -> list[str]:
        """Return the distributions installed in another version than the ledger holds for."""
        return [
            f"{name} is {_version(name)}, the ledger is for {' and '.join(_listed(wanted))}"
            for name, wanted in self.versions.items()
            if not _is_of(_version(name), wanted)
        ]


def read(path: Path) -> Ledger:
    """Read a ledger. Raises ValueError for text that is none, OSError where there is no file."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    versions = tables.pop("versions", {})
    return Ledger(versions, {Status(name): reasons for name, reasons in tables.items()})


def write(path: Path, score: Score) -> None:
    """Write the ledger of a run of the whole suite.

    A test that the file lists in the same status keeps its reason, others get the error's text.
    The file's versions are brought up to date; a new file has onnx's. A list of versions gets one
    more where the outcome is what it was for the others, and becomes a list of one otherwise.
    """
    old = read(path) if path.exists() else Ledger({"onnx": ""})
    lines = [
        f"# The tests of onnx's backend suite that do not pass on {score.backend}, each with why.",
        f"# After a change: python -m engine_testing.onnx_suite {score.backend} "
        f"--write-ledger {path.name}",
        "",
        "[versions]",
        *(f"{name} = {_brought_up(name, old, score)}" for name in old.versions),
    ]
    for status in Status:
        results = score.of(status) if status is not Status.PASSED else []
        if not results:
            continue
        kept = old.reasons.get(status, {})
        lines += ["", f"[{status}]"]
        lines += [f"{test.name} = {_quoted(kept.get(test.name, test.reason))}" for test in results]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def mistakes(ledger: Ledger, score: Score, *, is_whole: bool = True) -> list[str]:
    """Describe where the ledger is wrong, a line each.

    is_whole: `score` is of the whole suite; else nothing is said of tests that it does not have.
    """
    listed = {name: status for status, names in ledger.reasons.items() for name in names}
    found = []
    for result in score.results:
        listing = listed.pop(result.name, Status.PASSED)
        if listing is Status.PASSED and result.status is not listing:
            found.append(f"{result.name} is not listed, but {result.status}: {result.reason}")
        elif result.status is Status.PASSED is not listing:
            found.append(f"{result.name} is listed as {listing}, but passed; take it out")
        elif result.status is not listing:
            found.append(
                f"{result.name} is listed as {listing}, but {result.status}: {result.reason}"
            )
    if is_whole:
        found += [f"{name} is listed, but the suite has no such test" for name in listed]
    return found


def _listed(versions: str | Sequence[str]) -> Sequence[str]:
    return [versions] if isinstance(versions, str) else versions


def _is_of(installed: str, versions: str | Sequence[str]) -> bool:
    return any(
        installed == wanted or installed.startswith(f"{wanted}.") for wanted in _listed(versions)
    )


def _brought_up(name: str, old: Ledger, score: Score) -> str:
    """Return a distribution's versions as they are written, with the installed one among them."""
    installed, before = _version(name), old.versions[name]
    if isinstance(before, str):
        return _quoted(installed)
    if mistakes(old, score):
        before = []
    if not _is_of(installed, before):
        before = [*before, ".".join(installed.split(".")[:2])]
    return f"[{', '.join(map(_quoted, before))}]"


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _quoted(text: str) -> str:
    """A TOML string; what JSON escapes, TOML escapes likewise."""
    return json.dumps(text, ensure_ascii=False)
