"""The cost of folding constants is estimated from the file: bombs are told from real models."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from engine import formats
from engine.testing.hostile.encode import (
    INT64,
    attribute,
    chain,
    field,
    function,
    graph,
    ints,
    model,
    node,
    opset,
    tensor,
    value,
)

ONNX_DATA = Path(onnx.__file__).parent / "backend/test/data"


def folds_too_much(data: bytes) -> bool:
    return formats.source_from_bytes(data).folds_too_much


def filled(*shape: int) -> tuple[bytes, bytes]:
    """A node that makes the constant "a" of this shape, and its initializer."""
    return node("ConstantOfShape", ["s"], ["a"]), ints("s", *shape)


def products(count: int, size: int) -> bytes:
    """A chain of matrix products of a square constant: 60 of 3,000 take minutes to fold."""
    fill, shape = filled(size, size)
    steps = [node("MatMul", [f"p{i}" if i else "a", "a"], [f"p{i + 1}"]) for i in range(count)]
    return chain(fill, *steps, node("Add", ["x", f"p{count}"], ["y"]), initializers=[shape])


def constants(count: int, elements: int) -> bytes:
    """Constants of many bytes from a shape: 40 of 100 million are 16 GB in 2 kB of file."""
    names = [f"c{i}" for i in range(count)]
    return chain(
        *[node("ConstantOfShape", ["s"], [name]) for name in names],
        node("Sum", ["x", *names], ["y"]),
        initializers=[ints("s", elements)],
    )


def outer(size: int) -> bytes:
    """An outer product: a square of `size` from two vectors."""
    column = tensor("c", [size, 1], bytes(4 * size))
    row = tensor("r", [1, size], bytes(4 * size))
    return chain(
        node("Mul", ["c", "r"], ["o"]), node("Add", ["x", "o"], ["y"]), initializers=[column, row]
    )


def in_function(calls: int) -> bytes:
    """A function with one product inside, called many times."""
    fill = node("Constant", [], ["s"], [attribute("value", 5, ints("", 600, 600), 4)])
    steps = [fill, node("ConstantOfShape", ["s"], ["a"]), node("MatMul", ["a", "a"], ["b"])]
    names = [f"c{i}" for i in range(calls)]
    return model(
        graph(
            [*[node("f0", [], [name], domain="f") for name in names],
             node("Sum", ["x", *names], ["y"])],
            [value("x")],
            [value("y")],
        ),
        opsets=[opset(17), opset(1, "f")],
        extra=field(25, function("f0", steps, [], ["b"])),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (products(60, 3000), True),
        (products(2, 300), False),
        (constants(40, 100_000_000), True),
        (constants(2, 1_000_000), False),
        (outer(100_000), True),
        (outer(1000), False),
        (in_function(10), True),
        (in_function(1), False),
        (chain(node("Tile", ["w", "k"], ["t"]), node("Add", ["x", "t"], ["y"]),
               initializers=[tensor("w", [10], bytes(40)), ints("k", 100_000_000)]), True),
        (chain(node("Conv", ["i", "k"], ["t"]), node("Add", ["x", "t"], ["y"]),
               initializers=[tensor("i", [1, 1, 400, 400], bytes(640_000)),
                             tensor("k", [1, 1, 400, 400], bytes(640_000))]), True),
    ],
)  # fmt: skip
def test_a_bomb_is_told_from_what_models_fold(data: bytes, expected: bool) -> None:
    assert folds_too_much(data) is expected


def test_what_an_input_decides_is_not_folded() -> None:
    fill, shape = filled(3000, 3000)
    steps = [node("Add", ["a", "x"], ["b"])]
    steps += [node("MatMul", [f"p{i}" if i else "b", "a"], [f"p{i + 1}"]) for i in range(60)]
    data = chain(fill, *steps, node("Neg", ["p60"], ["y"]), initializers=[shape])
    assert not folds_too_much(data)


def test_weights_may_be_widened_and_transposed_as_exporters_leave_them() -> None:
    weight = tensor("w", [1000, 4000], bytes(4_000_000), 3)  # int8
    steps = [
        node("Cast", ["w"], ["f"], [attribute("to", 3, 1, 2)]),
        node("Mul", ["f", "scale"], ["m"]),
        node("Transpose", ["m"], ["t"]),
        node("MatMul", ["x", "t"], ["y"]),
    ]
    scale = tensor("scale", [], bytes(4))
    assert not folds_too_much(chain(*steps, initializers=[weight, scale]))


def test_no_model_of_onnx_itself_folds_too_much() -> None:
    for path in sorted(ONNX_DATA.glob("*/*/*.onnx"))[::10]:
        assert not formats.open_source(path).folds_too_much, path


def test_ranges_of_unknown_length_and_empty_tensors_are_no_error() -> None:
    scalars = [tensor(name, [], bytes(8), INT64) for name in ("a", "b")]
    steps = [
        node("Range", ["a", "b", "b"], ["r"]),
        node("Gather", ["e", "r"], ["g"]),
        node("MatMul", ["a", "b"], ["m"]),
        node("Transpose", ["e"], ["t"], [attribute("perm", 8, 7, 7)]),
        node("Concat", ["e", "g"], ["c"]),
        node("Add", ["x", "c"], ["y"]),
    ]
    data = chain(*steps, initializers=[*scalars, tensor("e", [0, 3], b"")])
    assert not folds_too_much(data)
