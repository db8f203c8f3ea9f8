"""Reads protobuf's wire format from memory, without a schema and without copying.

A message is a run of fields, each a key (field number and wire type) and a payload. `fields`
yields them as they come, payloads of known length as slices of the view it was given, so that a
2 GB file costs no more memory than its keys; `spans` yields where they are. Unknown fields are the
caller's to ignore; bytes that no protobuf writer produces are a `WireError` that knows where in
the file they are.

By hand, because protobuf's own library copies every weight before anything can be checked, does not
say where a file is damaged, merges or drops what stands twice without a word, and has no limits on
names and counts. It is also a dependency that the core does without.
"""

from __future__ import annotations

import functools
import mmap
import re
from collections.abc import Container, Iterator
from typing import Any, TypeAlias

import numpy as np

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

Data: TypeAlias = "bytes | memoryview | mmap.mmap"

# A run of unpacked repeated numbers (fields 1..15, one byte of key), as ONNX's attributes hold
# them by the million for tree ensembles. The possessive repeat keeps no way back per element.
# It tells whether a run is a long one; the rest of a long one is for numpy, which is faster.
_NUMBERS = re.compile(
    rb"(?:[\x0d\x15\x1d\x25\x2d\x35\x3d\x45\x4d\x55\x5d\x65\x6d\x75\x7d]...."
    rb"|[\x08\x10\x18\x20\x28\x30\x38\x40\x48\x50\x58\x60\x68\x70\x78][\x80-\xff]{0,9}[\x00-\x7f])++",
    re.DOTALL,
)
_WINDOW = 4096
_BLOCK = 1 << 16  # fits into a processor's cache
_SHORT = 32  # bytes of a text that is passed as one of many


class WireError(ValueError):
    """Bytes that are not protobuf: what is wrong, in which view, at which of its offsets."""

    def __init__(self, what: str, view: memoryview, position: int) -> None:
        super().__init__(what)
        self.view = view
        self.position = position

    def offset(self, whole: memoryview) -> int:
        """Return the position in `whole`, of which `self.view` is a part."""
        return self.position + address(self.view) - address(whole)


class TooManyFields(WireError):
    """The budget is spent. The bytes may be fine; nothing reasonable has so many."""

    def __init__(self, view: memoryview, position: int) -> None:
        super().__init__("more fields than any model needs", view, position)


class Budget:
    """A limit on the fields that are looked at one by one: no file takes minutes to read."""

    __slots__ = ("fields",)

    def __init__(self, fields: int) -> None:
        self.fields = fields


def key(number: int, wire: int) -> int:
    """Return the key that stands before field `number` where its payload has wire type `wire`."""
    return number << 3 | wire


def fields(
    view: memoryview, budget: Budget, wanted: Container[int] | None = None
) -> Iterator[tuple[int, Any]]:
    """Yield (key, payload) of each field of the message in `view`, in order.

    view: bytes (format "B"), one dimension. Payloads are ints for wire type 0 (unsigned, 64 bits)
        and slices of `view` for the others, little endian for the fixed ones.
    wanted, and what is raised: as `spans` has it.
    """
    for tag, first, past in spans(view, 0, len(view), budget, wanted):
        yield tag, first if past < 0 else view[first:past]


def spans(
    data: Data, start: int, stop: int, budget: Budget, wanted: Container[int] | None = None
) -> Iterator[tuple[int, int, int]]:
    """Yield (key, first, past) of each field of the message in `data[start:stop]`, in order.

    The payload is `data[first:past]`; for wire type 0 it is the number `first`, and `past` is -1.
    data: bytes and maps are indexed and cut about twice as fast as views of them.
    wanted: the keys to yield, of wire type 2 (strings, bytes, messages); None for every field.
        Runs of numbers and of short texts are then passed without looking at each, outside the
        budget.
    Raises WireError on truncation, a length past the end, an overlong varint, field number 0,
    groups (nothing that this package reads has any) and a spent budget.
    """
    position = start
    left = before = budget.fields
    runs = _NUMBERS if wanted is not None and stop - start >= 256 else None
    passed = equal = 0
    try:
        while position < stop:
            start = position
            left -= 1
            if left < 0:
                raise TooManyFields(memoryview(data), start)
            tag = data[position]
            position += 1
            if tag > 127:
                tag, position = _varint(data, start, stop)
                if tag >> 32:
                    raise WireError("a field key of more than 32 bits", memoryview(data), start)
            if tag < 8:
                raise WireError("field number 0", memoryview(data), start)
            wire = tag & 7
            if wire == 2:
                length = data[position]
                position += 1
                if length > 127:
                    high = data[position]
                    if high < 128:  # two bytes, as most messages' lengths are
                        length += (high - 1) << 7
                        position += 1
                    else:
                        length, position = _varint(data, position - 1, stop)
                past = position + length
                if past > stop:
                    rest = stop - position
                    if rest < 0:
                        raise IndexError
                    raise WireError(
                        f"field {tag >> 3} claims {length:,} bytes where {rest:,} are left",
                        memoryview(data),
                        start,
                    )
                if wanted is None or tag in wanted:
                    yield tag, position, past
                elif tag != passed:
                    passed, equal = tag, 0
                elif (equal := equal + 1) >= 32 and runs is not None and tag < 128:
                    equal = 0
                    if run := _texts(tag).match(data, past, stop):
                        past = run.end()
                position = past
            elif runs is not None and (run := runs.match(data, start, min(start + _WINDOW, stop))):
                position = run.end()
                if position - start > _WINDOW - 16:
                    position = _pass_numbers(data, position, stop)
            elif wire == 0:
                value = data[position]
                position += 1
                if value > 127:
                    high = data[position]
                    if high < 128:
                        value += (high - 1) << 7
                        position += 1
                    else:
                        value, position = _varint(data, position - 1, stop)
                if position > stop:
                    raise IndexError
                if wanted is None:
                    yield tag, value, -1
            elif wire == 5 or wire == 1:
                past = position + (4 if wire == 5 else 8)
                if past > stop:
                    raise WireError(
                        f"the end comes within field {tag >> 3}", memoryview(data), start
                    )
                if wanted is None:
                    yield tag, position, past
                position = past
            else:
                raise WireError(f"field {tag >> 3} has wire type {wire}", memoryview(data), start)
    except IndexError:
        raise WireError("the end comes within a field", memoryview(data), start) from None
    budget.fields -= before - left


