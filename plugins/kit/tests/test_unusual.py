"""The kit fails no backend that is unusual and right."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import unusual

from engine_testing import BackendConformance, plugins

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LIMIT_S = 900
pytestmark = pytest.mark.timeout(LIMIT_S)

KIT = """
import unusual
from engine_testing import BackendConformance

for name in unusual.TESTS:
    globals()[f"Test_{name}"] = type(
        f"Test_{name}", (BackendConformance,), {"backend": name, "option": "delay_s"}
    )
"""

MEASURED = {
    "test_a_first_predict_that_compiles_can_be_cancelled",
    "test_a_model_uses_the_threads_it_is_given",
    "test_a_predict_is_cancelled_by_another_thread",
    "test_a_predict_stops_at_its_deadline",
    "test_a_predict_that_was_stopped_goes_on_nowhere",
    "test_a_resident_output_costs_no_more_than_one_on_the_host",
    "test_the_reference_is_not_fifteen_times_faster",
}
"""Tests that take seconds, as they measure: they run with all of the kit, which is slow."""

QUICK = {
    name: tuple(test for test in tests if test not in MEASURED)
    for name, tests in unusual.TESTS.items()
}

Failures = dict[str, dict[str, str]]
"""By backend, the tests that failed, and why."""


def run_kit(folder: Path, tests: dict[str, tuple[str, ...]]) -> Failures:
    """Run tests of the kit on unusual backends in one process; () is all of the kit."""
    (folder / "kit.py").write_text(KIT)
    for name in tests:
        plugins.install(folder, name, f"unusual:{name}")
    report = folder / "report.xml"
    search = os.pathsep.join([str(folder), str(HERE), *(path for path in sys.path if path)])
    child = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short",
         "-c", str(ROOT / "pyproject.toml"), f"--rootdir={folder}", f"--junitxml={report}",
         *(f"kit.py::Test_{name}{test and '::'}{test}"
           for name, chosen in tests.items() for test in chosen or ("",))],
        env={**os.environ, "PYTHONPATH": search, "OPENBLAS_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    assert child.returncode in (0, 1), child.stdout[-4000:] + child.stderr[-4000:]
    failed: Failures = {name: {} for name in tests}
    ran: dict[str, set[str]] = {name: set() for name in tests}
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.attrib["classname"].rpartition("Test_")[2]
        ran[name].add(case.attrib["name"].partition("[")[0])
        for bad in (*case.iter("failure"), *case.iter("error")):
            failed[name][case.attrib["name"]] = bad.attrib.get("message", "")
    for name, chosen in tests.items():
        assert ran[name] == set(chosen) or not chosen
        assert ran[name]
    return failed


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    return run_kit(tmp_path_factory.mktemp("unusual"), QUICK)


@pytest.mark.parametrize("name", QUICK)
def test_an_unusual_backend_passes_what_is_hard_for_it(name: str, failures: Failures) -> None:
    assert failures[name] == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", unusual.TESTS)
def test_an_unusual_backend_passes_the_whole_kit(name: str, tmp_path: Path) -> None:
    assert run_kit(tmp_path, {name: ()}) == {name: {}}


def test_what_is_hard_for_an_unusual_backend_is_of_the_kit() -> None:
    known = {name for name in dir(BackendConformance) if name.startswith("test_")}
    assert {test for tests in unusual.TESTS.values() for test in tests} | MEASURED <= known
    assert all(QUICK.values()), "() would be all of the kit"
