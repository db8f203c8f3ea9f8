"""Writes arrays as files, .npy and .npz."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from engine.tensor import Array


def write(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write one array as .npy or any number as .npz; the file appears whole or not at all."""
    with written_whole(path) as file:
        if path.suffix == ".npy":
            [array] = arrays.values()
            np.lib.format.write_array(file, storable(array), allow_pickle=False)
        else:
            _write_archive(file, arrays)


@contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that becomes `path` when the block has ended well."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("xb") as file:
            yield file
        aside.replace(path)
    except OSError as error:  # the user knows the file by its own name
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        aside.unlink(missing_ok=True)


def _write_archive(file: Any, arrays: Mapping[str, Array]) -> None:
    # Not np.savez: it takes the names as arguments, and an output may be called "file".
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, storable(array), allow_pickle=False)


def storable(array: Array) -> Array:
    """The same values in a type that the .npy format has: bfloat16 as float32, text as str."""
    if array.dtype == object:
        return array.astype(str)
    if array.dtype.isbuiltin == 1:
        return array
    return array.astype(np.int8 if "int" in array.dtype.name else np.float32)
