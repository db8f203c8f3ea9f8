"""A file that holds an input of a run, also standard input, of which the content says the kind."""

from __future__ import annotations

import io
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from engine.errors import InputError
from engine.types import TensorSpec

STANDARD_INPUT = "-"


def file_name(path: object) -> str:
    """Return how people call the file that a word of a command names."""
    return "standard input" if str(path) == STANDARD_INPUT else str(path)


def of_commands(text: str) -> str:
    """Return a message as a command says it: its one model in memory came by standard input."""
    return text.replace("model bytes: ", "standard input: ", 1)


ARRAYS = (".npy", ".npz", ".bin")
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
TABLES = (".csv", ".tsv", ".json", ".txt")
SUFFIXES = (*ARRAYS, *IMAGES, *TABLES)

_EXPECTED = "a .npy, .npz, .bin, .csv, .json, .txt or image file"
_STARTS = (
    (b"\x93NUMPY", ".npy"), (b"PK\x03\x04", ".npz"), (b"PK\x05\x06", ".npz"),
    (b"\x89PNG\r\n\x1a\n", ".png"), (b"\xff\xd8\xff", ".jpg"), (b"GIF8", ".gif"),
    (b"II*\0", ".tif"), (b"MM\0*", ".tif"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file, by its path, or what came by standard input. suffix: the kind, in lower case."""

    name: str
    suffix: str
    data: bytes | None = field(default=None, repr=False)

    def open(self) -> BinaryIO:
        """Return it opened to read bytes."""
        return Path(self.name).open("rb") if self.data is None else io.BytesIO(self.data)

    def read_bytes(self) -> bytes:
        """Return all its bytes."""
        return Path(self.name).read_bytes() if self.data is None else self.data

    def read_text(self) -> str:
        """Return its text. Raises InputError unless it is UTF-8."""
        try:
            return self.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"{self}: expected text in UTF-8: {error}") from error

    def refusal(self, spec: TensorSpec, text: str) -> InputError:
        """Return the error for a file that does not fit an input."""
        return InputError(f"{self}: input {spec.name!r}: {text}", spec.name)

    def __str__(self) -> str:
        return self.name


class InputFiles:
    """Opens what --input names; standard input once, however often it is asked for."""

    def __init__(self) -> None:
        self._given: InputFile | None = None

    def open_all(self, text: str) -> list[InputFile]:
        """Return the files that a text names: one, several with commas between, or a folder's.

        Of a folder those are the images, else the .npy files, by name. Raises
        InputError as `open`.
        """
        path = Path(text)
        if path.is_dir():
            return [self.open(str(file)) for file in _batch_in(path)]
        parts = text.split(",")
        if len(parts) > 1 and not path.exists() and any(map(os.path.exists, parts)):
            return [self.open(part) for part in parts]
        return [self.open(text)]

    def open(self, text: str) -> InputFile:
        """Return a file. Raises InputError where nothing, or nothing of a known kind, is there."""
        if text == STANDARD_INPUT:
            if self._given is None:
                self._given = _standard_input()
            return self._given
        path = Path(text)
        if not path.exists():
            raise InputError(f"{path}: no such file{_of_pattern(path)}")
        if path.is_dir():
            raise InputError(f"{path}: is a folder; expected {_EXPECTED}")
        if not path.is_file():  # opening a pipe waits for somebody who writes
            raise InputError(
                f"{path}: is a pipe or a device; expected {_EXPECTED}: write to one first, or "
                "pipe it into --input -"
            )
        suffix = path.suffix.lower()
        if suffix not in SUFFIXES:
            got = repr(path.suffix) if path.suffix else "a name without an ending"
            raise InputError(
                f"{path}: expected {_EXPECTED}, got {got}; read it in Python and save "
                "what the model takes: np.save('x.npy', array)"
            )
        return InputFile(str(path), suffix)


def _of_pattern(path: Path) -> str:
    """Say what to give in place of a pattern, which only a shell expands."""
    if not set(str(path)) & set("*?["):
        return ""
    return f"; patterns are not read: give the files with commas between, or {str(path.parent)!r}"


def _batch_in(folder: Path) -> list[Path]:
    """Return the files of a folder that make up a batch: of one kind, images before others."""
    files = list(folder.iterdir())
    for kind in (IMAGES, (".npy",)):
        if batch := [path for path in files if path.suffix.lower() in kind]:
            return sorted(batch, key=by_number)
    raise InputError(
        f"{folder}: is a folder without images or .npy files; expected some, or {_EXPECTED}"
    )


def by_number(path: Path) -> list[tuple[int, str]]:
    """Return what sorts names as people do: 9.png before 10.png."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]


def _standard_input() -> InputFile:
    stream = sys.stdin
    if stream is None or stream.isatty():
        raise InputError(
            "--input -: standard input is no file or pipe; send one: ... --input - < x.npy"
        )
    data = stream.buffer.read()
    if not data:
        raise InputError(f"standard input: empty; expected {_EXPECTED}")
    return InputFile("standard input", _kind(data), data)


def _kind(data: bytes) -> str:
    for start, suffix in _STARTS:
        if data.startswith(start):
            return suffix
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return ".webp"
    if data.lstrip()[:1] in (b"{", b"["):
        return ".json"
    first = data.partition(b"\n")[0]
    return ".csv" if any(sign in first for sign in (b",", b";", b"\t")) else ".txt"
