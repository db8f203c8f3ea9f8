"""The documents are true: code runs, links lead somewhere, tables are whole."""

from __future__ import annotations

import errno
import importlib
import logging
import pickle
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from html import unescape
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import yaml

import engine
from engine import hookspecs, types
from engine.types import Capability
from engine_testing.check import LEVELS
from engine_testing.new import render

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("**/README.md")]
    if not {".tox", ".venv", "build", "node_modules"} & set(path.relative_to(ROOT).parts)
)
BACKENDS = ROOT / "docs/backends"
REFERENCE = (BACKENDS / "reference.md").read_text()
HOOKS = [name for name in vars(hookspecs) if name.startswith("engine_")]


def blocks(path: Path, language: str) -> list[str]:
    return blocks_in(path.read_text(), language)


def blocks_in(text: str, language: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", text, re.S | re.M)
    return [re.sub(rf"^{indent}", "", text, flags=re.M) for indent, text in found]


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "docs/quickstart.md",
        "docs/memory.md",
        "docs/onnxruntime.md",
        "docs/multi_device.md",
        "docs/resharding.md",
        "docs/serving.md",
        "docs/sharing.md",
        "docs/slicing.md",
        "docs/update_weights.md",
        "docs/index.md",
        "docs/five_minutes.md",
        "docs/from_openvino.md",
        "docs/from_torch.md",
        pytest.param("docs/from_triton.md", marks=pytest.mark.slow),
        *(f"docs/tutorials/{path.name}" for path in sorted(ROOT.glob("docs/tutorials/[!i]*.md"))),
        "examples/digits/README.md",
    ],
)
def test_the_python_of_a_document_runs_and_prints_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("engine_cpu", reason="needs the cpu backend")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path))
    namespace: dict[str, object] = {}
    # The server's own test is in tests/system/programs, and so is that of Ray's workers.
    needs = re.compile(r"^(import|from) (fastapi|ray)\b", re.M)
    plain = [block for block in blocks(ROOT / name, "python") if not needs.search(block)]
    code = "\n".join(plain)
    assert code
    for library in re.findall(r"^import (torch|openvino|tritonclient)\b", code, re.M):
        pytest.importorskip(library, reason=f"the page is for users of {library}")
    if '"serve"' in code:
        pytest.importorskip("engine_serve", reason="the page is for users of the server")
    log = logging.getLogger("engine")
    level = log.level
    try:
        exec(compile(code, name, "exec"), namespace)
    finally:
        log.setLevel(level)  # a document shows how to silence it
    printed = capsys.readouterr().out
    for comment in re.findall(r"print\(.*\) +# (.+)", code):
        for part in comment.split("..."):
            assert part.strip() in printed


def test_the_guide_shows_the_backend_that_the_template_writes() -> None:
    """The kit's own tests run it: plugins/kit/tests/test_new.py."""
    guide, files = BACKENDS / "first_backend.md", render("mine")
    assert "`pyproject.toml`:" in guide.read_text()
    assert blocks(guide, "toml") == [files["pyproject.toml"]]
    shown = ("engine_mine/__init__.py", "engine_mine/conformance.py")
    assert blocks(guide, "python") == [files[name] for name in shown]
    assert [name for name in shown if f"`{name}`:" not in guide.read_text()] == []


def test_the_tests_that_the_backend_guide_shows_are_whole() -> None:
    shown = blocks(BACKENDS / "testing.md", "python")
    assert shown
    for block in shown:
        namespace: dict[str, Any] = {}
        exec(compile(block, "testing.md", "exec"), namespace)
        if "TestMine" in namespace:
            namespace["TestMine"]().test_gaps_name_tests_of_the_kit()


@pytest.mark.parametrize("hook", HOOKS)
def test_each_hook_is_documented_with_its_exact_arguments(hook: str) -> None:
    arguments = ", ".join(signature(getattr(hookspecs, hook)).parameters)
    shown = f"`{arguments}`" if arguments else ""
    assert re.search(rf"^\| `{hook}` \| {re.escape(shown)} ?\|", REFERENCE, re.M)
    assert getattr(hookspecs, hook).__doc__


@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_that_the_core_does_not_call_yet_are_marked(hook: str) -> None:
    [row] = re.findall(rf"^\| `{hook}` \|.*$", REFERENCE, re.M)
    assert ("planned" in row) == (hook in hookspecs.PLANNED)


def test_the_reference_has_a_row_for_every_capability() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", REFERENCE, re.M))
    missing = {str(flag) for flag in Capability} - rows
    assert missing == set()


@pytest.mark.parametrize(
    "protocol",
    [types.LoadedModel, types.Executable, types.ExecutionContext, types.Communicator],
    ids=lambda protocol: protocol.__name__,
)
def test_the_reference_has_every_member_of_a_protocol(protocol: type) -> None:
    section = REFERENCE.partition(f"\n### {protocol.__name__}\n")[2].partition("\n#")[0]
    members = [name for name in vars(protocol) if not name.startswith("_")]
    missing = [name for name in members if not re.search(rf"`{name}[`(]", section)]
    assert missing == []


def test_the_reference_has_every_field_of_the_manifest() -> None:
    section = REFERENCE.partition("\n### BackendInfo\n")[2].partition("\n#")[0]
    missing = [
        field.name for field in fields(types.BackendInfo) if f"`{field.name}`" not in section
    ]
    assert missing == []


