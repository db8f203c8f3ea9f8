"""Decode attributes: a constant's value, or the type that MindSpore inferred for a node.

Newer files tag an attribute with a type; older ones with a form such as "scalar:Tuple[value1,
value2,]" (ref_attr_name), with the numbers in one flat list beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from engine.formats.protobuf import BYTES, VARINT, signed
from engine.formats.protobuf import key as key_of
from engine.types import DType
from engine_mindir import decode
from engine_mindir.messages import (
    DEPTH,
    UNREAD,
    AttributeProto,
    DecodeError,
    NodeProto,
    PrimitiveProto,
    Source,
    Span,
    TensorProto,
)
from engine_mindir.values import DTYPES, MONAD, Abstract, Shape, TypeId, Value

_DIM, _DATA_TYPE = key_of(1, VARINT), key_of(2, VARINT)  # of a TensorProto
_TENSORS, _FORM = key_of(12, BYTES), key_of(15, BYTES)  # of an AttributeProto
_TYPE, _VALUES = key_of(16, VARINT), key_of(17, BYTES)
CACHED_BYTES = 256  # of an encoded attribute that is worth remembering: longer ones are unique
_INTEGER_TYPES = frozenset(range(2, 8)) | {9, 12, 13}  # types whose value is an integer
_TOKEN = re.compile(r"(Tuple|List|tuple|list)?\[|\]|[\w:]+")


class Settings(Mapping[str, Any]):
    """A primitive's attributes by name, decoded lazily: most are never looked up.

    stored: applied to each value after decoding.
    """

    def __init__(
        self, source: Source, primitive: PrimitiveProto, stored: Callable[[Any], Any]
    ) -> None:
        self._source = source
        self._stored = stored
        self._spans = decode.settings_of(source, primitive)
        self._values: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """Return the value. Raises KeyError, and DecodeError for one that cannot be decoded."""
        if name not in self._values:
            self._values[name] = self._stored(_setting_at(self._source, self._spans[name]))
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._spans

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)


def _setting_at(source: Source, span: Span) -> Any:
    if span[1] - span[0] > CACHED_BYTES:
        return value_of(decode.attribute(source, span))
    encoded = bytes(source.data[span[0] : span[1]])
    if encoded not in source.settings:
        source.settings[encoded] = value_of(decode.attribute(source, span))
    return source.settings[encoded]


def value_of(attribute: AttributeProto) -> Any:
    """Return the value of a constant or setting: a number, a string, a tuple, None, a tensor..."""
    if attribute.form:
        return _by_form(attribute)
    kind = attribute.type
    if kind in (decode.TUPLE, decode.LIST):
        return tuple(map(value_of, attribute.values))
    if kind == decode.DICT:
        return {value.name: value_of(value) for value in attribute.values}
    if kind in (decode.UMONAD, decode.IOMONAD):
        return MONAD
    if kind in (decode.NONE, decode.TYPE_NULL):
        return None
    if kind in (decode.TENSORS, decode.TENSOR):
        if not attribute.tensors:
            return None
        values = tuple(map(_tensor_or_type, attribute.tensors))
        return values[0] if len(values) == 1 else values
    if kind == decode.SCALAR:
        raise DecodeError(f"the constant {attribute.name!r} has no value")
    return _scalar(attribute)


def _scalar(attribute: AttributeProto) -> Any:
    kind = attribute.type
    if kind == decode.BOOL:
        return bool(attribute.i or any(attribute.ints))
    if kind in _INTEGER_TYPES:
        return attribute.ints[0] if attribute.ints else attribute.i
    if kind == decode.FLOAT:
        return attribute.floats[0] if attribute.floats else attribute.f
    if kind == decode.DOUBLE:
        return attribute.floats[0] if attribute.floats else attribute.d
    if kind == decode.STRING:
        text = attribute.strings[0] if attribute.strings else attribute.s
        return text.decode("utf-8", "replace")
    if kind in (10, 16):
        return attribute.f or (attribute.floats[0] if attribute.floats else attribute.d)
    if kind == 0:  # files from before attributes had types
        listed: list[Any] = [*attribute.ints, *attribute.floats, *attribute.strings]
        if listed:
            return listed[0] if len(listed) == 1 else tuple(listed)
        return attribute.i or attribute.f or attribute.s.decode("utf-8", "replace") or None
    raise DecodeError(f"the constant {attribute.name!r} has type {kind}, which is no value")


def _by_form(attribute: AttributeProto) -> Any:
    form = attribute.form
    word, _, rest = form.partition(":")
    if word == "none":
        return None
    if word == "Monad":
        return MONAD
    if word in ("tensor", "type"):
        if not attribute.tensors:
            raise DecodeError(f"the attribute {attribute.name!r} says {form!r} and holds no tensor")
        if "[" in rest:
            return _nested(rest, iter(list(map(_tensor_or_type, attribute.tensors))), form)
        return _tensor_or_type(attribute.tensors[0])
    if "[" not in rest:
        numbers = list(_flat(attribute))
        return numbers[0] if numbers else _scalar(attribute)
    return _nested(rest, _flat(attribute), form)


def _flat(attribute: AttributeProto) -> Iterator[Any]:
    if attribute.type == decode.BOOL:
        yield from map(bool, attribute.ints)
    else:
        yield from attribute.ints
    yield from attribute.floats
    yield from (text.decode("utf-8", "replace") for text in attribute.strings)
    yield from map(_tensor_or_type, attribute.tensors)


def _nested(text: str, numbers: Iterator[Any], form: str) -> Any:
    """Return the tuple that `text` describes, its leaves taken in order."""
    stack: list[list[Any]] = [[]]
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word.endswith("["):
            stack.append([])
            if len(stack) > DEPTH:
                raise DecodeError(f"a constant is nested more than {DEPTH} levels deep")
        elif word == "]":
            if len(stack) < 2:
                raise DecodeError(f"the form {form[:80]!r} closes more than it opens")
            done = tuple(stack.pop())
            stack[-1].append(done)
        else:
            try:
                stack[-1].append(next(numbers))
            except StopIteration:
                raise DecodeError(
                    f"the form {form[:80]!r} names more values than there are"
                ) from None
    if len(stack) != 1 or len(stack[0]) != 1:
        raise DecodeError(f"the form {form[:80]!r} is not closed")
    return stack[0][0]


def _tensor_or_type(proto: TensorProto) -> Any:
    """Return a constant tensor; where it has no data, the element type that it stands for."""
    if proto.raw is None and not proto.numbers and not proto.location:
        if not proto.dims:
            return TypeId(dtype_of(proto))
        if 0 not in proto.dims:
            raise DecodeError(f"the tensor {proto.name!r} has no data")
    return tensor_value(proto, "")


def tensor_value(proto: TensorProto, name: str) -> Value:
    """Return a tensor whose data lies in the file that was decoded."""
    dtype, shape, nbytes = size_of(proto)
    if proto.compression:
        raise DecodeError(
            f"the tensor {proto.name!r} is compressed (type {proto.compression}); export the "
            "model without compression"
        )
    data: Any = proto.raw
    if data is None:
        data = _typed(proto, dtype, prod(shape))
    if len(data) != nbytes:
        raise DecodeError(
            f"the tensor {proto.name!r} has {len(data):,} bytes of data; its {dtype}"
            f"{list(shape)} needs {nbytes:,}"
        )
    return Value(name, dtype, shape, data)


def size_of(proto: TensorProto) -> tuple[DType, tuple[int, ...], int]:
    """Return the dtype, shape and size in bytes of a tensor of the file."""
    dtype = dtype_of(proto)
    shape = tuple(proto.dims)
    if shape and min(shape) < 0:
        raise DecodeError(f"the tensor {proto.name!r} has a negative dim: {list(shape)}")
    if dtype is DType.STRING:
        raise DecodeError(f"the tensor {proto.name!r} holds text, which no primitive computes with")
    return dtype, shape, (prod(shape) * dtype.bits + 7) // 8


def _typed(proto: TensorProto, dtype: DType, count: int) -> bytes:
    import numpy as np

    from engine_mindir.emit import encode

    numbers = proto.numbers
    if len(numbers) != count:
        raise DecodeError(f"the tensor {proto.name!r} has {len(numbers)} numbers, not {count:,}")
    if dtype in (DType.FLOAT16, DType.BFLOAT16) and all(type(number) is int for number in numbers):
        return np.array(numbers, np.uint16).tobytes()
    return encode(np.array(numbers), dtype)


def dtype_of(proto: TensorProto) -> DType:
    """Return the element type of a tensor of the file."""
    dtype = DTYPES.get(proto.data_type)
    if dtype is None:
        raise DecodeError(f"the tensor {proto.name!r} has element type {proto.data_type}")
    return dtype


# ---------------------------------------------------------------------------------- inferred types


def abstract_of(node: NodeProto) -> Any:
    """Return the type in the file of a node's result: an Abstract, a tuple of them, or None."""
    if node.abstract is UNREAD:  # a function's nodes are lowered as often as it is called
        span = decode.attribute_at(node, "shape")
        found = None if span is None else _cached_abstract(node.source, span)
        node.abstract = _without_sizes(found) if node.source.has_other_shapes else found
    return node.abstract


