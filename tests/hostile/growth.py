"""Small files that nest deep or unfold into something huge."""

from __future__ import annotations

from engine_testing.encode import (
    attribute,
    chain,
    field,
    floats,
    function,
    graph,
    ints,
    many,
    model,
    node,
    opset,
    type_of,
    value,
)
from hostile.graphs import NEG, with_input
from hostile.registry import add


def _nested_type(depth: int) -> bytes:
    kind = type_of()
    for level in range(depth):
        kind = field(4 if level % 2 else 9, field(1, kind))
    return kind


def _nested_subgraphs(depth: int) -> bytes:
    body = graph([node("Neg", ["x"], ["z"])], (), [value("z")])
    for _ in range(depth):
        inner = attribute("then_branch", 6, body, 5)
        body = graph([node("If", ["x"], ["z"], [inner])], (), [value("z")])
    return body


add(
    "deep_subgraphs",
    lambda: chain(node("If", ["x"], ["y"], [attribute("b", 6, _nested_subgraphs(100), 5)])),
)
add(
    "very_deep_subgraphs",
    lambda: chain(node("If", ["x"], ["y"], [attribute("b", 6, _nested_subgraphs(3000), 5)])),
)
add("deep_type", lambda: with_input(_nested_type(200)))
add("very_deep_type", lambda: with_input(_nested_type(10_000)))
add(
    "deep_type_of_inner_value",
    lambda: model(
        graph(
            [node(*NEG)], [value("x")], [value("y")],
            extra=field(13, value("inner", _nested_type(200))),
        )
    ),
)  # fmt: skip
add(
    "deep_type_in_attribute",
    lambda: chain(node("Neg", ["x"], ["y"], [attribute("type", 14, _nested_type(200), 13)])),
)


def _with_functions(*functions: bytes, call: str) -> bytes:
    return model(
        graph([node(call, ["x"], ["y"], domain="f")], [value("x")], [value("y")]),
        opsets=[opset(17), opset(1, "f")],
        extra=many(25, functions),
    )


def _calls(name: str, *callees: str) -> bytes:
    steps = [node(callee, [f"v{i}"], [f"v{i + 1}"], domain="f") for i, callee in enumerate(callees)]
    return function(name, steps, ["v0"], [f"v{len(callees)}"])


_LEAF = function("f0", [node("Neg", ["a"], ["b"])], ["a"], ["b"])
add("function_calls_itself", lambda: _with_functions(_calls("f0", "f0"), call="f0"))
add(
    "functions_call_each_other",
    lambda: _with_functions(_calls("f0", "f1"), _calls("f1", "f0"), call="f0"),
)
add(
    "functions_double",
    lambda: _with_functions(
        _LEAF, *[_calls(f"f{i}", f"f{i - 1}", f"f{i - 1}") for i in range(1, 61)], call="f60"
    ),
)
add(
    "functions_chain",
    lambda: _with_functions(
        _LEAF, *[_calls(f"f{i}", f"f{i - 1}") for i in range(1, 3001)], call="f3000"
    ),
)
add("function_twice", lambda: _with_functions(_LEAF, _LEAF, call="f0"))
add(
    "function_reads_unknown_name",
    lambda: _with_functions(
        function("f0", [node("Neg", ["ghost"], ["b"])], ["a"], ["b"]), call="f0"
    ),
)
add(
    "constant_of_terabytes",
    lambda: chain(
        node("ConstantOfShape", ["s"], ["c"], name="fill"), node("Add", ["x", "c"], ["y"]),
        initializers=[ints("s", 1 << 30, 1 << 10)],
    ),
)  # fmt: skip
add(
    "constant_of_terabytes_from_constants",
    lambda: chain(
        node("Constant", [], ["s"], [attribute("value", 5, ints("", 1 << 40), 4)]),
        node("ConstantOfShape", ["s"], ["c"]), node("Add", ["x", "c"], ["y"]),
    ),
)  # fmt: skip
add(
    "many_large_constants",
    lambda: chain(
        *[node("ConstantOfShape", ["s"], [f"c{i}"]) for i in range(1000)],
        node("Sum", ["x", *[f"c{i}" for i in range(1000)]], ["y"]),
        initializers=[ints("s", 200_000_000)],
    ),
)
add(
    "function_of_a_large_constant",
    lambda: model(
        graph(
            [node("f0", [], [f"c{i}"], domain="f") for i in range(1000)]
            + [node("Sum", ["x", *[f"c{i}" for i in range(1000)]], ["y"])],
            [value("x")],
            [value("y")],
        ),
        opsets=[opset(17), opset(1, "f")],
        extra=field(
            25,
            function(
                "f0",
                [
                    node("Constant", [], ["s"], [attribute("value", 5, ints("", 200_000_000), 4)]),
                    node("ConstantOfShape", ["s"], ["b"]),
                ],
                [],
                ["b"],
            ),
        ),
    ),
)
add(
    "many_sparse_tensors",
    lambda: model(
        graph(
            [node("Sum", ["x", *[f"w{i}" for i in range(100)]], ["y"])],
            [value("x")],
            [value("y")],
            extra=many(
                15,
                [
                    field(1, floats(f"w{i}")) + field(2, ints("", 0)) + field(3, 100_000_000)
                    for i in range(100)
                ],
            ),
        )
    ),
)
add(
    "expand_to_terabytes",
    lambda: chain(
        node("Expand", ["x", "s"], ["e"]), node("ReduceSum", ["e"], ["y"]),
        initializers=[ints("s", 1 << 40, 1)],
    ),
)  # fmt: skip
add(
    "tile_to_terabytes",
    lambda: chain(node("Tile", ["x", "s"], ["y"]), initializers=[ints("s", 1 << 40)]),
)
