"""Print what of the backends' contract has changed since its level was recorded, or record a level.

    python .ci/contract.py           # prints the changes; exit status 1 where there are any
    python .ci/contract.py record    # records the contract under the level that it states

A change of engine/hookspecs.py or engine/types.py that a backend's author can see (a signature, a
field, a default, a member, a duty in a docstring or a comment) has a new `hookspecs.LEVEL`, and an
entry under "For backend authors" in CHANGELOG.md.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / ".ci/contract.json"


def contract(root: Path = ROOT) -> dict[str, str]:
    """Return a digest of each part of the contract, by its name as "types.BackendInfo.name"."""
    return {
        f"{module}.{name}": hashlib.sha256(text.encode()).hexdigest()[:16]
        for module in ("hookspecs", "types")
        for name, text in _parts(root / "engine" / f"{module}.py")
    }


def level(root: Path = ROOT) -> int:
    """Return the LEVEL that hookspecs.py states."""
    for node in ast.parse((root / "engine/hookspecs.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LEVEL":
            return int(ast.literal_eval(node.value))
    raise ValueError("engine/hookspecs.py states no LEVEL")


def changes(recorded: dict[str, Any], now: dict[str, str]) -> list[str]:
    """Return the names of the parts that were added, changed or removed since the record."""
    parts = recorded["parts"]
    return sorted(name for name in {*parts, *now} if parts.get(name) != now.get(name))


def _parts(path: Path) -> Iterator[tuple[str, str]]:
    """Yield what an author of a backend reads of a module, piece by piece: its name and text."""
    tree = ast.parse(path.read_text())
    yield "(the module's text)", ast.get_docstring(tree) or ""
    with tokenize.open(path) as file:
        comments = [
            each.string
            for each in tokenize.generate_tokens(file.readline)
            if each.type == tokenize.COMMENT
        ]
    yield "(comments)", "\n".join(comments)
    yield from _members(tree.body, "")


def _members(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, str]]:
    for number, node in enumerate(body):
        name = _name(node)
        # A rule for what numpy or Python ask of an object ("__eq__") is no duty of a backend's.
        if not name or name == "LEVEL" or name.startswith("_"):
            continue
        if isinstance(node, ast.FunctionDef):
            marks = [ast.unparse(mark) for mark in node.decorator_list]
            signature = (
                f"({ast.unparse(node.args)}) -> {node.returns and ast.unparse(node.returns)}"
            )
            yield prefix + name, "\n".join([*marks, signature, ast.get_docstring(node) or ""])
        elif isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base) for base in node.bases]
            marks = [ast.unparse(mark) for mark in node.decorator_list]
            yield prefix + name, "\n".join([*marks, *bases, ast.get_docstring(node) or ""])
            yield from _members(node.body, f"{prefix}{name}.")
        else:
            yield prefix + name, ast.unparse(node) + _text_below(body, number)


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""


def _text_below(body: list[ast.stmt], number: int) -> str:
    """Return the docstring that stands below an assignment."""
    below = body[number + 1] if number + 1 < len(body) else None
    is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    return f"\n{ast.unparse(below)}" if below is not None and is_text else ""


def main(arguments: list[str]) -> None:
    """Run the command line."""
    if arguments not in ([], ["record"]):
        sys.exit(__doc__)
    recorded, now, stated = json.loads(RECORD.read_text()), contract(), level()
    changed = changes(recorded, now)
    for name in changed:
        print(f"changed since level {recorded['level']}: {name}")
    if not changed:
        print(f"the contract is that of level {recorded['level']}")
    elif stated <= recorded["level"]:
        sys.exit(f"set LEVEL in engine/hookspecs.py to {recorded['level'] + 1}")
    elif not arguments:
        sys.exit("run: python .ci/contract.py record")
    else:
        RECORD.write_text(json.dumps({"level": stated, "parts": now}, indent=1) + "\n")
        print(f"recorded level {stated}")


if __name__ == "__main__":
    main(sys.argv[1:])
