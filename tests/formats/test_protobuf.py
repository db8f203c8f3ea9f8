from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.formats.protobuf import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    Budget,
    TooManyFields,
    WireError,
    count_varints,
    fields,
    key,
    signed,
    spans,
    varints,
)
from engine_testing.encode import field, varint

ONE_FIELD = st.one_of(
    st.tuples(st.just(VARINT), st.integers(0, 2**64 - 1)),
    st.tuples(st.just(BYTES), st.binary(max_size=300)),
    st.tuples(st.just(FIXED32), st.binary(min_size=4, max_size=4)),
    st.tuples(st.just(FIXED64), st.binary(min_size=8, max_size=8)),
)
NUMBERED = st.tuples(st.integers(1, 2**29 - 1), ONE_FIELD)


def encode(number: int, wire: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | wire) + (varint(len(value)) if wire == BYTES else b"") + value


def read(data: bytes, budget: int = 1_000_000) -> list[tuple[int, int | bytes]]:
    return [
        (tag, value if isinstance(value, int) else bytes(value))
        for tag, value in fields(memoryview(data), Budget(budget))
    ]


@settings(derandomize=True, max_examples=60)
@given(st.lists(NUMBERED, max_size=40))
def test_every_message_is_read_as_it_was_written(
    message: list[tuple[int, tuple[int, int | bytes]]],
) -> None:
    data = b"".join(encode(number, wire, value) for number, (wire, value) in message)
    assert read(data) == [(key(number, wire), value) for number, (wire, value) in message]


@settings(derandomize=True, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 20), ONE_FIELD), max_size=60))
def test_wanted_fields_are_the_same_as_picked_from_all(
    message: list[tuple[int, tuple[int, int | bytes]]],
) -> None:
    data = b"".join(encode(number, wire, value) for number, (wire, value) in message)
    view = memoryview(data)
    wanted = {key(number, BYTES) for number in range(1, 20, 2)}
    everything = [(tag, v) for tag, v in fields(view, Budget(1000)) if tag in wanted]
    assert list(fields(view, Budget(1000), wanted)) == everything


@settings(derandomize=True, max_examples=60)
@given(st.binary(max_size=600))
def test_random_bytes_give_fields_or_a_wire_error(data: bytes) -> None:
    offset = 0
    found: list[tuple[int, int | bytes]] = []
    try:
        found = read(data)
    except WireError as error:
        offset = error.offset(memoryview(data))
    assert 0 <= offset <= len(data)
    assert sum(len(v) for _, v in found if isinstance(v, bytes)) <= len(data)


@settings(derandomize=True, max_examples=60)
@given(st.binary(max_size=100), st.binary(max_size=300), st.binary(max_size=30))
@example(b"", b"\x08\x80", b"\x01")  # a number that goes on behind the part
def test_a_part_is_read_as_if_it_were_all(before: bytes, part: bytes, after: bytes) -> None:
    def read_part() -> list[tuple[int, int | bytes]]:
        data = before + part + after
        return [
            (tag, first if past < 0 else data[first:past])
            for tag, first, past in spans(
                data, len(before), len(before) + len(part), Budget(1_000_000)
            )
        ]

    error = None
    try:
        expected = read(part)
    except WireError as found:
        error = found
    if error is None:
        assert read_part() == expected
        return
    with pytest.raises(WireError) as caught:
        read_part()
    assert str(caught.value) == str(error)
    assert caught.value.position == len(before) + error.position


def test_payloads_are_slices_of_the_buffer_and_not_copies() -> None:
    data = field(1, field(2, b"inner"))
    [(_, outer)] = fields(memoryview(data), Budget(10))
    [(_, inner)] = fields(outer, Budget(10))
    assert inner.obj is data


@pytest.mark.parametrize(
    ("data", "message", "offset"),
    [
        (b"\x08", "the end comes within a field", 0),
        (b"\x08\x01\x12", "the end comes within a field", 2),
        (b"\x08\x80", "the end comes within a field", 0),
        (b"\x12\x05abc", "field 2 claims 5 bytes where 3 are left", 0),
        (b"\x0d\0\0\0", "the end comes within field 1", 0),
        (b"\x09\0\0\0\0\0\0\0", "the end comes within field 1", 0),
        (b"\x08" + b"\xff" * 9 + b"\x7f", "a varint of more than 64 bits", 1),
        (b"\x08" + b"\xff" * 11, "a varint of more than 64 bits", 1),
        (b"\x08\x01\x0b", "field 1 has wire type 3", 2),
        (b"\x0c", "field 1 has wire type 4", 0),
        (b"\x0e", "field 1 has wire type 6", 0),
        (b"\x0f", "field 1 has wire type 7", 0),
        (b"\x00\x01", "field number 0", 0),
        (b"\xf8\xff\xff\xff\xff\x01\x00", "a field key of more than 32 bits", 0),
        (b"\x12" + varint(2**31 - 1), "field 2 claims 2,147,483,647 bytes where 0 are left", 0),
        (b"\x12" + varint(2**64 - 1), "claims 18,446,744,073,709,551,615 bytes", 0),
    ],
)
def test_bytes_that_no_writer_produces_are_named_with_their_place(
    data: bytes, message: str, offset: int
) -> None:
    with pytest.raises(WireError, match=message) as caught:
        read(data)
    assert caught.value.offset(memoryview(data)) == offset


