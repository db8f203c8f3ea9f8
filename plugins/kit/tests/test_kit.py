"""The kit itself: gaps, skips, and backends that are not there."""

import itertools
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import ClassVar

import pytest

from engine_testing import BackendConformance, plugins

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

CLASSES = """
from engine_testing import BackendConformance

class TestKnownGap(BackendConformance):
    backend = "names_another_device"
    gaps = {"test_placement_names_backend_device_provider_and_reason": "it lives next door"}

class TestKnownGapOfOneParameter(BackendConformance):
    backend = "takes_integers_for_doubles"
    gaps = {"test_whole_numbers_arrive_to_the_last_bit[int64]": "doubles have 53 bits"}

class TestGapThatIsNone(BackendConformance):
    backend = "faultless"
    gaps = {"test_a_scalar_stays_a_scalar": "it once did not"}

class TestGapThatNamesNothing(BackendConformance):
    backend = "faultless"
    gaps = {"test_a_scaler_stays_a_scaler": "misspelt"}

class TestGapThatNamesNoCase(BackendConformance):
    backend = "faultless"
    gaps = {"test_whole_numbers_arrive_to_the_last_bit[int3]": "there is no int3"}

class TestGapOfNoParameter(BackendConformance):
    backend = "faultless"
    gaps = {"test_a_scalar_stays_a_scalar[float32]": "it has no parameter"}

class TestCrashing(BackendConformance):
    backend = "crashing"
    crashes = {"test_a_scalar_stays_a_scalar": "the runtime reads dims[0]"}

class TestCrashThatNamesNothing(BackendConformance):
    backend = "faultless"
    crashes = {"test_a_scaler_stays_a_scaler": "misspelt"}

class TestHalf(BackendConformance):
    backend = "computes_in_half"
    rtol = 1e-2

class TestModest(BackendConformance):
    backend = "modest"

class TestWithoutDevice(BackendConformance):
    backend = "without_device"

class TestAbsent(BackendConformance):
    backend = "absent"

class TestFirstType(BackendConformance):
    backend = "two_types"

class TestSecondType(BackendConformance):
    backend = "two_types"
    device_type = "npu"

class TestTypeThatIsNotThere(BackendConformance):
    backend = "two_types"
    device_type = "dsp"
"""

MODEST = """
from dataclasses import replace
from engine.hookspecs import hookimpl
from engine_testing import null_device as null
from engine_testing.null_device import *

@hookimpl
def engine_backend():
    return replace(null.engine_backend(), name="modest", capabilities=frozenset())
"""

CRASHING = """
import os
from dataclasses import replace
from engine.hookspecs import hookimpl
from engine_testing import null_device as null
from engine_testing.null_device import *

@hookimpl
def engine_backend():
    return replace(null.engine_backend(), name="crashing")

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    if inputs[0].ndim == 0:
        os._exit(139)
    return null.engine_predict(context, inputs, outputs, deadline_s)
"""

WITHOUT_DEVICE = """
from dataclasses import replace
from engine.hookspecs import hookimpl
from engine_testing import null_device as null
from engine_testing.null_device import *
from engine.types import Devices

@hookimpl
def engine_backend():
    return replace(null.engine_backend(), name="without_device")

@hookimpl
def engine_devices():
    return Devices(reason="the probe is not plugged in", fix="plug it in")
"""

TWO_TYPES = """
from dataclasses import replace
from engine.hookspecs import hookimpl
from engine_testing import null_device as null
from engine_testing.null_device import *
from engine.types import Device, Devices

@hookimpl
def engine_backend():
    info = null.engine_backend()
    return replace(info, name="two_types", device_types=(*info.device_types, "npu", "dsp"))

@hookimpl
def engine_devices():
    [cpu] = null.engine_devices().found
    return Devices((cpu, replace(cpu, device=Device("npu"))))

@hookimpl
def engine_compile(loaded, options):
    if options.device.type == "npu":
        raise RuntimeError("the npu has no kernels")
    return null.engine_compile(loaded, options)
"""