def test_the_testing_page_has_every_level_of_the_kit() -> None:
    page = (BACKENDS / "testing.md").read_text()
    assert [level for level in LEVELS if f"`{level}`" not in page] == []


def test_each_capability_that_needs_a_hook_is_one_of_the_contracts() -> None:
    named = set(re.findall(r"capability `(\w+)`", REFERENCE))
    assert named <= {str(capability) for capability in Capability}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in target:
            continue
        name, _, heading = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.+)$", file.read_text(), re.M)
            anchors = [re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles]
            assert heading in anchors, target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_document_has_a_placeholder(path: Path) -> None:
    assert not re.findall(r"\b[A-Z]+_[A-Z]+\b \||\bTBD\b|^[A-Z]+_TABLE$", path.read_text(), re.M)


def test_the_picture_of_a_terminal_shows_what_the_commands_print() -> None:
    pytest.importorskip("engine_cpu", reason="needs the cpu backend")
    spec = spec_from_file_location("terminal", ROOT / "docs/site/terminal.py")
    assert spec is not None
    assert spec.loader is not None
    terminal = module_from_spec(spec)
    spec.loader.exec_module(terminal)
    shown, printed = (
        re.sub(r"\s+", "", unescape("".join(re.findall(r"<text[^>]*>(.*)</text>", picture))))
        for picture in (terminal.PICTURE.read_text(), terminal.drawn(terminal.printed()))
    )
    times = re.compile(r"(builtin|ranin)[\d.]+[mu]?s")
    assert times.sub("", shown) == times.sub("", printed)
    assert "accuracy on held-back images: 0.9861" in terminal.PICTURE.read_text()


def test_the_navigation_of_the_site_has_every_page() -> None:
    """Yaml's own tags, as that of the anchors, are read as nothing: nav has none."""

    class Plain(yaml.SafeLoader):
        pass

    Plain.add_multi_constructor("tag:yaml.org,2002:python", lambda *_: None)

    def files(part: Any) -> list[str]:
        if isinstance(part, str):
            return [part]
        return [
            name
            for each in (part.values() if isinstance(part, dict) else part)
            for name in files(each)
        ]

    site = yaml.load((ROOT / "mkdocs.yml").read_text(), Plain)
    named = [name for name in files(site["nav"]) if not name.startswith("repository/")]
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")]
    assert sorted(named) == sorted(pages)


def test_the_readmes_commands_exist() -> None:
    pytest.importorskip("engine_cpu", reason="needs the cpu backend")
    pages = [
        ROOT / name for name in ("README.md", "docs/quickstart.md", "examples/digits/README.md")
    ]
    text = "\n".join(page.read_text() for page in pages)
    for line in dict.fromkeys(re.findall(r"^\$ (engine .+)$", text, re.M)):
        command = [sys.executable, "-m", "engine.cli", *shlex.split(line)[1:]]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "five_minutes",
        "tutorials/one_device",
        "tutorials/converting",
        pytest.param("tutorials/slow_or_wrong", marks=pytest.mark.slow),
    ],
)
def test_the_commands_of_a_page_for_beginners_run(name: str, tmp_path: Path) -> None:
    pytest.importorskip("engine_cpu", reason="needs the cpu backend")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    lines = re.findall(r"^\$ engine (.+)$", (ROOT / f"docs/{name}.md").read_text(), re.M)
    assert lines
    for line in lines:
        command = [sys.executable, "-m", "engine.cli", *shlex.split(line)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def test_what_is_exported_is_exactly_what_the_package_says() -> None:
    assert all(hasattr(engine, name) for name in engine.__all__)  # some are imported when asked for
    public = {
        name
        for name, value in vars(engine).items()
        if not name.startswith("_") and not isinstance(value, type(engine))
    }
    assert set(engine.__all__) == public | {"__version__"} | {*engine._LATE} | {*engine._WINGS}
    assert len(engine.__all__) == len(set(engine.__all__))
    assert set(engine.__all__) <= set(dir(engine))


@pytest.mark.parametrize("name", engine._LATE)
def test_what_is_imported_late_is_what_its_module_says(name: str) -> None:
    module = importlib.import_module(engine._LATE[name])
    assert getattr(engine, name) is (module if name == "backends" else getattr(module, name))
    assert callable(getattr(engine, name))


def test_a_name_that_the_package_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'engine' has no attribute 'Modle'"):
        engine.Modle  # type: ignore[attr-defined]  # noqa: B018


def test_every_error_is_in_the_tree_that_errors_py_draws() -> None:
    from engine import errors

    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    classes = [n for n, v in vars(errors).items() if isinstance(v, type) and n != "EngineError"]
    assert sorted(drawn) == sorted(classes)
    assert set(classes) <= set(engine.__all__)


def test_a_missing_model_is_an_error_of_ours_and_of_python_s() -> None:
    error = engine.ModelNotFound("no such file", "m.onnx")
    assert isinstance(error, FileNotFoundError)
    assert isinstance(error, engine.ModelError)
    assert (str(error), error.path, error.filename) == ("no such file", "m.onnx", "m.onnx")
    assert error.errno == errno.ENOENT
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.path) == (type(error), str(error), error.path)
