"""Reads and writes arrays as files: .npy, .npz and raw .bin."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from engine.errors import InputError
from engine.tensor import Array
from engine.types import DType, TensorSpec

SUFFIXES = (".npy", ".npz", ".bin")
# What numpy and zipfile raise for a file that is cut, damaged, or another thing altogether.
_UNREADABLE = (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)


def read_npy(path: Path) -> Array:
    """The array in a .npy file; InputError where the file is not one."""
    with path.open("rb") as file:  # np.load given a path leaves a broken archive open
        try:
            array = np.load(file, allow_pickle=False)
        except _UNREADABLE as error:
            raise InputError(f"{path}: not a readable .npy file: {error}") from error
        if isinstance(array, np.ndarray):
            return array
        array.close()
    raise InputError(f"{path}: expected one array (.npy), got an archive of arrays (.npz)")


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays in a .npz file by name; InputError where the file is not one."""
    with path.open("rb") as file:
        try:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.ndarray):
                with archive:
                    return {name: archive[name] for name in archive.files}
        except _UNREADABLE as error:
            raise InputError(f"{path}: not a readable .npz file: {error}") from error
    raise InputError(f"{path}: expected an archive of arrays (.npz), got one array (.npy)")


def read_bin(path: Path, spec: TensorSpec, shape: tuple[int, ...] | None) -> Array:
    """Raw elements in the machine's byte order, as `spec` declares them.

    shape: as the user gave it, or None to go by the declared one, in which one axis may be open.
    """
    if spec.dtype is DType.STRING or spec.dtype.bits < 8:
        raise InputError(f"{path}: a .bin file cannot hold {spec.dtype}; use .npy", spec.name)
    dtype = spec.dtype.numpy
    data = path.read_bytes()
    declared = shape if shape is not None else spec.shape
    if declared is None or sum(not isinstance(dim, int) for dim in declared) > 1:
        raise InputError(
            f"{path}: input {spec.name!r} is {spec}, and a .bin file has no shape of its own; "
            f"give it with --shape {spec.name}=...",
            spec.name,
        )
    known = 1
    for dim in declared:
        known *= dim if isinstance(dim, int) else 1
    is_open = any(not isinstance(dim, int) for dim in declared)
    step = known * dtype.itemsize
    fits = (step and len(data) % step == 0) if is_open else len(data) == step
    if not fits:
        wanted = f"a multiple of {step}" if is_open else str(step)
        raise InputError(
            f"{path}: input {spec.name!r} is {spec if shape is None else [*shape]}: expected "
            f"{wanted} bytes, got {len(data)} bytes",
            spec.name,
        )
    sizes = [dim if isinstance(dim, int) else len(data) // step for dim in declared]
    return np.frombuffer(data, dtype).reshape(sizes)


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
