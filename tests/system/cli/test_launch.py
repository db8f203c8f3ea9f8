"""`engine launch`, used wrongly; tests/distributed/test_launch.py has the rest."""

from __future__ import annotations

import json

import pytest

from engine.distributed.new_table import new_table


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("main.py",), "how many ranks? give -n N or --rank-table FILE"),
        (("-n", "0", "main.py"), "must be greater than or equal to 1"),
        (("-n", "2"), "missing argument 'PROGRAM'"),
        (("-n", "2", "no-such-program"), "no program 'no-such-program'; expected a Python script"),
        (("-n", "3", "--rank-table", "ranks.json", "main.py"), "-n 3, but ranks.json has 2 ranks"),
    ],
)
def test_wrong_use_is_named(cli, tmp_path, monkeypatch, arguments, says):
    (tmp_path / "ranks.json").write_text(json.dumps(new_table(["10.9.9.9"], [0, 1])))
    (tmp_path / "main.py").write_text("")
    monkeypatch.chdir(tmp_path)
    cli("launch", *arguments).fails(says, 2, out="")


def test_a_script_that_is_not_there_is_one_error(cli, tmp_path):
    done = cli("launch", "-n", 3, tmp_path / "none.py")
    assert (done.status, done.out) == (1, "")
    assert done.err == f"error: {tmp_path / 'none.py'}: no such file or directory\n"
