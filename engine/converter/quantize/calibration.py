"""Calibration data: folders of samples, a folder an input, paired by their sorted file names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from onnx import ModelProto

from engine.converter.graphs import spec_of
from engine.converter.quantize.images import Picture
from engine.converter.quantize.settings import Data
from engine.errors import InputError, ModelError
from engine.formats.arrays import Array, fits, read_npy, read_raw
from engine.formats.onnx.graphs import inputs
from engine.types import TensorSpec

Sample: TypeAlias = Mapping[str, Array]

MOST_HELD_BACK = 100
"""Samples that the quantized model is compared on, at most."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of a model's inputs, read one at a time.

    rows: the files of each sample, one for each of `specs`. picture: how image files become
    arrays; None where they hold arrays.
    """

    specs: tuple[TensorSpec, ...]
    rows: tuple[tuple[Path, ...], ...]
    picture: Picture | None

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> Sample:
        """Read one sample. Raises InputError naming the file that does not fit."""
        return {
            spec.name: self.picture.read(path, spec)
            if self.picture is not None
            else _read_array(path, spec)
            for spec, path in zip(self.specs, self.rows[index], strict=True)
        }


def input_specs(model: ModelProto) -> tuple[TensorSpec, ...]:
    """Return the inputs that a predict gives; ModelError for one that is no tensor."""
    specs = []
    for value in inputs(model.graph):
        if not value.type.HasField("tensor_type") or not value.type.tensor_type.elem_type:
            raise ModelError(
                f"input {value.name!r}: expected a tensor, got "
                f"{value.type.WhichOneof('value')}; a model with it cannot be quantized"
            )
        specs.append(spec_of(value))
    return tuple(specs)


def find_samples(data: Data, specs: Sequence[TensorSpec]) -> Samples:
    """Return all samples in the folders that [data_preprocess_param] names.

    Raises ModelError for a folder that is missing or empty, an input without a folder or a folder
    without an input, folders of unequal size, and image settings that do not fit the inputs.
    """
    folders = _folders(data.calibrate_path, [spec.name for spec in specs])
    missing = [spec.name for spec in specs if spec.name not in folders]
    if missing:
        raise ModelError(
            f"[data_preprocess_param] calibrate_path: no folder for input {missing[0]!r}; "
            f"got folders for {', '.join(map(repr, folders)) or 'none'}; add {missing[0]}:/folder"
        )
    files = {spec.name: _files(folders[spec.name], spec.name) for spec in specs}
    counts = {len(file) for file in files.values()}
    if len(counts) > 1:
        listing = ", ".join(
            f"{name!r} has {len(file)} in {folders[name]}" for name, file in files.items()
        )
        raise ModelError(f"calibration data: expected as many files for each input; {listing}")
    picture = Picture(data) if data.input_type == "IMAGE" else None
    if picture is not None:
        for spec in specs:
            picture.check(spec)
    return Samples(tuple(specs), tuple(zip(*files.values(), strict=True)), picture)


@dataclass(frozen=True, slots=True)
class Split:
    """Split the samples into those that calibrate and those held back to compare, with notes."""

    calibrate: tuple[int, ...]
    compare: tuple[int, ...]
    note: str


def split(count: int, wanted: int | None) -> Split:
    """Divide samples: the first `wanted` calibrate, those beyond them compare.

    Where none are left, every fifth is held back from calibration; below ten, the same samples do
    both. Of more than MOST_HELD_BACK an evenly spread choice compares.
    """
    used = count if wanted is None else min(wanted, count)
    summary = f"calibration: {count} samples found"
    if wanted is not None and wanted > count:
        summary += f", fewer than calibrate_size={wanted}"
    everything = tuple(range(count))
    if used < count:
        calibrate, compare = everything[:used], everything[used:]
    elif count >= 10:
        compare = everything[4::5]
        calibrate = tuple(index for index in everything if index % 5 != 4)
    else:
        note = f"{summary}; {used} calibrated and compared: too few to hold any back"
        return Split(everything, everything, note)
    step = max(1, math.ceil(len(compare) / MOST_HELD_BACK))
    compare = compare[::step]
    note = f"{summary}; {len(calibrate)} calibrated, {len(compare)} others compared"
    return Split(calibrate, compare, note)


def _folders(text: str, names: Sequence[str]) -> dict[str, Path]:
    """Parse `input1:/folder1,input2:/folder2` by input; input names may hold colons themselves."""
    folders: dict[str, Path] = {}
    for part in (word.strip().strip("\"'") for word in text.split(",")):
        if not part:
            continue
        fitting = [name for name in names if part.startswith(f"{name}:")]
        name = max(fitting, key=len, default="")
        if not fitting:
            if len(names) == 1 and Path(part).is_dir():  # one input: nothing to tell apart
                name, part = names[0], f"{names[0]}:{part}"
            else:
                raise ModelError(
                    f"[data_preprocess_param] calibrate_path: {part!r} names no input of the "
                    f"model; expected input:/folder with one of: {', '.join(map(repr, names))}"
                )
        if name in folders:
            raise ModelError(
                f"[data_preprocess_param] calibrate_path: input {name!r} is given twice: "
                f"{folders[name]} and {part[len(name) + 1 :]}"
            )
        folders[name] = Path(part[len(name) + 1 :].strip().strip("\"'"))
    return folders


def _files(folder: Path, name: str) -> list[Path]:
    if not folder.is_dir():
        what = "not a folder" if folder.exists() else "no such folder"
        raise ModelError(f"calibration data of input {name!r}: {folder}: {what}")
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] != ".")
    if not files:
        raise ModelError(
            f"calibration data of input {name!r}: {folder} is empty; expected one file a sample"
        )
    return files


def _read_array(path: Path, spec: TensorSpec) -> Array:
    """Return a sample from a .npy file, or from raw elements in any other."""
    if path.suffix != ".npy":
        array = read_raw(path, spec, None, "save samples as .npy, or fix the input's shape")
        if not array.size:
            raise InputError(f"{path}: input {spec.name!r} is {spec}: got 0 bytes", spec.name)
        return array
    array = read_npy(path)
    if array.dtype != spec.dtype.numpy or not fits(array.shape, spec):
        raise InputError(
            f"{path}: input {spec.name!r}: expected {spec}, got {array.dtype}{list(array.shape)}",
            spec.name,
        )
    return array
