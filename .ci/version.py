"""Print the version in each place that states it, or set it in all of them.

    python .ci/version.py            # prints the places
    python .ci/version.py 0.2.0      # sets the version in all of them

The core's is in engine/host/version.py and a plugin's in its package, where the builds read it. The
core and the plugins are released together: each pins the others' exact version.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# By file, what stands before a version; it ends at the next quote or blank.
_LITERAL = r'^__version__ = "'
_PIN = r'"inference-engine[\w\[\]-]*=='
PLACES = {
    "engine/host/version.py": _LITERAL,
    "plugins/*/engine_*/__init__.py": _LITERAL,
    "pyproject.toml": _PIN,
    "plugins/*/pyproject.toml": _PIN,
    "docs/cli.md": r"inference-engine[a-z-]* (?=\d)",
}


def places(root: Path) -> Iterator[tuple[Path, re.Pattern[str]]]:
    """Yield each file that states the version, and a pattern of two groups: before it, and it."""
    for glob, before in PLACES.items():
        for path in sorted(root.glob(glob)):
            pattern = re.compile(rf'({before})([^",\s]+)', re.MULTILINE)
            if not pattern.search(path.read_text()):
                raise ValueError(f"{path}: states no version; see PLACES in .ci/version.py")
            yield path, pattern


def versions(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the versions that each file states, by its path in the checkout."""
    return {
        str(path.relative_to(root)): [found[2] for found in pattern.finditer(path.read_text())]
        for path, pattern in places(root)
    }


def set_version(version: str, root: Path = ROOT) -> None:
    """Write `version` into all places."""
    for path, pattern in places(root):
        path.write_text(pattern.sub(rf"\g<1>{version}", path.read_text()))


def main(arguments: list[str]) -> None:
    """Run the command line."""
    if arguments:
        [version] = arguments
        if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
            sys.exit(f"expected a version as 1.2.3 or 1.2.3rc1, got {version!r}")
        set_version(version)
    for path, stated in versions().items():
        print(f"{path}: {', '.join(stated)}")


if __name__ == "__main__":
    main(sys.argv[1:])
