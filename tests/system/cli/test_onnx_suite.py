"""`engine plugins check --suite onnx` on the cpu backend, with a few of the suite's tests."""

from __future__ import annotations

import functools

import pytest

from engine_testing import onnx_suite

CHECK = ("plugins", "check", "cpu", "--suite", "onnx")
WAYS = ["passed", "random", "refused", "wrong", "failed", "died"]


def test_the_score_is_printed_and_is_json_for_programs(cli, monkeypatch):
    pattern = "^test_(abs|and2d|squeezenet|training_dropout)$"
    results, run = [], onnx_suite.run

    def once(name, cases, **how):  # each look takes seconds
        results.extend(run(name, cases, **how) if not results else ())
        return results

    monkeypatch.setattr(onnx_suite, "run", once)
    monkeypatch.setattr(onnx_suite, "load_cases", functools.cache(onnx_suite.load_cases))
    done = cli(*CHECK, "-k", pattern)
    lines = done.out.splitlines()
    assert lines[0].split() == ["tests", *WAYS, "all"]
    assert lines[1].split() == ["operators", "2", "1", "0", "0", "0", "0", "3"]
    assert lines[2].split() == ["light", "models", "1", "0", "0", "0", "0", "0", "1"]
    assert "random: test_training_dropout" in lines
    assert lines[-1] == "cpu: 2 of 3 operators, 1 of 1 light models passed"
    assert done.status == 0
    done = cli(*CHECK, "-k", pattern, "--json")
    values = done.json
    assert (values["suite"], values["backend"], values["ok"]) == ("onnx", "cpu", True)
    counts = {**dict.fromkeys(WAYS, 0), "passed": 2, "random": 1, "all": 3}
    assert values["operators"] == counts
    [test] = [test for test in values["tests"] if test["name"] == "test_abs"]
    assert (test["status"], test["nodes"]) == ("passed", {"cpu": ["Abs"]})
    assert done.status == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-k", "("], "-k: '(': missing )"),
        (["-k", "no such test"], "no test has a name with 'no such test'"),
        (["--level", "manifest"], "the onnx suite has no levels"),
    ],
)
def test_what_chooses_no_test_is_wrong_usage(cli, arguments, said):
    cli(*CHECK, *arguments).fails(said, 2)
