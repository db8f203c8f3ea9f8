"""Entry points of the installed distributions.

importlib.metadata gives the same, but its import, with a parser of e-mails behind it, takes half as
long as ONNX Runtime's. So the folders of sys.path are read here; zip files, which are rare there,
are left to it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, TypeAlias

from engine.host.interrupts import pass_interrupt

Read: TypeAlias = Callable[[str], str | None]
"""Give the text of a file of a distribution's metadata; None where there is none."""


class EntryPoint:
    """An object that a distribution offers under a name: `value` is "module" or "module:object"."""

    __slots__ = ("_read", "group", "name", "value")

    def __init__(self, group: str, name: str, value: str, read: Read) -> None:
        self.group = group
        self.name = name
        self.value = value
        self._read = read

    def load(self) -> Any:
        """Import the module and return the object."""
        module, _, attributes = self.value.partition("[")[0].partition(":")
        found: Any = import_module(module.strip())
        for attribute in filter(None, attributes.strip().split(".")):
            found = getattr(found, attribute)
        return found

    def owner(self) -> dict[str, str]:
        """Return the distribution's name and version; nothing where its metadata are damaged."""
        try:
            text = self._read("METADATA") or self._read("PKG-INFO") or ""
        except (OSError, ValueError) as error:
            pass_interrupt(error)
            return {}
        headers: dict[str, str] = {}
        for line in text.splitlines():
            if not line:  # the description comes after it
                break
            key, _, value = line.partition(":")
            headers.setdefault(key.lower(), value.strip())
        if "name" not in headers or "version" not in headers:
            return {}
        return {"distribution": headers["name"], "version": headers["version"]}


def entry_points(prefix: str, warn: Callable[[str], None]) -> Iterator[EntryPoint]:
    """Yield those of each group that begins with `prefix`, in the order of sys.path.

    warn: told of metadata that should hold some and cannot be read.
    """
    for where, read in _metadata():
        try:
            text = read("entry_points.txt")
        except (OSError, ValueError) as error:
            pass_interrupt(error)
            warn(f"entry points of {where} are unreadable: {error}")
            continue
        if not text or prefix not in text:
            continue
        group = ""
        for line in map(str.strip, text.splitlines()):
            if line.startswith("[") and line.endswith("]"):
                group = line[1:-1].strip()
            elif group.startswith(prefix) and not line.startswith("#"):
                name, equals, value = line.partition("=")
                if equals:
                    yield EntryPoint(group, name.strip(), value.strip(), read)


def _metadata() -> Iterator[tuple[str, Read]]:
    """Yield the metadata of each distribution: their place, and how to read a file of them."""
    seen = set()
    for path in sys.path:
        entry = path
        try:
            entry = os.path.abspath(path)  # not to be had in a working folder that was deleted
            if entry in seen:
                continue
            seen.add(entry)
            names = os.listdir(entry)
        except NotADirectoryError as error:
            pass_interrupt(error)
            from importlib_metadata import distributions  # rare

            for dist in distributions(path=[entry]):
                yield entry, dist.read_text
        except OSError as error:  # folders that are not there
            pass_interrupt(error)
        else:
            for name in names:
                if name.lower().endswith((".dist-info", ".egg-info")) or name == "EGG-INFO":
                    folder = os.path.join(entry, name)
                    yield folder, _reader(folder)


def _reader(folder: str) -> Read:
    def read(name: str) -> str | None:
        path = os.path.join(folder, name)
        if not os.access(path, os.R_OK):  # as of most; an exception costs ten times as much
            return None
        try:
            with open(path, "rb") as file:
                return file.read().decode()
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            pass_interrupt(error)
            return None

    return read
