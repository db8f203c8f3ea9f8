"""CSV, JSON and text files as a model's inputs."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from engine.cli.input_files import InputFile
from engine.errors import InputError, one_line
from engine.tensor.description import Array
from engine.types import DType, TensorSpec

Shape = tuple[int, ...]


class Table:
    """Lines of cells. header: the names of the columns, () where the first line has numbers."""

    def __init__(self, file: InputFile, names: Sequence[str]) -> None:
        """names: of the model's inputs; a first line with one of them is a header in any case."""
        text = file.read_text()
        first = text.partition("\n")[0]
        if file.suffix == ".txt":
            rows = [re.split(r"[\s,;]+", row.strip()) for row in text.splitlines()]
        else:
            counts = {sign: first.count(sign) for sign in ",;\t"}
            delimiter = "\t" if file.suffix == ".tsv" else max(counts, key=counts.__getitem__)
            rows = _rows(file, text, delimiter)
        numbered = [(place, row) for place, row in enumerate(rows, 1) if any(row)]
        if not numbered:
            raise InputError(f"{file}: empty; expected lines of values")
        cells = [cell.strip() for cell in numbered[0][1]]
        has_names = bool({*cells} & {*names})
        is_header = has_names or not any(map(_is_number, cells))
        self.file = file
        self.header = tuple(cells) if is_header else ()
        self.has_names = has_names
        self._is_all_text = is_header and not has_names
        self._lines = numbered[1:] if is_header else numbered

    def value(self, spec: TensorSpec, shape: Shape | None) -> tuple[Array, str]:
        """Return the table as an input takes it, and what was done in words."""
        lines, header = self._lines, self.header
        if spec.dtype is DType.STRING and self._is_all_text:  # then the first line is one of them
            lines, header = [(1, [*header]), *lines], ()
        array = self._typed(spec, lines)
        said = f"{array.shape[0]} x {array.shape[1]} values"
        said += ", without the header" if header else ""
        return _shaped(array, spec, shape), said

    def columns(self, spec: TensorSpec, shape: Shape | None) -> Array:
        """Return the column that has an input's name as that input takes it."""
        place = self.header.index(spec.name)
        lines = [(line, row[place : place + 1]) for line, row in self._lines]
        return _shaped(self._typed(spec, lines), spec, shape)

    def _typed(self, spec: TensorSpec, lines: Sequence[tuple[int, list[str]]]) -> Array:
        widths = {len(row) for _, row in lines}
        if len(widths) > 1:
            wanted = len(lines[0][1])
            line, got = next((line, len(row)) for line, row in lines if len(row) != wanted)
            raise InputError(
                f"{self.file}: line {line}: expected {wanted} values as in the first, got {got}"
            )
        if not lines:
            raise InputError(f"{self.file}: expected lines of values, got the header alone")
        found = np.empty((len(lines), widths.pop()), object)
        for index, (line, row) in enumerate(lines):
            try:
                found[index] = [_cell(cell, spec.dtype) for cell in row]
            except ValueError as error:
                raise InputError(
                    f"{self.file}: line {line}: input {spec.name!r}: {error}", spec.name
                ) from None
        return typed(found, spec, self.file)


def _rows(file: InputFile, text: str, delimiter: str) -> list[list[str]]:
    try:  # a cell in quotes may hold the ends of lines
        return list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise InputError(f"{file}: not readable as lines of values: {error}") from error


def read_text(file: InputFile, spec: TensorSpec, shape: Shape | None) -> tuple[Array, str]:
    """Return a text file for an input of strings: its lines, or the whole text for one string."""
    text = file.read_text()
    # Unlike str.splitlines: form feeds and U+2028 belong to a text.
    lines = [line.removesuffix("\n") for line in io.StringIO(text, newline=None)]
    declared = shape if shape is not None else spec.shape
    is_one = declared is not None and all(dim == 1 for dim in declared)
    if is_one:
        assert declared is not None
        return np.full([1] * len(declared), text.rstrip("\n"), object), "the whole text"
    column = np.array(lines, object).reshape(-1, 1)
    return _shaped(column, spec, shape), f"{len(lines)} lines"


