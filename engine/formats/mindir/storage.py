"""Storage of a .mindir's tensors: in the file itself, in data files beside it, or in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from engine.formats import encryption
from engine.formats.files import read_file, read_start
from engine.formats.mindir import constants
from engine.formats.mindir.decode import DecodeError, TensorProto
from engine.formats.mindir.names import local
from engine.formats.mindir.values import Value
from engine.formats.onnx.writer import Buffer, External, Tensor
from engine.formats.opened import FileVersion
from engine.formats.protobuf import address

SMALL_BYTES = 64 << 20  # the weights of a file up to this size may be copied, and folded
APART_BYTES = 1 << 16  # smaller tensors are written into the ONNX model


class Storage:
    """The tensors of one model, none of them copied.

    view: the file's content, decrypted. path: the file, None for bytes. base: where the names of
        its data files start, None where there is no folder. key, mode: what it is encrypted with;
        None for a plain one. version: of the file, where `view` is mapped from it.
    versions: of the files that runtimes read tensors from.
    folder: where the ONNX model's external data is. files: what of it is in memory instead, by the
        location that the ONNX model gives it.
    """

    def __init__(
        self,
        view: memoryview,
        path: Path | None,
        base: Path | None,
        key: bytes | None,
        mode: str,
        version: FileVersion | None = None,
    ) -> None:
        self.view = view
        self.folder = base
        self.files: dict[str, Buffer] = {}
        self.versions: dict[Path, FileVersion] = {}
        self._version = version
        self._path = path
        self._base = base
        self._key = key
        self._mode = mode
        self._in_memory: dict[str, memoryview] = {}  # data files in memory
        # Data files read by runtimes: location in the ONNX model, and size.
        self._on_disk: dict[str, tuple[str, int]] = {}
        self._left_in: str | None = None  # the model's file, where tensors may stay in it

    @property
    def may_copy(self) -> bool:
        """True if weights are so small that copies of them do not matter."""
        return len(self.view) <= SMALL_BYTES

    # ------------------------------------------------------------------------------------- opening

    def open(self, locations: Iterable[str], weights: bytes | None) -> None:
        """Open the data files that the model names, or take `weights` for the only one.

        Raises DecodeError, DecryptionError, and ModelError for what is no file to read.
        """
        names = sorted(set(locations))
        if weights is not None:
            if len(names) != 1:
                raise DecodeError(
                    f"its weights are in {len(names)} files; give the model's path"
                    if names
                    else "weight_bytes belong to a model whose weights are in a file of their own, "
                    "and this one's are in it; leave weight_bytes out"
                )
            self._keep(names[0], memoryview(weights))
        elif names and self._base is None:
            raise DecodeError(
                f"its weights are in {names[0]!r}, but a model given as bytes has no folder to "
                "find that in; give the model's path, or weight_bytes"
            )
        elif names and self._key is not None:
            for location in names:
                held = memoryview(read_file(self._file(location)))
                try:
                    plain = encryption.decrypt(held, self._key, self._mode)
                except encryption.DecryptionError as error:
                    raise encryption.DecryptionError(
                        f"its data file {location!r}: {error}"
                    ) from None
                self._keep(location, memoryview(plain))
        elif names:
            for location in names:
                file = self._file(location)
                start, version = read_start(file, 1)
                _check_mark(start, location)
                self._on_disk[location] = location, version.nbytes
                self.versions[file] = version
            self._follow_links()
        else:
            self._leave()

    def _keep(self, location: str, content: memoryview) -> None:
        _check_mark(bytes(content[:1]), location)
        self._in_memory[location] = content

    def _file(self, location: str) -> Path:
        assert self._base is not None
        if Path(location).is_absolute() or ".." in Path(location).parts:
            raise DecodeError(f"its weights are in {location!r}, outside of its folder")
        file = self._base / location
        if not file.exists():
            raise DecodeError(
                f"its weights are in {location!r}, which is not there (looked in "
                f"{str(self._base)!r}); keep it beside the model, or set [model_file] mindir_path"
            )
        return file

    def _follow_links(self) -> None:
        """Resolve links to the folder that holds the data files.

        Download caches link a model's files into one folder of blobs; runtimes refuse external data
        outside of the model's folder, so they get the resolved one.
        """
        assert self._base is not None
        real = {path: Path(os.path.realpath(self._base / path)) for path in self._on_disk}
        folder = Path(os.path.realpath(self._base))
        if all(path.is_relative_to(folder) for path in real.values()):
            return
        if self._path is not None:
            folder = Path(os.path.realpath(self._path)).parent
        for location, file in real.items():
            if not file.is_relative_to(folder):
                raise DecodeError(
                    f"its weights are in {location!r}, which leads out of the model's folder to "
                    f"{str(file)!r}; data must lie inside the folder"
                )
            self._on_disk[location] = (
                file.relative_to(folder).as_posix(),
                self._on_disk[location][1],
            )
        self.folder = folder

    def _leave(self) -> None:
        """Let the tensors of a large file stay in it. Small models are the bytes that were read."""
        if self._path is None or self._key is not None or self.may_copy:
            return
        real = Path(os.path.realpath(self._path))
        if not set(real.name) & set("\\*") and real.name.isprintable():  # what runtimes can name
            self.folder = real.parent
            self._left_in = real.name
            if self._version is not None:
                self.versions[real] = self._version

    # ------------------------------------------------------------------------------------- tensors

    def parameter(self, proto: TensorProto, name: str) -> Value:
        """Return a parameter as a value; its data stays where it is."""
        if not proto.location:
            result = constants.tensor_value(proto, name)
        else:
            dtype, shape, wanted = constants.size_of(proto)
            length = wanted if proto.length is None else proto.length
            if length != wanted or proto.offset < 0:
                raise DecodeError(
                    f"the parameter {local(proto.name)!r} has {length:,} bytes of data at "
                    f"{proto.offset:,} in {proto.location!r}; its {dtype}{list(shape)} needs "
                    f"{wanted:,}"
                )
            held = self._in_memory.get(proto.location)
            named, size = self._on_disk.get(proto.location, ("", 0))
            size = size if held is None else len(held)
            if proto.offset + length > size:
                raise DecodeError(
                    f"the parameter {local(proto.name)!r} is bytes {proto.offset:,} to "
                    f"{proto.offset + length:,} of {proto.location!r}, which has {size:,}; copy or "
                    "download it again"
                )
            data: Buffer | External = External(named, proto.offset, length)
            if held is not None:
                data = held[proto.offset : proto.offset + length]
            result = Value(name, dtype, shape, data)
        result.is_parameter = True
        return result

    def read(self, value: Value) -> Value:
        """Return the constant with bytes of its own."""
        data = value.data
        if isinstance(data, External):
            assert self.folder is not None
            with (self.folder / data.location).open("rb") as file:
                file.seek(data.offset)
                data = file.read(data.length)
        assert data is not None
        return Value(value.name, value.dtype, value.shape, bytes(data))

    def placed(self, value: Value) -> Tensor:
        """Return the value as a tensor of the ONNX model."""
        data: Any = value.data
        assert data is not None
        assert value.shape is not None
        if not isinstance(data, External) and len(data) >= APART_BYTES:
            data = self._apart(data)
        return Tensor(value.name, value.dtype, tuple(dim or 0 for dim in value.shape), data)

    def _apart(self, data: Buffer) -> External:
        if self._left_in is not None and isinstance(data, memoryview):
            offset = address(data) - address(self.view)
            if offset >= 0 and offset + len(data) <= len(self.view):
                return External(self._left_in, offset, len(data))
        taken = {self._left_in, *(named for named, _ in self._on_disk.values())}
        number = len(self.files)
        while (location := f"%{number}") in taken or location in self.files:
            number += 1
        self.files[location] = data
        return External(location, 0, len(data))


def _check_mark(start: bytes, location: str) -> None:
    """Check the first byte of a data file, which marks the byte order of its numbers."""
    if start == b"\x00":
        raise DecodeError(f"the data file {location!r} is big endian")
    if start != b"\x01":
        raise DecodeError(f"the data file {location!r} does not begin as one; is it encrypted?")
