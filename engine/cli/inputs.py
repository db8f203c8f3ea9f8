"""Inputs of one run, from files or generated, each with its source in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from engine.cli.files import restored
from engine.cli.values import arrays_of, described, value_of
from engine.errors import InputError
from engine.formats.arrays import read_npy, read_npz, read_raw
from engine.tensor import Array
from engine.types import DType, TensorSpec, ValueKind

Shape = tuple[int, ...]

_SUFFIXES = (".npy", ".npz", ".bin")


class Fill(StrEnum):
    """The ways to generate an input without a file."""

    ONES = "ones"
    ZEROS = "zeros"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Given:
    """One input. value: an array; a list, None or a dict for what is no tensor.

    source: "from FILE" or "generated: HOW", for people.
    """

    spec: TensorSpec
    value: Any
    source: str

    def __str__(self) -> str:
        return f"input {self.spec.name}: {described(self.value)}, {self.source}"


@dataclass(frozen=True, slots=True)
class Inputs:
    """All inputs in the model's order, and remarks about what was not used."""

    given: tuple[Given, ...]
    notes: tuple[str, ...] = ()

    def values(self) -> list[Any]:
        """Return the values in the model's order, as predict takes them."""
        return [given.value for given in self.given]

    def facts(self) -> list[dict[str, Any]]:
        """Return a description of each for JSON; a value that is no tensor has no shape."""
        return [
            {
                "name": given.spec.name,
                "dtype": str(given.spec.dtype),
                "shape": list(given.value.shape) if isinstance(given.value, np.ndarray) else None,
                "source": given.source,
            }
            for given in self.given
        ]


