"""The repository that `engine plugins new` writes: its texts, and the backend in it."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from engine.config.schema import KNOWN
from engine_testing.check import LEVELS, Outcome, check
from engine_testing.new import FILES, RESERVED, render, require_name, write
from engine_testing.plugins import install

TEMPLATE = Path(__file__).parents[1] / "engine_testing/template"
PLUGINS = Path(__file__).parents[2]


@pytest.fixture
def made(plugin_folder: Path) -> str:
    """The name of a backend that the template makes, installed while the test runs."""
    files = render("my_runtime")
    write(plugin_folder / "new", files)
    (plugin_folder / "new/engine_my_runtime").rename(plugin_folder / "engine_my_runtime")
    points = tomllib.loads(files["pyproject.toml"])["project"]["entry-points"]
    for number, (group, entries) in enumerate(points.items()):
        for name, value in entries.items():
            install(plugin_folder, name, value, group=group, distribution=f"made-{number}")
    return "my_runtime"


@pytest.mark.slow  # tests/wheel/rehearse.py checks it too, installed from wheels
def test_the_backend_of_the_template_passes_the_whole_kit(made: str) -> None:
    report = check(made)
    assert report.of(Outcome.FAILED) == []
    assert report.of(Outcome.GAP) == []
    assert {*report.levels()} >= {*LEVELS}


def test_the_tests_of_the_template_pass(made: str, plugin_folder: Path) -> None:
    quick = "test_backend or closed_form or imports_no_runtime"
    words = ("-q", "-p", "no:cacheprovider", "tests", "-k", quick)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=plugin_folder / "new",
        env={"PYTHONPATH": str(plugin_folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)


def test_every_file_of_the_template_is_written() -> None:
    folders = (TEMPLATE, TEMPLATE / "docs")
    there = [path for folder in folders for path in folder.iterdir() if path.is_file()]
    assert {str(path.relative_to(TEMPLATE)) for path in there} == {*filter(None, FILES.values())}


def test_the_templates_own_name_is_in_no_file_of_another_backend() -> None:
    files = render("zz9_x")
    text = "\n".join([*files, *files.values()])
    assert re.findall(r"(?<![a-z])mine(?![a-z])|[a-z]Mine", text) == []
    assert text.count("zz9_x") > 20
    assert "inference-engine-zz9-x" in text
    assert "class TestZz9X(BackendConformance)" in files["engine_zz9_x/conformance.py"]


def test_the_template_itself_is_the_repository_of_a_backend_named_mine() -> None:
    for path, text in render("mine").items():
        if FILES[path] and not path.startswith("docs/"):
            assert text == (TEMPLATE / FILES[path]).read_text()


def test_every_link_of_a_page_leads_to_a_heading_of_the_repository() -> None:
    files = render("my_runtime")
    pages = {path: text for path, text in files.items() if path.endswith(".md")}
    for path, text in pages.items():
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            name, _, heading = link.partition("#")
            target = str(Path(path).parent / name) if name else path
            assert target in files, (path, link)
            titles = re.findall(r"^#+ (.+)$", files[target], re.M)
            anchors = [re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles]
            assert not heading or heading in anchors, (path, link)


def test_the_readme_links_every_page() -> None:
    files = render("my_runtime")
    linked = set(re.findall(r"\]\((docs/\w+\.md)", files["README.md"]))
    assert linked == {path for path in files if path.startswith("docs/")}
    assert len(linked) == 6


def test_a_plugin_of_any_core_of_this_contract_is_made() -> None:
    project = tomllib.loads(render("x1")["pyproject.toml"])["project"]
    assert project["dependencies"] == ["inference-engine>=0.1,<1"]
    assert "inference-engine-testing>=0.1,<1" in project["optional-dependencies"]["tests"]


def test_the_workflow_runs_tox_on_each_python_of_tox() -> None:
    files = render("x1")
    job = yaml.safe_load(files[".github/workflows/ci.yml"])["jobs"]["test"]
    tox = configparser.ConfigParser(interpolation=None)
    tox.read_string(files["tox.ini"])
    minors = [python.removeprefix("3.") for python in job["strategy"]["matrix"]["python"]]
    assert tox["tox"]["env_list"] == f"py3{{{','.join(minors)}}}, lint"
    commands = [step["run"].partition(" #")[0] for step in job["steps"] if "run" in step]
    assert commands == ["pip install tox", "tox -e py", "tox -e lint"]
    assert tox.has_section("testenv:lint")


# ---------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("My-Runtime", "did you mean 'my_runtime'"),
        ("x__y", "did you mean 'x_y'"),
        ("_x", "did you mean 'x'"),
        ("9x", "expected a name of lower-case letters"),
        ("", "expected a name of lower-case letters"),
        ("ü", "expected a name of lower-case letters"),
        ("x\n", "did you mean 'x'"),
        ("../x", "did you mean 'x'"),
        ("class", "a keyword of Python"),
        ("gpu", "a word of the engine"),
        ("reference", "a word of the engine"),
        ("common", "a word of the engine"),
    ],
)
def test_a_name_that_no_backend_can_have_is_refused(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        require_name(name)


@pytest.mark.parametrize("spelt", ["zz9", "ZZ9"])
def test_the_name_of_an_installed_backend_is_refused_with_its_owner(
    plugin_folder: Path, spelt: str
) -> None:
    require_name("zz9")
    install(plugin_folder, spelt, "no_such_module", distribution="of-others")
    with pytest.raises(ValueError, match=f"'{spelt}' is installed already, by of-others; choose"):
        require_name("zz9")


def test_a_module_that_is_there_is_not_hidden(plugin_folder: Path) -> None:
    (plugin_folder / "engine_zz9.py").write_text("")
    with pytest.raises(ValueError, match="a module 'engine_zz9' is there already"):
        require_name("zz9")


def test_names_of_this_project_are_reserved() -> None:
    modules = {path.name.removeprefix("engine_") for path in PLUGINS.glob("*/engine_*")}
    sections = {name.removesuffix("_context") for name in KNOWN if name.endswith("_context")}
    assert len(modules) == 7
    assert modules | sections | {"command", "cpu"} <= RESERVED


# -------------------------------------------------------------------------------------- writing


def test_a_folder_may_be_there_if_it_is_empty(tmp_path: Path) -> None:
    write(tmp_path, {"a/b": "1", "c": "2"})
    assert (tmp_path / "a/b").read_text() == "1"
    with pytest.raises(OSError, match="the folder is not empty"):
        write(tmp_path, {"d": "3"})
    assert not (tmp_path / "d").exists()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("kept")
    with pytest.raises(FileExistsError, match="there is a file of this name"):
        write(tmp_path / "f", {"a": ""})
    with pytest.raises(NotADirectoryError):
        write(tmp_path / "f/x", {"a": ""})
    assert (tmp_path / "f").read_text() == "kept"


WRITE = """
import resource, sys
from pathlib import Path
from engine_testing.new import render, write
resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, 2**19))  # the last file is longer
write(Path(sys.argv[1]), {**render("x1"), "zzz": "x" * 2**20})
"""


@pytest.mark.parametrize("folder", ["", "made", "deep/er/made"])
def test_after_an_error_half_way_nothing_is_left(tmp_path: Path, folder: str) -> None:
    (tmp_path / "out").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(tmp_path / "out" / folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "File too large" in done.stderr
    assert list(tmp_path.rglob("*")) == [tmp_path / "out"]