CHOSEN = [
    ("KnownGap", "test_placement_names_backend_device_provider_and_reason"),
    ("KnownGapOfOneParameter", "test_whole_numbers_arrive_to_the_last_bit"),
    ("GapThatIsNone", "test_a_scalar_stays_a_scalar"),
    ("GapThatIsNone", "test_gaps_name_tests_of_the_kit"),
    ("GapThatNamesNothing", "test_gaps_name_tests_of_the_kit"),
    ("GapThatNamesNoCase", "test_gaps_name_tests_of_the_kit"),
    ("GapOfNoParameter", "test_gaps_name_tests_of_the_kit"),
    ("Crashing", "test_a_scalar_stays_a_scalar"),
    ("Crashing", "test_predict_matches_the_closed_form"),
    ("Crashing", "test_gaps_name_tests_of_the_kit"),
    ("CrashThatNamesNothing", "test_gaps_name_tests_of_the_kit"),
    ("Half", "test_sums_of_products_are_as_precise_as_float32"),
    ("Half", "test_arithmetic_is_as_precise_as_float32"),
    ("Modest", "test_a_predict_stops_at_its_deadline"),
    ("Modest", "test_symbolic_dims_take_any_size"),
    ("Modest", "test_a_misspelt_option_is_told_the_right_one"),
    ("Modest", "test_predict_matches_the_closed_form"),
    ("WithoutDevice", "test_a_scalar_stays_a_scalar"),
    ("WithoutDevice", "test_the_manifest_says_who_the_backend_is"),
    ("WithoutDevice", "test_devices_are_found_or_a_reason_is_given"),
    ("Absent", "test_a_scalar_stays_a_scalar"),
    ("Absent", "test_the_manifest_says_who_the_backend_is"),
    ("FirstType", "test_a_scalar_stays_a_scalar"),
    ("SecondType", "test_a_scalar_stays_a_scalar"),
    ("TypeThatIsNotThere", "test_a_scalar_stays_a_scalar"),
]


FAULTY = ("computes_in_half", "faultless", "names_another_device", "takes_integers_for_doubles")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Return the outcome of each test ("passed", "failed", "skipped", "xfailed") and its text."""
    folder = tmp_path_factory.mktemp("kit")
    module = folder / "kit.py"
    module.write_text(CLASSES)
    for name in FAULTY:
        plugins.install(folder, name, f"faulty:{name}")
    plugins.install(folder, "modest", "modest_plugin", source=MODEST)
    plugins.install(folder, "crashing", "crashing_plugin", source=CRASHING)
    plugins.install(folder, "without_device", "without_device_plugin", source=WITHOUT_DEVICE)
    plugins.install(folder, "two_types", "two_types_plugin", source=TWO_TYPES)
    report = folder / "report.xml"
    search = os.pathsep.join([str(folder), str(HERE), *(path for path in sys.path if path)])
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short",
         "-c", str(ROOT / "pyproject.toml"), f"--rootdir={folder}", f"--junitxml={report}",
         *(f"{module}::Test{name}::{test}" for name, test in CHOSEN)],
        env={**os.environ, "PYTHONPATH": search},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    assert child.returncode == 1, child.stdout[-4000:] + child.stderr[-4000:]
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.attrib['classname'].rpartition('Test')[2]}.{case.attrib['name']}"
        ending, said = "passed", ""
        for child in case:
            said = f"{child.attrib.get('message', '')} {child.text or ''}"
            if child.tag == "skipped":
                ending = "xfailed" if child.attrib["type"] == "pytest.xfail" else "skipped"
            else:
                ending = "failed"
        found[name] = ending, said
    return found


@pytest.fixture(scope="module")
def order(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names of the kit's tests, in the order in which pytest runs them."""
    folder = tmp_path_factory.mktemp("order")
    (folder / "kit.py").write_text(CLASSES)
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only",
         "-c", str(ROOT / "pyproject.toml"), f"--rootdir={folder}", "kit.py::TestModest"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )  # fmt: skip
    mark = "kit.py::TestModest::"
    return [line.removeprefix(mark) for line in child.stdout.splitlines() if line.startswith(mark)]


def test_a_gap_is_expected_to_fail(outcomes) -> None:
    name = "KnownGap.test_placement_names_backend_device_provider_and_reason"
    assert outcomes[name][0] == "xfailed"
    assert "it lives next door" in outcomes[name][1]


def test_a_gap_of_one_parameter_leaves_the_others(outcomes) -> None:
    name = "KnownGapOfOneParameter.test_whole_numbers_arrive_to_the_last_bit"
    assert outcomes[f"{name}[int64]"][0] == "xfailed"
    assert outcomes[f"{name}[int32]"][0] == "passed"
    assert outcomes[f"{name}[uint64]"][0] == "failed"  # the same fault, and not named


def test_a_gap_that_is_closed_fails_until_it_is_removed(outcomes) -> None:
    assert outcomes["GapThatIsNone.test_a_scalar_stays_a_scalar"][0] == "failed"
    assert outcomes["GapThatIsNone.test_gaps_name_tests_of_the_kit"][0] == "passed"


def test_a_gap_must_name_a_test(outcomes) -> None:
    ending, said = outcomes["GapThatNamesNothing.test_gaps_name_tests_of_the_kit"]
    assert ending == "failed"
    assert "test_a_scaler_stays_a_scaler" in said


