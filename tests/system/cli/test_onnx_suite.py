"""`engine plugins check --suite onnx` on the cpu backend, with a few of the suite's tests."""

from __future__ import annotations

import pytest

CHECK = ("plugins", "check", "cpu", "--suite", "onnx")
WAYS = ["passed", "random", "refused", "wrong", "failed", "died"]


def test_the_score_is_printed(cli) -> None:
    done = cli(*CHECK, "-k", "^test_(abs|and2d|squeezenet|training_dropout)$")
    lines = done.out.splitlines()
    assert lines[0].split() == ["tests", *WAYS, "all"]
    assert lines[1].split() == ["operators", "2", "1", "0", "0", "0", "0", "3"]
    assert lines[2].split() == ["light", "models", "1", "0", "0", "0", "0", "0", "1"]
    assert "random: test_training_dropout" in lines
    assert lines[-1] == "cpu: 2 of 3 operators, 1 of 1 light models passed"
    assert done.status == 0


def test_the_score_is_json_for_programs(cli) -> None:
    done = cli(*CHECK, "-k", "^test_abs$", "--json")
    values = done.json
    assert (values["suite"], values["backend"], values["ok"]) == ("onnx", "cpu", True)
    assert values["operators"] == {**dict.fromkeys(WAYS, 0), "passed": 1, "all": 1}
    [test] = values["tests"]
    assert (test["name"], test["status"], test["nodes"]) == ("test_abs", "passed", {"cpu": ["Abs"]})
    assert done.status == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-k", "("], "-k: '(': missing )"),
        (["-k", "no such test"], "no test has a name with 'no such test'"),
        (["--level", "manifest"], "the onnx suite has no levels"),
    ],
)
def test_what_chooses_no_test_is_wrong_usage(cli, arguments: list[str], said: str) -> None:
    done = cli(*CHECK, *arguments)
    assert said in done.err
    assert done.status == 2
