"""Decrypts .mindir files. Nothing decrypted leaves this process's memory.

A file is a run of blocks: a magic number, for GCM a tag, the length of the block, the IV with its
length, and the ciphertext with its length; integers are int32, little endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

GCM, CBC, SM4 = 0x7F3A5ED8, 0x7F3A5ED9, 0x7F3A5EDA
MODES = {"AES-GCM": GCM, "AES-CBC": CBC, "SM4-CBC": SM4}
_NAMES = {number: name for name, number in MODES.items()}
_INSTALL = 'run: pip install "inference-engine[encryption]"'


class Locked(ValueError):
    """The file cannot be decrypted. The message says why: no key, wrong key, or damage."""


class Block(NamedTuple):
    """One encrypted part."""

    tag: bytes
    iv: bytes
    data: memoryview


def is_encrypted(view: memoryview) -> bool:
    """Whether a file begins as an encrypted one does."""
    return int.from_bytes(view[:4], "little") in _NAMES


def decrypt(view: memoryview, key: bytes | None, mode: str) -> bytes:
    """The whole plaintext of an encrypted file. Raises Locked."""
    if not is_encrypted(view):
        raise Locked("it is not encrypted, though the model that it belongs to is")
    (magic,) = struct.unpack("<I", view[:4])
    written = _NAMES[magic]
    if not key:
        raise Locked(
            f"it is encrypted with {written}; pass its key: dec_key=..., dec_mode={written!r}"
        )
    if mode not in MODES:
        raise Locked(f"dec_mode {mode!r} is not known; expected one of {', '.join(MODES)}")
    if MODES[mode] != magic:
        raise Locked(f"it is encrypted with {written}, but dec_mode is {mode!r}; pass {written!r}")
    sizes = (16,) if magic == SM4 else (16, 24, 32)
    if len(key) not in sizes:
        raise Locked(
            f"dec_key has {len(key)} bytes; {mode} takes {' or '.join(map(str, sizes))} bytes"
        )
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise Locked(f"decrypting needs the cryptography package; {_INSTALL}") from error
    blocks = list(_blocks(view, magic))
    if magic == GCM:
        return b"".join(_gcm(blocks, key))
    return b"".join(_cbc(block, key, magic) for block in blocks)


def _blocks(view: memoryview, magic: int) -> Iterator[Block]:
    at = 0
    total = len(view)

    def take(count: int, what: str) -> memoryview:
        nonlocal at
        if count < 0 or at + count > total:
            raise Locked(
                f"damaged: {what} should take {count:,} bytes at byte {at:,} of {total:,}; copy or "
                "download the file again"
            )
        at += count
        return view[at - count : at]

    def number(what: str) -> int:
        found: int = struct.unpack("<i", take(4, what))[0]
        return found

    while at < total:
        start = at
        (seen,) = struct.unpack("<I", take(4, "a magic number"))
        if seen != magic:
            raise Locked(f"damaged: no block begins at byte {start:,}; copy or download it again")
        tag = bytes(take(16, "a tag")) if magic == GCM else b""
        length = number("the length of a block")
        iv_length = number("the length of an IV")
        if iv_length != 16 and (iv_length, magic) != (12, GCM):
            raise Locked(f"damaged: an IV of {iv_length} bytes; expected 16")
        iv = bytes(take(iv_length, "an IV"))
        data = take(number("the length of the data"), "the data")
        # The length counts its own fields in some writers and not in others; the data's decides.
        if length < len(data):
            raise Locked(f"damaged: a block of {length:,} bytes with {len(data):,} of data")
        yield Block(tag, iv, data)


def _gcm(blocks: list[Block], key: bytes) -> Iterator[bytes]:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    lengths = [12, 16]  # MindSpore takes 12 bytes of the IV, newer MindSpore Lite all 16
    for number, block in enumerate(blocks):
        for length in lengths:
            cipher = Cipher(algorithms.AES(key), modes.GCM(block.iv[:length], block.tag))
            decryptor = cipher.decryptor()
            try:
                plain = decryptor.update(block.data) + decryptor.finalize()
            except InvalidTag:
                continue
            lengths = [length]
            yield plain
            break
        else:
            if number:
                raise Locked("damaged: a later part does not fit its tag; copy the file again")
            raise Locked("the key is wrong, or the file was changed: its tag does not fit")


def _cbc(block: Block, key: bytes, magic: int) -> bytes:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.padding import PKCS7

    if not block.data or len(block.data) % 16:
        raise Locked(f"damaged: {len(block.data):,} bytes of data; expected a multiple of 16")
    algorithm = algorithms.SM4(key) if magic == SM4 else algorithms.AES(key)
    decryptor = Cipher(algorithm, modes.CBC(block.iv)).decryptor()
    padded = decryptor.update(block.data) + decryptor.finalize()
    remover = PKCS7(128).unpadder()
    try:
        return bytes(remover.update(padded) + remover.finalize())
    except ValueError:
        raise Locked("the key is wrong, or the end of the file is damaged") from None
