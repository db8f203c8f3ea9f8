"""A model that a format made of a file, as files: written into a folder, read again without it.

    model.onnx     the ONNX model
    weights.bin    tensors that are neither in that nor in files of the user's; mapped when read
    lowered.json   where each of them lies, and what OpenedSource says beside

The folder is an entry of the compile cache, which answers for its content. Files in it are
checked as the ONNX file of a stranger would be.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from engine.errors import ModelError
from engine.formats.code import digest_of_code
from engine.formats.files import read_start
from engine.formats.format import FormatFile
from engine.formats.onnx import read_part
from engine.formats.opened import FileVersion, OpenedSource, Slot
from engine.types import DType

MODEL, WEIGHTS, RECORD = "model.onnx", "weights.bin", "lowered.json"

_PAGE = 4096


class OtherFiles(Exception):
    """The files of the model do not lie as they did when it was written."""


CODE = tuple(f"formats/{name}.py" for name in ("lowered", "variable", "onnx/writer"))
"""The core's code that decides what a lowered model is, in `code.ROOT`."""


def lowering_version(version: str) -> str:
    """Name the code that lowers: what other code has written may differ. version: of the format."""
    return f"{version} {digest_of_code(CODE)} numpy {np.__version__}"


def can_be_kept(source: OpenedSource, asked: FormatFile) -> bool:
    """Return whether `write` can write it: an ONNX model whose files are beside what was asked."""
    if source.graph is None or source.folder not in _folders(asked).values():
        return False
    return all(_is_inside(_name(path, asked)) for path in source.versions)


def write(source: OpenedSource, asked: FormatFile, folder: Path) -> None:
    """Write what `asked` was lowered to into an empty folder. Raises OSError, ModelError."""
    assert source.data is not None, "a lowered model is in memory"
    with (folder / WEIGHTS).open("xb") as file:
        record = {
            "files": {name: _put(file, content) for name, content in source.files.items()},
            "state": [_put_slot(file, slot) for slot in source.state],
            "variables": [_put_slot(file, slot) for slot in source.variables],
            "folds_too_much": source.folds_too_much,
            "folder": next(
                word for word, place in _folders(asked).items() if place == source.folder
            ),
            "outside": {
                _name(path, asked): [_location(path, source.folder), version.nbytes]
                for path, version in source.versions.items()
            },
        }
    (folder / MODEL).write_bytes(source.data)
    (folder / RECORD).write_text(json.dumps(record), encoding="utf-8")


def read(folder: Path, asked: FormatFile, digest: str = "") -> OpenedSource:
    """Return the lowered model; its large tensors stay mapped as long as one is in use.

    Raises OSError, ValueError, LookupError or TypeError for a folder that is damaged, OtherFiles
    where the model's own files are not where they were, ModelError for one that cannot be read.
    """
    record: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    data = (folder / MODEL).read_bytes()
    weights = _mapped(folder / WEIGHTS)
    files = {str(name): _get(weights, *place) for name, place in record["files"].items()}
    base = _folders(asked)[record["folder"]]
    versions = _versions(record["outside"], base, asked)
    model = read_part(data, base, asked.name, files)
    if model.repaired is not None:
        raise ValueError("it breaks a rule of ONNX")
    return OpenedSource(
        format="onnx",
        path=asked.path,
        data=data,
        folder=base,
        graph=model.graph,
        files=files,
        state=tuple(_get_slot(weights, *slot) for slot in record["state"]),
        variables=tuple(_get_slot(weights, *slot) for slot in record["variables"]),
        folds_too_much=bool(record["folds_too_much"]),
        versions=versions,
        digest=digest,
    )


# -------------------------------------------------------------------------- files of the user's


def _folders(asked: FormatFile) -> dict[str, Path | None]:
    """Return the folders that the names of external data may start in, by the words for them.

    That of what was asked, the one that the file lies in if links are followed, and none.
    """
    real = None if asked.path is None else Path(os.path.realpath(asked.path)).parent
    return {"beside": asked.base, "real": real, "none": None}


def _name(path: Path, asked: FormatFile) -> str:
    """Return a file's name from the folder of the model, "" for the model's own."""
    return "" if path == asked.path else os.path.relpath(path, asked.base)


def _is_inside(name: str) -> bool:
    return not os.path.isabs(name) and ".." not in Path(name).parts


def _location(path: Path, folder: Path | None) -> str:
    """Return where a file lies, from the folder that the ONNX model's locations start in."""
    return os.path.relpath(os.path.realpath(path), os.path.realpath(folder or ""))


def _versions(
    outside: Mapping[str, Any], folder: Path | None, asked: FormatFile
) -> dict[Path, FileVersion]:
    """Return the files that runtimes read, as they are now. Raises OtherFiles."""
    versions = {}
    for name, placed in outside.items():
        path = asked.base / name if name and asked.base else asked.path
        if path is None or not _is_inside(name):
            raise ValueError(f"it names a file that is not beside it: {name!r}")
        try:
            version = read_start(path, 1)[1] if name else asked.version
        except (OSError, ModelError) as error:
            raise OtherFiles(str(error)) from error
        if version is None or [_location(path, folder), version.nbytes] != placed:
            raise OtherFiles("its data files are others")
        versions[path] = version
    return versions


# ---------------------------------------------------------------------------------- weights.bin


def _put(file: BinaryIO, content: bytes | memoryview) -> list[int]:
    """Append a tensor, and return where it lies."""
    file.seek(-(-file.tell() // _PAGE) * _PAGE)
    begin = file.tell()
    file.write(content)
    return [begin, memoryview(content).nbytes]


def _put_slot(file: BinaryIO, slot: Slot) -> list[Any]:
    return [slot.name, str(slot.dtype), *_put(file, slot.initial.tobytes()), *slot.shape]


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _get(weights: memoryview, begin: int, nbytes: int) -> memoryview:
    if not 0 <= begin <= begin + nbytes <= len(weights):
        raise ValueError(f"{WEIGHTS} has no bytes {begin} to {begin + nbytes}")
    return weights[begin : begin + nbytes]


def _get_slot(
    weights: memoryview, name: str, kind: str, begin: int, nbytes: int, *shape: int
) -> Slot:
    dtype = DType(kind)
    initial = np.frombuffer(_get(weights, begin, nbytes), dtype.numpy).reshape(shape).copy()
    return Slot(str(name), dtype, initial.shape, initial)