def collect(
    specs: Sequence[TensorSpec],
    files: Sequence[str],
    shapes: Mapping[str, Shape],
    fill: Fill = Fill.ONES,
    seed: int = 0,
) -> Inputs:
    """Return the inputs that `specs` ask for, read from `files` or generated.

    files: "NAME=FILE" for one input, several for the elements of a sequence; "FILE.npz" for arrays
        by input name; "FILE" for the next input that no other file names.
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
    how = f"generated: {_HOW[fill]}" + (f" (seed {seed})" if fill is Fill.RANDOM else "")
    for spec in specs:
        if spec.name not in found:
            array_of = partial(generate, spec.dtype, fill=fill, generator=generator)
            found[spec.name] = _generated(spec, shapes.get(spec.name), sizes, array_of, how)
    return Inputs(tuple(found[spec.name] for spec in specs), tuple(notes))


# ----------------------------------------------------------------------------------- from files


def _from_files(
    specs: Sequence[TensorSpec], files: Sequence[str], shapes: Mapping[str, Shape]
) -> tuple[dict[str, Given], list[str]]:
    by_name = {spec.name: spec for spec in specs}
    named: dict[str, list[Path]] = {}
    unnamed: list[Path] = []
    archives: list[Path] = []
    for text in files:
        name, equals, rest = text.partition("=")
        # The longest input name that fits: both names and paths may hold "=".
        for candidate in sorted(by_name, key=len, reverse=True):
            if text.startswith(f"{candidate}="):
                name, equals, rest = candidate, "=", text[len(candidate) + 1 :]
                break
        if equals and name in by_name and not rest:
            raise InputError(f"--input {text}: expected a file behind the equals sign", name)
        path = Path(rest if equals and name in by_name else text)
        if equals and name not in by_name and not path.exists():
            raise _unknown(name, by_name, f"--input {text}")
        _check_file(path)
        if equals and name in by_name:
            if name in named and by_name[name].kind is not ValueKind.SEQUENCE:
                both = f"{named[name][0]} and {path}"
                raise InputError(f"input {name!r} is given twice: {both}", name)
            named.setdefault(name, []).append(path)
        elif path.suffix == ".npz":
            archives.append(path)
        else:
            unnamed.append(path)

    found = {name: _read(by_name[name], paths, shapes.get(name)) for name, paths in named.items()}
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
        found[spec.name] = _read(spec, [path], shapes.get(spec.name))
    return found, notes


def _check_file(path: Path) -> None:
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; expected a .npy, .npz or .bin file")
    if path.suffix not in _SUFFIXES:
        got = repr(path.suffix) if path.suffix else "a name without an ending"
        raise InputError(f"{path}: expected a .npy, .npz or .bin file, got {got}")


def _read(spec: TensorSpec, paths: Sequence[Path], shape: Shape | None) -> Given:
    """Read an input from its own files: several are the elements of a sequence."""
    values: list[Any] = []
    for path in paths:
        if path.suffix == ".npz":
            value = _from_archive(spec, path, read_npz(path), shape)
            values += value if spec.kind is ValueKind.SEQUENCE else [value]
        else:
            advice = f"give it with --shape {spec.name}=..."
            is_raw = path.suffix == ".bin"
            array = read_raw(path, spec, shape, advice) if is_raw else read_npy(path)
            values.append(_checked(spec, array, path, shape))
    source = f"from {', '.join(map(str, paths))}"
    return Given(spec, values if spec.kind is ValueKind.SEQUENCE else values[0], source)


def _take_archive(
    path: Path,
    specs: Sequence[TensorSpec],
    shapes: Mapping[str, Shape],
    found: dict[str, Given],
    notes: list[str],
) -> None:
    """Read every input that has no file yet from the archive, and note what else is there."""
    arrays = read_npz(path)
    unused = set(arrays)
    for spec in specs:
        if spec.name in found:
            continue
        if spec.kind is ValueKind.OPTIONAL and value_of(spec.name, arrays) is None:
            continue
        value = _from_archive(spec, path, arrays, shapes.get(spec.name))
        found[spec.name] = Given(spec, value, f"from {path}")
        unused -= set(arrays_of(spec.name, value, spec.dtype))
    if unused:
        listed = ", ".join(repr(name) for name in sorted(unused))
        notes.append(f"note: {path}: not used: {listed}")


_KINDS: dict[type, ValueKind] = {list: ValueKind.SEQUENCE, dict: ValueKind.MAP}


def _from_archive(
    spec: TensorSpec, path: Path, arrays: Mapping[str, Array], shape: Shape | None
) -> Any:
    value = value_of(spec.name, arrays)
    kind = _KINDS.get(type(value), ValueKind.TENSOR)
    if value is None or spec.kind not in (kind, ValueKind.OPTIONAL):
        wanted = {ValueKind.SEQUENCE: "[0]", ValueKind.MAP: ".keys"}.get(spec.kind, "")
        raise InputError(
            f"{path}: no array {spec.name + wanted!r} for input {spec}; it holds: "
            f"{_listed(arrays)}",
            spec.name,
        )
    return _checked(spec, value, path, shape)


def _checked(spec: TensorSpec, value: Any, path: Path, shape: Shape | None) -> Any:
    """Return the value, or raise InputError here, where the file's name is known."""
    if isinstance(value, list):
        return [_checked(spec, element, path, shape) for element in value]
    if isinstance(value, dict):
        return value
    said = described(value)
    inside = TensorSpec(spec.name, spec.dtype, spec.shape)
    wanted = spec.dtype.numpy
    if value.dtype.kind == "V" and value.dtype.itemsize == wanted.itemsize != 0:
        value = value.view(wanted)  # .npy files keep only the size of ml_dtypes' types
    value = restored(value, wanted)
    is_text = spec.dtype is DType.STRING and value.dtype.kind in "UT"
    if value.dtype.newbyteorder("=") != wanted and not is_text:
        raise InputError(
            f"{path}: input {spec.name!r}: expected {inside}, got {said}; "
            f"save it as array.astype({_in_python(spec.dtype)})",
            spec.name,
        )
    if not _is_allowed(value.shape, spec):
        raise InputError(
            f"{path}: input {spec.name!r}: expected {inside}, got {said}; save it in that shape",
            spec.name,
        )
    if shape is not None and value.shape != shape:
        raise InputError(
            f"{path}: input {spec.name!r}: --shape says {list(shape)}, got {said}; leave it out",
            spec.name,
        )
    return value


