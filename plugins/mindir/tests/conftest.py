"""Writes .mindir files message by message: old dialects and damage, which no file here has."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine import Context
from engine_testing.encode import varint
from engine_testing.fixtures import null_backend, plugin_folder

os.environ["ENGINE_CACHE"] = "off"  # what a test builds is no business of the user's cache

__all__ = ["null_backend", "plugin_folder"]

FLOAT, INT64, STRING, BOOL = 1, 7, 8, 9
TENSORS, TUPLE, UMONAD, SCALAR = 19, 20, 23, 39


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def real(field: int, value: float) -> bytes:
    return varint(field << 3 | 5) + np.float32(value).tobytes()


def tensor(name: str, array: Any = None, dims: Any = None, data_type: int = FLOAT) -> bytes:
    if array is not None:
        dims = array.shape
        data_type = {"float32": 1, "int32": 6, "int64": 7, "bool": 9}[array.dtype.name]
    parts = [number(1, dim) for dim in dims or ()]
    parts += [number(2, data_type), text(7, name)]
    if array is not None:
        parts.append(text(9, array.tobytes()))
    return b"".join(parts)


def typed(*dims: int, data_type: int = FLOAT) -> bytes:
    """The attribute `shape` of a node: a tensor."""
    return (
        text(1, "shape") + text(12, tensor("shape", dims=dims, data_type=data_type))
        + number(16, TENSORS)
    )  # fmt: skip


def scalar(name: str, value: Any) -> bytes:
    """An attribute as newer files write it."""
    if value is None:
        return text(1, name) + number(16, 25)
    if isinstance(value, bool):
        return text(1, name) + number(3, value) + number(16, BOOL)
    if isinstance(value, int):
        return text(1, name) + number(3, value) + number(16, INT64)
    if isinstance(value, float):
        return text(1, name) + real(2, value) + number(16, FLOAT)
    if isinstance(value, str):
        return text(1, name) + text(5, value) + number(16, STRING)
    if isinstance(value, tuple):
        return (
            text(1, name) + b"".join(text(17, scalar("", item)) for item in value)
            + number(16, TUPLE)
        )  # fmt: skip
    return text(1, name) + text(12, tensor("value0", value)) + number(16, TENSORS)


def old(name: str, value: Any) -> bytes:
    """An attribute as older files write it: a form, and the numbers in one flat list."""
    if isinstance(value, tuple):
        count = iter(range(1, 1000))

        def form(item: Any) -> str:
            if isinstance(item, tuple):
                return f"Tuple[{''.join(form(each) for each in item)}],"
            return f"value{next(count)},"

        def flat(item: Any) -> list[int]:
            return [n for each in item for n in flat(each)] if isinstance(item, tuple) else [item]

        shown = form(value).removesuffix(",")
        numbers = b"".join(number(10, each) for each in flat(value))
        return text(1, name) + numbers + text(15, f"scalar:{shown}") + number(16, INT64)
    if isinstance(value, np.ndarray):
        return (
            text(1, name) + text(12, tensor("value0", value)) + text(15, "tensor:value0")
            + number(16, TENSORS)
        )  # fmt: skip
    if value is None:
        return text(1, name) + text(15, "none") + number(16, 25)
    return scalar(name, value) + text(15, "scalar:value0")


def node(op_type: str, inputs: Any, output: str, *attributes: bytes, domain: str = "") -> bytes:
    return b"".join(
        (
            *(text(1, name) for name in inputs),
            text(2, output), text(3, output), text(4, op_type),
            *(text(5, attribute) for attribute in attributes),
            text(7, domain or "Default/net"),
        )
    )  # fmt: skip


def constant(name: str, value: Any, write: Any = scalar) -> bytes:
    return node("Constant", (), name, write("value", value))


def value(name: str, *dims: int, data_type: int = FLOAT) -> bytes:
    return text(1, name) + text(2, tensor(name, dims=dims, data_type=data_type))


def graph(name: str, nodes: Any, inputs: Any, outputs: Any, parameters: Any = ()) -> bytes:
    return b"".join(
        (
            *(text(1, each) for each in nodes), text(2, name),
            *(text(3, each) for each in parameters),
            *(text(5, each) for each in inputs), *(text(6, each) for each in outputs),
        )
    )  # fmt: skip


def primitive(name: str, op_type: str, *attributes: bytes) -> bytes:
    return b"".join(
        (text(1, name), text(2, op_type), *(text(3, each) for each in attributes), number(5, 1))
    )


def model(main: bytes, functions: Any = (), primitives: Any = ()) -> bytes:
    return b"".join(
        (
            text(1, "0.1.1"), text(2, "MindSpore"), text(5, "1.2.0"), text(7, main),
            *(text(8, each) for each in functions), *(text(12, each) for each in primitives),
            number(10, 1), number(13, 3),
        )
    )  # fmt: skip


def function(
    name: str, nodes: Any, inputs: Any = None, outputs: Any = None, parameters: Any = ()
) -> bytes:
    """A graph. inputs, outputs: values, or dims of float32 by name; else x and y, of [2].

    parameters: tensors, or arrays by name.
    """

    def values(given: Any) -> list[bytes]:
        return [value(*(each, *given[each])) if isinstance(each, str) else each for each in given]

    ends = values(inputs or {f"{name}:x": [2]}), values(outputs or {f"{name}:y": [2]})
    held = [tensor(each, parameters[each]) if isinstance(each, str) else each
            for each in parameters]  # fmt: skip
    return graph(name, nodes, *ends, held)


def net(
    nodes: Any, inputs: Any = None, outputs: Any = None, *, parameters: Any = (),
    functions: Any = (), primitives: Any = (),
) -> bytes:  # fmt: skip
    """A file of the graph G. primitives: also names, which nodes write "REF::<name>"."""
    known = [primitive(each, each) if isinstance(each, str) else each for each in primitives]
    return model(function("G", nodes, inputs, outputs, parameters), functions, known)


def split(size: int, location: str = "data_0", writes: str = "Mul") -> bytes:
    """y = x * w + c, float32[size]; w is in a data file, behind 64 bytes, and c = w + 1 here."""
    place = text(1, location) + number(2, 64) + number(3, 4 * size)
    nodes = [node(writes, ["w", "x"], "p"), node("Add", ["p", "c"], "y")]
    w, c = tensor("w", dims=[size]) + text(12, place), np.arange(1, size + 1, dtype=np.float32)
    return net(nodes, {"x": [size]}, {"y": [size]}, parameters=[w, tensor("c", c)])


def run(data: bytes, *inputs: Any) -> list[Any]:
    """Return a model's outputs by onnx's reference evaluator."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    from engine.formats import source_from_bytes
    from engine.formats.onnx.inline import inlined
    from engine.reference.loop import Loop

    source = source_from_bytes(data)
    assert source.graph is not None
    session = ReferenceEvaluator(onnx.load_from_string(inlined(source).data or b""), new_ops=[Loop])
    names = [spec.name for spec in source.graph.inputs]
    return list(session.run(None, dict(zip(names, inputs, strict=True))))


@pytest.fixture
def null_context(null_backend: str) -> Context:
    """A context whose target is the null backend."""
    context = Context()
    context.target = [null_backend]
    return context


@pytest.fixture
def mindir() -> SimpleNamespace:
    """The functions above."""
    return SimpleNamespace(**{k: v for k, v in globals().items() if callable(v)})
