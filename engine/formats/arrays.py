"""Files that hold values instead of models: .npy, .npz and raw ones."""

from __future__ import annotations

import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.errors import InputError
from engine.types import DType, TensorSpec

Array: TypeAlias = npt.NDArray[Any]

# What numpy and zipfile raise for a file that is cut, damaged, or another thing altogether.
_UNREADABLE = (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)


def read_npy(path: Path) -> Array:
    """Read the array in a .npy file; InputError where the file is not one."""
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
    """Read the arrays in a .npz file by name; InputError where the file is not one."""
    with path.open("rb") as file:
        try:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.ndarray):
                with archive:
                    return {name: archive[name] for name in archive.files}
        except _UNREADABLE as error:
            raise InputError(f"{path}: not a readable .npz file: {error}") from error
    raise InputError(f"{path}: expected an archive of arrays (.npz), got one array (.npy)")


def read_raw(path: Path, spec: TensorSpec, shape: tuple[int, ...] | None, advice: str) -> Array:
    """Read a file of elements in the machine's byte order, as `spec` declares them; read-only.

    shape: as the user gave it, or None to go by the declared one, in which one axis may be open.
    advice: what to do where the shape is open.
    Raises InputError for a file that does not fit.
    """
    if spec.dtype is DType.STRING or spec.dtype.bits < 8:
        raise InputError(f"{path}: a raw file cannot hold {spec.dtype}; use .npy", spec.name)
    dtype = spec.dtype.numpy
    data = path.read_bytes()
    declared = shape if shape is not None else spec.shape
    if declared is None or sum(not isinstance(dim, int) for dim in declared) > 1:
        raise InputError(
            f"{path}: input {spec.name!r} is {spec}, and a raw file has no shape of its own; "
            f"{advice}",
            spec.name,
        )
    is_open = any(not isinstance(dim, int) for dim in declared)
    step = prod(dim for dim in declared if isinstance(dim, int)) * dtype.itemsize
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
