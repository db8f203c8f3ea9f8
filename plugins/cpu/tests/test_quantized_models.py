"""Models as quantizing tools write them run in integers, with the bits of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

import engine
from engine.formats import open_source
from engine_cpu.quantized import Guard, guard_of
from engine_testing.making import tensor, write

Array = np.ndarray[Any, Any]
Nodes = list[onnx.NodeProto]

RANDOM = np.random.default_rng(0)
node = helper.make_node


def raw(path: Path, feeds: dict[str, Array], **entries: str) -> list[Array]:
    """The results of ONNX Runtime alone, one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    for key, value in entries.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [np.asarray(result) for result in session.run(None, feeds)]


class Net:
    """Collects nodes and weights of a float model."""

    def __init__(self) -> None:
        self.nodes: Nodes = []
        self.weights: dict[str, Array] = {}

    def add(self, operator: str, *inputs: str, **attributes: object) -> str:
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(node(operator, inputs, [name], name, **attributes))
        return name

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        scale = np.prod(shape[1:] if len(shape) > 2 else shape[:1]) ** -0.5
        self.weights[name] = np.float32(RANDOM.standard_normal(shape) * scale)
        return name

    def constant(self, value: object) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value)
        return name

    def save(self, path: Path, shape: list[int], result: str) -> Path:
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
        outputs = [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)]
        return write(path.parent, path.stem, inputs, outputs, self.nodes, self.weights, valid=False)


def cnn(path: Path) -> Path:
    """Convolutions, one of them depthwise and one of a single channel, and a residual."""
    net, x = Net(), "x"
    for inside, out, group in ((3, 8, 1), (8, 8, 8), (8, 8, 1)):
        weights = net.weight(out, inside // group, 3, 3)
        y = net.add("Conv", x, weights, net.weight(out), pads=[1] * 4, group=group)
        x = net.add("Add", x, y) if group == 1 and inside == out else net.add("Relu", y)
    one = net.add("Conv", x, net.weight(1, 8, 1, 1), net.weight(1))
    flat = net.add("Flatten", net.add("GlobalAveragePool", net.add("Mul", x, one)))
    return net.save(path, [1, 3, 12, 12], net.add("Gemm", flat, net.weight(8, 5), net.weight(5)))


def mlp(path: Path) -> Path:
    """A layer with a bias of 2,048, whose zero points take 8 KB, and one of a single output."""
    net, x = Net(), "x"
    for inside, out in ((16, 2048), (2048, 8), (8, 1)):
        x = net.add("Gemm", x, net.weight(inside, out), net.weight(out))
        x = net.add("Relu", x) if out > 1 else x
    return net.save(path, [4, 16], x)


def transformer(path: Path) -> Path:
    net, width = Net(), 16
    split, join = (net.constant(np.int64(shape)) for shape in ([1, 6, 2, 8], [1, 6, 16]))
    turned = []
    for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        dense = net.add("Add", net.add("MatMul", "x", net.weight(width, width)), net.weight(width))
        turned.append(net.add("Transpose", net.add("Reshape", dense, split), perm=perm))
    query, key, values = turned
    scores = net.add("Softmax", net.add("MatMul", query, key), axis=-1)
    mixed = net.add("Transpose", net.add("MatMul", scores, values), perm=[0, 2, 1, 3])
    x = net.add("Add", "x", net.add("Reshape", mixed, join))
    x = net.add("LayerNormalization", x, net.weight(width), net.weight(width))
    inner = net.add("Add", net.add("MatMul", x, net.weight(width, 64)), net.weight(64))
    inner = net.add("Mul", inner, net.add("Sigmoid", inner))
    return net.save(path, [1, 6, 16], net.add("MatMul", inner, net.weight(64, width)))


class Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, shape: list[int]) -> None:
        self._rest: Iterator[Array] = iter(RANDOM.standard_normal((4, *shape)).astype(np.float32))

    def get_next(self) -> dict[str, Array] | None:
        value = next(self._rest, None)
        return None if value is None else {"x": value}


SHAPES = {cnn: [1, 3, 12, 12], mlp: [4, 16], transformer: [1, 6, 16]}


