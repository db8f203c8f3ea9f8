"""Damages model files at random: cut, flipped, spliced, and written again with parts amiss."""

from __future__ import annotations

import random

from engine.formats.protobuf import BYTES, Budget, WireError, fields
from engine_testing import encode


def lengths_in(data: bytes) -> list[int]:
    """Offsets of the length of each string and message in a message, nested ones included."""

    def walk(view: memoryview, start: int, depth: int) -> list[int] | None:
        """The offsets within `view`, which starts at `start`; None if it is no message."""
        mine: list[int] = []
        end = start
        try:
            for tag, payload in fields(view, Budget(100_000)):
                end += len(encode.varint(tag))
                if not isinstance(payload, memoryview):
                    end += len(encode.varint(payload))
                    continue
                if tag & 7 == BYTES:
                    mine.append(end)
                    end += len(encode.varint(len(payload)))
                    mine += walk(payload, end, depth + 1) or [] if depth < 8 else []
                end += len(payload)
        except WireError:
            return None
        return mine

    return walk(memoryview(data), 0, 0) or []


def regrow(view: memoryview, generator: random.Random, rate: float, depth: int = 0) -> bytes:
    """Write a message again, with right lengths but some fields dropped, doubled or changed."""
    out = b""
    try:
        parts = list(fields(view, Budget(100_000)))
    except WireError:
        return bytes(view)
    for tag, payload in parts:
        chance = generator.random()
        if chance < rate:
            continue
        if isinstance(payload, int):
            values = (0, 1, 2, 9, 64, (1 << 31) - 1, 1 << 32, (1 << 64) - 1)
            number = generator.choice(values) if chance < 3 * rate else payload
            field = encode.varint(tag) + encode.varint(number)
        elif tag & 7 != BYTES:
            field = encode.varint(tag) + bytes(payload)
        else:
            inner = bytes(payload)
            if depth < 8:
                inner = regrow(payload, generator, rate, depth + 1)
            if chance < 2 * rate:
                inner = generator.choice((b"", b"x", b"y", b"\xff", inner * 2, inner[:-1]))
            field = encode.varint(tag) + encode.varint(len(inner)) + inner
        out += field * (2 if chance > 1 - rate else 1)
    return out


def damage(data: bytes, generator: random.Random, lengths: list[int]) -> bytes:
    """One way of the many in which a file can be wrong."""
    what = generator.randrange(12)
    at = generator.randrange(len(data))
    body = bytearray(data)
    if what == 0:
        return data[:at]
    if what == 1:
        for _ in range(generator.choice((1, 1, 1, 2, 8))):
            body[generator.randrange(len(body))] ^= 1 << generator.randrange(8)
    elif what == 2:
        for _ in range(generator.choice((1, 2, 16))):
            body[generator.randrange(len(body))] = generator.randrange(256)
    elif what == 3 and lengths:
        where = generator.choice(lengths)
        bigger = generator.choice((1, 127, 1 << 14, (1 << 31) - 1, 1 << 31, (1 << 63) - 1))
        body[where : where + 1] = encode.varint(bigger)
    elif what == 4:
        body[at:at] = generator.randbytes(generator.randrange(1, 20))
    elif what == 5:
        other = generator.randrange(len(data))
        size = generator.randrange(1, 60)
        body[at : at + size] = data[other : other + size]
    elif what == 6:
        del body[at : at + generator.randrange(1, 40)]
    else:
        rate = generator.choice((0.3, 1.0, 3.0)) / max(len(lengths), 20)
        return regrow(memoryview(data), generator, rate)
    return bytes(body)
