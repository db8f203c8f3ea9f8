"""A file format that a package adds to the core, and the job that its `open` gets.

    [project.entry-points."engine.formats.v1"]
    mine = "my_package:FORMAT"

A format turns a file into an ONNX model. ONNX itself is built in.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engine.formats.opened import FileVersion
from engine.types import CancelToken, ModelSource


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatFile:
    """A model file as `Format.open` gets it: what it holds, and what is asked for.

    data: its content, in memory or mapped; of an encrypted file the plaintext. path: None for a
    model in memory. version: of the file. folder: where files that belong to it are, as
    `[model_file] mindir_path` says; None for beside it. weights: the content of the only such file,
    for a model in memory. dec_key, dec_mode: the key of an encrypted file, for files beside it that
    are encrypted with it, and how; None for a plain one.
    variable_weights: see `OpenedSource.variables`. input_shapes: see `Format.takes_shapes`.
    formats: the compiled forms that the backend reads, and entry: which model of one is meant, ""
    for the first or only one. cancel: stops the work, with Cancelled.
    """

    data: bytes | mmap.mmap
    path: Path | None = None
    version: FileVersion | None = None
    folder: Path | None = None
    weights: bytes | None = None
    dec_key: bytes | None = None
    dec_mode: str = "AES-GCM"
    variable_weights: tuple[str, ...] = ()
    input_shapes: Mapping[str, Sequence[int | None]] | None = None
    formats: frozenset[str] = frozenset()
    entry: str = ""
    cancel: CancelToken | None = None

    @property
    def name(self) -> str:
        """The name in messages: the path, or "model bytes"."""
        return str(self.path) if self.path is not None else "model bytes"

    @property
    def base(self) -> Path | None:
        """The folder in which the names of files beside it start."""
        return self.folder or (self.path.parent if self.path is not None else None)


class Format(Protocol):
    """An object that an entry of group `engine.formats.v1` names. For any thread.

    Three attributes are optional:
    version: a str, of all that decides what `open` makes of a file. The compile cache then keeps
        the result, by the file's content and this.
    takes_shapes: True where `open` heeds `FormatFile.input_shapes`, the shapes of all inputs, in
        place of the file's.
    describe: a method (file: FormatFile) -> Description: what `engine inspect` shows of a file in
        place of the ONNX model.
    """

    def recognises(self, head: bytes) -> bool:
        """Return whether a file that begins with `head`, up to 4096 bytes, is of this format.

        Asked for every file that is not ONNX, and of no other format asked before.
        """

    def open(self, file: FormatFile) -> ModelSource:
        """Return the model as ONNX, `format="onnx"` with `data`, or in one of `file.formats`.

        Of a `ModelSource` without `graph` the core checks the ONNX model as it checks a file's.
        An `OpenedSource` with one is taken as it is. Large tensors may be in `files`.
        Raises ModelError for a file that is damaged or cannot be had as ONNX.
        """
