"""Files of this package: regular ones are read or mapped, and written whole or not at all."""

from __future__ import annotations

import mmap
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from engine.errors import ModelError
from engine.host.folder import temporary_folder

_READ_BYTES = 1 << 20  # larger files are mapped


class NotAFolder(ModelError, NotADirectoryError):
    """A folder was expected. MindSpore raises NotADirectoryError."""


class Malformed(ValueError):
    """A file that is readable, but contradicts itself, or does not say what one must."""


def text_of(view: memoryview) -> str:
    """Return a name in a file. Raises Malformed."""
    try:
        return str(view, "utf-8")
    except UnicodeDecodeError:
        raise Malformed(f"has a name that is no text: {bytes(view[:40])!r}") from None


def read_file(path: Path, wanted: str) -> bytes | mmap.mmap:
    """Read a small file, map a large one. wanted: what is expected, for errors (ModelError)."""
    name = str(path)
    try:
        if stat.S_ISDIR(mode := os.stat(path).st_mode):
            raise ModelError(f"{name}: is a folder; expected {wanted}", name)
        if not stat.S_ISREG(mode):  # opening a pipe would wait for a writer that never comes
            raise ModelError(f"{name}: not a regular file; expected {wanted}", name)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > _READ_BYTES:
                return _mapped(file.fileno())
            data = file.read()
    except FileNotFoundError as error:
        raise ModelError(f"{name}: no such file; expected {wanted}", name) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        if isinstance(error, ModelError):
            raise
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelError(f"{name!r}: cannot be read: {reason}; expected {wanted}", name) from error
    if not data:
        raise ModelError(f"{name}: is empty; expected {wanted}", name)
    return data


def _mapped(descriptor: int) -> mmap.mmap:
    """Map a file. A job has thousands: a descriptor is kept for each only where Python must."""
    if sys.version_info >= (3, 13):
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ, trackfd=False)
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)


@contextmanager
def aside(folder: Path, result: Path) -> Iterator[Path]:
    """Make `folder`, and yield one in it to write into; that goes with the process.

    Raises ModelError naming `result` where something cannot be written.
    """
    make_folder(folder)
    try:
        with temporary_folder(".resharding-", folder) as path:
            yield path
    except ModelError:
        raise
    except OSError as error:
        raise ModelError(
            f"{result}: cannot be written: {error.strerror or error}", str(result)
        ) from error


@contextmanager
def private_file(path: Path) -> Iterator[BinaryIO]:
    """Create a file that only its owner may read, and yield it to be written."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        yield file


def write_file(path: Path, content: bytes) -> None:
    """Write a small file that only its owner may read, in place of an earlier one."""
    with aside(path.parent, path) as folder:
        with private_file(folder / path.name) as file:
            file.write(content)
        (folder / path.name).replace(path)


def make_folder(path: Path) -> None:
    """Make a folder for results, for its owner only, as MindSpore does; parents too."""
    if path.is_dir():
        return
    if path.exists():
        raise NotAFolder(f"{path}: is a file; expected a folder to write to", str(path))
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"{path}: cannot be made: {error.strerror}", str(path)) from error
