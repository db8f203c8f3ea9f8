"""`engine plugins new`: a repository for a new backend."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

WITHOUT_KIT = """
import sys
sys.modules["engine_testing"] = None
from engine.cli import main
sys.exit(main(["plugins", *sys.argv[1:]]))
"""


def test_it_writes_a_repository_and_says_how_to_go_on(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = cli("plugins", "new", "my_runtime")
    assert (done.status, done.err) == (0, "")
    first, _, *rest = done.out.splitlines()
    folder = tmp_path / "inference-engine-my-runtime"
    count = sum(path.is_file() for path in folder.rglob("*"))
    assert first == (
        f"wrote inference-engine-my-runtime: a backend 'my_runtime' and its tests, {count} files"
    )
    assert rest == [
        "next:",
        "  cd inference-engine-my-runtime",
        '  pip install -e ".[tests]"',
        "  engine plugins check my_runtime",
    ]
    for name in ("pyproject.toml", "engine_my_runtime/__init__.py", ".github/workflows/ci.yml"):
        assert (folder / name).read_text()


@pytest.mark.parametrize("words", [("--json", "new"), ("new", "--json")])
def test_programs_get_the_files_as_json(cli, tmp_path, words):
    folder = tmp_path / "a folder"
    done = cli("plugins", *words, "zz9", "--out", folder)
    assert (done.status, done.err) == (0, "")
    values = done.json
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert values.pop("files") == files
    assert values == {
        "backend": "zz9",
        "distribution": "inference-engine-zz9",
        "module": "engine_zz9",
        "folder": str(folder),
        "next": [f"cd '{folder}'", 'pip install -e ".[tests]"', "engine plugins check zz9"],
    }


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["My-Runtime"], 2, "did you mean 'my_runtime'?"),
        (["class"], 2, "'class' is a keyword of Python"),
        (["ascend"], 2, "'ascend' is a word of the engine"),
        (["zz9", "--out", "full"], 1, "full: the folder is not empty"),
        (["zz9", "--out", "full/file"], 1, "full/file: there is a file of this name"),
        (["zz9", "--out", "full/file/x"], 1, "full/file/x: not a directory"),
        ([], 2, "missing argument 'NAME'"),
    ],
)
def test_what_cannot_be_made_is_one_line_of_error(
    cli, tmp_path, monkeypatch, arguments, status, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("")
    done = cli("plugins", "new", *arguments)
    assert (done.status, done.out) == (status, "")
    assert done.err.startswith("error: ")
    assert said in done.err
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "file"]


def test_a_place_where_nobody_can_write_is_an_error(cli):
    done = cli("plugins", "new", "zz9", "--out", "/proc/zz9")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("error: /proc/zz9: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_an_error(cli, tmp_path):
    tmp_path.chmod(0o500)
    done = cli("plugins", "new", "zz9", "--out", tmp_path / "new")
    tmp_path.chmod(0o700)
    done.fails("new: permission denied")
    assert list(tmp_path.iterdir()) == []


def test_the_help_has_examples(cli):
    done = cli("plugins", "new", "--help")
    assert (done.status, done.err) == (0, "")
    assert "Usage: engine plugins new [OPTIONS] NAME" in done.text
    for word in ("--out", "--json", "Examples:", "engine plugins new my_runtime", "Exit status"):
        assert word in done.text


@pytest.mark.parametrize("words", [("new", "zz9"), ("check", "cpu"), ("new", "zz9", "--out", "x")])
def test_without_the_kit_it_says_what_to_install(words, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_KIT, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "the conformance kit is not installed; run: pip install" in done.stderr
    assert list(tmp_path.iterdir()) == []
