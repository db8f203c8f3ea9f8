"""The inputs of one run: from files, or generated, each with a word on where it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from engine.cli.files import SUFFIXES, read_bin, read_npy, read_npz
from engine.errors import InputError
from engine.types import DType, TensorSpec

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


class Fill(StrEnum):
    """How an input without a file is generated."""

    ONES = "ones"
    ZEROS = "zeros"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Given:
    """One input's array. source: "from FILE" or "generated: HOW", for people."""

    spec: TensorSpec
    array: Array
    source: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """All inputs in the model's order, and remarks about what was not used."""

    given: tuple[Given, ...]
    notes: tuple[str, ...] = ()

    def arrays(self) -> dict[str, Array]:
        """The arrays by input name, as predict takes them."""
        return {each.spec.name: each.array for each in self.given}


def collect(
    specs: Sequence[TensorSpec],
    files: Sequence[str],
    shapes: Mapping[str, Shape],
    fill: Fill = Fill.ONES,
    seed: int = 0,
) -> Inputs:
    """The inputs that `specs` ask for, from `files` and, where no file is given, generated.

    files: "NAME=FILE" for one input, "FILE.npz" for arrays by input name, "FILE" for the next
        input that no other file names.
    shapes: of inputs that are generated or come from a .bin file, by name.
    Raises InputError naming the file and input for what does not fit, OSError for files that
    cannot be read.
    """
    by_name = {spec.name: spec for spec in specs}
    for name in shapes:
        if name not in by_name:
            raise _unknown(name, by_name, "--shape")
    found, notes = _from_files(specs, files, shapes)
    sizes = _symbolic_sizes(specs, found, shapes)
    generator = np.random.default_rng(seed)
    for spec in specs:
        if spec.name not in found:
            shape = shapes[spec.name] if spec.name in shapes else _default_shape(spec, sizes)
            how = f"generated: {_HOW[fill]}" + (f" (seed {seed})" if fill is Fill.RANDOM else "")
            found[spec.name] = Given(spec, generate(spec.dtype, shape, fill, generator), how)
    return Inputs(tuple(found[spec.name] for spec in specs), tuple(notes))


# ----------------------------------------------------------------------------------- from files


def _from_files(
    specs: Sequence[TensorSpec], files: Sequence[str], shapes: Mapping[str, Shape]
) -> tuple[dict[str, Given], list[str]]:
    by_name = {spec.name: spec for spec in specs}
    named: dict[str, Path] = {}
    unnamed: list[Path] = []
    archives: list[Path] = []
    for text in files:
        name, equals, rest = text.partition("=")
        # The longest input name that fits: both names and paths may hold "=".
        for candidate in sorted(by_name, key=len, reverse=True):
            if text.startswith(f"{candidate}="):
                name, equals, rest = candidate, "=", text[len(candidate) + 1 :]
                break
        path = Path(rest if equals and name in by_name else text)
        if equals and name not in by_name and not path.exists():
            raise _unknown(name, by_name, f"--input {text}")
        _check_file(path)
        if equals and name in by_name:
            if name in named:
                raise InputError(f"input {name!r} is given twice: {named[name]} and {path}", name)
            named[name] = path
        elif path.suffix == ".npz":
            archives.append(path)
        else:
            unnamed.append(path)

    found = {name: _read(by_name[name], path, shapes.get(name)) for name, path in named.items()}
    notes: list[str] = []
    for path in archives:
        _take_archive(path, specs, shapes, found, notes)
    rest_of_specs = [spec for spec in specs if spec.name not in found]
    if len(unnamed) > len(rest_of_specs):
        raise InputError(
            f"{unnamed[len(rest_of_specs)]}: no input is left for it; the model has: "
            f"{_listed(by_name)}"
        )
    for spec, path in zip(rest_of_specs, unnamed, strict=False):
        found[spec.name] = _read(spec, path, shapes.get(spec.name))
    return found, notes


def _check_file(path: Path) -> None:
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: expected a .npy, .npz or .bin file, got {path.suffix!r}")


def _read(spec: TensorSpec, path: Path, shape: Shape | None) -> Given:
    if path.suffix == ".bin":
        array = read_bin(path, spec, shape)
    elif path.suffix == ".npz":
        arrays = read_npz(path)
        if spec.name not in arrays:
            raise _missing_key(path, spec, arrays)
        array = arrays[spec.name]
    else:
        array = read_npy(path)
    return _checked(spec, array, path, shape)


