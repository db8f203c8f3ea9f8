"""Long lists among a node's attributes, read from its bytes with numpy: a forest, a vocabulary."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from engine.model_bytes import Budget, fields, schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

Ids: TypeAlias = "NDArray[np.int64]"

_FIELDS = 100_000
# Numbers and modes as every writer has them: one after the other, each behind its field's key.
_NUMBERS = re.compile(b"(?:%c[\x80-\xff]{0,9}[\x00-\x7f])++" % schema.ATTRIBUTE_INTS)
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "LEAF")
_TEXTS = re.compile(
    b"(?:%c(?:%b))++"
    % (schema.ATTRIBUTE_STRINGS, b"|".join(b"%c%b" % (len(m), m.encode()) for m in _MODES))
)
_NAMES = frozenset({schema.ATTRIBUTE_NAME, schema.ATTRIBUTE_REF_ATTR_NAME})
_PACKED = frozenset({schema.ATTRIBUTE_INTS_PACKED})
_NOT_PLAIN = "attribute {!r} is not a plain list of what it should hold"


class Damaged(ValueError):
    """A node whose lists are not what its operator needs; the text says what is wrong."""


class Lists:
    """A node's attributes that are lists, decoded when they are asked for.

    part: the node's bytes. Raises Damaged for attributes that are written in no plain way.
    """

    def __init__(self, part: memoryview) -> None:
        budget = Budget(_FIELDS)
        self._attributes: dict[str, memoryview] = {}
        for _, attribute in fields(part, budget, {schema.NODE_ATTRIBUTE}):
            name = ""
            for tag, text in fields(attribute, budget, _NAMES):
                if tag == schema.ATTRIBUTE_REF_ATTR_NAME:
                    raise Damaged(f"attribute {name!r} is its function's; expected a value")
                name = str(text, "utf-8")
            if name in self._attributes:
                raise Damaged(f"it has attribute {name!r} twice")
            self._attributes[name] = attribute

    def integers(self, name: str) -> Ids:
        """Return an attribute's integers; none where it is not given."""
        run, is_packed = self._run(name, _NUMBERS, schema.ATTRIBUTE_INTS)
        ends = np.flatnonzero(run < 128)
        if is_packed:
            starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
        else:  # a key, a number, a key, ...
            starts, ends = ends[::2] + 1, ends[1::2]
        values = (run[starts] & 127).astype(np.uint64)
        lengths = ends - starts + 1
        for byte in range(1, int(lengths.max(initial=0))):
            longer = np.flatnonzero(lengths > byte)
            values[longer] |= (run[starts[longer] + byte] & 127).astype(np.uint64) << np.uint64(
                7 * byte
            )
        numbers: Ids = values.view(np.int64)
        return numbers

    def texts(self, name: str) -> int:
        """Return how many strings an attribute has; 0 where it is not given."""
        attribute = self._attributes.get(name, memoryview(b""))
        return sum(1 for _ in fields(attribute, Budget(len(attribute)), {schema.ATTRIBUTE_STRINGS}))

    def modes(self) -> NDArray[np.uint8]:
        """Return the length of each node's mode, which tells leaves from branches."""
        run, _ = self._run("nodes_modes", _TEXTS, schema.ATTRIBUTE_STRINGS)
        return run[np.flatnonzero(run == schema.ATTRIBUTE_STRINGS) + 1]  # no mode has a letter "J"

    def _run(
        self, name: str, pattern: re.Pattern[bytes], key: int
    ) -> tuple[NDArray[np.uint8], bool]:
        """Return the bytes of a list's elements, and whether they are packed, without keys."""
        attribute = self._attributes.get(name, memoryview(b""))
        packed = [part for _, part in fields(attribute, Budget(_FIELDS), _PACKED)]
        if packed and key == schema.ATTRIBUTE_INTS:
            # Nothing else may be in it but its name and type.
            whole = sum(1 + max(1, -(-len(part).bit_length() // 7)) + len(part) for part in packed)
            if len(attribute) != whole + 2 + len(name) + 3:
                raise Damaged(_NOT_PLAIN.format(name))
            return np.frombuffer(b"".join(packed), np.uint8), True
        match = pattern.search(attribute)
        first, past = match.span() if match is not None else (0, 0)
        rest = bytes(attribute[:first]) + bytes(attribute[past:])
        if key in rest:
            raise Damaged(_NOT_PLAIN.format(name))
        return np.frombuffer(attribute[first:past], np.uint8), False
