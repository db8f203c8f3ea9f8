"""Findings of `engine doctor` about packages, the environment, and backends however broken."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.backends import BackendState
from engine.backends.install import pip_install
from engine.report.diagnosis import BackendDiagnosis, Diagnosis, Finding, Status, diagnose, machine
from engine.report.diagnosis.packages import CORE, Packages
from engine.report.diagnosis.variables import VARIABLES, look_at_variables
from engine_testing.plugins import install

ROOT = Path(__file__).parents[1]
OK, NOTE, PROBLEM = Status.OK, Status.NOTE, Status.PROBLEM


def found(findings: Sequence[Finding], name: str) -> Finding:
    [finding] = [each for each in findings if each.name == name]
    return finding


# ------------------------------------------------------------------------------------- packages


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


# ---------------------------------------------------------------------------------- environment


def test_a_variable_that_is_set_is_a_note_on_what_it_does(null_backend: str) -> None:
    findings = look_at_variables({"ENGINE_TARGET": "null,cpu", "HOME": "/", "ENGINE_DEBUG": "1"})
    assert [(each.status, each.name) for each in findings] == [
        (NOTE, "ENGINE_DEBUG"), (NOTE, "ENGINE_TARGET"),
    ]  # fmt: skip
    assert VARIABLES["ENGINE_TARGET"] in findings[1].detail
    assert "'null,cpu'" in findings[1].detail
    assert [each.fix for each in findings] == ["", ""]  # nothing is wrong with them


@pytest.mark.parametrize(
    ("name", "value", "status", "said"),
    [
        ("ENGINE_TARGET", "NULL", NOTE, ""),
        ("ENGINE_TARGET", "null, tpu", PROBLEM, "no backend serves 'tpu' (installed: "),
        ("ENGINE_DISABLED_BACKENDS", "null,nul", NOTE, "there is no 'nul' (installed: "),
        (
            "ENGINE_EXTENSIONS",
            "no_such;a=1",
            PROBLEM,
            "no 'no_such', so no model can be built (inst",
        ),
        ("ENGINE_CACHE", "Read", NOTE, ""),
        ("ENGINE_CACHE", "yes", PROBLEM, "expected on, wait, read, off, so no model can be built"),
        ("ENGINE_LOCAL_SIZE", "2", NOTE, ""),
        ("ENGINE_LOCAL_SIZE", "0", PROBLEM, "so no model can be built"),
        ("ENGINE_LOCAL_SIZE", "two", PROBLEM, "so no model can be built"),
    ],
)
def test_a_variable_whose_value_is_wrong_has_a_fix(
    null_backend: str, name: str, value: str, status: Status, said: str
) -> None:
    [finding] = look_at_variables({name: value})
    assert finding.status is status
    assert said in finding.detail
    assert finding.fix == (f"run: unset {name}" if said else "")


def test_the_key_of_a_jobs_store_is_not_shown() -> None:
    [finding] = look_at_variables({"ENGINE_STORE_KEY": "5ec7e7"})
    assert "5ec7e7" not in f"{finding}"
    assert "ranks of this job" in finding.detail


def test_an_unknown_variable_is_told_the_nearest_known() -> None:
    [near] = look_at_variables({"ENGINE_TARGTE": "cpu"})
    assert near.status is NOTE
    assert "did you mean ENGINE_TARGET?" in near.detail
    [far] = look_at_variables({"ENGINE_ZZZ": ""})
    assert "did you mean" not in far.detail


def test_an_empty_variable_is_none() -> None:
    assert look_at_variables(dict.fromkeys(VARIABLES, "")) == []


def test_every_variable_that_the_source_reads_is_known() -> None:
    sources = [*ROOT.glob("engine/**/*.py"), *ROOT.glob("plugins/*/engine_*/**/*.py")]
    sources = [path for path in sources if path.parent.name != "diagnosis"]
    assert len(sources) > 50
    read = {name for path in sources for name in re.findall(r"\bENGINE_[A-Z_]+", path.read_text())}
    assert read - {"ENGINE_ERROR"} == set(VARIABLES)  # onnxruntime's word for one of its codes


# -------------------------------------------------------------------------------------- machine


@pytest.fixture
def look(null_backend: str):
    return lambda: machine.look_at_machine(Packages(), {})


def test_a_machine_in_order_has_no_problem(look) -> None:
    findings = look()
    assert {each.status for each in findings} <= {OK, NOTE}
    assert sys.executable in found(findings, "Python").detail
    assert engine.__version__ in found(findings, "core").detail
    assert "null" in found(findings, "backends").detail
    assert "numpy" in found(findings, "requirements").detail
    assert f"of {os.cpu_count()} usable" in found(findings, "processors").detail


def test_a_core_that_hides_the_installed_one_is_a_problem(look, monkeypatch) -> None:
    monkeypatch.setattr(machine, "version", {CORE: "99.1"}.__getitem__)
    finding = found(look(), "core")
    assert finding.status is PROBLEM
    assert "99.1" in finding.detail
    assert str(Path(engine.__file__).parent) in finding.detail


def test_a_module_of_that_name_in_a_folder_of_pythonpath_is_found(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text("")
    found = machine.look_at_machine(Packages(), {"PYTHONPATH": f"/nowhere{os.pathsep}{tmp_path}"})
    [finding] = [each for each in found if each.name == "import"]
    assert finding.status is Status.PROBLEM
    assert finding.detail == (
        f"PYTHONPATH names {tmp_path}, where engine.py hides the package: Python looks there first"
    )
    assert finding.fix == f"rename {tmp_path / 'engine.py'}"


@pytest.mark.parametrize("name", ["engine.py", "engine"])
def test_what_hides_the_package_from_scripts_is_a_problem(
    look, monkeypatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "engine").mkdir()  # a folder of data: nothing is imported from it first
    assert not [each for each in look() if each.name == "import"]
    (tmp_path / name / "__init__.py" if name == "engine" else tmp_path / name).touch()
    finding = found(look(), "import")
    assert (finding.status, finding.fix) == (PROBLEM, f"rename {tmp_path / name}")
    monkeypatch.chdir(Path(engine.__file__).parents[1])
    assert not [each for each in look() if each.name == "import"]


def test_a_core_without_any_backend_is_a_problem(look, monkeypatch) -> None:
    monkeypatch.setattr(machine, "installed", tuple)
    finding = found(look(), "backends")
    assert (finding.status, finding.fix) == (PROBLEM, f"run: {pip_install('cpu')}")


ELEMENT_TYPES = """
import sys
sys.modules["ml_dtypes"] = None
from engine.report.diagnosis.machine import look_at_machine
from engine.report.diagnosis.packages import Packages
[finding] = [each for each in look_at_machine(Packages(), {}) if each.name == "element types"]
print(finding.status, finding.fix, finding.detail, sep="; ")
"""


def test_element_types_that_need_ml_dtypes_are_named_where_it_is_missing() -> None:
    # A process of its own: numpy keeps the types that ml_dtypes has once registered.
    printed = subprocess.run(
        [sys.executable, "-c", ELEMENT_TYPES], capture_output=True, text=True, check=True
    ).stdout
    status, fix, detail = printed.strip().split("; ")
    assert (status, fix) == ("note", "run: pip install ml_dtypes")
    named = detail.removeprefix("no arrays of ").split(", ")
    assert {"bfloat16", "int4", "float8_e4m3fn"} <= set(named)
    assert not {"float32", "string", "complex64"} & set(named)


def test_the_processors_of_a_job_say_how_many_share_them(look, monkeypatch) -> None:
    monkeypatch.setenv("ENGINE_LOCAL_SIZE", "3")
    assert "shared by 3 processes of this job" in found(look(), "processors").detail


def test_the_processors_are_told_also_where_the_number_of_processes_is_none(
    look, monkeypatch
) -> None:
    monkeypatch.setenv("ENGINE_LOCAL_SIZE", "x")
    assert "usable by this process" in found(look(), "processors").detail


# ------------------------------------------------------------------------------------- backends

PLUGIN = """
import ctypes, os, sys, time
from dataclasses import replace
from engine.hookspecs import hookimpl
from engine_testing import null_device as null
from engine_testing.null_device import *
from engine.types import Check, Devices

