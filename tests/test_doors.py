"""docs/doors.md: each example is a package that works, listed by `engine plugins`; a broken one of
each kind stops nothing. tests/wheel/ shows the same of wheels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doors import PAGE, check_all, examples

import engine
from engine.backends import BackendState
from engine.backends.doors import DOORS
from engine.backends.isolation.listing import plugins
from engine_testing import models
from engine_testing.plugins import install

EXAMPLES = examples()


@pytest.fixture
def offered(plugin_folder: Path) -> Path:
    """The packages of the page, installed while the test runs."""
    for _, group, name, target, source in EXAMPLES:
        install(plugin_folder, name, target, group=group, source=source)
    return plugin_folder


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.kind)
def test_an_example_is_of_the_door_that_its_section_is_about(example: tuple[str, str]) -> None:
    kind, group, *_ = example
    assert kind == next(door.kind for door in DOORS if door.group == group)


@pytest.mark.parametrize(
    "example", [each for each in EXAMPLES if each.kind != "transport"], ids=lambda each: each.kind
)
def test_an_example_is_under_60_lines(example: tuple[str, ...]) -> None:
    assert len(example[-1].splitlines()) < 60


def test_every_door_is_in_the_pages_table() -> None:
    assert re.findall(r"^\| \[?`(engine\.\w+\.v1)`", PAGE.read_text(), re.M) == [
        door.group for door in DOORS
    ]


def test_all_examples_are_listed_as_ready(offered: Path) -> None:
    states = {(found.kind, found.name): found.state for found in plugins()[1]}
    for example in EXAMPLES:
        assert states[example.kind, example.name] is BackendState.READY


def test_a_broken_entry_of_each_kind_stops_nothing(
    offered: Path, null_backend: str, tmp_path: Path
) -> None:
    for _, group, name, _, _ in EXAMPLES:
        install(offered, f"torn_{name}", f"torn_{name}", group=group, source="import no_such_one\n")
    found = {(found.kind, found.name): found for found in plugins()[1]}
    for example in EXAMPLES:
        assert found[example.kind, example.name].state is BackendState.READY
        assert "no_such_one" in found[example.kind, f"torn_{example.name}"].reason
    check_all(tmp_path, null_backend)


@pytest.mark.parametrize("kind", ["extensions", "passes"])
def test_the_error_of_a_broken_entry_has_that_of_its_import_as_cause(
    kind: str,
    plugin_folder: Path,
    null_backend: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = f"engine.{kind}.v1"
    install(plugin_folder, "torn", f"torn_{kind}", group=group, source="1 / 0")
    monkeypatch.setenv(f"ENGINE_{kind.upper()}", "torn")
    with pytest.raises(engine.EngineError, match="torn") as caught:
        engine.load(models.affine(tmp_path), null_backend)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_the_examples_do_what_the_page_says(
    offered: Path, null_backend: str, tmp_path: Path
) -> None:
    check_all(tmp_path, null_backend)
