"""Models of older operator sets on the backend `reference`: as ONNX meant them then."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from graphs import parsed

import engine
from engine.errors import ModelError

pytestmark = pytest.mark.skipif(
    find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)
X = (np.arange(120).reshape(2, 3, 4, 5) % 11 / 4).astype(np.float32)


def run(
    opset: int,
    node: str,
    *inputs: np.ndarray,
    target: str = "reference",
    **constants: np.ndarray,
) -> np.ndarray:
    names = ("x", "at")[: len(inputs)]
    types = {"float32": "float", "int64": "int64"}
    given = ", ".join(
        f"{types[str(array.dtype)]}{[*array.shape]} {name}"
        for name, array in zip(names, inputs, strict=True)
    )
    model = parsed(f"g ({given}) => (float y) {{ y = {node} }}", opset=opset, **constants)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    found = engine.load(model, target=target)(dict(zip(names, inputs, strict=True)))["y"]
    assert isinstance(found, np.ndarray)
    return found


@pytest.mark.parametrize("opset", [6, 11])
@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -2])
def test_softmax_and_its_kin_flatten_at_their_axis(axis: int, opset: int) -> None:
    rows = X.astype(np.float64).reshape(int(np.prod(X.shape[: axis % 4])), -1)
    powers = np.exp(rows)
    soft = powers / powers.sum(1, keepdims=True)
    hard = np.eye(rows.shape[1])[rows.argmax(1)]
    for operator, expected in (("Softmax", soft), ("LogSoftmax", np.log(soft)), ("Hardmax", hard)):
        found = run(opset, f"{operator} <axis = {axis}> (x)", X)
        np.testing.assert_allclose(found, expected.reshape(X.shape), rtol=1e-5, err_msg=operator)


def test_softmax_of_operator_set_13_is_along_one_axis() -> None:
    powers = np.exp(X.astype(np.float64))
    found = run(13, "Softmax <axis = 1> (x)", X)
    np.testing.assert_allclose(found, powers / powers.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("opset", [7, 9, 14])
def test_batch_normalization_uses_the_means_it_is_given(opset: int) -> None:
    statistics = {
        name: np.array(numbers, np.float32)
        for name, numbers in (
            ("scale", [2, 3, 1]), ("bias", [1, 0, -1]), ("mean", [0.5, 1, 0]), ("var", [4, 1, 0.25])
        )
    }  # fmt: skip
    scale, bias, mean, var = (value.reshape(3, 1, 1) for value in statistics.values())
    expected = (X - mean) / np.sqrt(var + 0.5) * scale + bias
    node = "BatchNormalization <epsilon = 0.5> (x, scale, bias, mean, var)"
    np.testing.assert_allclose(run(opset, node, X, **statistics), expected, rtol=1e-5)


def test_resizing_goes_from_the_first_element_on() -> None:
    row = np.array([[[[1, 2, 3, 4]]]], np.float32)
    scales = np.array([1, 1, 1, 2], np.float32)
    expected = [1, 1.5, 2, 2.5, 3, 3.5, 4, 4]
    linear = run(10, 'Resize <mode = "linear"> (x, scales)', row, scales=scales)
    assert linear.ravel().tolist() == expected
    text = 'Upsample <mode = "linear", scales = [1.0, 1.0, 1.0, 2.0]> (x)'
    assert run(7, text, row).ravel().tolist() == expected


def test_resizing_to_fewer_elements_rounds_up() -> None:
    row = np.array([[[[1, 2, 3, 4]]]], np.float32)
    scales = np.array([1, 1, 1, 0.6], np.float32)
    nearest = run(10, 'Resize <mode = "nearest"> (x, scales)', row, scales=scales)
    assert nearest.ravel().tolist() == [1, 3]


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_an_axis_says_where_the_second_input_begins(target: str) -> None:
    x = np.arange(18, dtype=np.float32).reshape(2, 3, 3)
    w = np.array([10, 20, 30], np.float32)
    expected = {"Add": x + w[:, None], "Sub": x - w[:, None], "Mul": x * w[:, None]}
    for operator, y in expected.items():
        found = run(6, f"{operator} <axis = 1, broadcast = 1> (x, w)", x, target=target, w=w)
        assert found.tolist() == y.tolist(), operator


def test_a_norm_of_absolute_values_is_one() -> None:
    x = np.array([[-3, 1], [0, 0]], np.float32)
    found = run(22, "LpNormalization <axis = 1, p = 1> (x)", x)
    assert found.tolist() == [[-0.75, 0.25], [0, 0]]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_elements_are_gathered_along_an_axis(axis: int) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    at = np.array([[2, -1, 0], [0, 1, -2]], np.int64)
    expected = np.take_along_axis(x[:2] if axis else x[:, :3], at, axis)
    assert run(13, f"GatherElements <axis = {axis}> (x, at)", x, at).tolist() == expected.tolist()


def test_an_element_that_is_not_there_is_named() -> None:
    x, at = np.zeros((3, 4), np.float32), np.array([[0, 7]], np.int64)
    with pytest.raises(ModelError, match="index 7 is out of bounds for axis 1 with size 4"):
        run(13, "GatherElements <axis = 1> (x, at)", x, at)
