"""Imports go one way: from the applications down to the contract, and plugins see the contract."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from wing_modules import is_of_wing

import engine

ROOT = Path(engine.__file__).parent

# The highest first; a layer may import itself and what is below it. docs/architecture.md draws it.
LAYERS = (
    ("__main__", "cli"),
    ("onnxruntime",),  # onnxruntime's interface, for programs that are written for it
    ("__init__", "testing"),  # doors for scripts
    ("sharding",),
    ("converter",),
    ("workers",),
    ("serving",),
    ("report",),
    ("distributed",),
    ("layouts",),  # how operators carry a divided axis: for slicing, and for sharing runs
    # Above are the wings; below is the core, which does without them.
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

# Parts of the core that a plugin may import. Its conformance.py and its tests may use the kit too.
FOR_PLUGINS = {
    "hookspecs", "types", "errors", "options", "host", "reference", "model_bytes",
}  # fmt: skip
# A format's package is also offered how the core reads and writes ONNX.
FOR_FORMATS = FOR_PLUGINS | {"formats"}
# A command is a script, which uses the package as scripts do; this one compares outputs too.
FOR_REPLAY = FOR_PLUGINS | {"__init__", "report"}
REPLAY = ("replay.py", "verdicts.py")
# So is the server, which also says errors without the method that a script has called.
FOR_SERVE = FOR_PLUGINS | {"__init__", "config"}
PLUGINS = ROOT.parent / "plugins"
# The kit is a wing: it uses all of the core, and a backend uses it in its conformance test alone.
PLUGIN_FILES = sorted(
    path
    for folder in (PLUGINS, ROOT.parent / "examples/third_party")
    for path in folder.glob("*/engine_*/**/*.py")
    if "engine_testing" not in path.parts
)


# The fields of a statement that hold statements.
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def package_of(path: Path) -> str:
    """The import package of a plugin's file."""
    return next(name for name in path.parts if name.startswith("engine_"))


def part(path: Path) -> str:
    """The file or folder directly in engine/ that `path` is or is in."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_names(tree: ast.AST, for_type_checkers: bool) -> Iterator[str]:
    """The dotted names that a module imports, in functions too.

    for_type_checkers: also what stands under `if TYPE_CHECKING`.
    """
    if isinstance(tree, ast.Import):
        yield from (alias.name for alias in tree.names)
    elif isinstance(tree, ast.ImportFrom):
        assert tree.level == 0, "a relative import"
        yield from (f"{tree.module}.{alias.name}" for alias in tree.names)
    elif for_type_checkers or not (
        isinstance(tree, ast.If)
        and isinstance(tree.test, ast.Name)
        and tree.test.id == "TYPE_CHECKING"
    ):
        for part_of_it in BLOCKS:
            for statement in getattr(tree, part_of_it, ()):
                yield from imported_names(statement, for_type_checkers)


def imported(tree: ast.AST, for_type_checkers: bool = False) -> Iterator[str]:
    """The parts of engine/ that a module imports at any place."""
    for name in imported_names(tree, for_type_checkers):
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


@pytest.mark.parametrize(
    "around",
    [
        "class A:\n async def f():\n  {}", "with a:\n {}", "for a in b:\n pass\nelse:\n {}",
        "while a:\n {}", "try:\n pass\nexcept A:\n {}", "try:\n pass\nfinally:\n {}",
        "try:\n pass\nexcept* A:\n pass\nelse:\n {}", "match a:\n case 1:\n  {}",
        "if a:\n pass\nelif b:\n {}",
    ],
)  # fmt: skip
def test_an_import_is_seen_in_every_statement(around: str) -> None:
    assert list(imported(ast.parse(around.format("import engine.plan")))) == ["plan"]


def test_every_part_of_the_engine_has_a_place_in_the_order() -> None:
    assert {part(path) for path in FILES} == set(LEVEL)


def test_a_module_imports_nothing_above_it() -> None:
    above = [
        f"{path.relative_to(ROOT)} imports {other}"
        for path in FILES
        for other in imported(parsed(path))
        if LEVEL[other] < LEVEL[part(path)]
    ]
    assert above == []


def test_a_plugin_imports_of_the_core_what_is_for_plugins() -> None:
    others = []
    for path in PLUGIN_FILES:
        allowed = FOR_FORMATS if "engine_mindir" in path.parts else FOR_PLUGINS
        if "engine_telemetry" in path.parts and path.name in REPLAY:
            allowed = FOR_REPLAY
        if "engine_serve" in path.parts:
            allowed = FOR_SERVE
        other = sorted({*imported(parsed(path), for_type_checkers=True)} - allowed)
        if "engine_testing" in path.read_text() and path.name != "conformance.py":
            other.append("engine_testing")
        others += [f"{path.relative_to(ROOT.parent)} imports {name}" for name in other]
    assert others == []
    assert {package_of(path) for path in PLUGIN_FILES} == {
        "engine_cpu", "engine_gpu_trt", "engine_ascend_ge", "engine_mindir", "engine_serve",
        "engine_telemetry", "engine_jax", "engine_openvino",
    }  # fmt: skip


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
    files = [path for path in PLUGIN_FILES if package_of(path) == package]
    assert 0 < sum(lines_of_code(path.read_text()) for path in files) <= most


# ------------------------------------------------------------------------------------- circles


def module(path: Path, root: Path = ROOT) -> str:
    """The dotted name of a module of the engine, or of another package."""
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, modules: set[str], own: str = "") -> set[str]:
    """The modules, of those given, that one imports, in functions and for type checkers too."""
    found = set()
    for name in imported_names(parsed(path), for_type_checkers=True):
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
    "_pybind_state", "_ortvalue", "_iobinding",  # its compiled module, values and bindings
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
    trees = {path: parsed(path) for path in paths}
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
