"""Quantized models compute what ONNX defines, in integers where ONNX Runtime's kernels do too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from rewrite_graphs import plain

import engine
from engine import Model
from engine.backends import open_backend
from engine.formats import open_source
from engine.types import CompileOptions, Device
from engine_cpu.quantized import OFF, Guard, guard_of

Build = Callable[..., Model]
node = helper.make_node
Array = np.ndarray[Any, Any]

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((4, 8)).astype(np.float32)
SCALES = np.linspace(0.005, 0.08, 8, dtype=np.float32)
X_SCALE = np.float32(0.03)
WEIGHTS = RANDOM.integers(-100, 100, (8, 8)).astype(np.int8)


def rounded(x: Array, scale: Any, zero: Any = 0, kind: Any = np.int8) -> Array:
    """Quantize and dequantize, by ONNX's definition."""
    limits = np.iinfo(kind)
    return (np.clip(np.rint(x / scale) + zero, limits.min, limits.max) - zero) * scale


def quantized(
    name: str, kind: Any = np.int8, scale: str = "xs", zero: str = "xz", **at: int
) -> list[Any]:
    """Nodes from the value `name` to `name`_d through integers."""
    return [
        node("QuantizeLinear", [name, scale, zero], [f"{name}_q"], **at),
        node("DequantizeLinear", [f"{name}_q", scale, zero], [f"{name}_d"], **at),
    ]


def weights(values: Array, scale: Any, **at: int) -> tuple[list[Any], dict[str, Any]]:
    """A node that gives `wd`, and its constants."""
    nodes = [node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], **at)]
    zeros = np.zeros(np.shape(scale), values.dtype)
    return nodes, {"w": values, "ws": np.float32(scale), "wz": zeros}


def notes(model: Model) -> set[str]:
    return {place.reason for place in model.placement if "in floats" in place.reason}


ACTIVATIONS = {"xs": X_SCALE, "xz": np.int8(3)}


@pytest.mark.parametrize("columns", [8, 6])
@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize(
    ("operator", "attributes"), [("MatMul", {}), ("Gemm", {}), ("Gemm", {"transB": 1})]
)
def test_the_scales_of_weights_lie_along_the_axis_that_the_model_says(
    build: Build, operator: str, attributes: dict[str, int], axis: int, columns: int
) -> None:
    stored = WEIGHTS[:, :columns].T if attributes else WEIGHTS[:, :columns]
    scales = SCALES[: stored.shape[axis]]
    nodes, constants = weights(stored, scales, axis=axis)
    product = node(operator, ["x_d", "wd"], ["y"], **attributes)
    model = build([*quantized("x"), *nodes, product], ["x:float[m,8]"], ["y:float[m,n]"], 21,
                  {**ACTIVATIONS, **constants})  # fmt: skip
    real = stored * (scales[:, None] if axis in (0, -2) else scales)
    expected = rounded(X, X_SCALE, 3) @ (real.T if attributes else real)
    np.testing.assert_allclose(model(x=X)["y"], expected, rtol=1e-4, atol=1e-4)
    is_of_columns = axis in (0, -2) if attributes else axis in (1, -1)
    assert bool(notes(model)) is not is_of_columns


def test_zero_points_may_be_left_out(build: Build) -> None:
    _, constants = weights(WEIGHTS, SCALES)
    nodes = [node("DequantizeLinear", ["w", "ws"], ["wd"], axis=1),
             node("Gemm", ["x_d", "wd"], ["y"])]  # fmt: skip
    model = build([*quantized("x"), *nodes], ["x:float[m,8]"], ["y:float[m,n]"], 13,
                  {**ACTIVATIONS, **constants})  # fmt: skip
    expected = rounded(X, X_SCALE, 3) @ (WEIGHTS * SCALES)
    np.testing.assert_allclose(model(x=X)["y"], expected, rtol=1e-4, atol=1e-4)


def test_turned_weights_take_their_scales_with_them(build: Build) -> None:
    for axis in (0, 1):
        nodes, constants = weights(WEIGHTS, SCALES, axis=axis)
        nodes += [node("Transpose", ["wd"], ["wt"], perm=[1, 0]),
                  node("MatMul", ["x_d", "wt"], ["y"])]  # fmt: skip
        model = build([*quantized("x"), *nodes], ["x:float[m,8]"], ["y:float[m,n]"], 13,
                      {**ACTIVATIONS, **constants})  # fmt: skip
        real = WEIGHTS * (SCALES if axis else SCALES[:, None])
        expected = rounded(X, X_SCALE, 3) @ real.T
        np.testing.assert_allclose(model(x=X)["y"], expected, rtol=1e-4, atol=1e-4)
        assert bool(notes(model)) is (axis == 1)


