"""Model files: what they are, by content, and whether they may go to a runtime.

`open_source` is the one way in: every file is recognised, read and checked here before a backend
sees it, and a bad one is a ModelError that names the file, what is wrong and what was expected.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from engine.errors import ModelError
from engine.formats import kinds
from engine.formats.content import Content, content_of
from engine.formats.files import read_file
from engine.formats.onnx import read_model
from engine.types import ModelSource

__all__ = ["open_source", "recognise", "source_from_bytes", "source_of_part"]

_NO_SUFFIXES: Mapping[str, str] = {}


def recognise(path: str | os.PathLike[str]) -> str:
    """Name what a file holds, by its content.

    Returns "onnx", "mindir", "encrypted_mindir" (MindIR or ONNX, encrypted), or a word for another
    format: "plan" and "om" (compiled models), "pytorch", "tflite", "zip", "onnx_text" and the
    like, "unknown". Damaged files are named by what is left of them. Raises ModelError for a
    missing, empty or unreadable file.
    """
    return kinds.kind_of(memoryview(read_file(Path(path))))


def open_source(
    path: str | os.PathLike[str],
    suffixes: Mapping[str, str] = _NO_SUFFIXES,
    *,
    dec_key: bytes | None = None,
    dec_mode: str = "AES-GCM",
    folder: str | os.PathLike[str] | None = None,
) -> ModelSource:
    """Open a model file for a backend, checked.

    suffixes: file name endings of the backend's own compiled forms, and their formats, e.g.
        {".engine": "plan"}. Such a file is passed on unread, with `graph` None.
    dec_key, dec_mode: the key of an encrypted file, which holds MindIR or ONNX. folder: where the
        data files of a split MindIR are, if not beside it.
    Returns for an ONNX model its GraphInfo and, up to 64 MiB, the bytes that were checked; larger
    files are for the runtime to map and must not be changed meanwhile. Of an encrypted file it is
    always the bytes, whatever their size, and they are written nowhere. A file that breaks a rule
    but says clearly what it means (nodes out of order, outputs without a type that follows from
    the rest, one initializer twice) is made regular: the bytes are not the file's then.
    Raises ModelError.
    """
    file = Path(path)
    content = content_of(file, dec_key, dec_mode)
    kind, data, encryption = content
    if kind == kinds.ONNX:
        return _onnx(file, content)
    if kind == kinds.MINDIR:
        from engine.formats.mindir import open_mindir  # rare: most models are ONNX

        return open_mindir(
            file,
            data,
            dec_key=dec_key if encryption else None,
            dec_mode=dec_mode,
            folder=Path(folder) if folder else None,
        )
    # By content where the format has a magic number, else by name: compiled forms are opaque.
    named = (form for suffix, form in suffixes.items() if file.name.lower().endswith(suffix))
    compiled = kind if kind in suffixes.values() else next(named, None)
    if compiled is not None:
        return ModelSource(format=compiled, path=file, folder=file.parent)
    raise _foreign(kind, str(file), memoryview(data))


def source_from_bytes(data: bytes, weights: bytes | None = None) -> ModelSource:
    """Check a model given as bytes. The same rules and errors as `open_source`.

    data: not copied. External data is refused: bytes have no folder to find it in.
    weights: the data file of a split MindIR.
    """
    if not data:
        raise ModelError("model bytes: empty; expected a model")
    view = memoryview(data)
    kind = kinds.kind_of(view)
    if kind == kinds.ONNX:
        if weights:
            raise ModelError(
                "weight_bytes belong to a MindIR model, and these model_bytes are ONNX; "
                "leave weight_bytes out"
            )
        model = read_model(view, None, "model bytes")
        return ModelSource(format=kinds.ONNX, data=model.repaired or data, graph=model.graph)
    if kind == kinds.MINDIR:
        from engine.formats.mindir import open_mindir

        return open_mindir(None, data, weights=weights)
    if kind == kinds.ENCRYPTED_MINDIR:
        raise ModelError(
            f"model bytes: they are encrypted with {kinds.encryption_of(view)}, and "
            "build_from_buffer takes no key; write them to a file and pass its key to "
            "build_from_file"
        )
    raise _foreign(kind, "model bytes", view)


def source_of_part(data: bytes, whole: ModelSource, folder: Path | None) -> ModelSource:
    """Check a model that was cut out of `whole`, which messages go on to name.

    folder: what the external data in it is relative to; None where there is none.
    """
    beside = folder / "part" if folder is not None else None  # a name; nothing is read there
    model = read_model(memoryview(data), beside, whole.name, whole.files)
    return ModelSource(
        format=kinds.ONNX,
        path=whole.path,
        data=data,
        folder=folder,
        graph=model.graph,
        is_secret=whole.is_secret,
        files=whole.files,
    )


def _onnx(file: Path, content: Content) -> ModelSource:
    model = read_model(memoryview(content.data), file, str(file))
    data = content.data if isinstance(content.data, bytes) else None
    if model.linked_out:
        # Such data is found from the path only (see ExternalFiles), and there lies no plaintext.
        if content.encryption:
            raise ModelError(
                f"{file}: its external data is reached through links out of its folder, which an "
                "encrypted model cannot have; keep the data itself beside the model",
                str(file),
            )
        data = None
    return ModelSource(
        format=kinds.ONNX,
        path=file,
        data=model.repaired or data,
        folder=file.parent,
        graph=model.graph,
        is_secret=bool(content.encryption),
    )


def _foreign(kind: str, name: str, view: memoryview) -> ModelError:
    what, step = kinds.FOREIGN[kind]
    start = bytes(view[:8]).hex(" ")
    seen = f" (it starts with {start})" if kind == kinds.UNKNOWN else ""
    return ModelError(
        f"{name}: is {what}{seen}; expected a binary ONNX model; {step}",
        "" if name == "model bytes" else name,
    )