def read_json(file: InputFile) -> Any:
    """Return what a JSON file holds; an object's only member "inputs" in place of the object."""
    try:
        found = json.loads(file.read_text())
    except ValueError as error:
        raise InputError(f"{file}: not readable JSON: {one_line(error)}") from error
    except RecursionError:
        raise InputError(f"{file}: not readable JSON: its lists are nested too deep") from None
    if isinstance(found, dict) and [*found] == ["inputs"]:
        return found["inputs"]
    return found


def json_value(file: InputFile, found: Any, spec: TensorSpec, shape: Shape | None) -> Array:
    """Return a list of lists, or a number, as an input takes it. Raises InputError."""
    if isinstance(found, dict):
        raise InputError(
            f"{file}: expected {spec} as lists of numbers, got an object with: {', '.join(found)}",
            spec.name,
        )
    try:
        nested = np.array(found, object if spec.dtype is DType.STRING else None)
    except ValueError as error:
        text = f"expected lists of the same lengths; {one_line(error)}"
        raise file.refusal(spec, text) from error
    kind = nested.dtype.kind
    if spec.dtype is not DType.STRING and kind not in "biuf" and nested.size:
        raise InputError(
            f"{file}: input {spec.name!r}: expected numbers for {spec}, got other values", spec.name
        )
    if spec.dtype is DType.STRING:
        for element in nested.flat:
            if not isinstance(element, str | int | float) or isinstance(element, bool):
                got = json.dumps(element)[:60]
                raise file.refusal(spec, f"expected texts in lists of the same lengths, got {got}")
    elif "int" in spec.dtype:
        nested = np.array(found, object)  # a float among them would round the others
    return typed(nested, spec, file)


def typed(values: Array, spec: TensorSpec, file: InputFile) -> Array:
    """Return numbers in an input's type. Raises InputError where one does not fit in it."""
    wanted = spec.dtype.numpy
    if spec.dtype is DType.STRING:
        return values.astype(str).astype(object)
    if spec.dtype is DType.BOOL:
        values = values.astype(np.float64)
        fits = (values == 0) | (values == 1)
    elif "int" in spec.dtype and values.size:
        signed = not spec.dtype.startswith("u")
        lowest = -(1 << (spec.dtype.bits - 1)) if signed else 0
        highest = (1 << (spec.dtype.bits - signed)) - 1
        wide = values.astype(object)
        fits = np.array(
            [lowest <= each <= highest and each == int(each) for each in wide.reshape(-1)], bool
        ).reshape(values.shape)
        values = wide
    else:
        wide = values.astype(np.float64)
        with np.errstate(over="ignore"):
            narrow = wide.astype(wanted)
            fits = np.isfinite(narrow.astype(np.float64)) | ~np.isfinite(wide)
        if fits.all():
            return narrow
    if not fits.all():
        wrong = values[~fits].reshape(-1)[0]
        raise file.refusal(spec, f"expected {spec.dtype}, got {wrong}")
    if wanted.isbuiltin == 1:
        return values.astype(wanted)
    return values.astype(np.int64).astype(wanted)


def _cell(text: str, dtype: DType) -> Any:
    if dtype is DType.STRING:
        return text
    bare = text.strip()
    if dtype is DType.BOOL and bare.lower() in ("true", "false"):
        return bare.lower() == "true"
    if not bare and "float" in dtype:
        return float("nan")  # what is missing
    try:
        if "int" in dtype and re.fullmatch(r"[+-]?\d+", bare):
            return int(bare)
        return float(bare)
    except ValueError:
        raise ValueError(f"expected a number for {dtype}, got {bare!r}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.lower() in ("", "true", "false")
    return True


def _shaped(table: Array, spec: TensorSpec, shape: Shape | None) -> Array:
    """Return rows and columns with the axes that an input has, where the sizes say how."""
    declared = shape if shape is not None else spec.shape
    if declared is None or len(declared) == 2:
        return table
    if len(declared) < 2:
        return table.reshape(-1) if 1 in table.shape and declared else table
    inner = [dim for dim in declared[1:] if isinstance(dim, int)]
    if len(inner) == len(declared) - 1 and prod(inner) == table.shape[1]:
        return table.reshape(-1, *inner)
    if declared[0] in (1, None) and len(declared) == 3:  # one table in a batch
        return table[None]
    return table
