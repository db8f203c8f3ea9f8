"""The kit as `engine plugins check` runs it: crashes and hangs kept apart, nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engine.errors import BackendError
from engine_testing import BackendConformance, check, command
from engine_testing.check import LEVELS, Outcome, Report
from engine_testing.declared import GROUP, conformance_class
from engine_testing.plugins import install

PLUGIN = """
import ctypes, os, sys, time
from dataclasses import replace
from engine.hookspecs import hookimpl
from engine_testing import null_device as null
from engine_testing.null_device import *
from engine.types import Devices

{before}

@hookimpl
def engine_backend():
    return replace(null.engine_backend(), name={name!r})

@hookimpl
def engine_devices():
    {devices}
    return null.engine_devices()

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    if inputs[0].ndim == 0:
        {predict}
    return null.engine_predict(context, inputs, outputs, deadline_s)
"""

SCALAR = "test_a_scalar_stays_a_scalar"
SCALARS = f"{SCALAR} or test_a_scalar_buffer_is_filled"
SOME = f"{SCALAR} or closed_form or manifest_says"


def backend(
    folder: Path, name: str, *, predict: str = "pass", devices: str = "pass", before: str = ""
) -> str:
    """A null backend with other code in some places; `predict` is run where x is a scalar."""
    source = PLUGIN.format(name=name, predict=predict, devices=devices, before=before)
    install(folder, name, f"plugin_{name}", source=source)
    return name


def declare(folder: Path, name: str, source: str) -> None:
    """Let the distribution of backend `name` ship a class of tests."""
    (folder / f"kit_of_{name}.py").write_text(source)
    [info] = folder.glob(f"engine_plugin_{name}-*.dist-info")
    with (info / "entry_points.txt").open("a") as lines:
        lines.write(f"[engine.conformance.v1]\n{name} = kit_of_{name}:TestIt\n")


def outcomes(report: Report) -> dict[str, Outcome]:
    return {result.name: result.outcome for result in report.results}


def result(report: Report, name: str):
    [found] = [each for each in report.results if each.name == name]
    return found


@pytest.mark.slow
def test_a_backend_without_a_fault_passes_every_level(null_backend: str) -> None:
    seen = []
    report = check.check(null_backend, progress=lambda *step: seen.append(step))
    assert not report.of(Outcome.FAILED)
    assert report.record.name == null_backend
    assert [level for level in report.levels() if level in LEVELS] == list(LEVELS)
    # The same tests as the class has, in the same order.
    tests = [name.partition("[")[0] for name in outcomes(report)]
    assert set(tests) == {name for name in dir(BackendConformance) if name.startswith("test_")}
    assert tests[0] == "test_the_manifest_says_who_the_backend_is"
    total = len(report.results)
    assert [(done, all_) for _, done, all_ in seen] == [(done, total) for done in range(total)]


def test_the_levels_are_those_of_the_kit(null_backend: str) -> None:
    modules = [base.__module__.rpartition(".")[2] for base in BackendConformance.__mro__[1:-2]]
    assert list(dict.fromkeys(reversed(modules))) == list(LEVELS)


def test_levels_and_an_expression_choose_tests(null_backend: str) -> None:
    report = check.check(null_backend, levels=["manifest", "errors"], expression="named or says")
    assert set(report.levels()) == {"manifest", "errors"}
    assert "test_the_manifest_says_who_the_backend_is" in outcomes(report)
    assert "test_an_unknown_option_is_named" in outcomes(report)
    assert all("named" in name or "says" in name for name in outcomes(report))


@pytest.mark.parametrize(
    ("predict", "said"),
    [
        ("ctypes.string_at(0)", "crashed with SIGSEGV"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)  # the same way, each with two processes
            for case in (
                ("sys.exit(3)", "SystemExit: 3"),
                ("os.abort()", "crashed with SIGABRT in engine_predict"),
                ("os._exit(0)", "ended with status 0"),
                ("raise KeyboardInterrupt", "ended with status 2"),
            )
        ),
    ],
)
def test_a_test_that_ends_the_process_fails_and_the_others_still_run(
    plugin_folder: Path, predict: str, said: str
) -> None:
    name = backend(plugin_folder, "faulty", predict=predict)
    report = check.check(name, expression=f"{SCALARS} or closed_form")
    failed = {each.name for each in report.of(Outcome.FAILED)}
    assert failed == {SCALAR, "test_a_scalar_buffer_is_filled"}
    assert len(report.of(Outcome.PASSED)) >= 3
    assert said in result(report, SCALAR).reason
    assert result(report, SCALAR).level == "semantics"
    if "engine_predict" in said:  # a debugger's first question
        assert "plugin_faulty.py:" in result(report, SCALAR).place


@pytest.mark.slow
def test_a_test_that_hangs_fails_at_its_limit_and_says_where_it_was(plugin_folder: Path) -> None:
    name = backend(plugin_folder, "hanging", predict="time.sleep(600)")
    report = check.check(name, expression=f"{SCALAR} or closed_form", limit_s=5)
    assert outcomes(report).pop(SCALAR) is Outcome.FAILED
    assert "did not end within 5 s in engine_predict" in result(report, SCALAR).reason
    assert "plugin_hanging.py:" in result(report, SCALAR).place
    assert len(report.of(Outcome.PASSED)) >= 3


def test_a_crash_after_the_last_test_is_a_failure_too(plugin_folder: Path) -> None:
    # At an end that comes after a predict: the probe before the tests must not see it.
    predict = "import atexit; atexit.register(lambda: os.kill(os.getpid(), 11))"
    name = backend(plugin_folder, "faulty", predict=predict)
    report = check.check(name, expression=SCALAR)
    assert outcomes(report) == {SCALAR: Outcome.PASSED, "the process": Outcome.FAILED}
    assert "crashed with SIGSEGV" in result(report, "the process").reason
    assert not report.ok


def test_a_failure_says_what_was_wrong_where_and_how_a_gap_is_declared(
    plugin_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, and in one of a rank."""
    before = """
@hookimpl
def engine_communicator(options):
    raise RuntimeError("the cable is out")
"""
    name = backend(plugin_folder, "lonely", before=before, predict="return [inputs[0]]")
    report = check.check(name, levels=["semantics", "ranks"], expression=f"two_groups or {SCALAR}")
    wrong, failed = report.of(Outcome.FAILED)
    assert wrong.name == SCALAR
    assert "Not equal to tolerance" in wrong.reason
    assert re.search(r"level\.py:\d+$", wrong.place)
    assert SCALAR in wrong.traceback
    assert "rank 0 ended with status 1: RuntimeError: the cable is out" in failed.reason
    *_, exception, sentence, declare = failed.reason.splitlines()
    assert "RuntimeError: the cable is out" in exception
    assert sentence.startswith("the contract, hookspecs: ")
    assert 'gaps = {"test_two_groups_do_not_mix": "why"}' in declare
    assert "'collectives'" not in declare or "DeviceInfo.lacks" in declare
    command._print(report)
    shown = capsys.readouterr().out
    assert "more lines" in shown, "the message is not long enough for this test"
    for text in ("RuntimeError: the cable is out", sentence[:40], "gaps = {"):
        assert text in shown


