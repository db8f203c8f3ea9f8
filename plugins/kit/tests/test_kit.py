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

from engine_testing import BackendConformance, plugins, sometimes
from engine_testing.duties import NEVER_A_GAP

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

PLACED = "test_placement_names_backend_device_provider_and_reason"
WHOLE = "test_whole_numbers_arrive_to_the_last_bit"
SCALAR = "test_a_scalar_stays_a_scalar"
DATA = "test_shapes_that_depend_on_the_data_are_exact"
CLOSED_FORM = "test_predict_matches_the_closed_form"
NAMES = "test_gaps_name_tests_of_the_kit"
WHO = "test_the_manifest_says_who_the_backend_is"
DEVICES = "test_devices_are_found_or_a_reason_is_given"
PRECISE = ["test_sums_of_products_are_as_precise_as_float32",
           "test_arithmetic_is_as_precise_as_float32"]  # fmt: skip
SKIPPED = {
    "test_a_predict_stops_at_its_deadline": "does not announce 'deadlines'",
    "test_symbolic_dims_take_any_size": "does not announce 'dynamic_shapes'",
    "test_a_misspelt_option_is_told_the_right_one": "set `option`",
}

# Classes of the kit: the backend, what else the class declares, and the tests that are run of it.
KIT: dict[str, tuple[str, dict[str, object], list[str]]] = {
    "KnownGap": ("names_another_device", {"gaps": {PLACED: "it lives next door"}}, [PLACED]),
    "KnownGapOfOneParameter": ("takes_integers_for_doubles",
        {"gaps": {f"{WHOLE}[int64]": "doubles have 53 bits"}}, [WHOLE]),
    "GapThatIsNone": ("faultless", {"gaps": {SCALAR: "it once did not"}}, [SCALAR, NAMES]),
    "GapThatNamesNothing": ("faultless", {"gaps": {"test_a_scaler": "misspelt"}}, [NAMES]),
    "GapThatNamesNoCase": ("faultless", {"gaps": {f"{WHOLE}[int3]": "no such"}}, [NAMES]),
    "GapOfNoParameter": ("faultless", {"gaps": {f"{SCALAR}[float32]": "it has none"}}, [NAMES]),
    "Crashing": ("crashing", {"crashes": {SCALAR: "the runtime reads dims[0]"}},
        [SCALAR, CLOSED_FORM, NAMES]),
    "CrashThatNamesNothing": ("faultless", {"crashes": {"test_a_scaler": "misspelt"}}, [NAMES]),
    "GapOfAnOperator": ("without_nonzero", {"gaps": {"op:NonZero": "it has no NonZero"}},
        [DATA, "test_a_buffer_of_another_size_is_refused_by_name", CLOSED_FORM, NAMES]),
    "GapOfAnyOperator": ("without_nonzero", {"gaps": {"op:*": "it has few"}}, [DATA, NAMES]),
    "WithoutAGapOfAnOperator": ("without_nonzero", {}, [DATA]),
    "GapOfAnOperatorThatIsThere": ("faultless", {"gaps": {"op:NonZero": "it once had none"}},
        [DATA]),
    "GapOfNoOperator": ("faultless", {"gaps": {"op:NonZeros": "misspelt"}}, [NAMES]),
    "GapOfAType": ("narrow", {"gaps": {"dtype:int64": "it has 32 bits"}},
        [WHOLE, CLOSED_FORM, NAMES]),
    "WithoutAGapOfAType": ("narrow", {}, [WHOLE]),
    "GapOfATypeThatIsThere": ("faultless", {"gaps": {"dtype:int64": "it once had none"}},
        [WHOLE]),
    "GapOfNoType": ("faultless", {"gaps": {"dtype:int65": "misspelt"}}, [NAMES]),
    "GapThatIsNever": ("faultless", {"gaps": {CLOSED_FORM: "it is wrong"}}, [NAMES]),
    "GapThatSometimesPasses": ("faultless", {"gaps": {SCALAR: sometimes("by chance")}},
        [SCALAR, NAMES]),
    "GapThatSometimesFails": ("names_another_device", {"gaps": {PLACED: sometimes("by chance")}},
        [PLACED]),
    "Half": ("computes_in_half", {"rtol": 1e-2}, PRECISE),
    "Modest": ("modest", {}, [*SKIPPED, CLOSED_FORM]),
    "WithoutDevice": ("without_device", {}, [SCALAR, WHO, DEVICES]),
    "Absent": ("absent", {}, [SCALAR, WHO]),
    "FirstType": ("two_types", {}, [SCALAR]),
    "SecondType": ("two_types", {"device_type": "npu"}, [SCALAR]),
    "TypeThatIsNotThere": ("two_types", {"device_type": "dsp"}, [SCALAR]),
}  # fmt: skip
CLASSES = "from engine_testing import BackendConformance, sometimes\n" + "".join(
    f"Test{name} = type('Test{name}', (BackendConformance,), { ({'backend': backend, **more})!r})\n"
    for name, (backend, more, _) in KIT.items()
)

