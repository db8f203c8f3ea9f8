"""Checkpoints as sets of stored tensors: opened without reading them, written one tensor at a time.

    checkpoint = open_checkpoint(Path("rank_0/net.ckpt"))
    checkpoint["fc.weight"].array()          # a view of the mapped file

The form goes by the file's name: .safetensors, or else MindSpore's .ckpt.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.errors import ModelError
from engine.sharding import ckpt, safetensors
from engine.sharding.files import private_file, read_file
from engine.sharding.stored import Array, Checkpoint, ToWrite

CKPT, SAFETENSORS = "ckpt", "safetensors"
FORMATS = (CKPT, SAFETENSORS)
SUFFIXES = tuple(f".{form}" for form in FORMATS)
_WANTED = "a checkpoint (.ckpt or .safetensors)"


class EncryptedCheckpoint(ModelError):
    """A checkpoint is encrypted, and its key is missing or wrong."""


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
        if dec_key:
            raise ModelError(f"{path}: safetensors are not encrypted; leave dec_key out", str(path))
        return safetensors.read(path, memoryview(data), crc_check)
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
        with private_file(path) as file:
            safetensors.write(file, tensors, value_of)
        return
    with private_file(path) as file:
        ckpt.write(file, tensors, value_of, crc_check)
