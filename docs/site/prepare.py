"""Writes the pages of the documentation site: python docs/site/prepare.py build/docs.

They are the pages of docs/, that of the commands filled in, and one for each other file of the
repository that a page links to: so no link leads nowhere. A link from docs/ to ../engine/types.py
leads to a page that shows it; one to a folder leads to its README, or to a list of its files.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path, PurePosixPath

import commands

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ALSO = ("CHANGELOG.md", "CONTRIBUTING.md")
"""Pages that are in the navigation, whether a page links to them or not."""

_LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
_LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}


def prepare(folder: Path) -> None:
    """Write the pages into `folder`, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns("site", "*.md"))
    pages = [path for path in DOCS.rglob("*.md") if path.is_file()]
    waiting = [*pages, *(ROOT / name for name in ALSO)]
    written: set[str] = set()
    while waiting:
        path = waiting.pop()
        address = address_of(path)
        if address in written:
            continue
        written.add(address)
        write(folder / address, led(path) if path.suffix == ".md" else shown(path))
        waiting += targets_of(path)
    reference = folder / "reference/commands.md"
    head = reference.read_text().partition("In a checkout")[0]
    write(reference, head + commands.all_commands())


def write(file: Path, text: str) -> None:
    """Write a page, with the folders above it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def targets_of(page: Path) -> list[Path]:
    """Return the files of this repository that a page links to."""
    if page.suffix != ".md":
        return []
    found = (found_at(page.parent / link[2]) for link in _LINK.finditer(page.read_text()))
    is_asset = re.compile(r"\.(svg|png)$").search
    return [path for path in found if path and not is_asset(path.name)]


def led(page: Path) -> str:
    """Return the text of a page, with links that lead to pages of the site."""
    here = PurePosixPath(address_of(page)).parent

    def lead(link: re.Match[str]) -> str:
        target = found_at(page.parent / link[2])
        if target is None:
            return link[0]
        return f"{link[1]}{os.path.relpath(address_of(target), here)}{link[3] or ''}{link[4]}"

    return _LINK.sub(lead, page.read_text())


def shown(path: Path) -> str:
    """Return a page that shows a file, or the names in a folder."""
    if path.is_dir():
        text, language = "\n".join(sorted(entry.name for entry in path.iterdir())), "text"
    else:
        text, language = path.read_text(), _LANGUAGES.get(path.suffix, "text")
    head = "---\nsearch:\n  exclude: true\nhide: [toc]\n---\n"
    return f"{head}# {path.relative_to(ROOT)}\n\n~~~~{language}\n{text}\n~~~~\n"


def found_at(path: Path) -> Path | None:
    """Return the file or folder of this repository that a link leads to, None if there is none."""
    path = Path(os.path.normpath(path))
    if not path.is_relative_to(ROOT) or not path.exists():
        return None
    return path / "README.md" if (path / "README.md").is_file() else path


def address_of(path: Path) -> str:
    """Return the address, among the site's sources, of the page that shows a file or a folder."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    place = f"repository/{path.relative_to(ROOT).as_posix()}"
    return place if path.suffix in (".md", ".svg", ".png") else f"{place}.md"


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
