"""The benchmarks' models as .mindir files, in the form in which MindSpore 2.10 exports them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import models
import numpy as np
import onnx
from onnx import numpy_helper

FLOAT, INT64, BOOL = 1, 7, 9
TENSORS, TUPLE, UMONAD, PRIMITIVE_FUNCTION = 19, 20, 23, 2

# Of the operators that the models use: MindSpore's primitive, and what it takes beside tensors.
_PRIMITIVES: dict[str, tuple[str, Callable[[onnx.NodeProto], list[object]]]] = {
    "Add": ("Add", lambda node: []),
    "Mul": ("Mul", lambda node: []),
    "Erf": ("Erf", lambda node: []),
    "MatMul": ("MatMulExt", lambda node: []),
    "Reshape": ("Reshape", lambda node: []),
    "Transpose": ("Transpose", lambda node: [tuple(node.attribute[0].ints)]),
    "Softmax": ("Softmax", lambda node: [(-1,)]),
    "LayerNormalization": ("LayerNorm", lambda node: [-1, -1, 1e-5]),
}


def mindir_of(path: Path) -> Path:
    """Write an ONNX model of models.py as a .mindir beside it."""
    model = onnx.load(path)
    graph = model.graph
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    shapes = _shapes(model)
    used = sorted({_PRIMITIVES[node.op_type][0] for node in graph.node} | {"Load", "TupleGetItem"})
    keys = {name: f"{name}:{index}" for index, name in enumerate(used)}
    out: list[bytes] = [_constant("U", _number(16, UMONAD))]
    parameters: list[bytes] = []
    named: dict[str, str] = {}

    def given(value: object) -> str:
        name = f"ValueNode_{len(out)}"
        out.append(_constant(name, _value(value)))
        return name

    def run(primitive: str, inputs: list[str], output: str, shape: bytes) -> None:
        out.append(_node(f"REF::{keys[primitive]}", inputs, output, shape))

    def read(name: str) -> str:
        if name in named or name not in weights:
            return named.get(name, f"G:{name}")
        array = weights[name]
        if array.dtype != np.float32:
            return given(tuple(array.tolist()))
        if not array.ndim:
            return given(array)
        parameters.append(_tensor(f"G:{name}", array))
        named[name] = f"G:Load_{name}"
        run("Load", [f"G:{name}", "U"], named[name], _typed(array.shape))
        return named[name]

    for node in graph.node:
        primitive, others = _PRIMITIVES[node.op_type]
        inputs = [read(name) for name in node.input]
        inputs += [given(value) for value in others(node)]
        [output] = node.output
        shape = _typed(shapes[output])
        if primitive == "LayerNorm":
            run(primitive, inputs, f"G:all_{output}", _tuple_of(shape))
            inputs, primitive = [f"G:all_{output}", given(0)], "TupleGetItem"
        run(primitive, inputs, f"G:{output}", shape)
    values = {
        field: [
            _text(1, f"G:{info.name}") + _text(2, _tensor(f"G:{info.name}", dims=shapes[info.name]))
            for info in infos
        ]
        for field, infos in ((5, graph.input), (6, graph.output))
    }
    body = b"".join(_text(1, node) for node in out) + _text(2, "G")
    body += b"".join(_text(3, parameter) for parameter in parameters)
    body += b"".join(_text(field, value) for field, given in values.items() for value in given)
    data = _text(1, "1.1") + _text(2, "MindSpore") + _text(5, "2.10.0") + _text(7, body)
    data += _number(10, 1) + b"".join(
        _text(12, _text(1, key) + _text(2, name) + _number(5, PRIMITIVE_FUNCTION))
        for name, key in keys.items()
    )
    path = path.with_suffix(".mindir")
    path.write_bytes(data + _number(13, 3))
    return path


def tiny(folder: Path) -> Path:
    """One layer of next to nothing."""
    folder = folder / "tiny"
    folder.mkdir()
    return mindir_of(models.bert_like(folder, layers=1, hidden=8, heads=2, length=4))


def bert_like(folder: Path) -> Path:
    """BERT-base's layers, 340 MB."""
    return mindir_of(models.bert_like(folder, layers=12, hidden=768))


def small_bert(folder: Path) -> Path:
    """models.bert_like, 43 MB."""
    return mindir_of(models.bert_like(folder))


def _shapes(model: onnx.ModelProto) -> dict[str, list[int]]:
    graph = onnx.shape_inference.infer_shapes(model).graph
    return {
        info.name: [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        for info in (*graph.value_info, *graph.input, *graph.output)
    }


# ---------------------------------------------------------------------------------- the messages


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _tensor(name: str, array: np.ndarray | None = None, dims: object = ()) -> bytes:
    shape = tuple(dims) if array is None else array.shape  # type: ignore[call-overload]
    data = b"".join(_number(1, dim) for dim in shape) + _number(2, FLOAT) + _text(7, name)
    return data if array is None else data + _text(9, np.ascontiguousarray(array).tobytes())


def _typed(shape: object) -> bytes:
    return _text(1, "shape") + _text(12, _tensor("shape", dims=shape)) + _number(16, TENSORS)


def _tuple_of(first: bytes) -> bytes:
    """The type of LayerNorm's results, of which the first alone is used."""
    return _text(1, "shape") + _text(17, first) * 3 + _number(16, TUPLE)


def _value(value: object) -> bytes:
    if isinstance(value, tuple):
        items = (_text(17, _number(10, item) + _number(16, INT64)) for item in value)
        return b"".join(items) + _number(16, TUPLE)
    if isinstance(value, int):
        return _number(3, value) + _number(16, INT64)
    if isinstance(value, float):
        return _varint(2 << 3 | 5) + np.float32(value).tobytes() + _number(16, FLOAT)
    assert isinstance(value, np.ndarray)
    return _text(12, _tensor("value0", value)) + _number(16, TENSORS)


def _constant(name: str, value: bytes) -> bytes:
    return _node("Constant", [], name, _text(1, "value") + value)


def _node(kind: str, inputs: list[str], output: str, attribute: bytes) -> bytes:
    data = b"".join(_text(1, name) for name in inputs) + _text(2, output) + _text(3, output)
    return data + _text(4, kind) + _text(5, attribute) + _text(7, f"Default/net/{output}")