def _without_sizes(abstract: Any) -> Any:
    """Return a type with its sizes left open."""
    if isinstance(abstract, tuple):
        return tuple(map(_without_sizes, abstract))
    if isinstance(abstract, Abstract) and abstract.shape is not None:
        return replace(abstract, shape=(None,) * len(abstract.shape))
    return abstract


def _cached_abstract(source: Source, span: Span) -> Any:
    if span[1] - span[0] > CACHED_BYTES:
        return _abstract(source, span)
    encoded = bytes(source.data[span[0] : span[1]])
    if encoded not in source.types:
        source.types[encoded] = _abstract(source, span)
    return source.types[encoded]


def _abstract(source: Source, span: Span) -> Any:
    """Decode a type as `abstract` does, without an AttributeProto: nearly every node has one."""
    kind = 0
    tensors: list[Span] = []
    values: list[Span] = []
    for key, first, past in source.fields(span):
        if key == _TENSORS:
            tensors.append((first, past))
        elif key == _TYPE:
            kind = first
        elif key == _VALUES:
            values.append((first, past))
        elif key == _FORM or (key >> 3 in (12, 16, 17)):
            return abstract(decode.attribute(source, span))
    if kind in (decode.TUPLE, decode.LIST) and len(values) < 100:
        return tuple(_cached_abstract(source, value) for value in values)
    if kind in (decode.TENSORS, decode.SCALAR) and len(tensors) == 1:
        dims: list[int] = []
        number = 0
        for key, first, _ in source.fields(tensors[0]):
            if key == _DIM:
                dims.append(signed(first))
            elif key == _DATA_TYPE:
                number = first
            elif key >> 3 in (1, 2):
                return abstract(decode.attribute(source, span))
        dtype = DTYPES.get(number)
        shape: Shape = () if kind == decode.SCALAR else shape_of(dims)
        return None if dtype is None else Abstract(dtype, shape)
    return abstract(decode.attribute(source, span))


