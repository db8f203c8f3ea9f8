"""The installed format that a file is of."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from engine.backends import doors
from engine.backends.doors import FORMATS, warn_once
from engine.backends.records import BackendState, PluginRecord
from engine.errors import EngineError, ModelError, one_line
from engine.formats.description import Description
from engine.formats.format import Format, FormatFile
from engine.host.interrupts import pass_interrupt, raised_by_handler
from engine.types import ModelSource

HEAD_BYTES = 4096


class Recognised(NamedTuple):
    """A format, with the name of its entry."""

    name: str
    format: Format

    @property
    def version(self) -> str:
        """The version of what it makes of a file; "" where that is not to be kept."""
        return str(getattr(self.format, "version", ""))

    @property
    def takes_shapes(self) -> bool:
        """True where it heeds the shapes that are asked for."""
        return bool(getattr(self.format, "takes_shapes", False))

    def open(self, file: FormatFile) -> ModelSource:
        """Return the model in a file. Raises ModelError, also for what the format fails with."""
        with self._faults(file):
            return self.format.open(file)

    def describe(self, file: FormatFile) -> Description | None:
        """Describe a file as it is written; None where the format has no words for it."""
        describe = getattr(self.format, "describe", None)
        if describe is None:
            return None
        with self._faults(file):
            description: Description = describe(file)
            return description

    @contextmanager
    def _faults(self, file: FormatFile) -> Iterator[None]:
        """Let an error that the format should not raise name it."""
        try:
            yield
        except Exception as error:
            if isinstance(error, EngineError) or raised_by_handler(error):
                raise
            where = "" if file.path is None else file.name
            text = f"{file.name}: format {self.name!r} failed: {one_line(error)}"
            raise ModelError(text, where) from error


class _Opened:
    """The formats that were imported, as long as `sys.path` is the same."""

    def __init__(self) -> None:
        self.path: list[str] = []
        self.formats: list[Recognised] = []


_opened = _Opened()


def recognised(head: bytes, look_again: bool = True) -> Recognised | None:
    """Return the installed format of a file that is not ONNX; None where none recognises it.

    head: its first `HEAD_BYTES`. look_again: for formats that were installed since.
    One that cannot be imported, or fails, stops no other.
    """
    is_new = _opened.path != sys.path
    if is_new:
        _opened.path, _opened.formats = [*sys.path], []
    here = next((known for known in _opened.formats if _recognises(known, head)), None)
    if here is not None or not (is_new or look_again):  # a scan costs milliseconds
        return here
    known = {format.name for format in _opened.formats}
    points = doors.points(FORMATS)
    for name in sorted({point.name for point in points} - known):
        found, format = doors.resolve(FORMATS, name, points)
        if found.state is BackendState.READY:
            _opened.formats.append(new := Recognised(name, format))
            if _recognises(new, head):
                return new
    return None


def unusable() -> list[PluginRecord]:
    """Return the records of the formats that are installed and cannot be used."""
    points = doors.points(FORMATS)
    records = [doors.resolve(FORMATS, name, points)[0] for name in doors.known(FORMATS)]
    return [found for found in records if found.state is not BackendState.READY]


def _recognises(known: Recognised, head: bytes) -> bool:
    try:
        return bool(known.format.recognises(head))
    except Exception as error:
        pass_interrupt(error)
        warn_once(f"format {known.name!r} is not used: recognises raised {one_line(error)}")
        return False
