"""Opens model files: regular ones only, small ones read and large ones mapped."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from engine.errors import ModelError, ModelNotFound
from engine.formats.opened import FileVersion
from engine.options import nearest

SUFFIXES = (".onnx", ".mindir")
"""Those that models have which people look for by name."""

READ_BYTES = 4 << 20
"""Files up to this size are read whole.

The runtime then gets the very bytes that were checked, whatever happens to the file meanwhile, and
a copy of so many bytes costs nothing. Larger files are mapped for the check and read again by the
runtime: see `OpenedSource.check_unchanged`.
"""


def read_file(path: Path) -> bytes | mmap.mmap:
    """Read a small file, map a large one.

    Raises ModelError for what is not a readable, regular file with something in it.
    """
    return open_file(path)[0]


def open_file(path: Path) -> tuple[bytes | mmap.mmap, FileVersion]:
    """Read a file as `read_file` does; returns its version too."""
    with _opened(path) as (descriptor, version):
        size = version.nbytes
        if size > READ_BYTES:
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), version
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(size + 1)
    name = str(path)
    if not data:
        raise ModelError(f"{name}: empty file; expected a model", name)
    if len(data) > size:
        raise ModelError(f"{name}: grew while it was read; load it when it is complete", name)
    return data, version


def read_start(path: Path, count: int) -> tuple[bytes, FileVersion]:
    """Return the first bytes of a file, and its version. Raises ModelError as `read_file` does."""
    with _opened(path) as (descriptor, version):
        return os.read(descriptor, count), version


@contextmanager
def _opened(path: Path) -> Iterator[tuple[int, FileVersion]]:
    """Give a descriptor of a regular file, and the file's version."""
    name = str(path)
    try:
        # Looked at first: opening a pipe would wait for a writer that never comes.
        if not stat.S_ISREG(mode := os.stat(path).st_mode) and not stat.S_ISDIR(mode):
            raise ModelError(f"{name}: not a regular file; expected a model file", name)
        # A file object of C's own making: it closes itself where a signal handler raises.
        file = open(path, "rb", buffering=0)  # noqa: SIM115
    except IsADirectoryError as error:
        raise ModelError(f"{name}: is a folder; {inside(path)}", name) from error
    except FileNotFoundError as error:
        raise ModelNotFound(f"{name}: no such file{beside(path)}", name) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelError(f"{name!r}: cannot be opened: {reason}", name) from error
    try:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{name}: not a regular file; expected a model file", name)
        yield file.fileno(), FileVersion.of(status)
    except OSError as error:
        raise ModelError(f"{name}: cannot be read: {error.strerror}", name) from error
    finally:
        file.close()


def inside(folder: Path) -> str:
    """Say what to do about a folder where a file was expected."""
    if (folder / "saved_model.pb").is_file():
        return "a TensorFlow SavedModel; convert it: engine convert FOLDER net"
    models = sorted(path.name for path in folder.glob("*.onnx"))
    if models:
        return f"expected a model file; there is {models[0]!r} in it"
    return "expected a model file"


def beside(path: Path) -> str:
    """Hint at the file that a missing path may have meant."""
    parent = path.parent
    try:
        others = sorted(other.name for other in parent.iterdir() if _is_likely(other, path))
    except OSError:
        return "" if parent.is_dir() else f" (nor a folder {str(parent)!r})"
    if ranks := _ranks_of(path, others):
        last = f"{path.stem}{ranks - 1}{path.suffix}"
        return (
            f"; {f'{path.stem}0{path.suffix}'!r} to {last!r} are its ranks' parts; start "
            f"them with engine launch -n {ranks}"
        )
    if near := nearest(path.name, others, 0.75):
        return f"; did you mean {str(path.with_name(near))!r}?"
    return f"; in that folder: {', '.join(map(repr, others[:3]))}" if others else ""


def _ranks_of(path: Path, others: Sequence[str]) -> int:
    """Return the number of files that are a missing one's slices by their names; 0 for none."""
    count = 0
    while f"{path.stem}{count}{path.suffix}" in others:
        count += 1
    return count if count > 1 and path.suffix.lower() in SUFFIXES else 0


def _is_likely(other: Path, path: Path) -> bool:
    return other.suffix.lower() in {*SUFFIXES, path.suffix.lower()} - {""} and other.is_file()
