"""Checkpoints as sets of stored tensors: opened without reading them, written one tensor at a time.

    checkpoint = open_checkpoint(Path("rank_0/net.ckpt"))
    checkpoint["fc.weight"].array()          # a view of the mapped file

The form goes by the file's name: .safetensors, or else MindSpore's .ckpt.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from engine.errors import ModelError
from engine.sharding.files import private_file, read_file
from engine.types import DType

Array: TypeAlias = "np.ndarray[Any, Any]"

CKPT, SAFETENSORS = "ckpt", "safetensors"
FORMATS = (CKPT, SAFETENSORS)
MOST_BYTES = (1 << 63) - 1
"""Numpy's limit on the bytes of an array; of an empty one too, without the dims that are 0."""
_WANTED = "a checkpoint (.ckpt or .safetensors)"


class EncryptedCheckpoint(ModelError):
    """A checkpoint is encrypted, and its key is missing or wrong."""


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


def format_of(path: Path) -> str:
    """Return the form of a checkpoint by its name."""
    return SAFETENSORS if path.suffix == ".safetensors" else CKPT


def open_checkpoint(
    path: Path, dec_key: bytes | None = None, dec_mode: str = "AES-GCM", *, crc_check: bool = False
) -> Checkpoint:
    """Open a checkpoint and check where its tensors are; none is read. Large files stay mapped.

    dec_key, dec_mode: of an encrypted one, which is decrypted into memory as a whole. crc_check:
    also read the file once, and compare its checksum if it has one.
    Raises ModelError naming the file, the parameter and what is wrong.
    """
    data: bytes | mmap.mmap = read_file(path, _WANTED)
    if format_of(path) == SAFETENSORS:
        from engine.sharding import safetensors

        if dec_key:
            raise ModelError(f"{path}: safetensors are not encrypted; leave dec_key out", str(path))
        return safetensors.read(path, memoryview(data), crc_check)
    from engine.sharding import ckpt

    return ckpt.read(path, _decrypted(path, data, dec_key, dec_mode), crc_check)


def _decrypted(
    path: Path, data: bytes | mmap.mmap, dec_key: bytes | None, dec_mode: str
) -> memoryview:
    from engine.formats.kinds import encryption_of

    view = memoryview(data)
    seen = encryption_of(view[:4])
    if not seen:
        if dec_key:
            raise ModelError(
                f"{path}: it is not encrypted, but dec_key was given; leave dec_key out", str(path)
            )
        return view
    from engine.formats.encryption import DecryptionError, decrypt

    try:
        return memoryview(decrypt(view, dec_key, dec_mode))
    except DecryptionError as error:
        raise EncryptedCheckpoint(f"{path}: {error}", str(path)) from error


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


def write_checkpoint(
    path: Path,
    tensors: Sequence[ToWrite],
    value_of: Callable[[ToWrite], Array],
    format: str = "",
    *,
    crc_check: bool = False,
) -> None:
    """Write a checkpoint, readable by its owner only; `path` must not exist yet.

    value_of: gives the elements of a tensor when its turn comes; nothing of it is kept.
    format: "ckpt" or "safetensors"; "" goes by the name. crc_check: add a checksum (.ckpt).
    Raises OSError.
    """
    if (format or format_of(path)) == SAFETENSORS:
        from engine.sharding import safetensors

        with private_file(path) as file:
            safetensors.write(file, tensors, value_of)
        return
    from engine.sharding import ckpt

    with private_file(path) as file:
        ckpt.write(file, tensors, value_of, crc_check)


def bytes_of(array: Array) -> memoryview:
    """Return the elements of an array as bytes, copied only where they are not in C order."""
    # host copy: only of an array that is a strided view
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
