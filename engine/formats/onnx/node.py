"""NodeProto and AttributeProto: one node, and the values of its attributes that are small.

A model has thousands of nodes, and nearly all are plain: a few names and a few attributes, many of
which are equal bytes from node to node (strides, pads, axes). So a node is parsed from a copy of
its bytes in one loop without calls, and an attribute that was seen before is looked up. Whatever is
not plain goes through `protobuf.fields`, which knows what is wrong with it and where.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from engine.formats.onnx import limits, schema
from engine.formats.onnx.reading import Invalid, ReadingBudget, text
from engine.formats.onnx.scope import title
from engine.formats.protobuf import BYTES, fields, signed, varints
from engine.host.interrupts import pass_interrupt
from engine.types import Attribute, NodeInfo

_INPUT, _OUTPUT, _NAME = schema.NODE_INPUT, schema.NODE_OUTPUT, schema.NODE_NAME
_OP_TYPE, _ATTRIBUTE = schema.NODE_OP_TYPE, schema.NODE_ATTRIBUTE
_DOMAIN, _OVERLOAD = schema.NODE_DOMAIN, schema.NODE_OVERLOAD

_NO_ATTRIBUTES: Mapping[str, Attribute] = {}

# The parts of an attribute that hold more than numbers and strings.
NESTED = frozenset(
    {
        schema.ATTRIBUTE_T,
        schema.ATTRIBUTE_G,
        schema.ATTRIBUTE_TENSORS,
        schema.ATTRIBUTE_GRAPHS,
        schema.ATTRIBUTE_TP,
        schema.ATTRIBUTE_TYPE_PROTOS,
        schema.ATTRIBUTE_SPARSE_TENSOR,
        schema.ATTRIBUTE_SPARSE_TENSORS,
    }
)
# Of these an attribute has one; protobuf's readers would merge a second into the first.
_ONCE = frozenset(
    {
        schema.ATTRIBUTE_T,
        schema.ATTRIBUTE_G,
        schema.ATTRIBUTE_TP,
        schema.ATTRIBUTE_SPARSE_TENSOR,
    }
)
_NAMED = NESTED | {schema.ATTRIBUTE_NAME}

# AttributeProto.AttributeType, of the values that are kept
_FLOAT, _INT, _STRING, _FLOATS, _INTS, _STRINGS = 1, 2, 3, 6, 7, 8
_DEFAULTS: Mapping[int, Attribute] = {
    _FLOAT: 0.0, _INT: 0, _STRING: "", _FLOATS: (), _INTS: (), _STRINGS: (),
}  # fmt: skip


class RawAttribute(NamedTuple):
    """An attribute as read. nested: the tensors, graphs and types in it, each with its key."""

    name: str
    value: Attribute
    nested: tuple[tuple[int, memoryview], ...] = ()


class RawNode(NamedTuple):
    """A node as read.

    overload: which of a function's it calls. attributes: at least those that nest something.
    """

    info: NodeInfo
    overload: str
    attributes: Sequence[RawAttribute]


class NodeReader:
    """Reads the nodes of one model, remembering the names and attributes that come again."""

    def __init__(self, budget: ReadingBudget) -> None:
        self._budget = budget
        self._texts: dict[bytes, str] = {}
        self._plain: dict[bytes, RawAttribute] = {}

    def read(self, view: memoryview, index: int) -> RawNode:
        """Read a NodeProto. Raises Invalid, WireError, UnicodeDecodeError."""
        if len(view) <= limits.PLAIN_BYTES:
            node = self._plain_node(view, index)
            if node is not None:
                return node
        return self._any_node(view, index)

    def _plain_node(self, view: memoryview, index: int) -> RawNode | None:
        """Read a node of short fields in the usual order; None for any other, or a damaged one.

        The loop is `protobuf.spans` with all that a plain node cannot need left out.
        """
        encoded = bytes(view) + b"\0"  # the end is a key that no field has
        texts, plain = self._texts, self._plain
        inputs: list[str] = []
        outputs: list[str] = []
        attributes: dict[str, Attribute] | None = None
        nested: Sequence[RawAttribute] = ()
        name = op_type = domain = ""
        position = 0
        tag = encoded[0]
        try:
            while tag:
                length = encoded[position + 1]
                first = position + 2
                if length > 127:
                    high = encoded[first]
                    if high > 127:
                        return None
                    length += (high - 1) << 7
                    first += 1
                position = first + length
                payload = encoded[first:position]
                if tag == _INPUT:
                    string = texts.get(payload)
                    if string is None:
                        string = texts[payload] = str(payload, "utf-8")
                    inputs.append(string)
                elif tag == _OUTPUT:
                    string = texts[payload] = str(payload, "utf-8")
                    outputs.append(string)
                elif tag == _ATTRIBUTE:
                    attribute = plain.get(payload)
                    if attribute is None:
                        if position >= len(encoded):
                            return None
                        self._budget.take()
                        attribute = self.attribute(view[first:position])
                        if attribute.nested:
                            nested = [*nested, attribute]
                        else:
                            plain[payload] = attribute
                    if attributes is None:
                        attributes = {attribute.name: attribute.value}
                    else:
                        attributes[attribute.name] = attribute.value
                elif tag == _OP_TYPE:
                    op_type = texts.get(payload) or str(payload, "utf-8")
                    texts[payload] = op_type
                elif tag == _NAME:
                    name = str(payload, "utf-8")
                elif tag == _DOMAIN:
                    domain = texts.get(payload) or str(payload, "utf-8")
                    texts[payload] = domain
                elif tag == _OVERLOAD or tag & 7 != BYTES or not 8 <= tag < 128:
                    return None
                tag = encoded[position]
        except (IndexError, ValueError) as error:  # damaged: the other way says where and how
            pass_interrupt(error)
            return None
        if position != len(encoded) - 1 or not op_type:
            return None
        self._budget.fields -= len(inputs) + len(outputs) + len(attributes or ()) + 3
        info = NodeInfo(
            index,
            name,
            op_type,
            domain,
            tuple(inputs),
            tuple(outputs),
            attributes or _NO_ATTRIBUTES,
        )
        return RawNode(info, "", nested)

    def _any_node(self, view: memoryview, index: int) -> RawNode:
        inputs: list[str] = []
        outputs: list[str] = []
        attributes: list[memoryview] = []
        name = op_type = domain = overload = ""
        for tag, value in fields(view, self._budget):
            if tag == _INPUT:
                inputs.append(text(value))
            elif tag == _OUTPUT:
                outputs.append(text(value))
            elif tag == _ATTRIBUTE:
                self._budget.take()
                attributes.append(value)
            elif tag == _OP_TYPE:
                op_type = text(value)
            elif tag == _NAME:
                name = text(value)
            elif tag == _DOMAIN:
                domain = text(value)
            elif tag == _OVERLOAD:
                overload = text(value)
        info = NodeInfo(index, name, op_type, domain, tuple(inputs), tuple(outputs))
        if not op_type:
            raise Invalid(f"{title(info)} has no operator; expected op_type")
        if not attributes:
            return RawNode(info, overload, ())
        read = [self.attribute(attribute, info) for attribute in attributes]
        values = {attribute.name: attribute.value for attribute in read}
        return RawNode(replace(info, attributes=values), overload, read)

    def attribute(self, view: memoryview, owner: NodeInfo | None = None) -> RawAttribute:
        """Read an AttributeProto. owner: the node that errors name. Raises what `read` raises."""
        if len(view) > limits.PLAIN_BYTES:
            return self._large_attribute(view, owner)
        name = ""
        kind = 0
        is_reference = False
        values: dict[int, Any] = {}  # by the type that reads them
        nested: list[tuple[int, memoryview]] = []
        for tag, value in fields(view, self._budget):
            if tag == schema.ATTRIBUTE_NAME:
                name = text(value)
            elif tag == schema.ATTRIBUTE_TYPE:
                kind = value
            elif tag == schema.ATTRIBUTE_INTS:
                values.setdefault(_INTS, []).append(signed(value))
            elif tag == schema.ATTRIBUTE_I:
                values[_INT] = signed(value)
            elif tag == schema.ATTRIBUTE_FLOATS or tag == schema.ATTRIBUTE_FLOATS_PACKED:
                numbers = struct.unpack(f"<{len(value) // 4}f", value[: len(value) // 4 * 4])
                values.setdefault(_FLOATS, []).extend(numbers)
            elif tag == schema.ATTRIBUTE_F:
                [values[_FLOAT]] = struct.unpack("<f", value)
            elif tag == schema.ATTRIBUTE_STRINGS:
                values.setdefault(_STRINGS, []).append(_string(value))
            elif tag == schema.ATTRIBUTE_S:
                values[_STRING] = _string(value)
            elif tag == schema.ATTRIBUTE_INTS_PACKED:
                integers = map(signed, varints(value, self._budget))
                values.setdefault(_INTS, []).extend(integers)
            elif tag in NESTED:
                self._add_nested(nested, tag, value, owner)
            elif tag == schema.ATTRIBUTE_REF_ATTR_NAME:
                is_reference = True  # to an attribute of the function, whose callers have the value
        result: Attribute = None if is_reference else values.get(kind, _DEFAULTS.get(kind))
        if isinstance(result, list):
            result = tuple(result)
        return RawAttribute(name, result, tuple(nested))

    def _large_attribute(self, view: memoryview, owner: NodeInfo | None) -> RawAttribute:
        """Read the name and what is nested; long runs of numbers are passed over at once."""
        name = ""
        nested: list[tuple[int, memoryview]] = []
        for tag, value in fields(view, self._budget, _NAMED):
            if tag == schema.ATTRIBUTE_NAME:
                name = text(value)
            else:
                self._add_nested(nested, tag, value, owner)
        return RawAttribute(name, None, tuple(nested))

    def _add_nested(
        self,
        nested: list[tuple[int, memoryview]],
        tag: int,
        value: memoryview,
        owner: NodeInfo | None,
    ) -> None:
        self._budget.take()
        if tag in _ONCE and any(tag == other for other, _ in nested):
            raise Invalid(f"an attribute of {title(owner) if owner else 'a node'} has two values")
        nested.append((tag, value))


def _string(value: memoryview) -> str:
    return str(value, "utf-8", "backslashreplace")  # as types.Attribute has it