{before}

@hookimpl
def engine_backend():
    return replace(null.engine_backend(), name={name!r})

{after}
"""
HOOK = "@hookimpl\ndef {hook}():\n    {body}\n"
CRASH = "ctypes.string_at(0)"
CHECKS = HOOK.format(
    hook="engine_diagnose",
    body="return [Check('beads', True, '9'), Check('wire', False, 'it is rusty', 'oil it')]",
)


def plugin(folder: Path, name: str, before: str = "", **hooks: str) -> None:
    """A null backend, with other bodies for some of its hooks."""
    after = "\n".join(HOOK.format(hook=f"engine_{hook}", body=body) for hook, body in hooks.items())
    source = PLUGIN.format(name=name, before=before, after=after)
    install(folder, name, f"plugin_{name}", source=source)


def only(diagnosis: Diagnosis) -> BackendDiagnosis:
    [backend] = diagnosis.backends
    return backend


def test_a_backend_in_order_has_no_problem(null_backend: str) -> None:
    diagnosis = diagnose([null_backend])
    findings = only(diagnosis).findings
    assert [(each.status, each.name) for each in findings] == [
        (OK, "state"), (OK, "memory"), (OK, "requirements"), (OK, "onnx can be imported"),
    ]  # fmt: skip
    assert "null:0" in findings[0].detail
    assert diagnosis.ailing == []


def test_a_failed_check_is_a_problem_with_its_fix(plugin_folder: Path) -> None:
    plugin(plugin_folder, "abacus")
    with (plugin_folder / "plugin_abacus.py").open("a") as source:
        source.write(CHECKS)
    diagnosis = diagnose(["abacus"])
    assert only(diagnosis).findings[-2:] == (
        Finding(OK, "beads", "9"),
        Finding(PROBLEM, "wire", "it is rusty", "oil it"),
    )
    assert diagnosis.ailing == ["abacus"]


def diagnosed(body: str, said: str) -> tuple[BackendDiagnosis, str]:
    """Return what is found of a plugin with such code, and what is to be said of it.

    A hanging part gets little time, and more where it does not come as far in that.
    """
    for limit in (3, 12, 48) if "sleep" in body else (120,):
        backend = only(diagnose(["faulty"], time_limit_s=limit))
        text = said.format(limit=limit)
        if any(text in each.detail for each in backend.findings):
            break
    return backend, text


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (CRASH, "crashed with SIGSEGV in engine_diagnose"),
        ("os._exit(7)", "ended with status 7 in engine_diagnose"),
        ("os._exit(0)", "ended without an answer in engine_diagnose"),
        ("time.sleep(600)", "did not answer within {limit} s in engine_diagnose"),
        ("sys.exit(3)", "engine_diagnose raised SystemExit: 3"),
        ("raise KeyError('two\\nlines')", "engine_diagnose raised KeyError"),
        ("return [1]", "expected a Check, got 1"),
        ("return None", "engine_diagnose raised TypeError"),
    ],
)
def test_a_diagnosis_that_fails_costs_only_itself(
    plugin_folder: Path, body: str, said: str
) -> None:
    plugin(plugin_folder, "faulty", diagnose=body)
    backend, text = diagnosed(body, said)
    assert backend.record.state is BackendState.READY
    finding = found(backend.findings, "diagnosis")
    assert finding.status is PROBLEM
    assert text in finding.detail
    assert "\n" not in finding.detail
    assert "engine-plugin-faulty" in finding.fix


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (CRASH, "crashed with SIGSEGV in engine_devices"),
        ("time.sleep(600)", "did not answer within {limit} s in engine_devices"),
        ("sys.exit(3)", "engine_devices raised SystemExit: 3"),
    ],
)
def test_devices_that_fail_leave_the_backends_own_checks(
    plugin_folder: Path, body: str, said: str
) -> None:
    plugin(plugin_folder, "faulty", devices=body, diagnose="return [Check('beads', True, '9')]")
    backend, text = diagnosed(body, said)
    assert backend.record.state is BackendState.BROKEN
    assert backend.record.info is not None
    assert text in found(backend.findings, "state").detail
    assert found(backend.findings, "beads").status is OK


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (CRASH, "crashed with SIGSEGV while it was imported"),
        ("time.sleep(600)", "did not answer within {limit} s while it was imported"),
        ("sys.exit(3)", "SystemExit: 3"),
        ("import no_such_vendor_library", "no_such_vendor_library"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_one_problem(
    plugin_folder: Path, before: str, said: str
) -> None:
    plugin(plugin_folder, "faulty", before)
    backend, text = diagnosed(before, said)
    [problem] = [each for each in backend.findings if each.status is PROBLEM]
    assert problem.name == "state"
    assert text in problem.detail
    assert "engine-plugin-faulty" in problem.fix
    assert "engine doctor" not in problem.fix


def test_a_crash_when_the_process_ends_is_a_problem(plugin_folder: Path) -> None:
    plugin(plugin_folder, "faulty", f"import atexit\natexit.register(lambda: {CRASH})")
    backend = only(diagnose(["faulty"]))
    assert "crashed with SIGSEGV when everything was answered" in backend.record.reason


def test_what_a_plugin_prints_is_no_part_of_the_diagnosis(
    plugin_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plugin(plugin_folder, "loud", "print('{}'); os.write(1, b'{}'); os.write(2, b'{}')")
    assert diagnose(["loud"]).ailing == []
    assert tuple(capfd.readouterr()) == ("", "")


def test_one_that_fails_leaves_the_others(plugin_folder: Path) -> None:
    plugin(plugin_folder, "crashing", CRASH)
    plugin(plugin_folder, "leaving", devices="os._exit(0)")
    plugin(plugin_folder, "well")
    diagnosis = diagnose()
    assert {"crashing", "leaving"} <= set(diagnosis.ailing)
    assert "well" not in diagnosis.ailing
    names = [each.record.name for each in diagnosis.backends]
    assert [name for name in names if name in ("crashing", "leaving", "well")] == [
        "crashing", "leaving", "well",
    ]  # fmt: skip


def test_two_distributions_of_one_backend_are_a_problem(plugin_folder: Path) -> None:
    for distribution in ("twin-one", "twin-two"):
        install(plugin_folder, "twin", "engine_testing.null_device", distribution=distribution)
    finding = found(only(diagnose(["twin"])).findings, "state")
    assert finding.status is PROBLEM
    assert "twin-one, twin-two" in finding.detail


def test_a_plugin_of_another_contract_is_a_problem(plugin_folder: Path) -> None:
    install(plugin_folder, "later", "nowhere", group="engine.backends.v9")
    assert "later" in diagnose().ailing
    assert "engine.backends.v9" in found(only(diagnose(["later"])).findings, "state").detail


def test_a_backend_without_a_device_is_a_problem_with_its_fix(plugin_folder: Path) -> None:
    plugin(plugin_folder, "dry", devices="return Devices(reason='no abacus', fix='buy one')")
    finding = found(only(diagnose(["dry"])).findings, "state")
    assert finding == Finding(PROBLEM, "state", "no device: no abacus", "buy one")


def test_what_is_not_installed_is_a_note_unless_it_was_named(
    null_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.report.diagnosis.OFFICIAL", {"abacus": "abacus_official"})
    diagnosis = diagnose()
    absent = {each.record.name: each for each in diagnosis.backends}["abacus_official"]
    assert [each.status for each in absent.findings] == [NOTE]
    assert "abacus_official" not in diagnosis.ailing
    for name in ("abacus_official", "abacus", "Abacus"):
        diagnosis = diagnose([name])
        assert only(diagnosis).record.state is BackendState.NOT_INSTALLED
        assert diagnosis.ailing == ["abacus_official"]


def test_a_device_type_stands_for_the_backend_that_serves_it(
    plugin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.report.diagnosis.OFFICIAL", {"abacus": "abacus_official"})
    plugin(plugin_folder, "abacus_official")
    assert only(diagnose(["abacus", "abacus_official"])).record.name == "abacus_official"
    plugin(plugin_folder, "abacus")  # a backend's own name goes first
    assert only(diagnose(["abacus"])).record.name == "abacus"


def test_a_disabled_backend_is_a_note_unless_it_was_named_and_is_not_imported(
    plugin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(plugin_folder, "tired", CRASH)
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", "tired")
    diagnosis = diagnose()
    assert "tired" not in diagnosis.ailing
    [named] = only(diagnose(["tired"])).findings
    assert named.status is PROBLEM
    assert "ENGINE_DISABLED_BACKENDS" in named.fix


def test_unknown_hooks_are_a_note(plugin_folder: Path) -> None:
    plugin(plugin_folder, "newer", predikt="return 1")
    finding = found(only(diagnose(["newer"])).findings, "hooks")
    assert finding.status is NOTE
    assert "engine_predikt" in finding.detail


def test_an_interrupt_ends_the_processes_at_once(plugin_folder: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        file = str(tmp_path / name)
        plugin(
            plugin_folder, name, devices=f"open({file!r}, 'w').write(str(os.getpid())); "
            "time.sleep(600)",
        )  # fmt: skip

    def interrupt() -> None:
        files = [tmp_path / name for name in ("one", "two")]
        while not all(file.exists() and file.read_text() for file in files):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        diagnose(["one", "two"], time_limit_s=120)
    for name in ("one", "two"):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / name).read_text()), 0)
