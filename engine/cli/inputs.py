"""Inputs of one run, from files or generated, each with its source in words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from engine.cli.batches import read_batch
from engine.cli.hints import hint
from engine.cli.input_files import IMAGES, TABLES, InputFile, InputFiles
from engine.cli.output import attributes
from engine.cli.pictures import Preparation, read_picture
from engine.cli.tables import Table, json_value, read_json, read_text
from engine.errors import InputError
from engine.formats.arrays import fits, read_npy, read_npz, read_raw
from engine.plan.open_sizes import fitting_shapes
from engine.report.archive import restored
from engine.report.filled import HOW, Fill, stand_in
from engine.report.parts import arrays_of, described, value_of
from engine.runtime.advice import for_axes
from engine.tensor.description import Array
from engine.types import DType, TensorSpec, ValueKind

Shape = tuple[int, ...]


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
    """All inputs in the model's order, and remarks: what was done to files, what was not used.

    others: the same with other sizes of open axes that nobody has said, to be tried in turn.
    """

    given: tuple[Given, ...]
    notes: tuple[str, ...] = ()
    others: Iterator[Inputs] = field(default=iter(()), compare=False, repr=False)

    def values(self) -> list[Any]:
        """Return the values in the model's order, as predict takes them."""
        return [given.value for given in self.given]

    def facts(self) -> list[dict[str, Any]]:
        """Return a description of each for JSON; a value that is no tensor has no shape."""
        return [
            {
                **attributes(given.spec, "name", "dtype"),
                "shape": given.value.shape if isinstance(given.value, np.ndarray) else None,
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
    reader: Reader | None = None,
) -> Inputs:
    """Return the inputs that `specs` ask for, read from `files` or generated.

    files: "NAME=FILE" for one input, several for the elements of a sequence; "NAME=FILE,FILE" or a
        folder of images or .npy files for a batch; "FILE.npz", a JSON object or a CSV file
        with such columns for arrays by input name; "FILE" for the next input that no other file
        names. FILE is "-" for standard input.
    reader: reads them; None for one without wishes.
    shapes: of inputs that are generated or come from a .bin file, by name.
    Raises InputError naming the file and input for what does not fit, OSError for files that
    cannot be read.
    """
    by_name = {spec.name: spec for spec in specs}
    for name in shapes:
        if name not in by_name:
            raise _unknown(name, by_name, "--shape")
    found, notes = _from_files(specs, files, shapes, reader or Reader())
    known = {
        name: given.value.shape
        for name, given in found.items()
        if isinstance(given.value, np.ndarray)
    }
    how = f"generated: {HOW[fill]}" + (f" (seed {seed})" if fill is Fill.RANDOM else "")

    def completed(chosen: Mapping[str, Shape]) -> Inputs:
        generator = np.random.default_rng(seed)
        given = []
        for spec in specs:
            if spec.name in found:
                given.append(found[spec.name])
                continue
            shape = shapes.get(spec.name)
            _require_allowed(spec, shape)
            if shape is None and spec.kind is not ValueKind.OPTIONAL:
                shape = chosen.get(spec.name)
            generated = stand_in(spec, shape, fill, generator, _advice(spec))
            source = "no file is given for it" if generated is None else how
            given.append(Given(spec, generated, source))
        return Inputs(tuple(given), tuple(notes))

    choices = fitting_shapes(specs, {**shapes, **known}, advice="change --shape")
    first = completed(next(choices))
    return replace(first, others=map(completed, choices))


# ----------------------------------------------------------------------------------- from files


class Reader:
    """Reads the files of one run, each by its kind.

    wishes: for images. metadata: the model's. notes: what was done, a line for each input.
    """

    def __init__(
        self, wishes: Preparation | None = None, metadata: Mapping[str, str] | None = None
    ) -> None:
        self.files = InputFiles()
        self.notes: list[str] = []
        self._wishes = wishes or Preparation()
        self._metadata = metadata or {}

    def read(self, spec: TensorSpec, files: Sequence[InputFile], shape: Shape | None) -> Given:
        """Read an input from its own files: several are a sequence's elements, or a batch."""
        source = f"from {', '.join(map(str, files[:_MOST_NAMES]))}"
        if len(files) > _MOST_NAMES:
            source += f" and {len(files) - _MOST_NAMES} others"
        if len(files) > 1 and spec.kind is not ValueKind.SEQUENCE:
            batch, notes = read_batch(spec, files, shape, self._value)
            self.notes += notes
            return Given(spec, batch, source)
        values: list[Any] = []
        for file in files:
            value, said = self._value(spec, file, shape)
            values += value if isinstance(value, list) else [value]
            if said:
                self.notes.append(f"note: input {spec.name}: {file}: {said}")
        return Given(spec, values if spec.kind is ValueKind.SEQUENCE else values[0], source)

    def _value(self, spec: TensorSpec, file: InputFile, shape: Shape | None) -> tuple[Any, str]:
        """Return what a file holds for an input, and what was done to it in words."""
        if file.suffix == ".npz":
            value = _from_archive(spec, file, _named(spec, file, read_npz(file)), shape)
            return value if spec.kind is ValueKind.SEQUENCE else [value], ""
        said = ""
        if file.suffix == ".npy":
            array = read_npy(file)
        elif file.suffix == ".bin":
            array = read_raw(file, spec, shape, f"give it with --shape {spec.name}=...")
        elif file.suffix in IMAGES:
            array, said = read_picture(file, spec, shape, self._wishes, self._metadata)
        elif file.suffix == ".json":
            found = read_json(file)
            if isinstance(found, dict):
                found = _named(spec, file, found)
                found = found.get(spec.name, found)
            array = json_value(file, found, spec, shape)
        elif file.suffix == ".txt" and spec.dtype is DType.STRING:
            array, said = read_text(file, spec, shape)
        else:
            array, said = Table(file, ()).value(spec, shape)
        return _checked(spec, array, file, shape), said


def _from_files(
    specs: Sequence[TensorSpec], files: Sequence[str], shapes: Mapping[str, Shape], reader: Reader
) -> tuple[dict[str, Given], list[str]]:
    by_name = {spec.name: spec for spec in specs}
    named: dict[str, list[InputFile]] = {}
    unnamed: list[list[InputFile]] = []
    for text in files:
        name, equals, rest = text.partition("=")
        # The longest input name that fits: both names and paths may hold "=".
        for candidate in sorted(by_name, key=len, reverse=True):
            if text.startswith(f"{candidate}="):
                name, equals, rest = candidate, "=", text[len(candidate) + 1 :]
                break
        if equals and name in by_name and not rest:
            raise InputError(f"--input {text}: expected a file behind the equals sign", name)
        path = rest if equals and name in by_name else text
        if equals and name not in by_name and not Path(path).exists():
            raise _unknown(name, by_name, f"--input {text}")
        opened = reader.files.open_all(path)
        if not (equals and name in by_name):
            unnamed.append(opened)
            continue
        if name in named and by_name[name].kind is not ValueKind.SEQUENCE:
            both = f"{named[name][0]} and {opened[0]}"
            advice = f"a batch is --input {name}={named[name][0]},{opened[0]}"
            raise InputError(f"input {name!r} is given twice: {both}; {advice}", name)
        named.setdefault(name, []).extend(opened)

    found = {name: reader.read(by_name[name], own, shapes.get(name)) for name, own in named.items()}
    notes: list[str] = []
    singles = [
        opened
        for opened in unnamed
        if len(opened) > 1 or not _take_by_name(opened[0], specs, shapes, found, notes)
    ]
    rest_of_specs = [spec for spec in specs if spec.name not in found]
    if len(singles) > len(rest_of_specs):
        raise InputError(
            f"{singles[len(rest_of_specs)][0]}: no input is left for it; the model has: "
            f"{_listed(by_name)}"
        )
    for spec, opened in zip(rest_of_specs, singles, strict=False):
        found[spec.name] = reader.read(spec, opened, shapes.get(spec.name))
    return found, [*reader.notes, *notes]


def _take_by_name(
    file: InputFile,
    specs: Sequence[TensorSpec],
    shapes: Mapping[str, Shape],
    found: dict[str, Given],
    notes: list[str],
) -> bool:
    """Read inputs by their names from a file that has names; False for one that has none."""
    if file.suffix == ".npz":
        _take_archive(file, specs, shapes, found, notes)
        return True
    names: Collection[str]
    array_of: Callable[[TensorSpec, Shape | None], Array]
    if file.suffix == ".json":
        values = read_json(file)
        if not isinstance(values, dict):
            return False
        names = values = _named(specs[0], file, values) if len(specs) == 1 else values
        array_of = partial(_member, file, values)
    elif file.suffix in TABLES and (table := Table(file, [spec.name for spec in specs])).has_names:
        names = table.header
        array_of = table.columns
    else:
        return False
    left = [spec for spec in specs if spec.name not in found]
    for spec in left:
        if spec.name in names:
            shape = shapes.get(spec.name)
            value = _checked(spec, array_of(spec, shape), file, shape)
            found[spec.name] = Given(spec, value, f"from {file}")
    if left and all(spec.name not in found for spec in left):
        raise InputError(
            f"{file}: expected values by input name, {_listed([spec.name for spec in left])}; it "
            f"has: {_listed(names)}"
        )
    _note_unused(file, {*names} - {spec.name for spec in left}, notes)
    return True


def _member(
    file: InputFile, values: Mapping[str, Any], spec: TensorSpec, shape: Shape | None
) -> Array:
    return json_value(file, values[spec.name], spec, shape)


def _take_archive(
    file: InputFile,
    specs: Sequence[TensorSpec],
    shapes: Mapping[str, Shape],
    found: dict[str, Given],
    notes: list[str],
) -> None:
    """Read every input that has no file yet from the archive, and note what else is there."""
    arrays = read_npz(file)
    unused = set(arrays)
    for spec in specs:
        if spec.name in found:
            continue
        if spec.kind is ValueKind.OPTIONAL and value_of(spec.name, arrays) is None:
            continue
        if len(specs) == 1:
            arrays = _named(spec, file, arrays)
            unused = set(arrays)
        value = _from_archive(spec, file, arrays, shapes.get(spec.name))
        found[spec.name] = Given(spec, value, f"from {file}")
        unused -= set(arrays_of(spec.name, value, spec.dtype))
    _note_unused(file, unused, notes)


def _named(spec: TensorSpec, file: InputFile, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return a file's one array by the name of the one input, where no name was chosen for it.

    So it is with np.savez(file, array), and with what another command has sent by a pipe. arrays:
    of an archive, or the members of a JSON object.
    """
    if len(arrays) != 1:
        return arrays
    [(name, array)] = arrays.items()
    is_piped = file.data is not None and spec.kind is ValueKind.TENSOR
    return {spec.name: array} if name == _UNNAMED or is_piped else arrays


def _note_unused(file: InputFile, unused: Collection[str], notes: list[str]) -> None:
    if unused:
        listed = ", ".join(repr(name) for name in sorted(unused))
        notes.append(f"note: {file}: not used: {listed}")


_MOST_NAMES = 4  # of files, in a line
_UNNAMED = "arr_0"  # what numpy calls the first array that was saved without a name

_KINDS: dict[type, ValueKind] = {list: ValueKind.SEQUENCE, dict: ValueKind.MAP}


def _from_archive(
    spec: TensorSpec, file: InputFile, arrays: Mapping[str, Array], shape: Shape | None
) -> Any:
    value = value_of(spec.name, arrays)
    kind = _KINDS.get(type(value), ValueKind.TENSOR)
    if value is None or spec.kind not in (kind, ValueKind.OPTIONAL):
        name = spec.name + {ValueKind.SEQUENCE: "[0]", ValueKind.MAP: ".keys"}.get(spec.kind, "")
        raise InputError(
            f"{file}: no array {name!r} for input {spec}; it holds: {_listed(arrays)}; "
            f"name it when it is saved: np.savez(file, **{{{name!r}: array}})",
            spec.name,
        )
    return _checked(spec, value, file, shape)


def _checked(spec: TensorSpec, value: Any, file: InputFile, shape: Shape | None) -> Any:
    """Return the value, or raise InputError here, where the file's name is known."""
    if isinstance(value, list):
        return [_checked(spec, element, file, shape) for element in value]
    if isinstance(value, dict):
        return value
    said = described(value)
    inside = TensorSpec(spec.name, spec.dtype, spec.shape)
    wanted = spec.dtype.numpy
    is_opaque = value.dtype.kind == "V" and value.dtype.names is None
    if is_opaque and wanted.isbuiltin != 1 and value.dtype.itemsize == wanted.itemsize != 0:
        value = value.view(wanted)  # .npy files keep only the size of ml_dtypes' types
    value = restored(value, wanted)
    is_text = spec.dtype is DType.STRING and value.dtype.kind in "UT"
    if value.dtype.newbyteorder("=") != wanted and not is_text:
        advice = f"save it as array.astype({_in_python(spec.dtype)})"
        raise file.refusal(spec, f"expected {inside}, got {said}; {advice}")
    if not fits(value.shape, spec):
        moved = for_axes("array", value.shape, spec.shape or ())
        advice = f"{moved}: save that" if moved else "save an array of that shape"
        raise file.refusal(spec, f"expected {inside}, got {said}; {advice}")
    if shape is not None and value.shape != shape:
        raise file.refusal(spec, f"--shape says {list(shape)}, got {said}; leave it out")
    return value


def _in_python(dtype: DType) -> str:
    if dtype is DType.STRING:
        return "str"
    return repr(str(dtype)) if dtype.numpy.isbuiltin == 1 else f"ml_dtypes.{dtype}"


def _unknown(name: str, known: Mapping[str, TensorSpec], where: str) -> InputError:
    near = hint(name, known) if len(known) > 1 else ""
    text = f"{where}: the model has no input {name!r}; it has: {_listed(known)}{near}"
    return InputError(text, name)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


# ------------------------------------------------------------------------------------ generated


def _require_allowed(spec: TensorSpec, shape: Shape | None) -> None:
    if shape is not None and not fits(shape, spec):
        raise InputError(
            f"input {spec.name!r}: expected {TensorSpec(spec.name, spec.dtype, spec.shape)}, got "
            f"{spec.dtype}{list(shape)}; change --shape",
            spec.name,
        )


def _advice(spec: TensorSpec) -> str:
    """Return how to say what cannot be made up."""
    if spec.kind is ValueKind.MAP:
        parts = f"{spec.name + '.keys'!r} and {spec.name + '.values'!r}"
        return f"give an .npz file with the arrays {parts}"
    return f"give it with --shape {spec.name}=1,3,224,224"
