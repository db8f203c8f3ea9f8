"""Imports inside engine/ go one way: from the command line down to the contract."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import engine

ROOT = Path(engine.__file__).parent

# The highest first; a layer may import itself and what is below it. docs/architecture.md draws it.
LAYERS = (
    ("__main__", "cli"),
    ("testing", "diagnosis"),
    (
        "__init__", "simple", "model", "lane", "signature", "values", "context", "settings",
        "config", "checks", "tensor", "enums", "converter", "convert",
    ),
    ("plan",),
    ("formats", "sections", "threads"),
    ("backends", "probe"),
    ("hookspecs", "types", "cancel", "errors", "options", "child", "forks"),
)  # fmt: skip
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = sorted(ROOT.rglob("*.py"))


def part(path: Path) -> str:
    """The file or folder directly in engine/ that `path` is or is in."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[str]:
    """The parts of engine/ that a module imports at any place, but for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            yield from imported(node)
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "engine":
                inside = rest.partition(".")[0]
                is_file = (ROOT / f"{inside}.py").exists() or (ROOT / inside).is_dir()
                yield inside if inside and is_file else "__init__"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import engine", ["__init__"]),
        ("from engine import Model, backends", ["__init__", "backends"]),
        ("def late():\n    if True:\n        import engine.plan.build", ["plan"]),
        ("from engine.formats.onnx import model", ["formats"]),
        ("import numpy, engineering", []),
        ("if TYPE_CHECKING:\n    from engine.model import Model", []),
    ],
)
def test_every_import_of_a_part_of_the_engine_is_seen(source: str, found: list[str]) -> None:
    assert list(imported(ast.parse(source))) == found


def test_every_part_of_the_engine_has_a_place_in_the_order() -> None:
    assert {part(path) for path in FILES} <= set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_nothing_above_it(path: Path) -> None:
    own = LEVEL.get(part(path), 0)
    above = [name for name in imported(ast.parse(path.read_text())) if LEVEL.get(name, own) < own]
    assert not above, f"{path.relative_to(ROOT)} imports {', '.join(above)}"
