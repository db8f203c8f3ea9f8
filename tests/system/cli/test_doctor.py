"""`engine doctor`: what it prints, for people and for programs, and with which status."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import engine

CHECKS = "return [Check('beads', True, 'nine'), Check('wire', False, 'rusty', 'run: oil wire')]"


def test_a_backend_in_order_has_status_0(cli):
    done = cli("doctor", "cpu")
    assert (done.status, done.err) == (0, "")
    machine, cpu, summary = done.out.split("\n\n")
    assert machine.startswith("machine\nok       Python: ")
    assert f"ok       core: inference-engine {engine.__version__} in " in machine
    assert cpu.startswith(f"cpu inference-engine-cpu {engine.__version__}\nok       state: ready")
    assert "onnxruntime" in cpu
    assert summary == "no problem\n"


def test_memory_of_devices_is_a_finding(cli):
    assert re.search(r"\nok       memory: cpu:0: [\d.]+ GB free, [\d.]+ [GM]B used\n",
                     cli("doctor", "cpu").out)  # fmt: skip
    [cpu] = cli("doctor", "cpu", "--json").json["backends"]
    assert cpu["devices"][0]["free_bytes"] > 0


def test_a_problem_has_its_fix_below_it_and_status_1(cli, null_plugin, plugin_folder):
    null_plugin(plugin_folder, "abacus", CHECKS)
    done = cli("doctor", "abacus")
    assert done.status == 1
    assert "ok       beads: nine\nproblem  wire: rusty\n         fix: run: oil wire\n" in done.out
    assert done.out.endswith("\n\nproblems with: abacus\n")


def test_what_is_well_but_could_be_better_is_a_note(cli, null_plugin, plugin_folder):
    null_plugin(
        plugin_folder, "abacus", "return [Check('wire', True, 'thin', 'run: thicken wire')]"
    )
    done = cli("doctor", "abacus")
    assert "note     wire: thin\n         fix: run: thicken wire\n" in done.out
    assert done.status == 0


def test_a_step_that_helps_with_several_is_said_once(cli, null_plugin, plugin_folder):
    two = "return [Check(name, False, 'rusty', 'run: oil all') for name in ('wire', 'frame')]"
    null_plugin(plugin_folder, "abacus", two)
    assert cli("doctor", "abacus").out.count("fix: run: oil all") == 1


@pytest.mark.parametrize(
    ("diagnose", "said"),
    [
        ("ctypes.string_at(0)", "crashed with SIGSEGV in engine_diagnose"),
        ("time.sleep(600)", "did not answer within {limit} s in engine_diagnose"),
        ("sys.exit(0)", "engine_diagnose raised SystemExit: 0"),
    ],
)
def test_a_driver_that_crashes_or_hangs_is_a_line_like_any_other(
    cli, null_plugin, plugin_folder, diagnose, said
):
    null_plugin(plugin_folder, "faulty", diagnose)
    hangs = "600" in diagnose
    # A hanging part gets little time, and more where it does not come as far in that.
    for limit in (3, 12, 48) if hangs else (0,):
        done = cli("doctor", "faulty", *(("--timeout", limit) if limit else ("cpu",)))
        if said.format(limit=limit) in done.out:
            break
    assert (done.status, done.err) == (1, "")
    assert said.format(limit=limit) in done.out
    assert hangs or "\ncpu inference-engine-cpu " in done.out
    assert done.out.endswith("problems with: faulty\n")


def test_programs_get_the_same_as_json(cli, null_plugin, plugin_folder):
    null_plugin(plugin_folder, "abacus", CHECKS)
    done = cli("doctor", "abacus", "cpu", "--json")
    assert done.status == 1
    values = done.json
    assert values["ok"] is False
    assert {each["status"] for each in values["machine"]} <= {"ok", "note"}
    abacus, cpu = values["backends"]
    assert (abacus["name"], abacus["state"]) == ("abacus", "ready")
    assert abacus["findings"][-1] == {
        "status": "problem", "name": "wire", "detail": "rusty", "fix": "run: oil wire",
    }  # fmt: skip
    assert cpu["devices"][0]["device"] == "cpu:0"
    # The record is the one that `engine plugins` shows.
    listed = cli("plugins", "--json").json["backends"]
    [same] = [each for each in listed if each["name"] == "cpu"]
    for found in (cpu, same):  # looked at one after the other
        assert found["devices"][0].pop("free_bytes") > 0
        assert found["devices"][0].pop("used_bytes") > 0
    assert {key: cpu[key] for key in same} == same


def test_without_a_name_every_backend_is_looked_at(cli, null_plugin, plugin_folder):
    null_plugin(plugin_folder, "abacus", CHECKS)
    names = [each["name"] for each in cli("doctor", "--json").json["backends"]]
    assert {"abacus", "cpu", "gpu_trt", "ascend_ge"} <= {*names}
    assert len(names) == len({*names})


def test_a_name_that_nothing_offers_is_a_problem(cli):
    done = cli("doctor", "abacus")
    assert done.status == 1
    assert "problem  state: not installed: " in done.out
    assert "installed: " in done.out


def test_a_misspelt_variable_is_told_the_right_name(cli, monkeypatch):
    monkeypatch.setenv("ENGINE_DISABLED_BACKEND", "x")
    done = cli("doctor", "cpu")
    assert done.status == 0
    assert "note     ENGINE_DISABLED_BACKEND: nothing of this project reads it" in done.out
    assert "did you mean ENGINE_DISABLED_BACKENDS?" in done.out
    assert "fix: run: unset ENGINE_DISABLED_BACKEND\n" in done.out


def test_a_backend_that_was_given_little_time_is_to_get_more(cli):
    done = cli("doctor", "cpu", "--timeout", "0.001")
    assert done.status == 1
    assert "did not answer within 0.001 s" in done.out
    assert "fix: give it longer: --timeout 30; if it does not answer, run: pip install" in done.out


def test_a_wrong_time_limit_is_wrong_usage(cli):
    cli("doctor", "--timeout", "0").fails("seconds above 0", 2, out="")


@pytest.mark.parametrize(
    "columns", [40, *(pytest.param(width, marks=pytest.mark.slow) for width in (80, 200))]
)
def test_lines_fit_the_terminal_except_those_to_be_copied(terminal, null_plugin, tmp_path, columns):
    fix = "run: pip install " + "a-distribution " * 12
    null_plugin(tmp_path, "abacus", f"return [Check('wire', False, 'rusty ' * 20, {fix!r})]")
    done = terminal("doctor", "abacus", columns=columns, PYTHONPATH=str(tmp_path))
    assert done.status == 1
    bars, _, results = done.out.rpartition("\x1b[2K")
    assert "asking the backends" in bars
    lines = re.sub(r"\x1b\[[0-9;]*m", "", results).splitlines()
    assert f"         fix: {fix}".rstrip() in [line.rstrip() for line in lines]
    assert all(len(line) <= columns for line in lines if "fix: " not in line)
    assert "\x1b[32mok" in results  # green
    assert "\x1b[1;31mproblem" in results


def test_an_interrupt_is_status_130(terminal, null_plugin, tmp_path):
    null_plugin(tmp_path, "hanging", "time.sleep(600)")
    done = terminal(
        "doctor", "hanging", press="\x03", when="asking the backends", PYTHONPATH=str(tmp_path)
    )
    assert done.status == 130
    assert done.out.rstrip().endswith("interrupted")
    assert "Traceback" not in done.out


def test_the_help_explains_findings_and_statuses(cli):
    done = cli("doctor", "--help")
    assert (done.status, done.err) == (0, "")
    for text in ("Usage: engine doctor [OPTIONS] [NAME]...", "note", "problem", "Exit status"):
        assert text in done.text


# ------------------------------------------------------------------------------ an engine.py beside

COMMANDS = ([sys.executable, "-m", "engine_command"], [Path(sys.executable).with_name("engine")])


@pytest.mark.parametrize("command", COMMANDS, ids=["module", "script"])
@pytest.mark.parametrize("python_path", ["", pytest.param(".", marks=pytest.mark.slow)])
def test_a_file_of_ones_own_named_engine_is_found_and_misleads_no_command(
    tmp_path, command, python_path
):
    if not Path(command[0]).exists():
        pytest.skip("the command is not installed beside this Python")
    (tmp_path / "engine.py").write_text("raise SystemExit('the wrong one')")
    words = [*command, "doctor", "cpu", "--json"]
    env = {**os.environ, "PYTHONPATH": python_path}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    facts = json.loads(done.stdout)
    [found] = [finding for finding in facts["machine"] if finding["name"] == "import"]
    assert found["status"] == "problem"
    assert found["fix"] == f"rename {tmp_path / 'engine.py'}"
    assert facts["backends"][0]["state"] == "ready"  # the probe found the package, too
