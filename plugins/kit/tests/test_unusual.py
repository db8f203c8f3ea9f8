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
from engine_testing import BackendConformance

class TestIt(BackendConformance):
    backend = {name!r}
    option = "delay_s"
"""


def run_kit(folder: Path, name: str, tests: tuple[str, ...]) -> dict[str, str]:
    """Run tests of the kit on an unusual backend; gives what failed, and why."""
    (folder / "kit.py").write_text(KIT.format(name=name))
    plugins.install(folder, name, f"unusual:{name}")
    report = folder / "report.xml"
    search = os.pathsep.join([str(folder), str(HERE), *(path for path in sys.path if path)])
    child = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short",
         "-c", str(ROOT / "pyproject.toml"), f"--rootdir={folder}", f"--junitxml={report}",
         *(f"kit.py::TestIt::{test}" for test in tests), *(() if tests else ("kit.py",))],
        env={**os.environ, "PYTHONPATH": search, "OPENBLAS_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    assert child.returncode in (0, 1), child.stdout[-4000:] + child.stderr[-4000:]
    failed = {}
    ran = set()
    for case in ElementTree.parse(report).iter("testcase"):
        ran.add(case.attrib["name"].partition("[")[0])
        for bad in (*case.iter("failure"), *case.iter("error")):
            failed[case.attrib["name"]] = bad.attrib.get("message", "")
    assert ran == set(tests) or not tests
    return failed


@pytest.mark.parametrize("name", unusual.TESTS)
def test_an_unusual_backend_passes_what_is_hard_for_it(name: str, tmp_path: Path) -> None:
    assert run_kit(tmp_path, name, unusual.TESTS[name]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", unusual.TESTS)
def test_an_unusual_backend_passes_the_whole_kit(name: str, tmp_path: Path) -> None:
    assert run_kit(tmp_path, name, ()) == {}


def test_what_is_hard_for_an_unusual_backend_is_of_the_kit() -> None:
    known = {name for name in dir(BackendConformance) if name.startswith("test_")}
    assert {test for tests in unusual.TESTS.values() for test in tests} <= known
