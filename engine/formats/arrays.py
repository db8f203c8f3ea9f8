"""Files that hold values instead of models: .npy, .npz and raw ones."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.errors import InputError, one_line
from engine.types import DType, TensorSpec

Array: TypeAlias = npt.NDArray[Any]


class Opened(Protocol):
    """A file, or what came in its place; `str` gives its name for messages."""

    def open(self) -> BinaryIO:
        """Return it opened to read bytes."""

    def read_bytes(self) -> bytes:
        """Return all its bytes."""


def fits(shape: tuple[int, ...], spec: TensorSpec) -> bool:
    """Return whether an array of this shape is one that the spec declares."""
    if spec.shape is None:
        return True
    return len(shape) == len(spec.shape) and all(
        size == dim or not isinstance(dim, int) for size, dim in zip(shape, spec.shape, strict=True)
    )


def read_npy(path: Path | Opened) -> Array:
    """Read the array in a .npy file; InputError where the file is not one."""
    with _opened(path) as file:  # np.load given a path leaves a broken archive open
        try:
            _require_magic(file)
            array = np.load(file, allow_pickle=False)
        except Exception as error:  # numpy's, and those of the parser that its headers go to
            raise InputError(f"{path}: not a readable .npy file: {one_line(error)}") from error
        if isinstance(array, np.ndarray):
            return array
        array.close()
    raise InputError(f"{path}: expected one array (.npy), got an archive of arrays (.npz)")


def read_npz(path: Path | Opened) -> dict[str, Array]:
    """Read the arrays in a .npz file by name; InputError where the file is not one."""
    with _opened(path) as file:
        try:
            _require_magic(file)
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.ndarray):
                with archive:
                    return {name: _member(archive[name], name) for name in archive.files}
        except Exception as error:  # numpy's, zipfile's, zlib's ...
            raise InputError(f"{path}: not a readable .npz file: {one_line(error)}") from error
    raise InputError(f"{path}: expected an archive of arrays (.npz), got one array (.npy)")


def _opened(path: Path | Opened) -> BinaryIO:
    return path.open("rb") if isinstance(path, Path) else path.open()


def _require_magic(file: BinaryIO) -> None:
    """Refuse what is neither: numpy takes it for a pickle, and advises to load that unsafely."""
    start = file.read(6)
    file.seek(0)
    if start and not start.startswith((b"\x93NUMPY", b"PK")):
        raise ValueError(f"it starts with {start.hex(' ')}, not as numpy's files do")


def _member(value: object, name: str) -> Array:
    """Return an archive's member if it is an array: numpy gives the bytes of anything else."""
    if not isinstance(value, np.ndarray):
        raise ValueError(f"its member {name!r} is no array")  # noqa: TRY004  # of the file's content
    return value


def read_raw(
    path: Path | Opened, spec: TensorSpec, shape: tuple[int, ...] | None, advice: str
) -> Array:
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
    fits = (step and data and len(data) % step == 0) if is_open else len(data) == step
    if not fits:
        wanted = f"a multiple of {step}" if is_open else str(step)
        raise InputError(
            f"{path}: input {spec.name!r} is {spec if shape is None else [*shape]}: expected "
            f"{wanted} bytes, got {len(data)} bytes",
            spec.name,
        )
    sizes = [dim if isinstance(dim, int) else len(data) // step for dim in declared]
    return np.frombuffer(data, dtype).reshape(sizes)
