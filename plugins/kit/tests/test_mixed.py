"""Models on several targets, beside another one: by themselves, in the command and on its page."""

from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from engine_testing import models, onnx_suite
from engine_testing.command import check_backend
from engine_testing.making import graph
from engine_testing.mixed import FAULTS, Status, compare_models, models_in, models_of_the_kit
from engine_testing.onnx_suite import Case
from engine_testing.page import page
from engine_testing.plugins import install

PLUGIN = """
import os
from dataclasses import replace
from engine.hookspecs import hookimpl
from engine_testing import null_device as null
from engine_testing.null_device import *

@hookimpl
def engine_backend():
    return replace(null.engine_backend(), name={name!r})

@hookimpl
def engine_load(source, options):
    from engine.reference.evaluator import Host, load

    return load(source, Host({name!r}, null.DEVICE, frozenset({refused!r}.split(","))))

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    results = null.engine_predict(context, inputs, outputs, deadline_s)
    {change}
    return results
"""
RARE = "NonZero,TopK,CumSum,ScatterND,If,SequenceAt,Softmax"


def backend(folder: Path, name: str, refused: str = "", change: str = "pass") -> str:
    source = PLUGIN.format(name=name, refused=refused, change=change)
    install(folder, name, f"plugin_{name}", source=source)
    return name


def test_a_backend_with_gaps_gives_the_same_with_another_behind_it(
    null_backend: str, plugin_folder: Path, tmp_path: Path
) -> None:
    name = backend(plugin_folder, "modest", refused=RARE)
    found = list(compare_models([name, null_backend], null_backend, models_of_the_kit(tmp_path)))
    took_part = [Status.WITHIN if name in result.nodes else Status.ELSEWHERE for result in found]
    assert [result.status for result in found] == took_part
    assert took_part.count(Status.WITHIN) > len(found) / 2
    mixed = {result.name: result.nodes for result in found if result.is_mixed}
    assert mixed["counted.onnx"] == {"modest": 3, "null": 1}
    assert mixed["crossed.onnx"] == {"modest": 3, "null": 2}
    assert all(result.predict_s > 0 and result.other_predict_s > 0 for result in found)


def test_a_model_that_a_backend_cannot_run_alone_is_refused(
    null_backend: str, plugin_folder: Path, tmp_path: Path
) -> None:
    name = backend(plugin_folder, "modest", refused="NonZero")
    paths = [path for path in models_of_the_kit(tmp_path) if path.stem in ("counted", "ranked")]
    counted, ranked = compare_models([name], null_backend, paths)
    assert (counted.status, ranked.status) == (Status.REFUSED, Status.WITHIN)
    assert "NonZero" in counted.reason
    assert not {counted.status, ranked.status} & {*FAULTS}


def test_an_output_that_differs_is_named(
    null_backend: str, plugin_folder: Path, tmp_path: Path
) -> None:
    change = "results = [results[0] * 1.1, *results[1:]] if len(results) == 2 else results"
    name = backend(plugin_folder, "wrong", change=change)
    paths = [path for path in models_of_the_kit(tmp_path) if path.stem in ("crossed", "counted")]
    counted, crossed = compare_models([name], null_backend, paths)
    assert (counted.status, crossed.status) == (Status.WITHIN, Status.DIFFERS)
    assert {output.name: output.is_within for output in crossed.outputs} == {"y": False, "z": True}
    assert crossed.reason.startswith("y: differs: 16 of 16 values")


def test_a_model_that_ends_the_process_is_one_result(
    null_backend: str, plugin_folder: Path, tmp_path: Path
) -> None:
    change = "os.kill(os.getpid(), 11) if len(results) == 2 else None"
    name = backend(plugin_folder, "crashing", change=change)
    paths = [models.affine(tmp_path), *models_of_the_kit(tmp_path)[1:2], models.scalar(tmp_path)]
    found = list(compare_models([name], null_backend, paths))
    assert [result.status for result in found] == [Status.WITHIN, Status.DIED, Status.WITHIN]
    assert "SIGSEGV" in found[1].reason


def test_a_model_that_the_other_target_refuses_is_no_fault(
    null_backend: str, tmp_path: Path
) -> None:
    [found] = compare_models([null_backend], null_backend, [models.unknown_operator(tmp_path)])
    assert found.status is Status.REFUSED
    assert found.reason.startswith("null does not run it: ")


