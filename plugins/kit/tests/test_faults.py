"""Every test of the kit is proven: by a backend with one fault that it catches."""

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pytest
from faulty import FAULTS, Fault

from engine_testing import BackendConformance, plugins
from engine_testing.plugins import GROUP

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
KIT = {name for name in dir(BackendConformance) if name.startswith("test_")}
# All faults run in one fixture; a busy machine takes long for that.
LIMIT_S = 900
pytestmark = pytest.mark.timeout(LIMIT_S)
WHOLE = "test_a_backend_without_a_fault_passes_all_of_it"
# Null has one device; plugins/kit/tests/test_null.py runs these tests on null_mesh.
NEEDS = "does not announce 'several_devices'"
# The kit's tests of itself; plugins/kit/tests/test_kit.py has them.
OF_ITSELF = {"test_gaps_name_tests_of_the_kit"}

CLASSES = """
import faulty
from engine_testing import BackendConformance

for name in faulty.FAULTS:
    globals()[f"Test_{name}"] = type(
        f"Test_{name}", (BackendConformance,), {"backend": name, "option": "delay_s"}
    )
    if name != "faultless":  # each scenario of ranks by itself: a few are chosen
        globals()[f"Test_{name}"]._together = {name: {}}
"""

Outcomes = dict[tuple[str, str], list[str | None]]
"""By backend and test: for each parameter the text of its failure, or None where it passed."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Outcomes:
    """Run pytest over the tests that are to catch each fault that is asked for, and its control.

    Two processes at a time.
    """
    asked = {
        item.callspec.params["fault"].name
        for item in request.session.items
        if item.path == Path(__file__) and hasattr(item, "callspec")
    }
    is_whole = any(item.name == WHOLE for item in request.session.items)
    folder = tmp_path_factory.mktemp("faulty")
    (folder / "faulty_kit.py").write_text(CLASSES)
    chosen = []
    entry_points = ""
    for fault in FAULTS.values():
        info = plugins.install(folder, fault.name, fault.target, source=fault.source)
        entry_points += (info / "entry_points.txt").read_text().partition("\n")[2]
        shutil.rmtree(info)
        if fault.name in asked - {"faultless"}:  # pytest before 9 would drop the rest of its class
            tests = (*fault.tests, fault.control)
            chosen.append([f"faulty_kit.py::Test_{fault.name}::{test}" for test in tests])
    # One distribution of them all: a hundred would be read again for every test.
    info = plugins.install(folder, "faults", "faulty")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{entry_points}")
    whole = ["faulty_kit.py::Test_faultless"] if is_whole else []
    halves = [half for half in ([*chain(*chosen[::2])], [*whole, *chain(*chosen[1::2])]) if half]
    found: Outcomes = defaultdict(list)
    with ThreadPoolExecutor() as pool:
        for outcomes in pool.map(lambda half: _run(folder, half), halves):
            for key, texts in outcomes.items():
                found[key] = texts
    return found


def _run(folder: Path, chosen: list[str]) -> Outcomes:
    report = folder / f"report_{len(chosen)}_{hash(chosen[0])}.xml"
    search = os.pathsep.join([str(folder), str(HERE), *(path for path in sys.path if path)])
    child = subprocess.run(
        # -P: a folder that is on the path twice has its distribution twice.
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=native",
         "-c", str(ROOT / "pyproject.toml"), f"--rootdir={folder}", f"--junitxml={report}",
         f"--basetemp={report.with_suffix('')}", *dict.fromkeys(chosen)],
        env={
            **os.environ,
            "PYTHONPATH": search,
            "FAULTY_FOLDER": str(folder),
            "OPENBLAS_NUM_THREADS": "1",  # numpy's threads only get into each other's way here
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    assert child.returncode in (0, 1), child.stdout[-4000:] + child.stderr[-4000:]
    found: Outcomes = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        backend = case.attrib["classname"].rpartition("Test_")[2]
        test = case.attrib["name"].partition("[")[0]
        bad = [child for child in case if child.tag in ("failure", "error", "skipped")]
        texts = [f"{child.attrib.get('message', '')}\n{child.text or ''}" for child in bad]
        found[backend, test].append("\n".join(texts) or None)
    return found


@pytest.mark.parametrize(
    "fault",
    [
        # A few are quick to try; all of them take a minute of two cores.
        pytest.param(fault, marks=() if index % 48 == 1 else pytest.mark.slow, id=fault.name)
        for index, fault in enumerate(FAULTS.values())
    ],
)
def test_the_kit_catches_the_fault_and_says_so(fault: Fault, outcomes: Outcomes) -> None:
    for test in fault.tests:
        texts = [text for text in outcomes[fault.name, test] if text is not None]
        assert texts, f"{test} passed in spite of the fault"
        assert any(fault.says in text for text in texts), f"{test} failed otherwise: {texts[0]}"
    control = outcomes[fault.name, fault.control]
    assert control, f"{fault.control} did not run"
    assert control == [None] * len(control), f"the fault breaks {fault.control} too: {control}"


@pytest.mark.slow
def test_a_backend_without_a_fault_passes_all_of_it(outcomes: Outcomes) -> None:
    ran = {test for backend, test in outcomes if backend == "faultless"}
    assert ran == KIT
    failed = {
        test: texts
        for test in ran
        if (texts := [text for text in outcomes["faultless", test] if text and NEEDS not in text])
    }
    assert failed == {}


def test_every_test_of_the_kit_has_caught_a_fault() -> None:
    proven = {test for fault in FAULTS.values() for test in fault.tests}
    assert proven <= KIT, "a fault names a test that is not of the kit"
    assert KIT - proven - OF_ITSELF == set()
