"""`engine plugins check`: the conformance kit on an installed backend."""

from __future__ import annotations

import pytest

from engine_testing.check import LEVELS, check

OUTCOMES = ["passed", "failed", "skipped", "gaps"]


@pytest.fixture
def faulty(null_plugin, plugin_folder):
    """A backend that gives a scalar back as it came and crashes for what is empty."""
    predict = (
        "if inputs[0].ndim == 0: return [inputs[0]]\n"
        "    if inputs[0].size == 0: os.kill(os.getpid(), 11)"
    )
    return null_plugin(plugin_folder, "faulty", predict=predict, capabilities=frozenset())


@pytest.mark.slow
def test_the_cpu_backend_passes_every_level_of_the_kit(cli):
    done = cli("plugins", "check", "cpu")
    assert done.status == 0, done.out + done.err
    assert done.err == ""
    lines = done.out.splitlines()
    assert lines[0].split() == ["level", *OUTCOMES]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1 : 1 + len(LEVELS)]}
    assert list(rows) == [*LEVELS]
    basic = ("manifest", "semantics", "ownership", "errors", "lifecycle", "threads")
    assert all(int(rows[level][0]) > 5 for level in basic)
    assert all(row[1] == "0" for row in rows.values())
    assert lines[-1].startswith("cpu: ")
    assert "failed" not in lines[-1]


EXPRESSION = "a_scalar_stays or without_elements or closed_form or deadline"


@pytest.fixture
def checked(faulty, monkeypatch):
    """Let the command show what it found before: each look at the kit is a process a test."""
    reports = {}

    def once(name, **how):
        if name not in reports:
            reports[name] = check(name, **how)
        return reports[name]

    monkeypatch.setattr("engine_testing.command.check", once)
    return faulty


def test_failures_are_shown_with_their_messages_and_the_status_is_1(cli, checked):
    done = cli("plugins", "check", checked, "-k", EXPRESSION)
    assert (done.status, done.err) == (1, "")
    rows = {line.split()[0]: line.split()[1:] for line in done.out.splitlines()[1:3]}
    assert rows["semantics"] == ["3", "2", "0", "0"]
    scalar, crash = done.out.split("\n\n")[-3:-1]
    assert scalar.startswith("failed: test_a_scalar_stays_a_scalar (semantics)\n")
    assert "Not equal to tolerance" in scalar
    assert "level.py:" in scalar
    assert crash.startswith("failed: test_tensors_without_elements_are_tensors (semantics)\n")
    assert "crashed with SIGSEGV in engine_predict" in crash
    assert "skipped:\n" in done.out
    assert "backend 'faulty' does not announce 'deadlines'\n" in done.out
    assert done.out.splitlines()[-1].startswith("faulty: 3 passed, 2 failed, ")

    for words in (("--json", "check", checked), ("check", checked, "--json")):  # for programs
        done = cli("plugins", *words, "-k", EXPRESSION)
        assert done.status == 1
        values = done.json
        assert (values["backend"], values["suite"], values["ok"]) == ("faulty", "kit", False)
        counts = {"passed": 3, "failed": 2, "skipped": 0, "gap": 0}
        assert values["levels"]["semantics"] == counts
        outcomes = {test["name"]: test["outcome"] for test in values["tests"]}
        closed_form = "test_predict_matches_the_closed_form[{}]"
        assert {outcomes[closed_form.format(batch)] for batch in (1, 3, 4)} == {"passed"}
        [failed] = [test for test in values["tests"] if "scalar" in test["name"]]
        assert (failed["outcome"], "assert_close" in failed["traceback"]) == ("failed", True)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["no_such_backend"], 1, "backend 'no_such_backend' is not installed"),
        (["cpu", "--level", "all"], 2, "'all' is not one of manifest, semantics"),
        (["cpu", "-k", "("], 2, "wrong expression passed to '-k'"),
        (["cpu", "--timeout", "0"], 2, "seconds above 0"),
        (["cpu", "--suite", "none"], 2, "'none' is not one of"),
        ([], 2, "missing argument 'NAME'"),
    ],
)
def test_what_cannot_be_tested_is_one_line_of_error(cli, arguments, status, said):
    done = cli("plugins", "check", *arguments)
    assert (done.status, done.out) == (status, "")
    assert done.err.startswith("error: ")
    assert said in done.err


@pytest.mark.slow
def test_a_backend_that_hangs_fails_at_the_limit(cli, null_plugin, plugin_folder):
    hangs = {"predict": "time.sleep(600)", "capabilities": frozenset()}
    null_plugin(plugin_folder, "hanging", **hangs)
    arguments = ("plugins", "check", "hanging", "-k", "a_scalar_stays", "--timeout", "20")
    done = cli(*arguments)
    assert done.status == 1
    assert "did not end within 20 s in engine_predict" in done.out


def test_outside_a_checkout_a_bar_shows_the_progress_and_goes_away_and_leaves_nothing(
    terminal, tmp_path
):
    done = terminal(
        "plugins", "check", "cpu", "--level", "manifest", columns=60, cwd=tmp_path,
    )  # fmt: skip
    assert done.status == 0
    bars, _, results = done.out.rpartition("\x1b[2K")
    assert "testing cpu" in bars
    assert "testing cpu" not in results
    assert "manifest" in results
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_interrupt_is_status_130(terminal, null_plugin, tmp_path):
    hangs = {"predict": "time.sleep(600)", "capabilities": frozenset()}
    null_plugin(tmp_path, "hanging", **hangs)
    done = terminal(
        "plugins", "check", "hanging", "-k", "a_scalar_stays",
        press="\x03", when="testing hanging", PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert done.status == 130
    assert done.out.rstrip().endswith("interrupted")
    assert "Traceback" not in done.out


def test_the_help_explains_levels_and_statuses(cli):
    done = cli("plugins", "check", "--help")
    assert (done.status, done.err) == (0, "")
    assert "Usage: engine plugins check [OPTIONS] NAME" in done.text
    for word in ("--suite", "--level", "-k", "--json", "manifest", "threads", "Exit status"):
        assert word in done.text