def _take_archive(
    path: Path,
    specs: Sequence[TensorSpec],
    shapes: Mapping[str, Shape],
    found: dict[str, Given],
    notes: list[str],
) -> None:
    """Every input that has no file yet must be in the archive; what else is there is noted."""
    arrays = read_npz(path)
    wanted = [spec for spec in specs if spec.name not in found]
    for spec in wanted:
        if spec.name not in arrays:
            raise _missing_key(path, spec, arrays)
        found[spec.name] = _checked(spec, arrays[spec.name], path, shapes.get(spec.name))
    unused = sorted(set(arrays) - {spec.name for spec in wanted})
    if unused:
        notes.append(f"note: {path}: not used: {', '.join(repr(name) for name in unused)}")


def _checked(spec: TensorSpec, array: Array, path: Path, shape: Shape | None) -> Given:
    """Refuse what does not fit here, where the file's name is known."""
    said = f"{array.dtype.name}{list(array.shape)}"
    wanted = spec.dtype.numpy
    if array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize != 0:
        array = array.view(wanted)  # .npy files keep only the size of ml_dtypes' types
    is_text = spec.dtype is DType.STRING and array.dtype.kind in "UT"
    if array.dtype.newbyteorder("=") != wanted and not is_text:
        raise InputError(
            f"{path}: input {spec.name!r}: expected {spec}, got {said}; "
            f"save it as array.astype({str(spec.dtype)!r})",
            spec.name,
        )
    if not _is_allowed(array.shape, spec):
        raise InputError(
            f"{path}: input {spec.name!r}: expected {spec}, got {said}; save it in that shape",
            spec.name,
        )
    if shape is not None and array.shape != shape:
        raise InputError(
            f"{path}: input {spec.name!r}: --shape says {list(shape)}, got {said}; leave it out",
            spec.name,
        )
    return Given(spec, array, f"from {path}")


def _is_allowed(shape: Shape, spec: TensorSpec) -> bool:
    if spec.shape is None:
        return True
    return len(shape) == len(spec.shape) and all(
        size == dim or not isinstance(dim, int) for size, dim in zip(shape, spec.shape, strict=True)
    )


def _missing_key(path: Path, spec: TensorSpec, arrays: Mapping[str, Array]) -> InputError:
    return InputError(
        f"{path}: no array {spec.name!r} for input {spec}; it holds: {_listed(arrays)}", spec.name
    )


def _unknown(name: str, known: Mapping[str, TensorSpec], where: str) -> InputError:
    return InputError(f"{where}: the model has no input {name!r}; it has: {_listed(known)}", name)


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


# ------------------------------------------------------------------------------------ generated


def _symbolic_sizes(
    specs: Sequence[TensorSpec], found: Mapping[str, Given], shapes: Mapping[str, Shape]
) -> dict[str, int]:
    """The sizes that files and --shape give to symbolic axes: equal names are equal sizes."""
    sizes: dict[str, int] = {}
    for spec in specs:
        shape = found[spec.name].array.shape if spec.name in found else shapes.get(spec.name, ())
        for dim, known in zip(spec.shape or (), shape, strict=False):
            if isinstance(dim, str):
                sizes.setdefault(dim, known)
    return sizes


def _default_shape(spec: TensorSpec, sizes: dict[str, int]) -> Shape:
    """The declared shape; an open axis has the size known from other inputs, or the lowest."""
    if spec.shape is None:
        raise InputError(
            f"input {spec.name!r}: the model leaves its shape open; "
            f"give it with --shape {spec.name}=1,3,224,224",
            spec.name,
        )
    bounds = spec.bounds or (None,) * len(spec.shape)
    shape = []
    for dim, bound in zip(spec.shape, bounds, strict=True):
        lowest = max(1, bound[0]) if bound is not None else 1
        if isinstance(dim, str):
            shape.append(sizes.setdefault(dim, lowest))
        else:
            shape.append(lowest if dim is None else dim)
    return tuple(shape)


_HOW = {
    Fill.ONES: "all ones",
    Fill.ZEROS: "all zeros",
    # Integers are often indexes or masks: only 0 and 1 are safe in nearly every model.
    Fill.RANDOM: "random, numbers uniform in [0, 1), integers and booleans 0 or 1",
}


def generate(dtype: DType, shape: Shape, fill: Fill, generator: np.random.Generator) -> Array:
    """An array of that type and shape, filled so; text is "1", "0" or either at random."""
    if fill is not Fill.RANDOM:
        if dtype is DType.STRING:
            return np.full(shape, "1" if fill is Fill.ONES else "0", object)
        return np.full(shape, fill is Fill.ONES, np.bool_).astype(dtype.numpy)
    if dtype is DType.STRING:
        return generator.integers(0, 2, shape).astype(str).astype(object)
    is_whole = dtype is DType.BOOL or "int" in dtype
    drawn = generator.integers(0, 2, shape) if is_whole else generator.random(shape)
    return np.asarray(drawn).astype(dtype.numpy)
