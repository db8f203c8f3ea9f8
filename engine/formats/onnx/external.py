"""External data: where a tensor's bytes lie outside the model file, and whether they may.

Every runtime opens what a model names, so a model from a stranger could otherwise read any file
of the user into a tensor. Data must lie in the model's folder, also after symbolic links are
followed. Hard links are not refused: making one to another's file takes the right to write that
file, archives cannot carry one out of their folder, and package caches are full of them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sized
from pathlib import Path, PurePosixPath

from engine.formats.onnx import schema
from engine.formats.onnx.reading import Invalid, text
from engine.formats.opened import FileVersion
from engine.formats.protobuf import Budget, fields

# All that the format has. ONNX Runtime also takes "prepacked_0" and the like, weights in the form
# that its kernels want, and believes what they say: only what it wrote itself may bring such.
_KEYS = frozenset(("location", "offset", "length", "checksum"))


class ExternalFiles:
    """The data files of one model, each looked at once.

    path: the model's file, or None for a model that is only bytes. Its folder is where locations
        start. Data may also lie where the model's file itself really is when `path` is a symbolic
        link: content-addressed caches link model and data into one folder of blobs.
    held: what is in memory instead, by location.
    used: whether the model has any; nbytes: those of all tensors there. versions: of the files, by
        the paths that their locations name. linked_out: whether some is reached only through links
        that lead out of the folder of `path`.
    """

    def __init__(self, path: Path | None, held: Mapping[str, Sized]) -> None:
        self.path = path
        self._held = held
        self.linked_out = False
        self.used = False
        self.nbytes = 0
        self._sizes = {location: len(content) for location, content in held.items()}
        self.versions: dict[Path, FileVersion] = {}

    def check(self, entries: Iterable[memoryview], nbytes: int, what: str, budget: Budget) -> str:
        """Return the location, relative to the model's folder, of a tensor of `nbytes` bytes.

        entries: the tensor's external_data. Returns "" where that is in memory. Raises Invalid
        unless they name such, or a regular, readable file inside the folder, and it holds the
        bytes.
        """
        self.used = True
        named = entries_of(entries, what, budget)
        unknown = sorted(named.keys() - _KEYS)
        if unknown:
            raise Invalid(
                f"{what} has external data with the entry {unknown[0][:40]!r}; expected no other "
                "than location, offset, length and checksum"
            )
        location = named.get("location", "")
        size = self._sizes.get(location)
        if size is None and self.path is None:
            raise Invalid(
                f"{what} keeps its data in the file {location!r}, but a model given as bytes has "
                f"no folder to find it in; give the model's path instead"
            )
        if size is None:
            assert self.path is not None
            size = self._sizes[location] = self._size(self.path, location, what)
        offset = _number(named.get("offset", "0"), "offset", what)
        length = _number(named["length"], "length", what) if "length" in named else nbytes
        if length != nbytes:
            raise Invalid(
                f"{what} needs {nbytes:,} bytes of external data, but its entry says {length:,}"
            )
        if offset + length > size:
            raise Invalid(
                f"{what} wants bytes {offset:,} to {offset + length:,} of {location!r}, "
                f"which has {size:,} bytes"
            )
        self.nbytes += nbytes
        return "" if location in self._held else location

    def _size(self, path: Path, location: str, what: str) -> int:
        reason = _forbidden(location)
        if reason:
            raise Invalid(f"{what} keeps its data at {location!r}: {reason}")
        folder = path.parent
        try:
            real = os.path.realpath(folder / location, strict=True)
            status = os.stat(real)
        except OSError as error:
            raise Invalid(
                f"{what} keeps its data in {location!r}, which cannot be read: {error.strerror} "
                f"(looked in {str(folder)!r}; keep the data file beside the model)"
            ) from error
        if not _inside(real, folder):
            if not _inside(real, Path(os.path.realpath(path)).parent):
                raise Invalid(
                    f"{what} keeps its data at {location!r}, which leads out of the model's "
                    f"folder to {real!r}; data must lie inside the folder"
                )
            self.linked_out = True
        if not stat.S_ISREG(status.st_mode):
            raise Invalid(f"{what} keeps its data in {location!r}, which is not a regular file")
        version = _version_at(real)
        if version is None:
            raise Invalid(f"{what} keeps its data in {location!r}, which may not be read")
        self.versions[folder / location] = version
        return version.nbytes


def _version_at(real: str) -> FileVersion | None:
    """Return the version of the file that is now at a path without links; None for no such.

    It is opened, and asked where it is: between looking and reading a folder on the way may have
    become a link.
    """
    try:
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        place = f"/proc/self/fd/{descriptor}"
        if os.path.exists(place) and os.readlink(place) != real:
            return None
        return FileVersion.of(os.fstat(descriptor))
    finally:
        os.close(descriptor)


def _forbidden(location: str) -> str:
    if not location:
        return "no file is named"
    if location.startswith("/"):
        return "an absolute path; expected one relative to the model's folder"
    if "\0" in location or "\\" in location:
        return "expected a plain relative path with '/' between folders"
    names = PurePosixPath(location).parts
    if ".." in names:
        return "'..' is not allowed; data must lie inside the model's folder"
    # onnxruntime takes "*/_ORT_MEM_ADDR_/*" for an address in this process's memory.
    if "*" in names:
        return "'*' is no file name; it stands for memory in onnxruntime"
    return ""


def _inside(real: str, folder: Path) -> bool:
    return Path(real).is_relative_to(os.path.realpath(folder))


def entries_of(views: Iterable[memoryview], what: str, budget: Budget) -> dict[str, str]:
    """Return a tensor's external_data by key. Raises Invalid."""
    named: dict[str, str] = {}
    for view in views:
        name = value = ""
        for tag, payload in fields(view, budget):
            if tag == schema.STRING_STRING_ENTRY_KEY:
                name = text(payload)
            elif tag == schema.STRING_STRING_ENTRY_VALUE:
                value = text(payload)
        # Readers differ in which of two they take: one could be checked and the other used.
        if name in named:
            raise Invalid(f"{what} gives its external {name!r} twice")
        named[name] = value
    return named


def _number(value: str, key: str, what: str) -> int:
    if value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    raise Invalid(f"{what} has external {key} {value[:40]!r}; expected a number of bytes")
