"""The content of a model file: its bytes, decrypted where they are encrypted, and their kind."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import NamedTuple

from engine.errors import ModelError
from engine.formats import kinds
from engine.formats.protobuf import Budget, WireError, spans
from engine.wings import wing

_FIELDS = 4


class Content(NamedTuple):
    """The content of a file.

    kind: of `data`, as `kinds.kind_of` names it. data: in memory, or mapped where a plain file is
    large; of an encrypted file the plaintext, which is nowhere else. encryption: how the file is
    encrypted, "" for not at all.
    """

    kind: str
    data: bytes | mmap.mmap
    encryption: str = ""


def decrypted(
    data: bytes | mmap.mmap, kind: str, path: Path | None, dec_key: bytes | None, dec_mode: str
) -> Content:
    """Return what a file holds.

    data: as it is stored; kind: of that. path: what errors call the file; None for bytes.
    Raises ModelError where its key is missing or wrong, or it takes none.
    """
    name, where = ("model bytes", "") if path is None else (str(path),) * 2
    if kind != kinds.ENCRYPTED_MINDIR:
        if dec_key:
            raise ModelError(
                f"{name}: it is not encrypted, but dec_key was given; leave dec_key out", where
            )
        return Content(kind, data)
    try:
        plain: bytes = wing("decrypt")(memoryview(data), dec_key, dec_mode)
    except ModelError as error:
        raise ModelError(f"{name}: {error}", where) from None
    kind = kinds.kind_of(memoryview(plain))
    is_proven = dec_mode == "AES-GCM"  # that this is what was encrypted; any key fits the others
    if kind in (kinds.ONNX, kinds.MINDIR) and (is_proven or _begins_as_message(plain)):
        return Content(kind, plain, dec_mode)
    if is_proven:
        what, _ = kinds.FOREIGN.get(kind, ("encrypted once more", ""))
        raise ModelError(f"{name}: holds {what}, encrypted; expected MindIR or ONNX", where)
    raise ModelError(
        f"{name}: the key is wrong, or the file is damaged: what comes out is neither MindIR nor "
        "ONNX",
        where,
    )


def _begins_as_message(plain: bytes) -> bool:
    """Return whether the first fields are protobuf's: a wrong key's random bytes hardly ever are.

    A message of fewer fields passes.
    """
    parts = spans(plain, 0, len(plain), Budget(_FIELDS))
    try:
        for _ in range(_FIELDS - 1):
            next(parts, None)
    except WireError:
        return False
    return True
