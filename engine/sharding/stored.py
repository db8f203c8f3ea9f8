"""The parameters of a checkpoint: where each is stored, and what is to be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from engine.errors import ModelError
from engine.types import DType

Array: TypeAlias = "np.ndarray[Any, Any]"

MOST_BYTES = (1 << 63) - 1
"""Numpy's limit on the bytes of an array; of an empty one too, without the dims that are 0."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a checkpoint, where it is stored.

    dtype: None for what is no plain tensor; `kind` says then what the file calls it. pieces: its
    bytes, in order; more than one where the writer cut it.
    stored_as: the type of the bytes, where that is not `dtype`.
    """

    name: str
    dtype: DType | None
    shape: tuple[int, ...]
    pieces: Sequence[memoryview]
    kind: str = ""
    stored_as: DType | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return sum(map(len, self.pieces))

    @property
    def text(self) -> str | None:
        """The text, where it is one; else None."""
        if self.kind.lower() != "str":
            return None
        return b"".join(self.pieces).decode("utf-32-le", "replace").rstrip("\0")

    def array(self) -> Array:
        """Return the elements, without copying where they lie in one piece. Not to be changed.

        Raises ModelError for what is no plain tensor.
        """
        if self.dtype is None:
            raise ModelError(
                f"parameter {self.name!r} is stored as {self.kind!r}, which is no plain tensor and "
                "cannot be split or joined; leave it out of the checkpoint"
            )
        dtype = (self.stored_as or self.dtype).numpy
        whole = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        array = np.frombuffer(whole, dtype).reshape(self.shape)
        return array if self.stored_as is None else array.astype(self.dtype.numpy)


@dataclass(frozen=True)
class Checkpoint:
    """The parameters of a checkpoint file, by name."""

    path: Path
    tensors: Mapping[str, Stored]
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Stored:
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors


@dataclass(frozen=True, slots=True)
class ToWrite:
    """A tensor that is to be written. dtype None: `stored`, as it is."""

    name: str
    dtype: DType | None
    shape: tuple[int, ...]
    stored: Stored | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that it will take."""
        if self.dtype is None:
            assert self.stored is not None
            return self.stored.nbytes
        return prod(self.shape) * (self.dtype.bits // 8)


def bytes_of(array: Array) -> memoryview:
    """Return the elements of an array as bytes, copied only where they are not in C order."""
    # host copy: only of an array that is a strided view
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
