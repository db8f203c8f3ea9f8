"""Arrays in numpy's files, with those types that the .npy format lacks."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.tensor.description import Array


def write_archive(file: Any, arrays: Mapping[str, Array]) -> None:
    """Write arrays by name as an .npz file. file: a path, or a file that can seek."""
    # Not np.savez: it takes the names as arguments, and an output may be called "file".
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, storable(array), allow_pickle=False)


def storable(array: Array) -> Array:
    """Return the same values in a type of the .npy format: bfloat16 as float32, text as str."""
    if array.dtype == object:
        return array.astype(str)
    if array.dtype.isbuiltin == 1:
        return array
    return array.astype(_stored(array.dtype))


def first_values(array: Array, count: int) -> list[Any]:
    """Return the first values in C order as Python's numbers, text and booleans."""
    values: list[Any] = storable(array.reshape(-1)[:count]).tolist()
    return values


def restored(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return to `dtype` what `storable` made of an array of it; another array stays as it is."""
    if dtype.isbuiltin == 1 or dtype.hasobject or array.dtype != _stored(dtype):
        return array
    with np.errstate(over="ignore", invalid="ignore"):  # then it was no such array
        back = array.astype(dtype)
    return back if np.array_equal(storable(back), array, equal_nan=True) else array


def _stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a type that holds all values of one that numpy's files do not have."""
    return np.dtype(np.int8 if "int" in dtype.name else np.float32)