def test_what_a_backend_declares_holds(plugin_folder: Path) -> None:
    name = backend(plugin_folder, "modest", predict="return [inputs[0]]")
    declare(
        plugin_folder,
        name,
        """
from engine_testing import BackendConformance

class TestIt(BackendConformance):
    backend = "modest"
    option = "delay_s"
    gaps = {
        "test_a_scalar_stays_a_scalar": "it has no scalars",
        "test_an_unknown_option_is_named": "it once was not",
    }
    crashes = {"test_a_scalar_buffer_is_filled": "it reads dims[0]"}

    def test_something_of_its_own(self):
        assert True
""",
    )
    report = check.check(
        name, expression=f"{SCALARS} or unknown_option_is_named or misspelt or own or test_gaps"
    )
    assert result(report, SCALAR).reason == "it has no scalars"
    found = outcomes(report)
    assert found[SCALAR] is Outcome.GAP
    assert found["test_a_scalar_buffer_is_filled"] is Outcome.GAP
    assert result(report, "test_a_scalar_buffer_is_filled").reason == "not run: it reads dims[0]"
    assert found["test_an_unknown_option_is_named"] is Outcome.FAILED  # the gap is closed
    assert "once was not" in result(report, "test_an_unknown_option_is_named").reason
    assert found["test_a_misspelt_option_is_told_the_right_one"] is Outcome.PASSED
    assert result(report, "test_something_of_its_own").level == "kit_of_modest"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_module", "no_such_module"),
        ("import os\nos.kill(os.getpid(), 11)", "crashed with SIGSEGV"),
    ],
)
def test_a_declaration_that_is_wrong_is_an_error(
    plugin_folder: Path, source: str, said: str
) -> None:
    name = backend(plugin_folder, "faulty")
    declare(plugin_folder, name, source)
    with pytest.raises(BackendError, match=r"tests of backend 'faulty' cannot be loaded") as caught:
        check.check(name)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("TestIt = 1", "expected a subclass of BackendConformance, got 1"),
        (
            "from engine_testing import BackendConformance\n"
            "class TestIt(BackendConformance):\n    backend = 'other'\n",
            "expected TestIt.backend to be 'faulty', got 'other'",
        ),
    ],
)
def test_a_class_that_is_not_the_backends_kit_is_refused(
    plugin_folder: Path, source: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = backend(plugin_folder, "faulty")
    declare(plugin_folder, name, source)
    monkeypatch.delitem(sys.modules, f"kit_of_{name}", raising=False)
    with pytest.raises(TypeError, match=re.escape(said)):
        conformance_class(name)


def test_without_a_device_only_the_manifest_is_tested(plugin_folder: Path) -> None:
    name = backend(plugin_folder, "dry", devices="return Devices(reason='no abacus', fix='buy it')")
    report = check.check(name, expression=SOME)
    assert not report.of(Outcome.FAILED)
    assert result(report, SCALAR).outcome is Outcome.SKIPPED
    assert "no abacus; buy it" in result(report, SCALAR).reason
    assert outcomes(report)["test_the_manifest_says_who_the_backend_is"] is Outcome.PASSED


@pytest.mark.parametrize(
    ("before", "said"),
    [("ctypes.string_at(0)", "is broken"), ("import no_such_vendor_library", "is broken")],
)
def test_a_backend_that_cannot_be_opened_is_an_error(
    plugin_folder: Path, before: str, said: str
) -> None:
    name = backend(plugin_folder, "faulty", before=before)
    with pytest.raises(BackendError, match=said):
        check.check(name)


def test_a_backend_that_is_not_there_is_an_error(null_backend: str, monkeypatch) -> None:
    with pytest.raises(BackendError, match="'absent' is not installed"):
        check.check("absent")
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", null_backend)
    with pytest.raises(BackendError, match="ENGINE_DISABLED_BACKENDS"):
        check.check(null_backend)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("no_such_test", "no test"),
        pytest.param("a b", "wrong expression", marks=pytest.mark.slow),
    ],
)
def test_an_expression_that_chooses_nothing_is_an_error(
    null_backend: str, expression: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        check.check(null_backend, expression=expression)


def test_nothing_is_left_behind(
    null_backend: str, plugin_folder: Path, tmp_path_factory, monkeypatch
) -> None:
    cwd, temporary = tmp_path_factory.mktemp("cwd"), tmp_path_factory.mktemp("tmp")
    monkeypatch.chdir(cwd)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    name = backend(plugin_folder, "own")
    before = {*plugin_folder.rglob("*")}
    check.check(name, expression=f"{SOME} or second_process or prints_nothing")
    assert list(cwd.iterdir()) == []
    assert list(temporary.iterdir()) == []
    # Python itself keeps what it compiled when the plugin was probed; pytest's is not there.
    new = [path.name for path in {*plugin_folder.rglob("*")} - before]
    assert all(re.fullmatch(r"__pycache__|\w+\.cpython-\d+\.pyc", name) for name in new), new


@pytest.mark.slow
def test_the_callers_own_pytest_and_targets_change_nothing(
    null_backend: str, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--another-option")
    monkeypatch.setenv("PYTEST_PLUGINS", "no_such_plugin")
    monkeypatch.setenv("ENGINE_TARGET", "tpu")
    report = check.check(null_backend, levels=["threads"])
    assert report.of(Outcome.FAILED) == []
    assert not report.of(Outcome.FAILED)
    assert len(report.of(Outcome.PASSED)) > 5


def test_an_interrupt_ends_the_tests_at_once(plugin_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    name = backend(
        plugin_folder, "hanging",
        predict=f"open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(600)",
    )  # fmt: skip

    def interrupt() -> None:
        while not file.exists() or not file.read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & ignores it
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            check.check(name, expression=SCALAR)
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)


def test_a_check_imports_no_pytest_of_its_own() -> None:
    code = "import sys, engine_testing.check; print({'pytest', 'onnx'} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_guide_names_the_group_that_is_read() -> None:
    guide = Path(__file__).parents[3] / "docs/backends/packaging.md"
    assert f'[project.entry-points."{GROUP}"]' in guide.read_text()
