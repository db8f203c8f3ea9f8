"""A batch from several files: images or arrays, one after the other along axis 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from engine.cli.input_files import IMAGES, InputFile
from engine.errors import InputError
from engine.report.parts import described
from engine.tensor.description import Array
from engine.types import TensorSpec, ValueKind

Shape = tuple[int, ...]
Read: TypeAlias = Callable[[TensorSpec, InputFile, Shape | None], tuple[Any, str]]

_KINDS = (*IMAGES, ".npy")


def read_batch(
    spec: TensorSpec, files: Sequence[InputFile], shape: Shape | None, read: Read
) -> tuple[Array, list[str]]:
    """Return the arrays of all files as one batch, and notes on what was done.

    shape: of the batch, where the user says it. read: reads a file for an input of any batch.
    Raises InputError for an input without a batch, and files that do not make up one.
    """
    name = f"input {spec.name!r}"
    sizes = shape if shape is not None else spec.shape
    least = 4 if any(file.suffix in IMAGES for file in files) else 1
    if sizes is None or len(sizes) < least or spec.kind is not ValueKind.TENSOR:
        raise InputError(
            f"{name}: is given {len(files)} files, but {spec} has no axis for a batch of them",
            spec.name,
        )
    strange = [file for file in files if file.suffix not in _KINDS]
    if strange:
        raise InputError(
            f"{strange[0]}: a batch takes images and .npy files; save it as .npy", spec.name
        )
    declared = spec.shape[0] if spec.shape else None
    axis = declared if isinstance(declared, str) else None  # its name, for messages
    any_batch = replace(spec, shape=(axis, *sizes[1:]), bounds=())
    arrays: list[Array] = []
    said: list[str] = []
    for file in files:
        array, done = read(any_batch, file, None)
        if arrays and array.shape[1:] != arrays[0].shape[1:]:
            count = sizes[0] if isinstance(sizes[0], int) else len(files) * len(arrays[0])
            sizes_text = ",".join(map(str, (count, *arrays[0].shape[1:])))
            raise InputError(
                f"{name}: {files[0]} gives {described(arrays[0])} and {file} {described(array)}; "
                f"a batch needs one size: give it with --shape {spec.name}={sizes_text}",
                spec.name,
            )
        arrays.append(array)
        said.append(done)
    batch = np.concatenate(arrays)
    if isinstance(sizes[0], int) and sizes[0] != len(batch):
        raise InputError(
            f"{name}: expected a batch of {sizes[0]}, got {len(batch)} from {len(files)} files",
            spec.name,
        )
    start = f"note: input {spec.name}: "
    if len({*said}) == 1:
        how = f", each {said[0]}" if said[0] else ""
        return batch, [f"{start}a batch of {len(batch)} from {len(files)} files{how}"]
    notes = [f"{start}{file}: {done}" for file, done in zip(files, said, strict=True) if done]
    return batch, [*notes, f"{start}a batch of {len(batch)} from {len(files)} files"]