@functools.cache
def _texts(tag: int) -> re.Pattern[bytes]:
    """Return what matches a run of short texts, all in the field with this key."""
    texts = (re.escape(bytes([length])) + b"." * length for length in range(_SHORT + 1))
    return re.compile(b"(?:%b(?:%b))++" % (re.escape(bytes([tag])), b"|".join(texts)), re.DOTALL)


def _pass_numbers(data: Data, start: int, stop: int) -> int:
    """Return where the run of numbers at `start`, all in one field, ends; `start` for no run.

    One that is cut off or too long is not passed.
    """
    key = data[start] if start < stop else 0
    wire = key & 7
    if not 8 <= key < 128 or wire not in (VARINT, FIXED32):
        return start
    array = np.frombuffer(data, np.uint8)
    while True:
        block = array[start : min(start + _BLOCK, stop)]
        if wire == FIXED32:
            firsts = np.arange(0, len(block) - 4, 5)
            lasts = firsts + 4
            right = block[firsts] == key
        else:
            # Of each number two bytes are below 128: its key, and the last of its value.
            ends = np.flatnonzero(block < 128)
            ends = ends[: len(ends) // 2 * 2]
            firsts, lasts = ends[::2], ends[1::2]
            right = (block[firsts] == key) & (lasts - firsts <= 10)
            right[:1] &= firsts[:1] == 0
            right[1:] &= firsts[1:] == lasts[:-1] + 1
        count = len(right) if right.all() else int(right.argmin())
        if not count:
            return start
        start += int(lasts[count - 1]) + 1


def count_varints(packed: memoryview) -> int:
    """Count the varints of a packed field. Raises WireError where the last one is cut off."""
    if len(packed) and packed[-1] > 127:
        raise WireError("the end comes within a varint", packed, len(packed) - 1)
    step = 1 << 20  # bounds the temporary arrays
    return sum(
        int(np.count_nonzero(np.frombuffer(packed[start : start + step], np.uint8) < 128))
        for start in range(0, len(packed), step)
    )


def varints(packed: memoryview, budget: Budget) -> Iterator[int]:
    """Yield the varints of a packed field, unsigned. Raises WireError as `fields` does."""
    position = 0
    try:
        while position < len(packed):
            budget.fields -= 1
            if budget.fields < 0:
                raise TooManyFields(packed, position)
            value = packed[position]
            position += 1
            if value > 127:
                value, position = _varint(packed, position - 1, len(packed))
            yield value
    except IndexError:
        raise WireError("the end comes within a varint", packed, len(packed) - 1) from None


def signed(value: int) -> int:
    """Return the int64 that a varint encodes."""
    return value - (1 << 64) if value >> 63 else value


def _varint(data: Data, start: int, stop: int) -> tuple[int, int]:
    """Decode the varint at `start`; return it and its end. Raises IndexError beyond `stop`."""
    value = shift = 0
    for position in range(start, min(start + 10, stop)):
        byte = data[position]
        value |= (byte & 127) << shift
        if byte < 128:
            if value >> 64:
                break
            return value, position + 1
        shift += 7
    else:
        if start + 10 > stop:
            raise IndexError
    raise WireError("a varint of more than 64 bits", memoryview(data), start)


def address(view: memoryview) -> int:
    """Return where the view's bytes are in memory."""
    pointer: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return pointer