def abstract(attribute: AttributeProto) -> Any:
    """Return the inferred type that an attribute holds: Abstract, a tuple of them, or None."""
    kind = attribute.type
    if attribute.form.startswith("shape:"):
        if "[" in attribute.form:
            types = iter([tensor_type(tensor) for tensor in attribute.tensors])
            return _nested(attribute.form.partition(":")[2], types, attribute.form)
        return tensor_type(attribute.tensors[0]) if attribute.tensors else None
    if kind in (decode.TUPLE, decode.LIST):
        return tuple(map(abstract, attribute.values))
    if kind in (decode.TENSORS, decode.TENSOR) and attribute.tensors:
        types_ = tuple(map(tensor_type, attribute.tensors))
        return types_[0] if len(types_) == 1 else types_
    if kind == decode.SCALAR and attribute.tensors:
        dtype = DTYPES.get(attribute.tensors[0].data_type)
        return None if dtype is None else Abstract(dtype, ())
    return None


def tensor_type(proto: TensorProto) -> Abstract | None:
    """Return the type in a tensor's description."""
    dtype = DTYPES.get(proto.data_type)
    return None if dtype is None else Abstract(dtype, shape_of(proto.dims))


def shape_of(dims: Sequence[int]) -> Shape:
    """Return the shape: None for an unknown rank (-2), None in it for an unknown size (-1)."""
    if -2 in dims:
        return None
    return tuple(dim if dim >= 0 else None for dim in dims)