BEGIN = """
import os
from dataclasses import replace
from engine.hookspecs import hookimpl
from engine.types import Device, Devices, DType
from engine_testing import null_device as null
from engine_testing.null_device import *

@hookimpl
def engine_backend():
    info = null.engine_backend()
"""
SOURCES = {
    "modest": """
    return replace(info, name="modest", capabilities=frozenset())
""",
    "crashing": """
    return replace(info, name="crashing")

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    if inputs[0].ndim == 0:
        os._exit(139)
    return null.engine_predict(context, inputs, outputs, deadline_s)
""",
    "without_nonzero": """
    return replace(info, name="without_nonzero")

@hookimpl
def engine_load(source, options):
    return null.engine_load(source, replace(options, options={"unsupported_ops": "NonZero"}))
""",
    "narrow": """
    return replace(info, name="narrow")

@hookimpl
def engine_devices():
    [found] = null.engine_devices().found
    return Devices((replace(found, dtypes=frozenset(DType) - {DType.INT64}),))
""",
    "without_device": """
    return replace(info, name="without_device")

@hookimpl
def engine_devices():
    return Devices(reason="the probe is not plugged in", fix="plug it in")
""",
    "two_types": """
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
""",
}


FAULTY = ("computes_in_half", "faultless", "names_another_device", "takes_integers_for_doubles")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Return the outcome of each test ("passed", "failed", "skipped", "xfailed") and its text."""
    folder = tmp_path_factory.mktemp("kit")
    module = folder / "kit.py"
    module.write_text(CLASSES)
    for name in FAULTY:
        plugins.install(folder, name, f"faulty:{name}")
    for name, source in SOURCES.items():
        plugins.install(folder, name, f"{name}_plugin", source=BEGIN + source)
    chosen = [(name, test) for name, (_, _, tests) in KIT.items() for test in tests]
    report = folder / "report.xml"
    search = os.pathsep.join([str(folder), str(HERE), *(path for path in sys.path if path)])
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short",
         "-c", str(ROOT / "pyproject.toml"), f"--rootdir={folder}", f"--junitxml={report}",
         *(f"{module}::Test{name}::{test}" for name, test in chosen)],
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


@pytest.mark.parametrize(
    ("name", "ending", "text"),
    [
        (f"KnownGap.{PLACED}", "xfailed", "it lives next door"),
        (f"KnownGapOfOneParameter.{WHOLE}[int64]", "xfailed", ""),
        (f"KnownGapOfOneParameter.{WHOLE}[int32]", "passed", ""),
        (f"KnownGapOfOneParameter.{WHOLE}[uint64]", "failed", ""),  # the same fault, and not named
        (f"GapThatIsNone.{SCALAR}", "failed", ""),  # until it is removed
        (f"GapThatIsNone.{NAMES}", "passed", ""),
        (f"GapThatNamesNothing.{NAMES}", "failed", "test_a_scaler"),
        (f"GapThatNamesNoCase.{NAMES}", "failed", f"{WHOLE}[int3]' names no case"),
        (f"GapThatNamesNoCase.{NAMES}", "failed", f"{WHOLE}[int8]'"),  # what there is
        (f"GapOfNoParameter.{NAMES}", "failed", f"{SCALAR}[float32]' names no case"),
        (f"GapOfAnOperator.{DATA}", "xfailed", "op:NonZero: it has no NonZero"),
        ("GapOfAnOperator.test_a_buffer_of_another_size_is_refused_by_name", "xfailed", ""),
        (f"GapOfAnOperator.{CLOSED_FORM}[3]", "passed", ""),
        (f"GapOfAnOperator.{NAMES}", "passed", ""),
        (f"GapOfAnyOperator.{DATA}", "xfailed", "op:*: it has few"),
        (f"GapOfAnyOperator.{NAMES}", "passed", ""),
        (f"WithoutAGapOfAnOperator.{DATA}", "failed", "'unsupported_ops' names its operator"),
        (f"WithoutAGapOfAnOperator.{DATA}", "failed", 'gaps = {"op:NonZero": "why"}'),
        (f"GapOfAnOperatorThatIsThere.{DATA}", "failed", "is closed"),
        (f"GapOfNoOperator.{NAMES}", "failed", "'op:NonZeros' names no operator"),
        (f"GapOfAType.{WHOLE}[int64]", "xfailed", "dtype:int64: it has 32 bits"),
        (f"GapOfAType.{WHOLE}[int32]", "passed", ""),
        (f"GapOfAType.{CLOSED_FORM}[3]", "passed", ""),
        (f"GapOfAType.{NAMES}", "passed", ""),
        (f"WithoutAGapOfAType.{WHOLE}[int64]", "failed", "element type int64 is not among those"),
        (f"WithoutAGapOfAType.{WHOLE}[int64]", "failed", 'gaps = {"dtype:int64": "why"}'),
        (f"GapOfATypeThatIsThere.{WHOLE}[int64]", "failed", "'dtype:int64' is closed"),
        (f"GapOfATypeThatIsThere.{WHOLE}[int32]", "passed", ""),
        (f"GapOfNoType.{NAMES}", "failed", "'dtype:int65' names no element type"),
        (f"GapThatIsNever.{NAMES}", "failed", "wrong in silence"),
        (f"GapThatSometimesPasses.{SCALAR}", "passed", ""),
        (f"GapThatSometimesPasses.{NAMES}", "passed", ""),
        (f"GapThatSometimesFails.{PLACED}", "xfailed", "by chance"),
        (f"Crashing.{SCALAR}", "xfailed", "not run: the runtime reads dims[0]"),
        (f"Crashing.{CLOSED_FORM}[3]", "passed", ""),
        (f"Crashing.{NAMES}", "passed", ""),
        (f"CrashThatNamesNothing.{NAMES}", "failed", "test_a_scaler"),
        *((f"Half.{test}", "passed", "") for test in PRECISE),
        *((f"Modest.{test}", "skipped", reason) for test, reason in SKIPPED.items()),
        (f"Modest.{CLOSED_FORM}[3]", "passed", ""),
        (f"WithoutDevice.{SCALAR}", "skipped", "the probe is not plugged in; plug it in"),
        (f"WithoutDevice.{WHO}", "passed", ""),
        (f"WithoutDevice.{DEVICES}", "passed", ""),
        (f"FirstType.{SCALAR}", "passed", ""),
        (f"SecondType.{SCALAR}", "failed", "the npu has no kernels"),
        (f"TypeThatIsNotThere.{SCALAR}", "skipped", "finds no device of type 'dsp' here"),
        (f"Absent.{SCALAR}", "failed", "'absent'"),
        (f"Absent.{WHO}", "failed", "'absent'"),
    ],
)
def test_gaps_crashes_and_devices_decide_how_a_test_ends(
    outcomes: dict[str, tuple[str, str]], name: str, ending: str, text: str
) -> None:
    found, said = outcomes[name]
    assert found == ending, said
    assert text in said


def test_every_other_case_of_the_kit_can_be_a_gap(order: list[str]) -> None:
    class Hopeless(BackendConformance):
        gaps: ClassVar = dict.fromkeys(
            (name for name in order if name.partition("[")[0] not in NEVER_A_GAP), "nothing works"
        )

    assert {f"{CLOSED_FORM}[3]", SCALAR} < {*order}
    Hopeless().test_gaps_name_tests_of_the_kit()


def test_the_gaps_that_the_guide_shows_exist() -> None:
    shown = re.findall(r'"(test_[^"]+)": "', (ROOT / "docs/backends/testing.md").read_text())

    class Shown(BackendConformance):
        gaps: ClassVar = dict.fromkeys(shown, "an example")

    assert any("[" in gap for gap in shown)
    Shown().test_gaps_name_tests_of_the_kit()


def test_the_simplest_tests_come_first(order: list[str]) -> None:
    tests = [name.partition("[")[0] for name in order]
    modules = [getattr(BackendConformance, test).__module__.rpartition(".")[2] for test in tests]
    assert [module for module, _ in itertools.groupby(modules)] == [
        "manifest", "semantics", "numerics", "arithmetic", "meanings", "ownership", "errors",
        "lifecycle", "settings", "process", "threads", "predict_options", "contexts",
        "compiled", "groups", "device_facts", "device_values", "strided_values", "profile",
        "weights", "sharing", "several_devices", "ranks", "speed", "lifecycle", "conformance",
    ]  # fmt: skip
    assert tests[0] == "test_the_manifest_says_who_the_backend_is"
    leaks = [test for test in tests if "leave_no_files" in test]
    assert tests[-1 - len(leaks) :] == [*leaks, "test_gaps_name_tests_of_the_kit"]
