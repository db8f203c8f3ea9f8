"""Surface of pycuda.driver, read from its C++ source, since building it takes a CUDA toolkit.

`read` finds the functions, classes and exceptions that `src/wrapper/wrap_cudadrv.cpp` exposes,
with the parameter names where it gives them. `pycuda.json` is what it found in pycuda 2026.1.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

SOURCE = Path("src/wrapper/wrap_cudadrv.cpp")
TABLE = Path(__file__).with_name("pycuda.json")


def read(root: Path) -> dict[str, Any]:
    """Return the surface that an unpacked pycuda's source exposes to Python."""
    text = (root / SOURCE).read_text()
    text = text[text.index("BOOST_PYTHON_MODULE") :]
    functions = {
        name: _parameters(rest)
        for name, rest in re.findall(r'\bpy::def\(\s*"(\w+)"(.*?);', text, re.S)
    }
    functions |= {
        name: _names(rest)
        for name, rest in re.findall(r"\bDEF_SIMPLE_FUNCTION\w*\((\w+)(.*?)\);", text, re.S)
    }
    classes: dict[str, dict[str, list[str]]] = {}
    for body in re.split(r"\bpy::class_<", text)[1:]:
        match = re.search(r'>\s*(?:\w+\s*)?\(\s*"(\w+)"', body)
        if match is None:
            continue
        body = body[: body.index(";\n  }")] if ";\n  }" in body else body
        members = {
            name: _parameters(rest)
            for name, rest in re.findall(
                r'\.(?:def|add_property)\("(\w+)"(.*?)(?=\s*(?:\n\s*(?:\.|;|#)|\Z))', body, re.S
            )
        }
        members |= {name: [] for name in re.findall(r"\.DEF_SIMPLE_METHOD\((\w+)\)", body)}
        classes[match[1]] = dict(sorted(members.items()))
    return {
        "functions": dict(sorted(functions.items())),
        "classes": dict(sorted(classes.items())),
        "exceptions": re.findall(r"\bDECLARE_EXC\((\w+), (?:NULL|CudaError)", text),
    }


def _parameters(text: str) -> list[str]:
    groups = re.findall(r"py::args?\(([^)]*)\)", text)
    return [name for part in groups for name in _names(part) if name != "self"]


def _names(text: str) -> list[str]:
    return re.findall(r'"(\w+)"', text)


if __name__ == "__main__":
    import tables

    print(tables.write(read(Path(sys.argv[1]))))
