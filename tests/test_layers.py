"""Imports go one way: from the applications down to the contract, and plugins see the contract."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from wing_modules import is_of_wing

import engine

ROOT = Path(engine.__file__).parent

# The highest first; a layer may import itself and what is below it. docs/architecture.md draws it.
LAYERS = (
    ("__main__", "cli"),
    ("__init__", "converter", "testing"),  # doors for scripts
    ("sharding",),
    ("convert",),
    ("workers",),
    ("serving",),
    ("report",),
    ("distributed",),
    ("layouts",),  # how operators carry a divided axis: for slicing, and for sharing runs
    # What is above are the wings; below is the core, which does without them.
    ("model",),
    ("weights",),
    ("runtime",),
    ("plan",),
    ("context",),
    ("tensor",),
    ("reference", "model_bytes"),  # for plugins
    ("formats",),
    ("wings",),
    ("backends",),
    ("config",),
    ("host",),
    ("hookspecs", "types", "errors", "options", "typing"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = sorted(ROOT.rglob("*.py"))

# What a plugin may import of the core. Its conformance.py and its tests may use the kit too.
FOR_PLUGINS = {
    "hookspecs", "types", "errors", "options", "host", "reference", "model_bytes",
}  # fmt: skip
# A format's package is also offered how the core reads and writes ONNX.
FOR_FORMATS = FOR_PLUGINS | {"formats"}
# A command is a script, which uses the package as scripts do; this one compares outputs too.
FOR_REPLAY = FOR_PLUGINS | {"__init__", "report"}
REPLAY = ("replay.py", "verdicts.py")
PLUGINS = ROOT.parent / "plugins"
# The kit is a wing: it uses all of the core, and a backend uses it in its conformance test alone.
PLUGIN_FILES = sorted(
    path for path in PLUGINS.glob("*/engine_*/**/*.py") if "engine_testing" not in path.parts
)
THIRD_PARTIES = ROOT.parent / "examples/third_party"
THIRD_PARTY_FILES = sorted(THIRD_PARTIES.glob("*/engine_*/**/*.py"))


def part(path: Path) -> str:
    """The file or folder directly in engine/ that `path` is or is in."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(tree: ast.AST, for_type_checkers: bool = False) -> Iterator[str]:
    """The parts of engine/ that a module imports at any place.

    for_type_checkers: also what stands under `if TYPE_CHECKING`.
    """
    for node in ast.iter_child_nodes(tree):
        if (
            not for_type_checkers
            and isinstance(node, ast.If)
            and ast.unparse(node.test) == "TYPE_CHECKING"
        ):
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            yield from imported(node, for_type_checkers)
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


def test_what_only_type_checkers_import_is_seen_where_it_counts() -> None:
    source = "if TYPE_CHECKING:\n    from engine.model import Model"
    assert list(imported(ast.parse(source), for_type_checkers=True)) == ["model"]


def test_every_part_of_the_engine_has_a_place_in_the_order() -> None:
    assert {part(path) for path in FILES} == set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_nothing_above_it(path: Path) -> None:
    name, own = str(path.relative_to(ROOT)), LEVEL.get(part(path), 0)
    above = [
        other for other in imported(ast.parse(path.read_text())) if LEVEL.get(other, own) < own
    ]
    assert not above, f"{name} imports {', '.join(above)}"


def test_there_are_plugins_to_look_at() -> None:
    assert {path.relative_to(PLUGINS).parts[1] for path in PLUGIN_FILES} == {
        "engine_cpu", "engine_gpu_trt", "engine_ascend_ge", "engine_mindir", "engine_telemetry",
    }  # fmt: skip


@pytest.mark.parametrize("path", PLUGIN_FILES, ids=lambda path: str(path.relative_to(PLUGINS)))
def test_a_plugin_imports_of_the_core_what_is_for_plugins(path: Path) -> None:
    text = path.read_text()
    found = imported(ast.parse(text), for_type_checkers=True)
    allowed = FOR_FORMATS if "engine_mindir" in path.parts else FOR_PLUGINS
    if "engine_telemetry" in path.parts and path.name in REPLAY:
        allowed = FOR_REPLAY
    other = sorted({*found} - allowed)
    assert not other, f"{path.relative_to(PLUGINS)} imports {', '.join(other)}"
    assert "engine_testing" not in text or path.name == "conformance.py"


