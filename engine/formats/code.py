"""A digest of this package's own code, for what must be made anew when that changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


@cache
def digest_of_code(parts: tuple[str, ...]) -> str:
    """Return a digest of files and folders of the package, by their paths in it.

    A folder that is not there, as of a wing that was taken away, has no files.
    """
    digest = hashlib.sha256()
    for path in _files(ROOT, parts):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _files(root: Path, parts: Iterable[str]) -> Iterable[Path]:
    for part in parts:
        path = root / part
        yield from [path] if path.suffix else sorted(path.rglob("*.py"))