def test_a_gap_must_name_a_case_of_its_test(outcomes) -> None:
    ending, said = outcomes["GapThatNamesNoCase.test_gaps_name_tests_of_the_kit"]
    assert ending == "failed"
    assert "test_whole_numbers_arrive_to_the_last_bit[int3]' names no case" in said
    assert "test_whole_numbers_arrive_to_the_last_bit[int8]'" in said  # what there is
    ending, said = outcomes["GapOfNoParameter.test_gaps_name_tests_of_the_kit"]
    assert ending == "failed"
    assert "test_a_scalar_stays_a_scalar[float32]' names no case" in said


def test_every_case_of_the_kit_can_be_a_gap(order: list[str]) -> None:
    class Hopeless(BackendConformance):
        gaps: ClassVar = dict.fromkeys(order, "nothing works")

    assert {"test_predict_matches_the_closed_form[3]", "test_a_scalar_stays_a_scalar"} < {*order}
    Hopeless().test_gaps_name_tests_of_the_kit()


def test_the_gaps_that_the_guide_shows_exist() -> None:
    shown = re.findall(r'"(test_[^"]+)": "', (ROOT / "docs/backends/testing.md").read_text())

    class Shown(BackendConformance):
        gaps: ClassVar = dict.fromkeys(shown, "an example")

    assert any("[" in gap for gap in shown)
    Shown().test_gaps_name_tests_of_the_kit()


def test_a_gap_that_crashes_is_not_run(outcomes) -> None:
    ending, said = outcomes["Crashing.test_a_scalar_stays_a_scalar"]
    assert ending == "xfailed"
    assert "not run" in said
    assert "the runtime reads dims[0]" in said
    assert outcomes["Crashing.test_predict_matches_the_closed_form[3]"][0] == "passed"
    assert outcomes["Crashing.test_gaps_name_tests_of_the_kit"][0] == "passed"


def test_a_crash_must_name_a_test(outcomes) -> None:
    ending, said = outcomes["CrashThatNamesNothing.test_gaps_name_tests_of_the_kit"]
    assert ending == "failed"
    assert "test_a_scaler_stays_a_scaler" in said


def test_a_backend_that_computes_in_half_passes_with_its_tolerance(outcomes) -> None:
    for test in (
        "test_sums_of_products_are_as_precise_as_float32",
        "test_arithmetic_is_as_precise_as_float32",
    ):
        assert outcomes[f"Half.{test}"][0] == "passed"


def test_the_simplest_tests_come_first(order: list[str]) -> None:
    tests = [name.partition("[")[0] for name in order]
    modules = [getattr(BackendConformance, test).__module__.rpartition(".")[2] for test in tests]
    assert [module for module, _ in itertools.groupby(modules)] == [
        "manifest", "semantics", "ownership", "errors", "lifecycle", "settings", "process",
        "threads", "contexts", "compiled", "device_values", "profile", "weights", "sharing",
        "ranks", "lifecycle", "conformance",
    ]  # fmt: skip
    assert tests[0] == "test_the_manifest_says_who_the_backend_is"
    leaks = [test for test in tests if "leave_no_files" in test]
    assert tests[-1 - len(leaks) :] == [*leaks, "test_gaps_name_tests_of_the_kit"]


def test_what_is_not_announced_is_skipped_with_the_reason(outcomes) -> None:
    for test, reason in [
        ("test_a_predict_stops_at_its_deadline", "does not announce 'deadlines'"),
        ("test_symbolic_dims_take_any_size", "does not announce 'dynamic_shapes'"),
        ("test_a_misspelt_option_is_told_the_right_one", "set `option`"),
    ]:
        ending, said = outcomes[f"Modest.{test}"]
        assert ending == "skipped"
        assert reason in said
    assert outcomes["Modest.test_predict_matches_the_closed_form[3]"][0] == "passed"


def test_without_a_device_only_the_manifest_is_tested(outcomes) -> None:
    ending, said = outcomes["WithoutDevice.test_a_scalar_stays_a_scalar"]
    assert ending == "skipped"
    assert "the probe is not plugged in; plug it in" in said
    assert outcomes["WithoutDevice.test_the_manifest_says_who_the_backend_is"][0] == "passed"
    assert outcomes["WithoutDevice.test_devices_are_found_or_a_reason_is_given"][0] == "passed"


def test_each_device_type_of_a_backend_can_be_tested(outcomes) -> None:
    assert outcomes["FirstType.test_a_scalar_stays_a_scalar"][0] == "passed"
    ending, said = outcomes["SecondType.test_a_scalar_stays_a_scalar"]
    assert ending == "failed"
    assert "the npu has no kernels" in said
    ending, said = outcomes["TypeThatIsNotThere.test_a_scalar_stays_a_scalar"]
    assert ending == "skipped"
    assert "finds no device of type 'dsp' here" in said


def test_a_backend_that_is_not_installed_fails(outcomes) -> None:
    for test in ("test_a_scalar_stays_a_scalar", "test_the_manifest_says_who_the_backend_is"):
        ending, said = outcomes[f"Absent.{test}"]
        assert ending == "failed"
        assert "'absent'" in said
