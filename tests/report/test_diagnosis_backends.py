"""Findings of `engine doctor` about backends, however broken."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from findings import NOTE, OK, PROBLEM, found

from engine.backends import BackendState
from engine.report.diagnosis import BackendDiagnosis, Diagnosis, Finding, diagnose
from engine_testing.plugins import install

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