def test_there_are_third_parties_to_look_at() -> None:
    assert {path.parent.name for path in THIRD_PARTY_FILES} == {"engine_jax", "engine_openvino"}


@pytest.mark.parametrize(
    "path", THIRD_PARTY_FILES, ids=lambda path: str(path.relative_to(THIRD_PARTIES))
)
def test_a_third_party_imports_of_the_core_what_is_for_plugins(path: Path) -> None:
    text = path.read_text()
    other = sorted({*imported(ast.parse(text), for_type_checkers=True)} - FOR_PLUGINS)
    assert "engine_testing" not in text or path.name == "conformance.py"
    assert not other, f"{path.relative_to(THIRD_PARTIES)} imports {', '.join(other)}"


NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


def lines_of_code(text: str) -> int:
    """Count the lines that are not blank, a comment or a docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(ast.Constant(str())):
                lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('"""Say."""\n\n# why\nx = 1  # so\n', 1),
        ('def f():\n    """Say\n    more."""\n    return """a\n    b"""\n', 3),
        ("x = [\n    1,\n]\n", 3),
    ],
)
def test_lines_of_code_are_counted_without_comments_and_docstrings(text: str, count: int) -> None:
    assert lines_of_code(text) == count


@pytest.mark.parametrize(("package", "most"), [("engine_openvino", 400), ("engine_jax", 900)])
def test_a_third_party_is_short(package: str, most: int) -> None:
    files = [path for path in THIRD_PARTY_FILES if package in path.parts]
    assert sum(lines_of_code(path.read_text()) for path in files) <= most


# ------------------------------------------------------------------------------------- circles


def module(path: Path, root: Path = ROOT) -> str:
    """The dotted name of a module of the engine, or of another package."""
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, modules: set[str], own: str = "") -> set[str]:
    """The modules, of those given, that one imports, in functions and for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            while name and name not in modules:
                name = name.rpartition(".")[0]
            found.add(name)
    return found - {"", own or module(path)}


def circular(graph: dict[str, set[str]]) -> set[str]:
    """The nodes of a graph that lie on a circle or between two of them."""
    left = {node: set(others) for node, others in graph.items()}
    while True:
        named = {other for others in left.values() for other in others}
        ends = {node for node, others in left.items() if not others & left.keys()}
        ends |= left.keys() - named
        if not ends:
            return set(left)
        left = {node: others - ends for node, others in left.items() if node not in ends}


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, set()),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}, {"b", "c"}),
    ],
)
def test_a_circle_is_found(graph: dict[str, set[str]], found: set[str]) -> None:
    assert circular(graph) == found


def test_no_files_import_each_other_in_a_circle() -> None:
    modules = {module(path) for path in FILES}
    assert circular({module(path): imports(path, modules) for path in FILES}) == set()


# The lowering and the tables of functions that it calls by the kind of a node, which take it.
LOWERING = ("engine_mindir.lower", "engine_mindir.control", "engine_mindir.structural",
            "engine_mindir.declared", "engine_mindir.primitives")  # fmt: skip


def test_no_files_of_a_plugin_import_each_other_in_a_circle() -> None:
    paths = {module(path, root): path for root in (*PLUGINS.glob("*/engine_*"),)
             for path in root.rglob("*.py")}  # fmt: skip
    graph = {name: imports(path, {*paths}, name) for name, path in paths.items()}
    assert {name for name in circular(graph) if not name.startswith(LOWERING)} == set()


# ------------------------------------------------------------------------------- private names

