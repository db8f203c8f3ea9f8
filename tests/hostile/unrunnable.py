"""Valid models that no machine can run: for backends to answer with an error."""

from __future__ import annotations

from collections.abc import Iterable

from engine_testing.encode import (
    FLOAT,
    INT64,
    attribute,
    chain,
    floats,
    graph,
    ints,
    node,
    tensor,
    type_of,
    value,
)
from hostile.registry import BOMBS, add

_SUM = attribute("keepdims", 3, 0, 2)


def _bomb(name: str, *nodes: bytes, initializers: Iterable[bytes] = ()) -> None:
    """Add a model that reduces the huge tensor "h" and adds it to "x"."""
    parts = list(initializers)
    steps = [*nodes, node("ReduceSum", ["h"], ["r"], [_SUM]), node("Add", ["x", "r"], ["y"])]
    add(name, lambda: chain(*steps, initializers=parts), BOMBS)


_HUGE = 1 << 41
_bomb(
    "concat_doubling",
    *[
        node(
            "Concat", [f"c{i}"] * 2, [f"c{i + 1}" if i < 49 else "h"], [attribute("axis", 3, 0, 2)]
        )
        for i in range(50)
    ],
    initializers=[floats("c0")],
)
_bomb(
    "concat_doubling_of_input",
    *[
        node("Concat", [f"c{i}" if i else "x"] * 2, [f"c{i + 1}" if i < 49 else "h"],
             [attribute("axis", 3, 0, 2)])
        for i in range(50)
    ],
)  # fmt: skip
_bomb(
    "expand_by_computed_shape",
    node("Shape", ["x"], ["n"]), node("Mul", ["n", "k"], ["s"]),
    node("ConstantOfShape", ["s"], ["h"]),
    initializers=[ints("k", _HUGE)],
)  # fmt: skip
_bomb(
    "pad",
    node("Pad", ["one", "k"], ["h"]),
    initializers=[floats("one"), ints("k", 0, _HUGE)],
)
_bomb(
    "resize",
    node("Resize", ["one", "", "", "k"], ["h"]),
    initializers=[tensor("one", [1, 1, 1, 1], bytes(4)), ints("k", 1, 1, 1 << 21, 1 << 21)],
)
_bomb(
    "one_hot",
    node("OneHot", ["i", "k", "v"], ["h"]),
    initializers=[ints("i", 0), ints("k", _HUGE), floats("v", 2)],
)
_bomb(
    "range",
    node("Range", ["a", "b", "c"], ["i"]),
    node("Cast", ["i"], ["h"], [attribute("to", 3, FLOAT, 2)]),
    initializers=[
        tensor("a", [], bytes(8), INT64),
        tensor("b", [], _HUGE.to_bytes(8, "little"), INT64),
        tensor("c", [], (1).to_bytes(8, "little"), INT64),
    ],
)
_bomb(
    "random_normal",
    node("RandomNormal", [], ["h"], [attribute("shape", 8, _HUGE, 7)]),
)
_bomb(
    "endless_loop",
    node(
        "Loop", ["m", "go", "zero"], ["h"],
        [
            attribute(
                "body", 6,
                graph(
                    [node("Identity", ["c"], ["d"]), node("Add", ["v", "v"], ["w"])],
                    [value("i", type_of([], INT64)), value("c", type_of([], 9)), value("v")],
                    [value("d", type_of([], 9)), value("w")],
                ),
                5,
            )
        ],
    ),
    initializers=[
        tensor("m", [], _HUGE.to_bytes(8, "little"), INT64),
        tensor("go", [], b"\1", 9),
        floats("zero"),
    ],
)  # fmt: skip
