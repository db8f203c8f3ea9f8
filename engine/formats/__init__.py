"""Model files: what they are, by content, and whether they may go to a runtime.

`ModelFile` is the one way in: every file is recognised, read and checked there before a backend
sees it, and a bad one is a ModelError that names the file, what is wrong and what was expected.

model_file.py   a file, opened once; opened.py: what a plan gets of it; files.py: reading it
recent.py       what was read of a few files lately
kinds.py        formats by their content; content.py: what is in an encrypted one; encryption.py
protobuf.py     the wire format; onnx/: ONNX's messages, read and written; mindir/: MindSpore's
lowered.py      a MindIR that was lowered before; data_files.py: where its tensors lie; code.py
arrays.py       files of values instead of models; collectives.py: nodes that wait for other ranks
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from engine.formats import kinds
from engine.formats.model_file import NO_SUFFIXES, ModelFile
from engine.formats.onnx import read_part
from engine.formats.opened import FileVersion, OpenedSource, Slot
from engine.types import ModelSource

__all__ = [
    "FileVersion",
    "ModelFile",
    "OpenedSource",
    "Slot",
    "open_source",
    "recognise",
    "source_from_bytes",
    "source_of_part",
]


def recognise(path: str | os.PathLike[str]) -> str:
    """Name what a file holds, by its content.

    Returns "onnx", "mindir", "encrypted_mindir" (MindIR or ONNX, encrypted), or a word for another
    format: "plan" and "om" (compiled models), "pytorch", "tflite", "zip", "onnx_text" and the
    like, "unknown". Damaged files are named by what is left of them. Raises ModelError for a
    missing, empty or unreadable file.
    """
    return ModelFile(path).kind


def open_source(
    path: str | os.PathLike[str],
    suffixes: Mapping[str, str] = NO_SUFFIXES,
    *,
    dec_key: bytes | None = None,
    dec_mode: str = "AES-GCM",
    folder: str | os.PathLike[str] | None = None,
    variable_weights: tuple[str, ...] = (),
) -> OpenedSource:
    """Open a model file that is asked for once; see ModelFile. Raises ModelError."""
    file = ModelFile(
        path,
        dec_key=dec_key,
        dec_mode=dec_mode,
        folder=folder,
        variable_weights=variable_weights,
    )
    return file(suffixes)


def source_from_bytes(data: bytes, weights: bytes | None = None) -> OpenedSource:
    """Check a model given as bytes; see ModelFile.of_bytes. Raises ModelError."""
    return ModelFile.of_bytes(data, weights)()


def source_of_part(data: bytes, whole: ModelSource, folder: Path | None) -> OpenedSource:
    """Check a model that was cut out of `whole`, which messages go on to name.

    folder: what the external data in it is relative to; None where there is none.
    """
    model = read_part(data, folder, whole.name, whole.files)
    return OpenedSource(
        format=kinds.ONNX,
        path=whole.path,
        data=data,
        folder=folder,
        graph=model.graph,
        is_secret=whole.is_secret,
        files=whole.files,
        folds_too_much=model.folds_too_much,
        versions=whole.versions if isinstance(whole, OpenedSource) else {},
        digest=_digest_of_part(data, whole),
    )


def _digest_of_part(data: bytes, whole: ModelSource) -> str:
    """Return what a part is known by: what it refers to is the whole's. "" where that has none."""
    if not isinstance(whole, OpenedSource) or not whole.digest:
        return ""
    import hashlib  # rare

    own = hashlib.sha256(data).hexdigest()
    return hashlib.sha256(f"{own} of {whole.digest}".encode()).hexdigest()
