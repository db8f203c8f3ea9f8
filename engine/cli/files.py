"""Writes arrays as files, .npy, .npz and .json, and to standard output."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from engine.cli.output import strict
from engine.report.archive import storable, write_archive
from engine.tensor.description import Array

STANDARD_OUTPUT = "-"


def print_outputs(arrays: Mapping[str, Array], is_json: bool) -> None:
    """Print all values by name, as one JSON object or as an .npz archive."""
    if is_json:
        print(_as_json(arrays))
        return
    with io.BytesIO() as held:  # an archive is written with seeks, which a pipe has not
        write_archive(held, arrays)
        sys.stdout.flush()
        sys.stdout.buffer.write(held.getbuffer())
        sys.stdout.buffer.flush()


def _as_json(arrays: Mapping[str, Array]) -> str:
    values = {name: listed(storable(array)) for name, array in arrays.items()}
    return json.dumps(strict(values), allow_nan=False)


def listed(array: Array) -> Any:
    """Return an array as lists of lists; a complex number is [real, imaginary]."""
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], -1)
    return array.tolist()


def write(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write one array as .npy, any number as .npz or .json; whole or not at all."""
    with written_whole(path) as file:
        if path.suffix == ".json":
            file.write(f"{_as_json(arrays)}\n".encode())
        elif path.suffix == ".npy":
            [array] = arrays.values()
            np.lib.format.write_array(file, storable(array), allow_pickle=False)
        else:
            write_archive(file, arrays)


@contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write, which becomes `path` when the block has ended well."""
    with _aside(path) as aside:
        with aside.open("xb") as file:
            yield file
        aside.replace(path)


def require_place(path: Path) -> None:
    """Raise OSError, before any work is done, where no file can be written as `path`."""
    with _aside(path) as aside:
        if path.is_dir():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        aside.open("xb").close()


@contextmanager
def _aside(path: Path) -> Iterator[Path]:
    """Yield a name beside `path` for a temporary file; the file is gone after the block."""
    aside = path.parent / f".{path.name}.{os.getpid()}"
    try:
        yield aside
    except OSError as error:  # the user knows the file by its own name
        why = error.strerror
        if error.errno == errno.ENOENT and not path.parent.exists():
            why = f"no such folder: {path.parent}; make it first"
        raise OSError(error.errno, why, str(path)) from error
    finally:
        with suppress(OSError):
            aside.unlink()
