"""Storage of a .mindir's tensors: in the file itself, in data files beside it, or in memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from engine.formats import encryption
from engine.formats.files import open_file
from engine.formats.onnx.writer import Buffer, External, Tensor
from engine.formats.opened import FileVersion, is_changed
from engine.formats.protobuf import address
from engine_mindir import constants
from engine_mindir.data_files import DataFileError, check_mark, data_file, placed_data, placed_file
from engine_mindir.messages import DecodeError, TensorProto
from engine_mindir.names import local
from engine_mindir.values import Value

SMALL_BYTES = 64 << 20  # the weights of a file up to this size may be copied, and folded
APART_BYTES = 1 << 16  # smaller tensors are written into the ONNX model


class Storage:
    """The tensors of one model, none of them copied.

    view: the file's content, decrypted. path: the file, None for bytes. base: where the names of
        its data files start, None where there is no folder. key, mode: what it is encrypted with;
        None for a plain one. version: of the file, where `view` is mapped from it.
    versions: of the files that runtimes read tensors from. read_files: the data files that were
        decrypted into memory, as they were then.
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
        self.read_files: dict[Path, FileVersion] = {}
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

        Raises DecodeError, DataFileError, DecryptionError, and ModelError for what is no file to
        read.
        """
        names = sorted(set(locations))
        if weights is not None and not names:
            logging.getLogger("engine").warning(
                "weight_bytes are not used: this model has its weights in it"
            )
            weights = None
        if weights is not None:
            if len(names) != 1:
                raise DecodeError(f"its weights are in {len(names)} files; give the model's path")
            self._keep(names[0], memoryview(weights))
        elif names and self._base is None:
            raise DecodeError(
                f"its weights are in {names[0]!r}, but a model given as bytes has no folder to "
                "find that in; give the model's path, or weight_bytes"
            )
        elif names and self._key is not None:
            self._decrypt(names, self._key)
        elif names:
            assert self._base is not None
            placed = placed_data(self._path, self._base, names)
            self.folder = placed.folder
            self.versions.update(placed.versions)
            self._on_disk.update(placed.locations)
        else:
            self._leave()

    def _decrypt(self, names: Iterable[str], key: bytes) -> None:
        assert self._base is not None
        for location in names:
            path = data_file(self._base, location)
            held, self.read_files[path] = open_file(path)
            try:
                plain = encryption.decrypt(memoryview(held), key, self._mode)
            except encryption.DecryptionError as error:
                raise encryption.DecryptionError(f"its data file {location!r}: {error}") from None
            self._keep(location, memoryview(plain))
        for path, version in self.read_files.items():
            if is_changed(path, version):  # then others may be new ones
                raise DataFileError(
                    f"its data file {path.name!r} was changed while the model was read; load it "
                    "again when all are complete"
                )

    def _keep(self, location: str, content: memoryview) -> None:
        check_mark(bytes(content[:1]), location)
        self._in_memory[location] = content

    def _leave(self) -> None:
        """Let the tensors of a large file stay in it. Small models are the bytes that were read."""
        if self._path is None or self._key is not None or self.may_copy:
            return
        placed = placed_file(self._path, self._version)
        if placed is not None:
            self.folder, self.versions = placed.folder, dict(placed.versions)
            [self._left_in] = placed.locations

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
