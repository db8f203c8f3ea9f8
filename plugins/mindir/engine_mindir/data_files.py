"""Places of the files with a .mindir's tensors, and their names in an ONNX model.

Apart from mindir/, which a model that was lowered before does not need.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from engine.formats.files import read_start
from engine.formats.opened import FileVersion


class DataFileError(ValueError):
    """A data file is missing, is none, or lies where it may not. The text says which."""


class Placed(NamedTuple):
    """Files that runtimes read tensors from.

    folder: what an ONNX model's locations are relative to. locations: of each file, by its name in
    the .mindir, the name in the ONNX model and the size. versions: of the files, by the paths that
    their names in the .mindir stand for.
    """

    folder: Path
    locations: Mapping[str, tuple[str, int]]
    versions: Mapping[Path, FileVersion]


def placed_data(path: Path | None, base: Path, names: Iterable[str]) -> Placed:
    """Place the data files of a split model.

    path: the .mindir. base: where the names of its data files start.
    Download caches link a model's files into one folder of blobs; runtimes refuse external data
    outside of the model's folder, so they get the resolved one.
    Raises DataFileError, and ModelError for what is no file to read.
    """
    locations, versions = {}, {}
    for name in names:
        file = data_file(base, name)
        start, version = read_start(file, 1)
        check_mark(start, name)
        locations[name] = name, version.nbytes
        versions[file] = version
    real = {name: Path(os.path.realpath(base / name)) for name in locations}
    folder = Path(os.path.realpath(base))
    if all(file.is_relative_to(folder) for file in real.values()):
        return Placed(base, locations, versions)
    if path is not None:
        folder = Path(os.path.realpath(path)).parent
    for name, file in real.items():
        if not file.is_relative_to(folder):
            raise DataFileError(
                f"its weights are in {name!r}, which leads out of the model's folder to "
                f"{str(file)!r}; data must lie inside the folder"
            )
        locations[name] = file.relative_to(folder).as_posix(), locations[name][1]
    return Placed(folder, locations, versions)


def placed_file(path: Path, version: FileVersion | None) -> Placed | None:
    """Place a .mindir whose tensors stay in it; None where no runtime can name it."""
    real = Path(os.path.realpath(path))
    if set(real.name) & set("\\*") or not real.name.isprintable():
        return None
    versions = {} if version is None else {path: version}
    return Placed(real.parent, {real.name: (real.name, version.nbytes if version else 0)}, versions)


def data_file(base: Path, name: str) -> Path:
    """Return a data file of a split model. Raises DataFileError."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise DataFileError(f"its weights are in {name!r}, outside of its folder")
    file = base / name
    if not file.exists():
        raise DataFileError(
            f"its weights are in {name!r}, which is not there (looked in {str(base)!r}); keep it "
            "beside the model, or set [model_file] mindir_path"
        )
    return file


def check_mark(start: bytes, name: str) -> None:
    """Check the first byte of a data file, which marks the byte order of its numbers."""
    if start == b"\x00":
        raise DataFileError(f"the data file {name!r} is big endian")
    if start != b"\x01":
        raise DataFileError(f"the data file {name!r} does not begin as one; is it encrypted?")