# Of other projects and of Python, which have no public name for it.
FOREIGN = {
    "_replace", "_fields", "_asdict",  # a named tuple's
    "_exit", "_current_frames",  # of os, libc and sys
    "_model_bytes",  # onnxruntime: a session keeps its model's file in memory
    "_pytree", "_version",  # torch: the names of a tree's leaves; counts the writes to a tensor
    "_convert_common",  # tf2onnx: what its command does with a graph that is loaded
}  # fmt: skip


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def own_names(tree: ast.AST) -> set[str]:
    """The private names that a module defines, or assigns to itself or its objects."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and of_self(node):
            found.add(node.attr)
    return set(filter(is_private, found))


def of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def others_names(tree: ast.AST, own: set[str]) -> list[str]:
    """The private names that a module uses of others, but `own`, those of its folder."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not of_self(node):
            names = {node.attr} - own
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
        else:
            continue
        private = {name for name in names - FOREIGN if is_private(name)}
        found += [f"line {node.lineno}: {name}" for name in sorted(private)]
    return found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("tensor._value", ["line 1: _value"]),
        ("from engine.plan.parts import _run", ["line 1: _run"]),
        ("def _run(): pass\nparts._run", []),
        ("class A:\n    def f(self, other):\n        self._x = other._x", []),
        ("def f(self):\n    self._x", []),
        ("a.__name__, a._replace(b=1), os._exit(1)", []),
    ],
)
def test_a_private_name_of_another_folder_is_found(source: str, found: list[str]) -> None:
    tree = ast.parse(source)
    assert others_names(tree, own_names(tree)) == found


def test_no_module_uses_private_names_of_another_folder() -> None:
    paths = (*FILES, *PLUGINS.glob("*/engine_*/**/*.py"))
    trees = {path: ast.parse(path.read_text()) for path in paths}
    own: dict[Path, set[str]] = {}
    for path, tree in trees.items():
        own.setdefault(path.parent, set()).update(own_names(tree))
    found = [
        f"{path.relative_to(PLUGINS.parent)}, {use}"
        for path, tree in trees.items()
        for use in others_names(tree, own[path.parent])
    ]
    assert found == []


# ------------------------------------------------------------------------------------ the core

CORE = ("engine.model", "engine.model.shortcut")
MOST_LINES = 23_000
MOST_LINES_FOR_PLUGINS = 8_000


def closure(start: Iterable[str], graph: dict[str, set[str]]) -> set[str]:
    """The modules that some import, and those that these import, and so on."""
    found: set[str] = set()
    left = list(start)
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += graph[name]
    return found


def test_a_closure_is_followed_to_its_end() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert closure(["a"], graph) == {"a", "b", "c"}


def test_what_a_plugin_may_import_is_small() -> None:
    paths = {module(path): path for path in FILES}
    start = [name for name, path in paths.items() if part(path) in FOR_PLUGINS]
    found = closure(start, {name: imports(path, {*paths}) for name, path in paths.items()})
    lines = sum(len(paths[name].read_text().splitlines()) for name in found)
    assert lines <= MOST_LINES_FOR_PLUGINS, f"{lines:,} lines"


def test_the_core_is_small_and_imports_no_wing() -> None:
    """Late imports count, and those for type checkers."""
    paths = {module(path): path for path in FILES}
    core = closure(CORE, {name: imports(path, {*paths}) for name, path in paths.items()})
    assert sorted(filter(is_of_wing, core)) == []
    lines = sum(len(paths[name].read_text().splitlines()) for name in core)
    assert lines <= MOST_LINES, f"{lines:,} lines; engine/wings.py is how the core reaches others"


# --------------------------------------------------------------------------------------- sizes

ROOMS = 30
"""The most files and folders directly in engine/."""

LONGEST = 500
LONGER = {"types.py"}
"""Files that may be longer: one idea each that no reader finds again in two files."""


def test_the_engine_has_few_rooms() -> None:
    assert len({part(path) for path in FILES}) <= ROOMS


def test_no_file_is_longer_than_a_sitting() -> None:
    files = [(path, str(path.relative_to(ROOT))) for path in FILES]
    files += [(path, "/".join(path.relative_to(PLUGINS).parts[1:]))
              for path in PLUGINS.glob("*/engine_*/**/*.py")]  # fmt: skip
    long = {name for path, name in files if len(path.read_text().splitlines()) > LONGEST}
    assert long <= LONGER
