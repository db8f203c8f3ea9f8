"""Encrypts and decrypts model files the way MindSpore does, in memory: nothing here is a file.

A file is a run of blocks: a magic number, for GCM a tag, the length of the rest, the IV with its
length, and the ciphertext with its length; integers are int32, little endian. Each block is
encrypted by itself, and holds at most 64 MiB of the plaintext.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from engine.errors import ModelError
from engine.formats.kinds import ENCRYPTIONS, encryption_of

MODES = {name: start for start, name in ENCRYPTIONS.items()}
BLOCK_BYTES = 64 << 20
_GCM, _SM4 = MODES["AES-GCM"], MODES["SM4-CBC"]
_IV_BYTES = 16
_NONCE_BYTES = 12  # of the IV, in GCM; newer MindSpore Lite takes all 16
_INSTALL = 'run: pip install "inference-engine[encryption]"'


class DecryptionError(ModelError):
    """Decrypting or encrypting failed. The message says why: no key, wrong key, damage."""


class Block(NamedTuple):
    """One encrypted part."""

    tag: bytes
    iv: bytes
    data: memoryview


def encrypt(data: bytes | memoryview, key: bytes, mode: str = "AES-GCM") -> bytes:
    """Encrypt a whole file, each block with an IV of its own.

    key: 16, 24 or 32 bytes, for SM4-CBC 16. Raises DecryptionError for another key or mode, and
        where the cryptography package is missing.
    """
    _check(key, mode)
    magic = MODES[mode]
    view = memoryview(data)
    written = io.BytesIO()
    for start in range(0, len(view) or 1, BLOCK_BYTES):
        iv = os.urandom(_IV_BYTES)
        tag, sealed = _seal(view[start : start + BLOCK_BYTES], key, iv, magic)
        lengths = struct.pack("<ii", 4 + len(iv) + 4 + len(sealed), len(iv))
        written.write(magic + tag + lengths + iv + struct.pack("<i", len(sealed)))
        written.write(sealed)
    return written.getvalue()


def decrypt(view: memoryview, key: bytes | None, mode: str) -> bytes:
    """Decrypt a whole file; return the plaintext. Raises DecryptionError."""
    seen = encryption_of(view)
    if not seen:
        raise DecryptionError("it is not encrypted, though the model that it belongs to is")
    if not key:
        raise DecryptionError(
            f"it is encrypted with {seen}; pass its key: dec_key=..., dec_mode={seen!r}"
        )
    if mode in MODES and mode != seen:
        raise DecryptionError(
            f"it is encrypted with {seen}, but dec_mode is {mode!r}; pass {seen!r}"
        )
    _check(key, mode)
    magic = MODES[mode]
    blocks = list(_blocks(view, magic))
    plain = io.BytesIO()
    for part in _gcm(blocks, key) if magic == _GCM else _cbc(blocks, key, magic):
        plain.write(part)
    return plain.getvalue()


def _check(key: bytes, mode: str) -> None:
    if mode not in MODES:
        raise DecryptionError(f"the mode {mode!r} is not known; expected one of {', '.join(MODES)}")
    if len(key) not in ((16,) if mode == "SM4-CBC" else (16, 24, 32)):
        sizes = "16" if mode == "SM4-CBC" else "16, 24 or 32"
        raise DecryptionError(f"the key has {len(key)} bytes; {mode} takes {sizes}")
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise DecryptionError(
            f"encrypted files need the cryptography package; {_INSTALL}"
        ) from error


def _seal(part: memoryview, key: bytes, iv: bytes, magic: bytes) -> tuple[bytes, bytes]:
    """Encrypt one block; return the tag, b"" but for GCM, and the ciphertext."""
    from cryptography.hazmat.primitives.padding import PKCS7

    if magic == _GCM:
        encryptor = _cipher(key, iv[:_NONCE_BYTES], magic).encryptor()
        sealed = encryptor.update(part) + encryptor.finalize()
        return encryptor.tag, sealed
    encryptor = _cipher(key, iv, magic).encryptor()
    padder = PKCS7(128).padder()
    # One after the other: the padder may give its input back, which is no bytes to add to.
    sealed = encryptor.update(padder.update(part)) + encryptor.update(padder.finalize())
    return b"", sealed + encryptor.finalize()


def _cipher(key: bytes, iv: bytes, magic: bytes, tag: bytes | None = None) -> Any:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    mode = modes.GCM(iv, tag) if magic == _GCM else modes.CBC(iv)
    return Cipher(algorithms.SM4(key) if magic == _SM4 else algorithms.AES(key), mode)


def _blocks(view: memoryview, magic: bytes) -> Iterator[Block]:
    at = 0
    total = len(view)

    def take(count: int, what: str) -> memoryview:
        nonlocal at
        if count < 0 or at + count > total:
            raise DecryptionError(
                f"damaged: {what} should take {count:,} bytes at byte {at:,} of {total:,}; copy or "
                "download the file again"
            )
        at += count
        return view[at - count : at]

    def number(what: str) -> int:
        [value] = struct.unpack("<i", take(4, what))
        return int(value)

    while at < total:
        start = at
        if take(4, "a magic number") != magic:
            raise DecryptionError(
                f"damaged: no block begins at byte {start:,}; copy or download it again"
            )
        tag = bytes(take(16, "a tag")) if magic == _GCM else b""
        length = number("the length of a block")
        iv_length = number("the length of an IV")
        if iv_length != _IV_BYTES and (iv_length, magic) != (_NONCE_BYTES, _GCM):
            raise DecryptionError(f"damaged: an IV of {iv_length} bytes; expected {_IV_BYTES}")
        iv = bytes(take(iv_length, "an IV"))
        data = take(number("the length of the data"), "the data")
        # The length counts its own fields in some writers and not in others; the data's decides.
        if length < len(data):
            raise DecryptionError(
                f"damaged: a block of {length:,} bytes with {len(data):,} of data"
            )
        yield Block(tag, iv, data)


def _gcm(blocks: list[Block], key: bytes) -> Iterator[bytes]:
    from cryptography.exceptions import InvalidTag

    lengths = [_NONCE_BYTES, _IV_BYTES]
    for number, block in enumerate(blocks):
        for length in lengths:
            decryptor = _cipher(key, block.iv[:length], _GCM, block.tag).decryptor()
            try:
                plain = decryptor.update(block.data) + decryptor.finalize()
            except InvalidTag:
                continue
            lengths = [length]
            yield plain
            break
        else:
            if number:
                raise DecryptionError(
                    "damaged: a later part does not fit its tag; copy the file again"
                )
            raise DecryptionError("the key is wrong, or the file was changed: its tag does not fit")


def _cbc(blocks: list[Block], key: bytes, magic: bytes) -> Iterator[bytes]:
    from cryptography.hazmat.primitives.padding import PKCS7

    for number, block in enumerate(blocks):
        if not block.data or len(block.data) % 16:
            raise DecryptionError(
                f"damaged: {len(block.data):,} bytes of data; expected a multiple of 16"
            )
        decryptor = _cipher(key, block.iv, magic).decryptor()
        padded = decryptor.update(block.data) + decryptor.finalize()
        remover = PKCS7(128).unpadder()
        try:
            plain = remover.update(padded) + remover.finalize()
        except ValueError:
            if number:
                raise DecryptionError(
                    "damaged: a later part ends wrongly; copy the file again"
                ) from None
            raise DecryptionError("the key is wrong, or the end of the file is damaged") from None
        yield plain
