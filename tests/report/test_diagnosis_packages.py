"""Findings of `engine doctor` about the packages that a plugin requires."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from findings import NOTE, OK, PROBLEM, found

import engine
from engine.report.diagnosis import Finding
from engine.report.diagnosis.packages import Packages


def package(
    folder: Path,
    name: str,
    version: str = "1.0",
    requires: Sequence[str] = (),
    extras: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
) -> None:
    """The metadata of an installed wheel whose files have these contents."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Provides-Extra: {extra}" for extra in extras]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    listed = [
        f"{path},sha256={hashlib.sha256(text.encode()).hexdigest()},{len(text)}"
        for path, text in (files or {}).items()
    ]
    (info / "RECORD").write_text("\n".join([*listed, f"{info.name}/RECORD,,"]) + "\n")


def looked_at(folder: Path, *requires: str, **facts: Any) -> list[Finding]:
    """Return the findings on a package my-plugin with these requirements."""
    package(folder, "my-plugin", requires=requires, **facts)
    return Packages().look_at("My_Plugin")


def test_requirements_that_are_met_are_listed_with_their_versions(plugin_folder: Path) -> None:
    package(plugin_folder, "vendor-runtime", "2.5")
    [finding] = looked_at(plugin_folder, "vendor_runtime>=2,<3", "pluggy>=1")
    assert finding.status is OK
    assert finding.detail.startswith("vendor-runtime 2.5, pluggy 1.")


def test_a_plugin_for_another_version_of_the_core_is_a_problem(plugin_folder: Path) -> None:
    [finding] = looked_at(plugin_folder, "inference-engine==99.1", version="7.0")
    assert finding.status is PROBLEM
    assert "my-plugin 7.0 needs inference-engine==99.1" in finding.detail
    assert f"inference-engine {engine.__version__} is installed" in finding.detail
    assert finding.fix == "run: pip install --upgrade my-plugin inference-engine"


@pytest.mark.parametrize(
    ("requirement", "said"),
    [
        ("vendor-runtime>=3", "vendor-runtime 2.5 is installed"),
        ("no-such-runtime>=3", "is not installed"),
    ],
)
def test_a_requirement_that_is_not_met_is_a_problem_with_its_command(
    plugin_folder: Path, requirement: str, said: str
) -> None:
    package(plugin_folder, "vendor-runtime", "2.5")
    (plugin_folder / "no_such_runtime/leftovers").mkdir(parents=True)
    [finding] = looked_at(plugin_folder, requirement)
    assert finding.status is PROBLEM
    assert f"my-plugin 1.0 needs {requirement}" in finding.detail
    assert said in finding.detail
    assert finding.fix == f'run: pip install "{requirement}"'


def test_a_prerelease_of_what_is_required_will_do(plugin_folder: Path) -> None:
    package(plugin_folder, "vendor-runtime", "2.5.dev3")
    assert [each.status for each in looked_at(plugin_folder, "vendor-runtime>=2")] == [OK]


def test_what_a_requirement_asks_of_other_machines_is_nothing_here(plugin_folder: Path) -> None:
    [finding] = looked_at(plugin_folder, 'no-such-runtime; sys_platform == "abacus"')
    assert (finding.status, finding.detail) == (OK, "none")


def test_another_distribution_may_stand_in_for_the_one_that_is_required(
    plugin_folder: Path,
) -> None:
    (plugin_folder / "vendorrt").mkdir()
    (plugin_folder / "vendorrt/__init__.py").write_text("raise SystemExit('imported')")
    package(plugin_folder, "vendorrt-gpu", "3.1", files={"vendorrt/__init__.py": "x"})
    [finding] = looked_at(plugin_folder, "vendorrt")
    assert finding.status is NOTE
    assert "vendorrt-gpu 3.1" in finding.detail
    assert "vendorrt" not in sys.modules


def test_an_extra_counts_only_as_far_as_it_is_installed(plugin_folder: Path) -> None:
    package(plugin_folder, "driver-bindings", "1.0")
    requires = ('driver-bindings>=2; extra == "runtime"', 'absent; extra == "runtime"')
    [finding] = looked_at(plugin_folder, *requires, extras=["runtime"])
    assert finding.status is PROBLEM
    assert "driver-bindings 1.0 is installed" in finding.detail


