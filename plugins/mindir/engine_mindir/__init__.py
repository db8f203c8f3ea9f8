"""MindIR, MindSpore's format: read without MindSpore and lowered to ONNX.

opening.py     a file as an ONNX model, or as the models in it that are compiled for Ascend;
               declared variable weights
decode.py      decodes the file's protobuf messages: messages.py
constants.py   decodes constants and inferred types, in every dialect
storage.py     the tensors' data, in data_files.py too; names.py: names of values and primitives
lower.py       interprets the graph symbolically; structural.py: tuples, effects, closures
control.py     branches to If, loops to Loop; functions.py: the call graph
in_place.py    tensors that are changed in place; tuples.py: limits on tuples
primitives/    the table: one function a primitive, which writes ONNX nodes
emit.py        the graph builder; shape_inference.py: shapes that the file leaves open
fold.py        dead code, biases, BatchNorm; assemble.py: the ONNX model
compiled.py    models in a file that are compiled for Ascend
summary.py     a file's summary for `engine inspect`; errors.py: errors as ModelError
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

from engine.formats.description import Description
from engine.formats.format import FormatFile
from engine.formats.protobuf import BYTES, Budget, WireError, key, spans
from engine.types import ModelSource

__version__ = "0.1.0"

_VERSION = key(1, BYTES)
_FIELDS = 100


class MindIR:
    """The format of `.mindir` files; see `engine.formats.format.Format`."""

    takes_shapes = True

    @property
    def version(self) -> str:
        """A digest of the code that lowers."""
        return _own_digest()

    def recognises(self, head: bytes) -> bool:
        """Return whether a file that begins so is a MindIR, whole or not."""
        try:
            for tag, first, past in spans(head, 0, len(head), Budget(_FIELDS)):
                if tag == _VERSION:
                    return re.fullmatch(rb"\d+(\.\d+){1,3}", head[first:past]) is not None
        except WireError:  # the head ends within a field, before there was a version
            return False
        return False

    def open(self, file: FormatFile) -> ModelSource:
        """Return the model as ONNX, or as the compiled form that is in the file."""
        from engine_mindir.opening import opened  # not for what only asks whether it is one

        return opened(file)

    def describe(self, file: FormatFile) -> Description:
        """Describe the file's primitives, which are not lowered for that."""
        from engine_mindir.summary import describe

        return describe(file)


FORMAT = MindIR()


@cache
def _own_digest() -> str:
    return digest_of(Path(__file__).parent)


def digest_of(folder: Path) -> str:
    """Return a digest of the modules in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
