"""Damaged and hostile files: a ModelError each, soon, and never anything else."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.errors import ModelError
from engine.formats import encryption, open_source, source_from_bytes

DATA = Path(__file__).parents[3] / "tests" / "data" / "mindir"
PLAIN = sorted(path for path in DATA.rglob("*.mindir") if not path.name.startswith("enc_"))
ENCRYPTED = sorted(DATA.rglob("enc_*.mindir"))
SMALL = [path for path in PLAIN if path.stat().st_size < 20_000]
BUDGET_S = 40.0  # of one file; they take milliseconds


def _read(data: bytes) -> bool:
    """Return True where the bytes are a model; anything but a ModelError fails the test."""
    start = time.monotonic()
    try:
        source_from_bytes(data)
    except ModelError:
        return False
    finally:
        assert time.monotonic() - start < BUDGET_S
    return True


def test_truncated_files_are_refused() -> None:
    for path in SMALL:
        data = path.read_bytes()
        for place in range(20):
            _read(data[: len(data) * place // 20])
        assert not _read(data[: len(data) // 2]), path


@pytest.mark.parametrize("path", ENCRYPTED, ids=lambda path: path.stem)
def test_a_truncated_encrypted_file_is_refused(path: Path, tmp_path: Path) -> None:
    _, mode, size = path.stem.split("_")
    data = path.read_bytes()
    cut = tmp_path / "cut.mindir"
    for place in range(1, 20):
        cut.write_bytes(data[: len(data) * place // 20])
        with pytest.raises(ModelError, match=r"damaged|key is wrong"):
            open_source(cut, dec_key=bytes(range(int(size))), dec_mode=mode)


def test_flipped_bytes_give_a_model_or_a_model_error() -> None:
    for path in SMALL:
        _flip(path, 10)


@pytest.mark.slow
@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.stem)
def test_every_file_that_is_cut_off_or_has_flipped_bytes_gives_a_model_or_a_model_error(
    path: Path,
) -> None:
    data = path.read_bytes()
    for place in range(20):
        _read(data[: len(data) * place // 20])
    _flip(path, 500)


def _flip(path: Path, times: int) -> None:
    chosen = random.Random(path.stem)
    whole = path.read_bytes()
    for _ in range(times):
        data = bytearray(whole)
        for _ in range(chosen.choice((1, 1, 3))):
            data[chosen.randrange(len(data))] = chosen.randrange(256)
        _read(bytes(data))


@pytest.mark.parametrize("path", ENCRYPTED, ids=lambda path: path.stem)
def test_flipped_bytes_of_an_encrypted_file_give_a_model_or_a_model_error(
    path: Path, tmp_path: Path
) -> None:
    _, mode, size = path.stem.split("_")
    chosen = random.Random(path.stem)
    flipped = tmp_path / "flipped.mindir"
    for _ in range(50):
        data = bytearray(path.read_bytes())
        data[chosen.randrange(len(data))] ^= chosen.randrange(1, 256)
        flipped.write_bytes(data)
        with suppress(ModelError):
            open_source(flipped, dec_key=bytes(range(int(size))), dec_mode=mode)


def test_tuples_nested_ten_thousand_deep_are_refused(mindir: SimpleNamespace) -> None:
    nested = mindir.scalar("", 1)
    for _ in range(10_000):
        nested = mindir.text(17, nested) + mindir.number(16, 20)
    node = mindir.node("Constant", (), "deep", mindir.text(1, "value") + nested)
    used = mindir.node("Reshape", ["G:x", "deep"], "G:y")
    with pytest.raises(ModelError, match="nested more than"):
        source_from_bytes(mindir.net([node, used]))


def test_a_length_of_two_gigabytes_is_refused(mindir: SimpleNamespace) -> None:
    data = mindir.net([])
    with pytest.raises(ModelError, match="claims 2,147,483,647 bytes"):
        source_from_bytes(data + mindir.varint(8 << 3 | 2) + mindir.varint((1 << 31) - 1))


def test_a_tuple_of_tuples_of_nodes_ten_thousand_deep_is_refused(mindir: SimpleNamespace) -> None:
    nodes = [mindir.node("MakeTuple", ["G:x"], "G:0")]
    nodes += [mindir.node("MakeTuple", [f"G:{n}"], f"G:{n + 1}") for n in range(10_000)]
    with pytest.raises(ModelError, match="nested too deep"):
        source_from_bytes(mindir.net(nodes, {"G:x": (2,)}, {"G:10000": (2,)}))


@pytest.mark.parametrize(
    ("kind", "first", "head"),
    [
        ("MakeTuple", "MakeTuple", []),
        ("SequenceAdd", "MakeTuple", []),
        ("Partial", "Partial", ["F"]),
    ],
)
def test_what_holds_one_value_twice_may_not_double_it_without_end(
    kind: str, first: str, head: list[str], mindir: SimpleNamespace
) -> None:
    nodes = [mindir.node(first, [*head, "G:x"], "G:0")]
    nodes += [mindir.node(kind, [*head, f"G:{n}", f"G:{n}"], f"G:{n + 1}") for n in range(60)]
    body = mindir.function("F", [], outputs={"F:x": [2]})
    start = time.monotonic()
    with pytest.raises(ModelError, match="nest more than 100,000 values"):
        source_from_bytes(mindir.net(nodes, None, {"G:60": (2,)}, functions=[body]))
    assert time.monotonic() - start < BUDGET_S


# A primitive of x float32[1, 4, 6, 6] whose result would be written out, and its other arguments.
FAR = 1 << 40
HUGE = {
    "AdaptiveAvgPool2D": [(FAR, FAR)], "AdaptiveMaxPool2D": [(FAR, FAR)], "Split": [1, FAR],
    "Unstack": [1], "GroupNorm": [FAR], "ResizeNearestNeighbor": [(FAR, FAR)],
    "ResizeBicubic": [(FAR, FAR)], "Im2Col": [(FAR, FAR)], "AsStrided": [(FAR, FAR), (1, 1)],
    "Cummax": [1], "Diagonal": [0, 1, 2],
}  # fmt: skip


@pytest.mark.parametrize("kind", HUGE)
def test_a_number_beyond_all_sense_takes_neither_time_nor_memory(
    kind: str, mindir: SimpleNamespace
) -> None:
    arguments = HUGE[kind]
    names = [f"arg{place}" for place in range(len(arguments))]
    nodes = [mindir.constant(*each) for each in zip(names, arguments, strict=True)]
    nodes.append(mindir.node(kind, ["G:x", *names], "G:y"))
    # Those that go by the shape that the file declares get one that is no less absurd.
    sizes = (1, FAR, FAR, 6) if kind in ("Unstack", "Cummax", "Diagonal") else (1, 4, 6, 6)
    tracemalloc.start()
    start = time.monotonic()
    try:
        with pytest.raises(ModelError, match=r"to be written out|pooling of") as caught:
            source_from_bytes(mindir.net(nodes, {"G:x": sizes}))
        assert "MemoryError" not in str(caught.value)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert time.monotonic() - start < BUDGET_S


@pytest.mark.parametrize(
    ("kind", "one", "two"),
    [
        ("ScalarPow", 3, 1 << 40),
        ("ScalarMul", 1 << 62, 1 << 62),
        ("ScalarMul", "text", 1 << 40),
        ("ScalarMod", "%1000000000d", 1),
    ],
)
def test_a_calculation_that_leaves_int64_is_refused(
    kind: str, one: object, two: object, mindir: SimpleNamespace
) -> None:
    nodes = [
        mindir.constant("one", one),
        mindir.constant("two", two),
        mindir.node(kind, ["one", "two"], "G:n"),
        mindir.node("Add", ["G:x", "G:n"], "G:y"),
    ]
    start = time.monotonic()
    with pytest.raises(ModelError, match=kind):
        source_from_bytes(mindir.net(nodes))
    assert time.monotonic() - start < BUDGET_S


def test_a_node_that_reads_its_own_result_is_refused(mindir: SimpleNamespace) -> None:
    nodes = [mindir.node("ReLU", ["G:b"], "G:a"), mindir.node("ReLU", ["G:a"], "G:b")]
    with pytest.raises(ModelError, match=r"'G:b' is defined nowhere before it is used"):
        source_from_bytes(mindir.net(nodes, {"G:x": (2,)}, {"G:b": (2,)}))


def test_a_function_that_calls_itself_without_end_is_refused(mindir: SimpleNamespace) -> None:
    nodes = [mindir.node("REF::F", ["F:x"], "F:a"), mindir.node("ReLU", ["F:a"], "F:y")]
    called = [mindir.node("REF::F", ["G:x"], "G:y")]
    with pytest.raises(ModelError, match="calls itself"):
        source_from_bytes(mindir.net(called, functions=[mindir.function("F", nodes)]))


def test_functions_that_unfold_without_bound_are_refused(mindir: SimpleNamespace) -> None:
    functions = []
    for level in range(40):
        callee, own = f"REF::F{level + 1}" if level < 39 else "ReLU", f"F{level}"
        nodes = [
            mindir.node(callee, [f"{own}:x"], f"{own}:a"),
            mindir.node(callee, [f"{own}:a"], f"{own}:y"),
        ]
        functions.append(mindir.function(own, nodes))
    with pytest.raises(ModelError, match="unfolds into more than"):
        source_from_bytes(mindir.net([mindir.node("REF::F0", ["G:x"], "G:y")], functions=functions))


def test_a_cycle_of_functions_through_closures_is_refused(mindir: SimpleNamespace) -> None:
    def function(name: str, other: str) -> bytes:
        nodes = [
            mindir.node("Partial", [other, f"{name}:x"], f"{name}:c"),
            mindir.node(f"REF::{name}:c", [], f"{name}:z"),
            mindir.node("ReLU", [f"{name}:z"], f"{name}:y"),
        ]
        return bytes(mindir.function(name, nodes))

    both = [function("F", "H"), function("H", "F")]
    with pytest.raises(ModelError, match=r"calls itself|each other"):
        source_from_bytes(mindir.net([mindir.node("REF::F", ["G:x"], "G:y")], functions=both))


@pytest.mark.parametrize("name", ["enc_AES-GCM_16", "enc_AES-CBC_24", "enc_SM4-CBC_16"])
def test_a_wrong_key_is_told_from_damage(name: str, tmp_path: Path) -> None:
    path = DATA / "nets" / f"{name}.mindir"
    mode, size = name.split("_")[1], int(name.split("_")[2])
    right = bytes(range(size))
    with pytest.raises(ModelError, match="the key is wrong"):
        open_source(path, dec_key=right[::-1], dec_mode=mode)
    with pytest.raises(ModelError, match=f"pass its key.*dec_mode='{mode}'"):
        open_source(path)
    with pytest.raises(ModelError, match=r"bytes; .* takes 16"):
        open_source(path, dec_key=b"short", dec_mode=mode)
    other = "AES-CBC" if mode == "AES-GCM" else "AES-GCM"
    with pytest.raises(ModelError, match=rf"encrypted with {mode}, but dec_mode is"):
        open_source(path, dec_key=right, dec_mode=other)
    cut = tmp_path / "cut.mindir"
    cut.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="damaged"):
        open_source(cut, dec_key=right, dec_mode=mode)


def test_a_key_for_a_plain_file_is_an_error() -> None:
    with pytest.raises(ModelError, match="not encrypted, but dec_key was given"):
        open_source(DATA / "mlp.mindir", dec_key=bytes(16))


def test_an_iv_that_the_mode_does_not_take_is_damage() -> None:
    length = struct.Struct("<i").pack
    block = length(0x7F3A5ED9) + length(64) + length(12) + bytes(12) + length(16) + bytes(16)
    with pytest.raises(encryption.DecryptionError, match="damaged: an IV of 12 bytes"):
        encryption.decrypt(memoryview(block), bytes(16), "AES-CBC")


@pytest.mark.parametrize("content", [b"", b"\x01", bytes(100)])
def test_a_plain_data_file_of_an_encrypted_model_is_named_as_that(content: bytes) -> None:
    with pytest.raises(encryption.DecryptionError, match="it is not encrypted, though the model"):
        encryption.decrypt(memoryview(content), bytes(16), "AES-GCM")