def test_what_a_requirement_lacks_in_turn_is_a_note(plugin_folder: Path) -> None:
    package(plugin_folder, "deep", "1.0")
    package(plugin_folder, "middle", requires=["deep>=2", "my-plugin"])  # and a circle
    findings = looked_at(plugin_folder, "middle")
    assert [each.status for each in findings] == [OK, NOTE]
    assert findings[1].detail == "middle 1.0 needs deep>=2; deep 1.0 is installed"


VENDOR = {"vendorrt/__init__.py": "same", "vendorrt/core.so": "cpu"}

VENDOR_GPU = {"vendorrt/__init__.py": "same", "vendorrt/core.so": "gpu"}


def test_two_distributions_that_overwrite_one_module_are_a_problem(plugin_folder: Path) -> None:
    package(plugin_folder, "vendorrt", "1.1", files=VENDOR)
    package(plugin_folder, "vendorrt-gpu", "1.2", files=VENDOR_GPU)
    finding = found(looked_at(plugin_folder, "vendorrt>=1"), "module vendorrt")
    assert finding.status is PROBLEM
    assert "vendorrt 1.1" in finding.detail
    assert "vendorrt-gpu 1.2" in finding.detail
    uninstall, then = finding.fix.removeprefix("run: pip uninstall -y ").split(" && ")
    assert set(uninstall.split()) == {"vendorrt", "vendorrt-gpu"}
    assert then == 'pip install "vendorrt>=1"'


def test_they_are_a_problem_too_where_neither_is_the_one_required(plugin_folder: Path) -> None:
    (plugin_folder / "vendorrt").mkdir()
    (plugin_folder / "vendorrt/__init__.py").touch()
    package(plugin_folder, "vendorrt-gpu", files=VENDOR)
    package(plugin_folder, "vendorrt-npu", files=VENDOR_GPU)
    assert found(looked_at(plugin_folder, "vendorrt"), "module vendorrt").status is PROBLEM


def test_they_are_a_problem_too_where_a_requirement_brings_one_of_them(plugin_folder: Path) -> None:
    package(plugin_folder, "vendorrt-bindings-one", files=VENDOR)
    package(plugin_folder, "vendorrt-bindings-two", files=VENDOR_GPU)
    package(plugin_folder, "vendorrt", requires=["vendorrt-bindings-one"])  # a name and no files
    assert found(looked_at(plugin_folder, "vendorrt"), "module vendorrt").status is PROBLEM


@pytest.mark.parametrize("module", ["namespace", "tests"])
def test_files_that_are_equal_or_nobodys_are_no_problem(plugin_folder: Path, module: str) -> None:
    for name in ("one", "two"):
        own = {"namespace/__init__.py": "", f"namespace/{name}.py": name}
        stray = {"tests/__init__.py": "", "tests/test_it.py": name}
        package(plugin_folder, name, files=stray if module == "tests" else own)
    assert [each.status for each in looked_at(plugin_folder, "one", "two")] == [OK]


def test_distributions_that_nobody_here_needs_are_not_judged(plugin_folder: Path) -> None:
    package(plugin_folder, "stranger", requires=["no-such-runtime"], files=VENDOR)
    package(plugin_folder, "other-stranger", files=VENDOR_GPU)
    assert [each.status for each in looked_at(plugin_folder)] == [OK]
    assert Packages().look_at("not-there") == []


@pytest.mark.parametrize("name", ["METADATA", "RECORD"])
def test_damaged_metadata_of_some_package_stops_no_diagnosis(
    plugin_folder: Path, name: str
) -> None:
    package(plugin_folder, "damaged", requires=["!!!", "pluggy"])
    (plugin_folder / "damaged-1.0.dist-info" / name).write_bytes(b"\xff\xfe\x00")
    assert [each.status for each in looked_at(plugin_folder, "pluggy", "%%%")] == [OK]


def test_without_packaging_the_requirements_are_said_to_be_unchecked(
    plugin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    [finding] = looked_at(plugin_folder, "no-such-runtime")
    assert (finding.status, finding.fix) == (NOTE, "run: pip install packaging")
