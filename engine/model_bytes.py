"""The part of `engine.formats` for backends: the bytes of an ONNX model, read without onnx.

fields, Budget    the fields of a protobuf message, and how many of them may be looked at
NodeReader        a node with its attributes, within a ReadingBudget
schema            the keys of onnx.proto's fields
changed, entry    a message with some of its fields changed; a key and a value as a field of one
inlined           a model with its external data in memory put into it
folds_too_much    whether computing a model's constants while it loads would take too long
infer_shapes      onnx's shape inference, with the onnx package, kept from what would crash it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.formats.onnx import schema
from engine.formats.onnx.node import NodeReader
from engine.formats.onnx.reading import ReadingBudget
from engine.formats.opened import folds_too_much
from engine.formats.protobuf import Budget, fields
from engine.types import ModelSource

if TYPE_CHECKING:
    from onnx import ModelProto

    from engine.formats.onnx.rewrite import Change
    from engine.formats.onnx.writer import Parts

__all__ = [
    "Budget",
    "NodeReader",
    "ReadingBudget",
    "changed",
    "entry",
    "fields",
    "folds_too_much",
    "infer_shapes",
    "inlined",
    "schema",
]


def changed(message: memoryview, changes: Mapping[int, Change], budget: Budget) -> Parts:
    """Return the message with each field whose key is in `changes` changed, the others as they are.

    Keys and lengths are written anew: as short as they can be, whoever wrote the message.
    """
    from engine.formats.onnx import rewrite  # rare, as all that writes messages

    return rewrite.changed(message, changes, budget)


def entry(key: int, name: str, value: str) -> bytes:
    """Return a StringStringEntryProto as a field. key: the field's, as in `schema`."""
    from engine.formats.onnx import rewrite  # rare

    return rewrite.entry(key, name, value)


def inlined(source: ModelSource) -> ModelSource:
    """Return the model with its external data in memory put into it."""
    from engine.formats.onnx import inline  # rare

    return inline.inlined(source)


def infer_shapes(
    model: ModelProto, *, check_type: bool = False, strict_mode: bool = False
) -> ModelProto:
    """Infer as onnx.shape_inference.infer_shapes does, without data propagation.

    Raises ValueError for a model that could crash it, and what onnx raises.
    """
    from engine.formats.onnx import safe_inference  # onnx is imported only where it is needed

    return safe_inference.infer_shapes(model, check_type=check_type, strict_mode=strict_mode)
