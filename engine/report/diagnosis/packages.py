"""Check that the installed distributions fit each other, as far as one of them needs it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from importlib_metadata import distributions

from engine.report.diagnosis.finding import Finding, Status

if TYPE_CHECKING:
    from packaging.requirements import Requirement

CORE = "inference-engine"

# Folders that many distributions install by mistake, over each other's, and nobody imports.
_NOBODYS = ("doc", "docs", "example", "examples", "test", "tests")


class Packages:
    """The installed distributions, as they were when this was made."""

    def __init__(self) -> None:
        self._installed: dict[str, Any] = {}
        self._owners: dict[str, list[str]] = {}  # by top-level package
        for dist in distributions():
            try:
                name = _normal(dist.name)
            except Exception:  # somebody's damaged metadata
                continue
            if name in self._installed:  # the first on the path hides others
                continue
            self._installed[name] = dist
            for module in re.findall(r"^([^/,\s]+)/__init__\.py,", _files_text(dist), re.M):
                self._owners.setdefault(module, []).append(name)

    def look_at(self, distribution: str) -> list[Finding]:
        """Check that the requirements of a distribution are there, undamaged, in fitting versions.

        A requirement of its own is a problem where it is not met; those of others in turn, and
        the core's extras, are notes. Nothing for a distribution that is not installed.
        """
        name = _normal(distribution)
        if name not in self._installed:
            return []
        try:
            required, optional = self._requirements(name)
        except ImportError:
            detail = "not checked: packaging is not installed"
            return [Finding(Status.NOTE, "requirements", detail, "run: pip install packaging")]
        # Of an extra that nobody asked for nothing is missing.
        present = filter(self._has, optional)
        findings = [
            *self._unmet(name, required, Status.PROBLEM),
            *self._unmet(name, present, Status.NOTE if name == CORE else Status.PROBLEM),
        ]
        if not findings:
            names = [self._versioned_name(each.name) for each in filter(self._has, required)]
            findings.append(Finding(Status.OK, "requirements", ", ".join(names) or "none"))
        # The core has a diagnosis of its own, and its extras are no needs of its.
        needed = self._closure(name, required if name == CORE else [*required, *optional])
        for other in needed:
            findings += self._unmet(other, self._requirements(other)[0], Status.NOTE)
        wanted = {_normal(each.name): _text(each) for each in (*required, *optional)}
        return [*findings, *self._overwritten([name, *needed], wanted)]

    def _has(self, requirement: Requirement) -> bool:
        return _normal(requirement.name) in self._installed

    def _versioned_name(self, name: str) -> str:
        dist = self._installed[_normal(name)]
        return f"{dist.name} {dist.version}"

    def _requirements(self, name: str) -> tuple[list[Requirement], list[Requirement]]:
        """Return a distribution's requirements here, and those for which only an extra asks."""
        from packaging.requirements import InvalidRequirement, Requirement

        dist = self._installed[name]
        extras = dist.metadata.get_all("Provides-Extra") or ()
        required, optional = list[Requirement](), list[Requirement]()
        for text in dist.requires or ():
            try:
                requirement = Requirement(text)
            except InvalidRequirement:  # written by somebody else; pip would say so
                continue
            marker = requirement.marker
            if marker is None or marker.evaluate({"extra": ""}):
                required.append(requirement)
            elif any(marker.evaluate({"extra": extra}) for extra in extras):
                optional.append(requirement)
        return required, optional

    def _unmet(
        self, name: str, requirements: Iterable[Requirement], status: Status
    ) -> Iterator[Finding]:
        """Yield a finding for each requirement that is absent or of an unfit version."""
        for requirement in requirements:
            wanted = _text(requirement)
            needs = f"{self._versioned_name(name)} needs {wanted}"
            fix = f'run: pip install "{wanted}"'
            if self._has(requirement):
                if CORE in (name, _normal(requirement.name)):  # their versions move together
                    fix = f"run: pip install --upgrade {name} {requirement.name}"
                if not _fits(requirement, self._installed[_normal(requirement.name)].version):
                    present = f"{self._versioned_name(requirement.name)} is installed"
                    yield Finding(status, "requirements", f"{needs}; {present}", fix)
                continue
            module = _normal(requirement.name).replace("-", "_")
            if not _is_there(module):
                yield Finding(status, "requirements", f"{needs}, which is not installed", fix)
            else:
                # As onnxruntime-gpu stands in for onnxruntime.
                owners = ", ".join(map(self._versioned_name, self._owners.get(module, ())))
                present = f"not installed; a module {module!r} is there, from "
                present += owners or "elsewhere"
                yield Finding(Status.NOTE, "requirements", f"{needs}: {present}")

    def _closure(self, name: str, direct: Iterable[Requirement]) -> list[str]:
        """Return the installed distributions that `name` needs, and those that they need in turn.

        direct: its own needs.
        """
        waiting = [*direct]
        result: list[str] = []
        for requirement in waiting:  # which grows
            other = _normal(requirement.name)
            if other not in (name, CORE, *result) and self._has(requirement):
                result.append(other)
                waiting += self._requirements(other)[0]
        return result

    def _overwritten(self, needed: list[str], wanted: dict[str, str]) -> Iterator[Finding]:
        """Yield a finding for each of these modules whose files two distributions have written."""
        modules = {_normal(name).replace("-", "_"): None for name in wanted} | {
            module: None for module, owners in self._owners.items() if {*owners} & {*needed}
        }
        for module in modules:
            owners = self._owners.get(module, [])
            if len(owners) < 2 or module in _NOBODYS or not self._clash(module, owners):
                continue
            kept = next((name for name in owners if name in needed), owners[0])
            yield Finding(
                Status.PROBLEM,
                f"module {module}",
                f"{' and '.join(map(self._versioned_name, owners))} have overwritten each "
                "other's files",
                f"run: pip uninstall -y {' '.join(owners)} && "
                f'pip install "{wanted.get(kept, kept)}"',
            )

    def _clash(self, module: str, owners: list[str]) -> bool:
        """Return True if one file of a module differs between two distributions that install it."""
        seen: dict[str, str] = {}
        for name in owners:
            for line in _files_text(self._installed[name]).splitlines():
                path, _, rest = line.rpartition(",")[0].rpartition(",")
                if path.startswith(f"{module}/") and seen.setdefault(path, rest) != rest:
                    return True
        return False


def _normal(name: str) -> str:
    """Return a distribution's name in the one form that all its spellings share."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _text(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"


def _is_there(module: str) -> bool:
    """Return True if a module can be found and is more than a folder that an uninstall has left."""
    spec = find_spec(module)
    return spec is not None and spec.origin is not None


def _fits(requirement: Requirement, version: str) -> bool:
    from packaging.version import InvalidVersion

    try:
        return requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:  # a vendor's own numbering cannot be judged
        return True


def _files_text(dist: Any) -> str:
    """Return the list of a wheel's files, lines of "path,hash,size"; "" where it came otherwise."""
    try:
        return str(dist.read_text("RECORD") or "")
    except Exception:  # somebody's damaged metadata
        return ""
