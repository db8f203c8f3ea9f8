"""Damaged models of every sort end in GraphInfo or ModelError, in bounded memory.

And where a damaged model is still taken, it says the same as the onnx package reads from it:
nothing is checked in one reading and used in another.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import hostile
import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from hostile.damage import damage, lengths_in
from onnx import TensorProto, helper, numpy_helper, parser

from engine import formats
from engine.errors import ModelError
from engine.types import GraphInfo
from engine_testing import encode

Reader = Callable[[onnx.ModelProto], GraphInfo]
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def rich_model() -> bytes:
    """A model with a little of everything that the reader knows."""
    graph = parser.parse_graph("""
        rich (float[n,3] x, bool[n,3] c, seq(int64[n,?,4]) q, optional(int64[n,?,4]) o)
            => (float[n,3] y) <float[n,3] a, int64[2] s = {2, 3}> {
            [call] a = f.f(x)
            b = If (c) <
                then_branch = one () => (float[n,3] z) <float[1,3] v = {1.0, 1.0, 1.0}>
                    { z = Add(x, v) },
                else_branch = two () => (float[n,3] z) <float[1,3] v = {1.0, 1.0, 1.0}>
                    { z = Add(x, v) }>
            k = ConstantOfShape(s)
            d = Constant <value = float[2] {1.0, 2.0}> ()
            [sum] y = Sum <alpha = [1.5, 2.5]> (a, b, k, w, d)
        }""")
    graph.initializer.extend(
        [
            numpy_helper.from_array(np.zeros((2, 3), np.float16), "w"),
            helper.make_tensor("t", TensorProto.STRING, [2], [b"one", b"two"]),
            helper.make_tensor("i", TensorProto.INT4, [3], [1, 2, 3]),
        ]
    )
    values = numpy_helper.from_array(np.ones(2, np.float32), "p")
    indices = numpy_helper.from_array(np.array([1, 5]))
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
    head = '<domain: "f", opset_import: ["" : 17, "f" : 1]> f (a) => (b)'
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("f", 1)],
        ir_version=10,
        functions=[parser.parse_function(head + " { b = Neg(a) }")],
        producer_name="fuzz",
    )
    helper.set_model_props(model, {"key": "value", "other": ""})
    return bytes(model.SerializeToString())


SEEDS = {
    "small": hostile.valid(),
    "rich": rich_model(),
    "squeezenet": (LIGHT / "light_squeezenet.onnx").read_bytes(),
}


def outcomes(name: str, count: int, seed: int) -> Iterator[tuple[bytes, GraphInfo | None]]:
    """Damage a model `count` times; yield what a backend gets, and what was read of it.

    The damaged bytes and None where they are refused.
    """
    data = SEEDS[name]
    lengths = lengths_in(data)
    assert len(lengths) > 5
    generator = random.Random(seed)
    for _ in range(count):
        damaged = damage(data, generator, lengths)
        try:
            source = formats.source_from_bytes(damaged)
        except ModelError as error:
            assert str(error).startswith("model bytes: ")  # noqa: PT017
            yield damaged, None
        else:
            assert source.data is not None
            yield source.data, source.graph


def check_against_onnx(name: str, count: int, seed: int, read_with_onnx: Reader) -> tuple[int, int]:
    taken = refused = 0
    for data, graph in outcomes(name, count, seed):
        if graph is None:
            refused += 1
            continue
        taken += 1
        try:
            model = onnx.ModelProto.FromString(data)
        except DecodeError:
            continue  # damage in a part that is not read here: documentation, annotations
        expected = read_with_onnx(model)
        assert graph == expected or repr(graph) == repr(expected)  # NaN is not equal to itself
    return taken, refused


@pytest.mark.parametrize("name", SEEDS)
def test_a_damaged_model_is_refused_or_read_as_with_onnx(name: str, read_with_onnx: Reader) -> None:
    count = 75 if name == "squeezenet" else 1000
    taken, refused = check_against_onnx(name, count, 1, read_with_onnx)
    # Both happen, or the damage is of no use.
    assert taken > count // 50
    assert refused > count // 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("name", SEEDS)
def test_many_damaged_models_are_refused_or_read_as_with_onnx(
    name: str, seed: int, read_with_onnx: Reader
) -> None:
    check_against_onnx(name, 3000 if name == "squeezenet" else 25_000, seed, read_with_onnx)


@pytest.mark.parametrize("name", SEEDS)
def test_damage_cannot_make_reading_take_memory(name: str) -> None:
    tracemalloc.start()
    try:
        for damaged, _ in outcomes(name, 10 if name == "squeezenet" else 100, 7):
            peak = tracemalloc.get_traced_memory()[1]
            assert peak < 100 * len(SEEDS[name]) + 1_000_000, damaged
            tracemalloc.reset_peak()
    finally:
        tracemalloc.stop()


def test_random_bytes_are_refused() -> None:
    generator = random.Random(3)
    for _ in range(200):
        data = generator.randbytes(generator.randrange(1, 400))
        with pytest.raises(ModelError):
            formats.source_from_bytes(data)


def test_random_bytes_in_the_place_of_each_part_are_refused_or_read(read_with_onnx: Reader) -> None:
    generator = random.Random(4)
    for _ in range(500):
        noise = generator.randbytes(generator.randrange(1, 60))
        place = generator.choice((1, 5, 11, 12, 13, 15))  # the parts of a graph
        graph = encode.graph(
            [encode.node("Neg", ["x"], ["y"])], [encode.value("x")], [encode.value("y")]
        )
        data = encode.model(graph + encode.field(place, noise))
        try:
            source = formats.source_from_bytes(data)
        except ModelError:
            continue
        try:
            model = onnx.ModelProto.FromString(source.data)
        except DecodeError:
            continue
        assert source.graph == read_with_onnx(model)


def test_every_cut_of_a_rich_model_is_refused() -> None:
    data = SEEDS["rich"]
    assert formats.source_from_bytes(data).graph is not None
    cuts = [end for end in range(1, len(data)) if _is_taken(data[:end])]
    # Only the functions, metadata and opsets stand behind the graph; without the last of them
    # the file is whole again, so a cut between two may be a valid model.
    assert all(end > len(data) * 0.8 for end in cuts)
    assert len(cuts) < 6


def _is_taken(data: bytes) -> bool:
    try:
        formats.source_from_bytes(data)
    except ModelError:
        return False
    return True