def _in_python(dtype: DType) -> str:
    """Return the type as a script names it."""
    if dtype is DType.STRING:
        return "str"
    return repr(str(dtype)) if dtype.numpy.isbuiltin == 1 else f"ml_dtypes.{dtype}"


def _is_allowed(shape: Shape, spec: TensorSpec) -> bool:
    if spec.shape is None:
        return True
    return len(shape) == len(spec.shape) and all(
        size == dim or not isinstance(dim, int) for size, dim in zip(shape, spec.shape, strict=True)
    )


def _unknown(name: str, known: Mapping[str, TensorSpec], where: str) -> InputError:
    return InputError(f"{where}: the model has no input {name!r}; it has: {_listed(known)}", name)


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


# ------------------------------------------------------------------------------------ generated


def _symbolic_sizes(
    specs: Sequence[TensorSpec], found: Mapping[str, Given], shapes: Mapping[str, Shape]
) -> dict[str, int]:
    """Return the sizes that files and --shape give to symbolic axes: one name has one size."""
    sizes: dict[str, int] = {}
    for spec in specs:
        if spec.kind is not ValueKind.TENSOR:
            continue
        shape = found[spec.name].value.shape if spec.name in found else shapes.get(spec.name, ())
        for dim, known in zip(spec.shape or (), shape, strict=False):
            if isinstance(dim, str):
                sizes.setdefault(dim, known)
    return sizes


def _default_shape(spec: TensorSpec, sizes: dict[str, int]) -> Shape:
    """Return the declared shape, an open axis with the size of other inputs or the lowest."""
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


def _generated(
    spec: TensorSpec,
    shape: Shape | None,
    sizes: dict[str, int],
    array_of: Callable[[Shape], Array],
    how: str,
) -> Given:
    if spec.kind is ValueKind.OPTIONAL and shape is None:
        return Given(spec, None, "no file is given for it")
    if spec.kind is ValueKind.MAP:
        raise InputError(
            f"input {spec.name!r}: expected {spec}, which nothing can stand for; give an .npz file "
            f"with the arrays {spec.name + '.keys'!r} and {spec.name + '.values'!r}",
            spec.name,
        )
    if shape is None:
        shape = _default_shape(spec, sizes)
    elif not _is_allowed(shape, spec):
        raise InputError(
            f"input {spec.name!r}: expected {TensorSpec(spec.name, spec.dtype, spec.shape)}, got "
            f"{spec.dtype}{list(shape)}; change --shape",
            spec.name,
        )
    array = array_of(shape)
    return Given(spec, [array] if spec.kind is ValueKind.SEQUENCE else array, how)


_HOW = {
    Fill.ONES: "all ones",
    Fill.ZEROS: "all zeros",
    # Integers are often indexes or masks: only 0 and 1 are safe in nearly every model.
    Fill.RANDOM: "random, numbers uniform in [0, 1), integers and booleans 0 or 1",
}


def generate(dtype: DType, shape: Shape, fill: Fill, generator: np.random.Generator) -> Array:
    """Return an array of that type and shape, filled so; text is "1", "0" or either of them."""
    if fill is not Fill.RANDOM:
        if dtype is DType.STRING:
            return np.full(shape, "1" if fill is Fill.ONES else "0", object)
        return np.full(shape, fill is Fill.ONES, np.bool_).astype(dtype.numpy)
    if dtype is DType.STRING:
        return generator.integers(0, 2, shape).astype(str).astype(object)
    is_whole = dtype is DType.BOOL or "int" in dtype
    drawn = generator.integers(0, 2, shape) if is_whole else generator.random(shape)
    return np.asarray(drawn).astype(dtype.numpy)