def test_convolution_takes_scales_of_its_inputs_channels(build: Build) -> None:
    values = WEIGHTS[:, :, None, None]
    outer = {"ys": np.float32(0.5), "yz": np.int8(0)}
    for axis in (0, 1):
        nodes, constants = weights(values, SCALES, axis=axis)
        nodes += [node("Conv", ["x_d", "wd"], ["c"]), *quantized("c", scale="ys", zero="yz")]
        model = build([*quantized("x"), *nodes], ["x:float[1,8,2,2]"], ["c_d:float[]"], 13,
                      {**ACTIVATIONS, **constants, **outer})  # fmt: skip
        x = X.reshape(1, 8, 2, 2)
        real = WEIGHTS * (SCALES if axis else SCALES[:, None])
        expected = np.einsum("nchw,oc->nohw", rounded(x, X_SCALE, 3), real)
        assert np.abs(model(x=x)["c_d"] - expected).max() <= 0.25 + 1e-3
        assert bool(notes(model)) is (axis == 1)


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_activations_may_have_a_scale_for_each_row(build: Build, kind: Any) -> None:
    nodes, constants = weights(WEIGHTS, 0.02)
    zeros = np.full(4, 100, kind)
    model = build(
        [*quantized("x", axis=0), *nodes, node("MatMul", ["x_d", "wd"], ["y"])],
        ["x:float[4,8]"], ["y:float[4,8]"], 21,
        {"xs": SCALES[:4], "xz": zeros, **constants},
    )  # fmt: skip
    expected = rounded(X, SCALES[:4, None], 100, kind) @ (WEIGHTS * np.float32(0.02))
    np.testing.assert_allclose(model(x=X)["y"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("operator", ["Softmax", "Sigmoid", "AveragePool", "Mul"])
def test_results_may_have_a_scale_for_each_column(build: Build, operator: str) -> None:
    inputs = ["x_d", "x_d"] if operator == "Mul" else ["x_d"]
    attributes = {"kernel_shape": [1]} if operator == "AveragePool" else {}
    constants = {"xs": X_SCALE, "xz": np.uint8(99), "ys": SCALES / 10, "yz": np.zeros(8, np.uint8)}
    nodes = [node(operator, inputs, ["r"], **attributes),
             *quantized("r", scale="ys", zero="yz", axis=2)]  # fmt: skip
    model = build([*quantized("x"), *nodes], ["x:float[1,4,8]"], ["r_d:float[1,4,8]"], 13,
                  constants)  # fmt: skip
    x = rounded(X, X_SCALE, 99, np.uint8)
    real = {
        "Softmax": np.exp(x) / np.exp(x).sum(axis=1, keepdims=True),
        "Sigmoid": 1 / (1 + np.exp(-x)),
        "AveragePool": x,
        "Mul": x * x,
    }[operator]
    expected = rounded(real, SCALES / 10, 0, np.uint8)
    assert (np.abs(model(x=X[None])["r_d"][0] - expected) <= SCALES / 9).all()


@pytest.mark.parametrize("scale_shape", [(), (1,)])
def test_an_average_is_taken_whatever_the_shape_of_one_scale(
    build: Build, scale_shape: tuple[int, ...]
) -> None:
    one = {"xs": np.full(scale_shape, X_SCALE), "xz": np.full(scale_shape, 3, np.int8)}
    nodes = [node("AveragePool", ["x_d"], ["r"], kernel_shape=[2], strides=[2]), *quantized("r")]
    model = build([*quantized("x"), *nodes], ["x:float[1,4,8]"], ["r_d:float[1,4,4]"], 13, one)
    expected = rounded(X, X_SCALE, 3).reshape(4, 4, 2).mean(axis=2)
    assert np.abs(model(x=X[None])["r_d"][0] - expected).max() <= X_SCALE * 0.51
    assert bool(notes(model)) is (scale_shape == (1,))


@pytest.mark.parametrize("operator", ["Gemm", "MatMul"])
@pytest.mark.parametrize("factor", [1, 3])
def test_a_bias_has_its_own_scale(build: Build, operator: str, factor: int) -> None:
    nodes, constants = weights(WEIGHTS, 0.02)
    scale = np.float32(factor * 0.02) * X_SCALE
    bias = RANDOM.integers(-3000, 3000, 8).astype(np.int32)
    nodes.append(node("DequantizeLinear", ["b", "bs"], ["bd"]))
    if operator == "Gemm":
        nodes.append(node("Gemm", ["x_d", "wd", "bd"], ["y"]))
    else:
        nodes += [node("MatMul", ["x_d", "wd"], ["p"]), node("Add", ["p", "bd"], ["y"])]
    model = build([*quantized("x"), *nodes], ["x:float[4,8]"], ["y:float[4,8]"], 13,
                  {**ACTIVATIONS, **constants, "b": bias, "bs": scale})  # fmt: skip
    expected = rounded(X, X_SCALE, 3) @ (WEIGHTS * np.float32(0.02)) + bias * scale
    np.testing.assert_allclose(model(x=X)["y"], expected, rtol=1e-4, atol=1e-4)
    assert bool(notes(model)) is (factor != 1)


def test_float_weights_between_quantized_values_are_not_rounded(build: Build) -> None:
    w = RANDOM.standard_normal((8, 8)).astype(np.float32)
    outer = {"ys": np.float32(0.001), "yz": np.uint16(32768), "w": w}
    nodes = [node("Gemm", ["x_d", "w"], ["g"]), *quantized("g", scale="ys", zero="yz")]
    model = build([*quantized("x"), *nodes], ["x:float[4,8]"], ["g_d:float[4,8]"], 21,
                  {**ACTIVATIONS, **outer})  # fmt: skip
    expected = rounded(X, X_SCALE, 3) @ w
    assert np.abs(model(x=X)["g_d"] - expected).max() <= 0.0006
    assert "8 bits" in notes(model).pop()


@pytest.mark.parametrize("operator", ["Slice", "Transpose", "Reshape"])
def test_int8_may_be_moved_about(build: Build, operator: str, tmp_path: Path) -> None:
    """ONNX Runtime 1.28 and later build no session of it where processors want uint8."""
    inputs = {"Slice": ["x_d", "one", "four"], "Transpose": ["x_d"], "Reshape": ["x_d", "all"]}
    constants = {"one": np.int64([1]), "four": np.int64([4]), "all": np.int64([-1])}
    model = build([*quantized("x"), node(operator, inputs[operator], ["m"]),
                   node("Neg", ["m"], ["y"])],
                  ["x:float[4,8]"], ["y:float[]"], 21, {**ACTIVATIONS, **constants})  # fmt: skip
    x = -rounded(X, X_SCALE, 3)
    expected = {"Slice": x[1:4], "Transpose": x.T, "Reshape": x.reshape(-1)}[operator]
    np.testing.assert_allclose(model(x=X)["y"], expected, atol=1e-6)
    assert {place.backend for place in model.placement} == {"cpu"}


def summed(scales: Any = SCALES, axis: int = 0) -> tuple[list[Any], dict[str, Any]]:
    """The nodes and constants of a product with scales along the axis that is summed over."""
    nodes, constants = weights(WEIGHTS, scales, axis=axis)
    nodes = [*quantized("x"), *nodes, node("MatMul", ["x_d", "wd"], ["y"])]
    return nodes, {**ACTIVATIONS, **constants}


EXPECTED = rounded(X, X_SCALE, 3) @ (WEIGHTS * SCALES[:, None])


def test_onnxruntime_itself_is_wrong_still(build: Build, tmp_path: Path) -> None:
    """Where this fails, a newer one is right: see which reasons quantized.py may drop from then."""
    nodes, constants = summed()
    build(nodes, ["x:float[4,8]"], ["y:float[4,8]"], 13, constants)
    error = np.abs(plain(tmp_path / "model.onnx", {"x": X}) - EXPECTED).max()
    assert error > 1, f"onnxruntime {ort.__version__} is right"


def test_it_can_be_turned_off(build: Build, tmp_path: Path) -> None:
    nodes, constants = summed()
    for config in ({"workarounds": "off"}, {OFF: "0"}):
        model = build(nodes, ["x:float[4,8]"], ["y:float[4,8]"], 13, constants,
                      config={"cpu_context": config})  # fmt: skip
        result = model(x=X)["y"]
        np.testing.assert_array_equal(result, plain(tmp_path / "model.onnx", {"x": X}))
        assert not notes(model)


def test_constants_may_be_nodes(build: Build) -> None:
    nodes, constants = summed()
    made = [
        node("Constant", [], ["ws"], value_floats=constants.pop("ws").tolist()),
        node("Constant", [], ["xs"], value_float=float(constants.pop("xs"))),
    ]
    model = build([*made, *nodes], ["x:float[4,8]"], ["y:float[4,8]"], 13, constants)
    np.testing.assert_allclose(model(x=X)["y"], EXPECTED, rtol=1e-4, atol=1e-4)


def test_it_is_found_in_a_branch(build: Build) -> None:
    nodes, constants = summed()
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    values = [helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape,
                                 value.ravel().tolist())
              for name, value in constants.items()]  # fmt: skip
    branch = helper.make_graph(nodes, "branch", [], [result], values)
    model = build([node("If", ["flag"], ["z"], then_branch=branch, else_branch=branch)],
                  ["flag:bool", "x:float[4,8]"], ["z:float[]"], 13)  # fmt: skip
    given = model(x=X, flag=np.bool_(True))["z"]
    np.testing.assert_allclose(given, EXPECTED, rtol=1e-4, atol=1e-4)


def test_a_compiled_form_is_as_right(build: Build, tmp_path: Path) -> None:
    nodes, constants = summed()
    build(nodes, ["x:float[4,8]"], ["y:float[4,8]"], 13, constants)
    options = CompileOptions(device=Device("cpu"))
    backend = open_backend("cpu")
    source = open_source(tmp_path / "model.onnx")
    folder = tmp_path / "compiled"
    folder.mkdir()
    cold = replace(options, save_to=folder)
    for given, how in ((source, cold), (replace(source, compiled=folder), options)):
        executable = backend.compile(backend.load(given, how), how)
        [y] = backend.predict(executable.open_context(), [X], None, None)
        np.testing.assert_allclose(y, EXPECTED, rtol=1e-4, atol=1e-4)
        assert any("in floats" in place.reason for place in executable.placement())
        executable.close()


def test_a_model_as_tools_quantize_it_stays_in_integers(build: Build, tmp_path: Path) -> None:
    """A network of products with scales by channel, biases and a residual; nothing is lost."""
    constants: dict[str, Any] = {"xs": X_SCALE, "xz": np.uint8(99), "w": WEIGHTS, "ws": SCALES}
    constants |= {"ys": np.float32(0.05), "yz": np.uint8(0)}
    constants |= {"b": np.arange(8, dtype=np.int32), "bs": SCALES * X_SCALE,
                  "k": WEIGHTS[:, :, None], "flat": np.int64([4, 8])}  # fmt: skip
    nodes: Sequence[Any] = [
        *quantized("x"),
        node("DequantizeLinear", ["k", "ws"], ["kd"], axis=0),
        node("DequantizeLinear", ["b", "bs"], ["bd"], axis=0),
        node("Conv", ["x_d", "kd", "bd"], ["c"]),
        node("Relu", ["c"], ["r"]),
        *quantized("r", scale="ys", zero="yz"),
        node("Reshape", ["r_d", "flat"], ["m"]),
        *quantized("m", scale="ys", zero="yz"),
        node("DequantizeLinear", ["w", "ws"], ["wd"], axis=1),
        node("MatMul", ["m_d", "wd"], ["p"]),
        *quantized("p", scale="ys", zero="yz"),
        node("Add", ["p_d", "m_d"], ["a"]),
        *quantized("a", scale="ys", zero="yz"),
    ]
    build(nodes, ["x:float[1,8,4]"], ["a_d:float[4,8]"], 13, constants)
    assert guard_of(open_source(tmp_path / "model.onnx")) == Guard()
    model = engine.load(tmp_path / "model.onnx", target="cpu")
    states = {place.op_type: str(place.state) for place in model.placement}
    assert states["Relu"] != "runs"  # in the convolution's kernel


@pytest.mark.parametrize("name", ["Identity", "DequantizeLinear", "Conv"])
def test_a_function_may_be_named_as_an_operator(build: Build, name: str) -> None:
    opsets = [helper.make_opsetid("", 21)]
    inputs = ["v"] if name == "Conv" else []
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    result = node("Neg", inputs, ["o"]) if inputs else node("Constant", [], ["o"], value=one)
    function = helper.make_function("my", name, inputs, ["o"], [result], opsets)
    nodes, constants = weights(WEIGHTS, SCALES)
    nodes += [node(name, ["x_d"] if inputs else [], ["f"], domain="my"),
              node("Add", ["f", "wd"], ["a"]), node("MatMul", ["x_d", "a"], ["y"])]  # fmt: skip
    model = build([*quantized("x"), *nodes], ["x:float[8,8]"], ["y:float[]"], 21,
                  {**ACTIVATIONS, **constants}, {"my": 1}, functions=[function])  # fmt: skip
    x = np.concatenate([X, X])
    given = rounded(x, X_SCALE, 3)
    factor = (-given if inputs else 1) + WEIGHTS * SCALES
    np.testing.assert_allclose(model(x=x)["y"], given @ factor, rtol=1e-3, atol=1e-3)
