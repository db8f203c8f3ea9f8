"""A repository for a new backend, made of the template that docs/backends/first_backend.md shows.

    files = render("my_runtime")            # the text of each file, by its path
    write(Path("inference-engine-my-runtime"), files)

The template's files are those of a backend named `mine`, which is replaced by the new name.
"""

from __future__ import annotations

import errno
import keyword
import os
import re
import shutil
from collections.abc import Mapping
from importlib.resources import files as resources
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from engine.backends.discovery import installed_points
from engine.backends.names import EXTRAS, OWN
from engine.config.schema import KNOWN

FILES = {
    ".github/workflows/ci.yml": "workflow.yml",
    ".gitignore": "gitignore",
    "LICENSE": "LICENSE",
    "README.md": "readme.md",
    "engine_mine/__init__.py": "backend.py",
    "engine_mine/conformance.py": "conformance.py",
    "engine_mine/py.typed": "",
    "pyproject.toml": "pyproject.toml",
    "tests/test_backend.py": "own_tests.py",
    "tests/test_conformance.py": "kit_tests.py",
    "tox.ini": "tox.ini",
    **{
        f"docs/{page}.md": f"docs/{page}.md"
        for page in (
            "first_backend",
            "other_runtimes",
            "packaging",
            "reference",
            "testing",
            "versions",
        )
    },
}
"""The file of the template that each file of the repository comes from; "" for an empty one.

The template's folder is flat, because tools that look through this project would take a second
pyproject.toml, .github or tests folder for parts of it.
"""

_CONTEXT = "_context"
RESERVED = frozenset(
    (
        *EXTRAS,  # device types, which select this project's own backends
        *OWN,
        *(
            "null",
            "mindir",
            "serve",
            "telemetry",
            "testing",
            "command",
        ),  # of the kit, and modules engine_NAME of ours
        *(section.removesuffix(_CONTEXT) for section in KNOWN if section.endswith(_CONTEXT)),
    )
)
"""Names that mean something else: as a target, a module or a section of a configuration."""

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# A link out of the folder docs/backends leads nowhere in another repository.
_LINK_OUT = re.compile(r"\[([^]]+)\]\(\.\./[^)]*\)")


def distribution(name: str) -> str:
    """Return the name of a new backend's distribution, which is its folder's too."""
    return f"inference-engine-{name.replace('_', '-')}"


def require_name(name: str) -> None:
    """Raise ValueError, with what to do, if a new backend cannot have this name."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"expected a name of lower-case letters, digits and single underscores, such as "
            f"'my_runtime', got {name!r}{_suggestion(name)}"
        )
    if keyword.iskeyword(name):
        raise ValueError(f"{name!r} is a keyword of Python; choose another name")
    if name in RESERVED:
        raise ValueError(
            f"{name!r} is a word of the engine; choose another name, such as 'my_{name}'"
        )
    for point in installed_points():
        if point.name.lower() == name:
            owner = point.owner().get("distribution", "an unknown package")
            raise ValueError(
                f"a backend {point.name!r} is installed already, by {owner}; choose another name, "
                f"or uninstall it"
            )
    if find_spec(f"engine_{name}") is not None:
        raise ValueError(f"a module 'engine_{name}' is there already; choose another name")


def _suggestion(name: str) -> str:
    """Return "; did you mean 'x'?" with a name that is allowed and like this one, "" for none."""
    words = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    return f"; did you mean {words!r}?" if _NAME.fullmatch(words) else ""


def render(name: str) -> dict[str, str]:
    """Return the text of each file of a new backend's repository, by its path in it."""
    return {_named(path, name): _named(_read(file), name) for path, file in FILES.items()}


def _read(file: str) -> str:
    if not file:
        return ""
    text = resources("engine_testing").joinpath("template", file).read_text(encoding="utf-8")
    return _LINK_OUT.sub(r"\1", text) if file.startswith("docs/") else text


def _named(text: str, name: str) -> str:
    """Return a text of the template with the new backend's name; words such as "line" stay."""
    text = text.replace("inference-engine-mine", distribution(name))
    text = re.sub(r"(?<![A-Za-z])mine(?![A-Za-z])", name, text)
    return re.sub(r"Mine(?![a-z])", "".join(map(str.capitalize, name.split("_"))), text)


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files, text by path, into a new or empty folder: all of them, or none and no folder.

    Raises OSError where that cannot be done.
    """
    require_empty(folder)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except BaseException:
        if missing:
            shutil.rmtree(missing[-1], ignore_errors=True)
        else:
            _remove(folder, files)
        raise


def require_empty(folder: Path) -> None:
    """Raise OSError unless a folder can be made at this path, or is there and empty."""
    if folder.is_dir():
        if any(folder.iterdir()):
            text = "the folder is not empty; name a new or an empty one with --out"
            raise OSError(errno.ENOTEMPTY, text, str(folder))
    elif os.path.lexists(folder):
        text = "there is a file of this name; name a new folder with --out"
        raise FileExistsError(errno.EEXIST, text, str(folder))


def _remove(folder: Path, files: Mapping[str, str]) -> None:
    """Remove what may be written of these files from a folder that was empty before."""
    for first in {PurePosixPath(name).parts[0] for name in files}:
        if (folder / first).is_dir():
            shutil.rmtree(folder / first, ignore_errors=True)
        else:
            (folder / first).unlink(missing_ok=True)