@pytest.mark.parametrize("kind", [QuantType.QUInt8, QuantType.QInt8], ids=["uint8", "int8"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("is_external", [False, True])
@pytest.mark.parametrize("make", SHAPES)
def test_what_quantize_static_writes_has_the_bits_of_onnxruntime(
    tmp_path: Path, make: Callable[[Path], Path], is_external: bool, per_channel: bool, kind: Any
) -> None:
    floats, path = make(tmp_path / "float.onnx"), tmp_path / "model.onnx"
    quantize_static(
        floats, path, Samples(SHAPES[make]), per_channel=per_channel, activation_type=kind
    )
    if is_external:
        model = onnx.load(path)
        onnx.save(model, path, save_as_external_data=True, size_threshold=100)
    assert guard_of(open_source(path)) == Guard()
    x = np.float32(RANDOM.standard_normal(SHAPES[make]))
    model = engine.load(path, target="cpu", threads=1)
    [expected] = raw(path, {"x": x})
    np.testing.assert_array_equal(model.predict([x])[0].get_data_to_numpy(), expected)
    assert not any("in floats" in place.reason for place in model.placement)


# Of a bias's zero points: how they are written, by a tensor of int32 and these values.
def _raw(values: Array) -> TensorProto:
    return numpy_helper.from_array(values, "bz")


def _packed(values: Array) -> TensorProto:
    return helper.make_tensor("bz", TensorProto.INT32, values.shape, values.tolist())


def biased(path: Path, zeros: Array, encode: Callable[[Array], TensorProto] | None) -> Path:
    """A product with a bias for each of its columns, on integers. encode: None for a data file."""
    count = len(zeros)
    constants = {
        "xs": np.float32(0.03), "xz": np.uint8(99), "ws": np.full(count, 0.02, np.float32),
        "w": RANDOM.integers(-100, 100, (8, count)).astype(np.int8),
        "b": RANDOM.integers(-900, 900, count).astype(np.int32),
        "bs": np.full(count, np.float32(0.02) * np.float32(0.03)),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        node("DequantizeLinear", ["w", "ws"], ["wd"], axis=1),
        node("DequantizeLinear", ["b", "bs", "bz"], ["bd"], axis=0),
        node("Gemm", ["xd", "wd", "bd"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, count])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    model.graph.initializer.append((encode or _raw)(zeros))
    onnx.save(model, path, save_as_external_data=encode is None, size_threshold=0)
    return path


@pytest.mark.parametrize("encode", [_raw, _packed, None], ids=["raw", "packed", "external"])
@pytest.mark.parametrize("count", [1, 6, 1100, 2048])
def test_zero_points_of_a_bias_are_read_however_they_are_written(
    tmp_path: Path, encode: Callable[[Array], TensorProto] | None, count: int
) -> None:
    zeros = np.zeros(count, np.int32)
    assert guard_of(open_source(biased(tmp_path / "m.onnx", zeros, encode))) == Guard()
    zeros[-1] = 5
    found = guard_of(open_source(biased(tmp_path / "other.onnx", zeros, encode)))
    assert found.names == {"y"}


def two_products(path: Path, block: int) -> tuple[Array, Array]:
    """Two products of one x, on integers; the first has a scale for each `block` rows of weights.

    Writes the model, and one of the second product alone. Returns x, and what the first one gives.
    """
    weights = RANDOM.integers(-100, 100, (16, 8)).astype(np.int8)
    rows = np.linspace(0.005, 0.08, 16 // (block or 1), dtype=np.float32)
    scales = np.repeat(rows[:, None], 8, axis=1) if block else rows
    zeros = RANDOM.integers(-9, 9, scales.shape).astype(np.int8)
    constants = {
        "xs": np.float32(0.03), "xz": np.uint8(99), "w": weights, "rows": scales, "zeros": zeros,
        "ys": np.float32(0.05), "yz": np.uint8(120), "ws": np.full(8, 0.02, np.float32),
    }  # fmt: skip
    more = {"block_size": block} if block else {}
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        node("DequantizeLinear", ["w", "rows", "zeros"], ["wd"], axis=0, **more),
        node("MatMul", ["xd", "wd"], ["y"]),
        node("DequantizeLinear", ["w", "ws"], ["vd"], axis=1),
        node("MatMul", ["xd", "vd"], ["m"]),
        node("QuantizeLinear", ["m", "ys", "yz"], ["mq"]),
        node("DequantizeLinear", ["mq", "ys", "yz"], ["z"]),
    ]
    rest = [item for item in nodes if not {"wd", "y"} & {*item.output}]
    for file, given, results in ((path, nodes, "yz"), (path.with_stem("second"), rest, "z")):
        outputs = [tensor(name, [4, 8]) for name in results]
        write(file.parent, file.stem, [tensor("x", [4, 16])], outputs, given, constants,
              opset=21, valid=False)  # fmt: skip
    x = RANDOM.standard_normal((4, 16)).astype(np.float32)
    rounded = (np.clip(np.rint(x / np.float32(0.03)) + 99, 0, 255) - 99) * np.float32(0.03)
    factor, zero = (np.repeat(scales, block, 0), np.repeat(zeros, block, 0)) if block else (
        scales[:, None], zeros[:, None]
    )  # fmt: skip
    return x, rounded @ ((weights - np.float32(zero)) * factor)


@pytest.mark.parametrize("block", [0, 4], ids=["rows", "blocks"])
def test_one_node_in_floats_leaves_the_others_in_integers(tmp_path: Path, block: int) -> None:
    path = tmp_path / "model.onnx"
    x, expected = two_products(path, block)
    model = engine.load(path, target="cpu", threads=1)
    y, z = (result.get_data_to_numpy() for result in model.predict([x]))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(z, raw(path.with_stem("second"), {"x": x})[0])
    first, second = (place for place in model.placement if place.op_type == "MatMul")
    assert "in floats" in first.reason
    assert "in floats" not in second.reason
    kernels = {kernel.op_type: kernel.nodes for kernel in model.profile([x], 1).kernels}
    assert first.index in kernels["MatMul"]
    assert second.index in kernels["QLinearMatMul"]
    assert {str(place.state) for place in model.placement} > {"runs"}