def test_an_error_inside_a_nested_message_has_its_place_in_the_file() -> None:
    data = field(9, "before") + field(1, field(2, b"\x08"))
    whole = memoryview(data)
    outer = next(v for tag, v in fields(whole, Budget(10)) if tag == key(1, BYTES))
    [(_, inner)] = fields(outer, Budget(10))
    with pytest.raises(WireError) as caught:
        list(fields(inner, Budget(10)))
    assert caught.value.offset(whole) == len(data) - 1


def test_a_spent_budget_stops_the_reading() -> None:
    with pytest.raises(TooManyFields):
        read(field(1, 1) * 11, budget=10)
    budget = Budget(10)
    assert len(list(fields(memoryview(field(1, 1) * 4), budget))) == 4
    assert budget.fields == 6


def test_runs_of_unwanted_numbers_cost_no_budget() -> None:
    numbers = field(8, -1) * 50_000 + b"".join(encode(7, FIXED32, b"\0abc") for _ in range(50_000))
    data = numbers + field(5, b"wanted") + numbers
    assert [bytes(v) for _, v in fields(memoryview(data), Budget(10), {key(5, BYTES)})] == [
        b"wanted"
    ]


def long_run(generator: random.Random) -> bytes:
    """Write thousands of fields of one sort, some of them followed by those of another."""
    kind = generator.randrange(3)
    fields_of_run = generator.choice((100, 1000, 8000))
    if kind == 0:
        largest = generator.choice((100, 100_000, 2**64 - 1))
        return b"".join(field(8, generator.randrange(largest)) for _ in range(fields_of_run))
    if kind == 1:
        return b"".join(encode(7, FIXED32, generator.randbytes(4)) for _ in range(fields_of_run))
    longest = generator.choice((2, 32, 40))
    texts = (generator.randbytes(generator.randrange(longest)) for _ in range(fields_of_run))
    return b"".join(field(9, text) for text in texts)


@pytest.mark.parametrize("seed", range(4))
def test_what_stands_between_long_runs_is_found_and_errors_in_them_too(seed: int) -> None:
    generator = random.Random(seed)
    data = b""
    for index in range(4):
        data += long_run(generator) + field(5, f"wanted {index}")
    wanted = [f"wanted {index}".encode() for index in range(4)]
    found = fields(memoryview(data), Budget(1_000_000), {key(5, BYTES)})
    assert [bytes(value) for _, value in found] == wanted
    for _ in range(5):
        damaged = bytearray(data)
        damaged[generator.randrange(len(data))] = generator.randrange(256)
        assert outcome(bytes(damaged), {key(5, BYTES)}) == outcome(bytes(damaged), None)


def outcome(data: bytes, wanted: set[int] | None) -> tuple[list[bytes], bool]:
    """Return the payloads of field 5, read with or without passing runs, and whether all is read.

    Numbers that are passed are not judged: one of more than 64 bits is no error then.
    """
    found = []
    try:
        for tag, value in fields(memoryview(data), Budget(1_000_000), wanted):
            if tag == key(5, BYTES):
                found.append(bytes(value))
    except WireError as error:
        return found, "more than 64 bits" in str(error)
    return found, True


def test_fields_that_alternate_are_passed_as_fast_as_those_that_do_not() -> None:
    alternating = (field(8, 300) + encode(7, FIXED32, b"abcd")) * 200_000
    one_kind = field(8, 300) * 200_000
    data = one_kind + alternating + field(5, b"end")
    found = fields(memoryview(data), Budget(len(data) // 2000), {key(5, BYTES)})
    assert [bytes(value) for _, value in found] == [b"end"]


@settings(derandomize=True, max_examples=40)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=200))
def test_packed_numbers_are_counted_and_read_as_written(numbers: list[int]) -> None:
    packed = memoryview(b"".join(map(varint, numbers)))
    assert count_varints(packed) == len(numbers)
    assert [signed(value) for value in varints(packed, Budget(1000))] == numbers


def test_counting_works_across_its_chunks() -> None:
    packed = memoryview(varint(300) * 1_500_001)
    assert count_varints(packed) == 1_500_001


def test_packed_numbers_that_are_cut_off_are_refused() -> None:
    packed = memoryview(b"\x01\xff")
    with pytest.raises(WireError, match="the end comes within a varint"):
        count_varints(packed)
    with pytest.raises(WireError, match="the end comes within a varint"):
        list(varints(packed, Budget(10)))
