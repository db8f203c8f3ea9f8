"""Graphs whose names, types or tensors contradict each other."""

from __future__ import annotations

from collections.abc import Iterable

from engine_testing.encode import (
    FLOAT,
    INT64,
    STRING,
    attribute,
    chain,
    field,
    floats,
    graph,
    ints,
    many,
    model,
    node,
    tensor,
    type_of,
    value,
    varint,
)
from hostile.registry import add

# The parts of a node that most cases only need to have.
ADD = ("Add", ["x", "w"], ["y"])
add("unknown_input", lambda: chain(node("Add", ["x", "ghost"], ["y"], name="add")))
add(
    "unsorted_with_unknown_input",
    lambda: chain(
        node("Neg", ["a"], ["y"]), node("Add", ["x", "ghost"], ["a"], name="late"),
    ),
)  # fmt: skip
add(
    "cycle",
    lambda: chain(
        node("Add", ["x", "b"], ["a"], name="first"), node("Neg", ["a"], ["b"], name="second"),
        node("Neg", ["b"], ["y"]),
    ),
)  # fmt: skip
add("node_reads_itself", lambda: chain(node("Add", ["x", "y"], ["y"], name="ouroboros")))
add(
    "long_cycle",
    lambda: chain(
        *[node("Neg", [f"v{(i or 50_000) - 1}"], [f"v{i}"]) for i in range(50_000)],
        node("Add", ["x", "v0"], ["y"]),
    ),
)
add("output_twice", lambda: chain(node("Neg", ["x"], ["y"]), node("Abs", ["x"], ["y"])))
add("output_is_input", lambda: chain(node("Neg", ["x"], ["x"]), node("Abs", ["x"], ["y"])))
add(
    "two_inputs_of_one_name",
    lambda: model(graph([node("Neg", ["x"], ["y"])], [value("x"), value("x")], [value("y")])),
)
add(
    "two_initializers_of_one_name",
    lambda: chain(node(*ADD), initializers=[floats("w"), ints("w", 1)]),
)
add("initializer_without_name", lambda: chain(node(*ADD), initializers=[floats("")]))
add("output_of_nobody", lambda: chain(node("Neg", ["x"], ["z"])))
add("no_outputs", lambda: model(graph([node("Neg", ["x"], ["y"])], [value("x")])))
add("empty_graph", lambda: model(b""))
add("node_without_operator", lambda: chain(many(1, ["x"]) + many(2, ["y"])))
add("long_name", lambda: chain(node("Neg", ["x"], ["y"], name="n" * 100_000)))
add(
    "too_many_nodes",
    lambda: model(field(1, node("A", [], [])) * 1_000_001 + field(12, value("y"))),
)


def branch(*nodes: bytes, initializers: Iterable[bytes] = (), out: str = "z") -> bytes:
    """An attribute that holds a subgraph without inputs."""
    return attribute("body", 6, graph(nodes, (), [value(out)], initializers), 5)


add(
    "unknown_input_in_subgraph",
    lambda: chain(node("If", ["x"], ["y"], [branch(node("Neg", ["ghost"], ["z"]))], name="if")),
)
add(
    "subgraph_reads_a_later_node",
    lambda: chain(
        node("If", ["x"], ["y"], [branch(node("Neg", ["later"], ["z"]))]),
        node("Neg", ["x"], ["later"]),
    ),
)

NEG = ("Neg", ["x"], ["y"])


def with_input(kind: bytes) -> bytes:
    """A model whose input has this TypeProto."""
    return model(graph([node(*NEG)], [value("x", kind)], [value("y")]))


add("input_without_type", lambda: with_input(b""))
add("input_of_unknown_element", lambda: with_input(type_of(dtype=99)))
add("input_of_undefined_element", lambda: with_input(type_of(dtype=0)))
add("input_with_negative_dim", lambda: with_input(type_of([-7])))
add("input_larger_than_memory", lambda: with_input(type_of([1 << 40, 1 << 40])))
add("input_of_too_many_dims", lambda: with_input(type_of([1] * 65)))
add("input_of_two_types", lambda: with_input(type_of() + field(4, field(1, type_of()))))
add("sparse_input", lambda: with_input(field(8, field(1, FLOAT))))
add("opaque_input", lambda: with_input(field(7, field(2, "thing"))))
add("sequence_of_nothing", lambda: with_input(field(4, b"")))
add("sequence_of_no_type", lambda: with_input(field(4, field(1, b""))))
add("sequence_of_two_types", lambda: with_input(field(4, field(1, type_of()) * 2)))
add(
    "output_without_type",
    lambda: model(graph([node("Ghost", ["x"], ["y"])], [value("x")], [field(1, "y")])),
)


def with_tensor(body: bytes) -> bytes:
    """A model with one initializer, "w"."""
    return chain(node(*ADD), initializers=[body])


add("tensor_negative_dim", lambda: with_tensor(tensor("w", [-1], b"")))
add("tensor_dims_overflow", lambda: with_tensor(tensor("w", [1 << 33] * 2, b"")))
add("tensor_dims_overflow_beside_zero", lambda: with_tensor(tensor("w", [0, *[1 << 33] * 2])))
add("billions_of_elements", lambda: with_tensor(tensor("w", [1 << 31, 4])))
add("tensor_too_short", lambda: with_tensor(tensor("w", [1000], bytes(16))))
add("tensor_too_long", lambda: with_tensor(tensor("w", [2], bytes(4096))))
add("tensor_without_data", lambda: with_tensor(tensor("w", [3])))
add("tensor_of_unknown_element", lambda: with_tensor(tensor("w", [1], bytes(4), 77)))
add("tensor_of_undefined_element", lambda: with_tensor(tensor("w", [1], bytes(4), 0)))
add("tensor_of_too_many_dims", lambda: with_tensor(tensor("w", [1] * 65, bytes(4))))
add(
    "tensor_of_packed_dims",
    lambda: with_tensor(field(1, b"\x01" * 100_000) + tensor("w", [], bytes(4))),
)
add(
    "tensor_in_the_wrong_field",
    lambda: with_tensor(tensor("w", [1], extra=field(7, varint(1)))),
)
add(
    "tensor_with_too_few_numbers",
    lambda: with_tensor(tensor("w", [9], None, INT64, extra=field(7, varint(-1) * 3))),
)
add(
    "tensor_with_a_cut_number",
    lambda: with_tensor(tensor("w", [2], None, INT64, extra=field(7, b"\x01\xff"))),
)
add("tensor_with_half_a_float", lambda: with_tensor(tensor("w", [1], extra=field(4, b"abc"))))
add(
    "tensor_stored_twice",
    lambda: with_tensor(tensor("w", [1], bytes(4), extra=field(4, bytes(4)))),
)
add("raw_strings", lambda: with_tensor(tensor("w", [1], b"text", STRING)))
add("tensor_in_segments", lambda: with_tensor(tensor("w", [1], bytes(4), extra=field(3, b""))))
add("sparse_index_outside", lambda: _sparse([4], [9]))
add("sparse_index_negative", lambda: _sparse([4], [-1]))
add("sparse_unfolds_to_terabytes", lambda: _sparse([1 << 40], [3]))


def _sparse(dims: list[int], index: list[int]) -> bytes:
    body = field(1, floats("w")) + field(2, ints("", *index)) + many(3, dims)
    return model(graph([node(*ADD)], [value("x")], [value("y")], extra=field(15, body)))