def test_onnx_files_are_found_in_subfolders(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    paths = [models.affine(tmp_path), models.scalar(tmp_path / "b")]
    (tmp_path / "readme.txt").write_text("")
    assert models_in(tmp_path) == sorted(paths)


# ---------------------------------------------------------------------------- command and page


class Texts(HTMLParser):
    """The texts of a page, and whether each tag that opens closes again."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.found += [data.strip()] if data.strip() else []


def test_the_command_checks_mixed_placement_and_models_and_writes_a_page(
    null_backend: str, plugin_folder: Path, tmp_path: Path
) -> None:
    name = backend(plugin_folder, "modest", refused=RARE)
    folder = tmp_path / "models"
    folder.mkdir()
    models.affine(folder)
    html = tmp_path / "page.html"
    asked = [name, "--with", null_backend, "--models", str(folder), "-k", "closed_form"]
    done = CliRunner().invoke(check_backend, [*asked, "--json", "--html", str(html)])
    assert done.exit_code == 0, done.output
    values = json.loads(done.stdout)
    assert (values["backend"], values["suite"], values["ok"]) == ("modest", "kit", True)
    assert values["levels"]["semantics"]["passed"] == 3
    assert values["mixed"]["targets"] == ["modest", "null"]
    assert {test["status"] for test in values["mixed"]["tests"]} == {"within", "elsewhere"}
    [affine] = values["models"]["tests"]
    assert (affine["name"], affine["nodes"]) == ("affine.onnx", {"modest": 2})
    assert [(out["name"], out["verdict"]) for out in affine["outputs"]] == [("y", "equal")]
    texts = Texts(html.read_text())
    assert texts.open == []
    assert "Mixed placement: modest, null, against null" in texts.found
    assert {"semantics", "counted.onnx", "modest 3, null 1", "affine.onnx"} <= {*texts.found}


def case_of(folder: Path, op_type: str, compute: Callable[[np.ndarray], np.ndarray]) -> Case:
    """Return a case like those of onnx's suite, which takes seconds to make."""
    x = np.array([-2, 0, 3], np.float32)
    name, text = f"test_{op_type.lower()}", "(float[3] x) => (float[3] y) { y = %s(x) }"
    return Case(
        name=name,
        kind="node",
        model=graph(folder, name, text % op_type).read_bytes(),
        runs=(([x], [compute(x)]),),
        rtol=1e-3,
        atol=1e-7,
    )


def test_a_fault_of_the_target_behind_is_said_to_be_its_own(
    null_backend: str,
    plugin_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cases = [case_of(tmp_path, "Abs", np.abs), case_of(tmp_path, "Neg", np.negative)]
    monkeypatch.setattr(onnx_suite, "load_cases", lambda pattern: cases)
    wrong = "results = [result + 1 for result in results]"
    name = backend(plugin_folder, "modest", refused="Abs")
    behind = backend(plugin_folder, "behind", refused="Neg", change=wrong)
    html = tmp_path / "page.html"
    asked = ["--suite", "onnx"]
    both = [name, "--with", behind, *asked]
    done = CliRunner().invoke(check_backend, [*both, "--json", "--html", str(html)])
    assert done.exit_code == 0, done.output
    values = json.loads(done.stdout)
    assert (values["ok"], values["faults"], values["faults_elsewhere"]) == (True, 0, 1)
    found = {test["name"]: (test["status"], test["only_on"]) for test in values["tests"]}
    assert found == {"test_abs": ("wrong", "behind"), "test_neg": ("passed", "")}
    assert "wrong on behind" in Texts(html.read_text()).found
    said = CliRunner().invoke(check_backend, both).output
    assert "wrong on behind, which ran the whole model: test_abs" in said
    assert said.splitlines()[-1] == "1 fault is of behind, which ran the whole model"
    alone = CliRunner().invoke(check_backend, [behind, *asked, "--json"])
    assert alone.exit_code == 1
    assert json.loads(alone.stdout)["faults"] == 1


def test_the_command_refuses_a_target_that_is_not_there(null_backend: str) -> None:
    done = CliRunner().invoke(check_backend, [null_backend, "--with", "absent"])
    assert done.exit_code == 1
    assert "absent" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--suite", "all", "-k", "x"], "expressions differ"),
        (["--suite", "all", "--level", "errors"], "no levels"),
        (["--models", "."], "no file ends in .onnx"),
    ],
)
def test_what_does_not_fit_together_is_wrong_usage(
    null_backend: str, tmp_path: Path, monkeypatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if arguments[0] == "--models":
        arguments = [*arguments, "-k", "manifest_says"]
    done = CliRunner().invoke(check_backend, [null_backend, *arguments])
    assert done.exit_code == 2
    assert said in done.output


def test_the_page_shows_failures_and_the_ledger_and_lets_no_text_be_markup() -> None:
    outcomes = ("passed", "failed", "skipped", "gap")
    test = {"name": "test_x", "level": "errors", "place": "a.py:1", "seconds": 1.5}
    counts = {"passed": 1, "refused": 2, "all": 3}
    values = {
        "backend": "<b>", "suite": "all", "ok": False,
        "kit": {
            "distribution": "d", "version": "1", "state": "ready", "seconds": 2.0,
            "levels": {"errors": dict.fromkeys(outcomes, 1)},
            "tests": [
                {**test, "outcome": "failed", "reason": "expected <1>"},
                {**test, "outcome": "gap", "reason": "no & never"},
                {**test, "outcome": "skipped", "reason": "no device"},
            ],
        },
        "onnx": {
            "operators": counts, "light_models": counts,
            "tests": [
                {"name": "test_a", "status": "refused", "reason": "no kernel", "only_on": ""},
                {"name": "test_b", "status": "refused", "reason": "no kernel", "only_on": ""},
                {"name": "test_c", "status": "wrong", "reason": "off", "only_on": ""},
            ],
        },
    }  # fmt: skip
    texts = Texts(page(values))
    assert texts.open == []
    assert {"<b>:", "something failed", "no & never", "no device"} <= {*texts.found}
    assert "expected <1>\na.py:1" in texts.found
    wrong, refused = texts.found.index("off"), texts.found.index("no kernel")
    assert wrong < refused, "faults come first"
    assert texts.found[refused + 1] == "test_a, test_b"
