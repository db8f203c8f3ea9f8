"""A lowered MindIR as files: written into a folder, read again without lowering it.

    model.onnx     the ONNX model
    weights.bin    tensors that are neither in that nor in files of the user's; mapped when read
    lowered.json   where each of them lies, and what OpenedSource says beside

The folder is an entry of the compile cache, which answers for its content. What is read from
it is checked as the ONNX file of a stranger would be.
"""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from engine.errors import ModelError
from engine.formats import data_files
from engine.formats.code import digest_of_code
from engine.formats.onnx import read_model
from engine.formats.opened import FileVersion, OpenedSource, Slot
from engine.types import DType

MODEL, WEIGHTS, RECORD = "model.onnx", "weights.bin", "lowered.json"

_PAGE = 4096


class Unlowered(NamedTuple):
    """A .mindir that is to be lowered, and how.

    path: None for a model in memory. data: its content, maybe mapped. version: of the file.
    folder: where its data files are; None for beside it. variable_weights: see ModelFile.
    """

    path: Path | None
    data: bytes | mmap.mmap
    version: FileVersion | None
    folder: Path | None = None
    variable_weights: tuple[str, ...] = ()

    @property
    def base(self) -> Path | None:
        """The folder in which the names of data files start."""
        return self.folder or (self.path.parent if self.path is not None else None)


class OtherFiles(Exception):
    """The files of the model do not lie as they did when it was written."""


CODE = (
    "formats/mindir",
    *(f"formats/{name}.py" for name in ("data_files", "lowered", "variable", "onnx/writer")),
)
"""The code that lowers, in `code.ROOT`."""


def lowering_version() -> str:
    """Name the code that lowers: what other code has written may differ."""
    return f"{digest_of_code(CODE)} numpy {np.__version__}"


def write(source: OpenedSource, asked: Unlowered, folder: Path) -> None:
    """Write what `asked` was lowered to into an empty folder. Raises OSError, ModelError."""
    assert source.data is not None, "a lowered model is in memory"
    with (folder / WEIGHTS).open("xb") as file:
        record = {
            "files": {name: _put(file, content) for name, content in source.files.items()},
            "state": [_put_slot(file, slot) for slot in source.state],
            "variables": [_put_slot(file, slot) for slot in source.variables],
            "folds_too_much": source.folds_too_much,
            "left": (left := _left(source, asked)),
            "locations": _locations(_placed(asked, left)),
        }
    (folder / MODEL).write_bytes(source.data)
    (folder / RECORD).write_text(json.dumps(record), encoding="utf-8")


def read(folder: Path, asked: Unlowered, digest: str = "") -> OpenedSource:
    """Return the lowered model; its large tensors stay mapped as long as one is in use.

    Raises OSError, ValueError, LookupError or TypeError for a folder that is damaged, OtherFiles
    where the model's own files are not where they were, ModelError for one that cannot be read.
    """
    record: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    data = (folder / MODEL).read_bytes()
    weights = _mapped(folder / WEIGHTS)
    files = {str(name): _get(weights, *place) for name, place in record["files"].items()}
    try:
        placed = _placed(asked, record["left"])
    except (OSError, ModelError, data_files.DataFileError) as error:
        raise OtherFiles(str(error)) from error
    if _locations(placed) != record["locations"]:
        raise OtherFiles("its data files are others")
    name = str(asked.path) if asked.path is not None else "model bytes"
    beside = placed.folder / "part" if placed is not None else asked.path  # just a name
    model = read_model(memoryview(data), beside, name, files)
    if model.repaired is not None:
        raise ValueError("it breaks a rule of ONNX")
    return OpenedSource(
        format="onnx",
        path=asked.path,
        data=data,
        folder=placed.folder if placed is not None else asked.base,
        graph=model.graph,
        files=files,
        state=tuple(_get_slot(weights, *slot) for slot in record["state"]),
        variables=tuple(_get_slot(weights, *slot) for slot in record["variables"]),
        folds_too_much=bool(record["folds_too_much"]),
        versions=placed.versions if placed is not None else {},
        digest=digest,
    )


# -------------------------------------------------------------------------- files of the user's


def _left(source: OpenedSource, asked: Unlowered) -> list[str] | None:
    """Return the data files that runtimes read tensors from; None where that is the .mindir."""
    if asked.path is not None and asked.path in source.versions:
        return None
    return [os.path.relpath(path, asked.base) for path in source.versions]


def _placed(asked: Unlowered, names: list[str] | None) -> data_files.Placed | None:
    if names is not None:
        assert asked.base is not None or not names, "bytes have no data files"
        return data_files.placed_data(asked.path, asked.base, names) if asked.base else None
    assert asked.path is not None
    return data_files.placed_file(asked.path, asked.version)


def _locations(placed: data_files.Placed | None) -> dict[str, list[str | int]]:
    return {name: [*place] for name, place in placed.locations.items()} if placed else {}


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
