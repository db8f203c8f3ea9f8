"""Findings of `engine doctor` about the machine, its Python and its environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from findings import NOTE, OK, PROBLEM, found

import engine
from engine.backends.install import pip_install
from engine.report.diagnosis import Status, machine
from engine.report.diagnosis.packages import CORE, Packages
from engine.report.diagnosis.variables import VARIABLES, look_at_variables


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
        ("ENGINE_EXTENSIONS", "no_such;a=1", PROBLEM, "no 'no_such', so no model can be built (in"),
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
    root = Path(__file__).parents[2]
    sources = [*root.glob("engine/**/*.py"), *root.glob("plugins/*/engine_*/**/*.py")]
    sources = [path for path in sources if path.parent.name != "diagnosis"]
    assert len(sources) > 50
    read = {name for path in sources for name in re.findall(r"\bENGINE_[A-Z_]+", path.read_text())}
    assert read - {"ENGINE_ERROR"} == set(VARIABLES)  # onnxruntime's word for one of its codes


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
    path = f"/nowhere{os.pathsep}{tmp_path}"
    finding = found(machine.look_at_machine(Packages(), {"PYTHONPATH": path}), "import")
    assert finding.status is PROBLEM
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


@pytest.mark.parametrize(
    ("size", "said"),
    [("3", "shared by 3 processes of this job"), ("x", "usable by this process")],
)
def test_the_processors_say_how_many_share_them_where_that_is_a_number(
    look, monkeypatch, size: str, said: str
) -> None:
    monkeypatch.setenv("ENGINE_LOCAL_SIZE", size)
    assert said in found(look(), "processors").detail
