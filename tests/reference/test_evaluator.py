"""Differences of the null and reference backends' evaluator from onnx's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import engine

X = np.array([[0, 1, 2], [3, 4, 5]], np.float32)


def save_loop(folder: Path, condition: str, scanned: str) -> Path:
    """A loop that doubles x in each round; its scan output is what `scanned` makes of the state."""
    value = helper.make_tensor_value_info
    shape = [] if scanned == "ReduceMax" else [2, 3]
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "state"], ["doubled"]),
            helper.make_node(scanned, ["state"], ["scan"], **({} if shape else {"keepdims": 0})),
            helper.make_node("Identity", ["goes_on"], ["went_on"]),
        ],
        "body",
        [
            value("index", TensorProto.INT64, []),
            value("goes_on", TensorProto.BOOL, []),
            value("state", TensorProto.FLOAT, [2, 3]),
        ],
        [
            value("went_on", TensorProto.BOOL, []),
            value("doubled", TensorProto.FLOAT, [2, 3]),
            value("scan", TensorProto.FLOAT, shape),
        ],
    )
    inputs = [value("x", TensorProto.FLOAT, [2, 3]), value("rounds", TensorProto.INT64, [])]
    if condition:
        inputs.append(value(condition, TensorProto.BOOL, []))
    graph = helper.make_graph(
        [helper.make_node("Loop", ["rounds", condition, "x"], ["y", "scans"], body=body)],
        "loop",
        inputs,
        [
            value("y", TensorProto.FLOAT, [2, 3]),
            value("scans", TensorProto.FLOAT, ["rounds", *shape]),
        ],
    )
    path = folder / "loop.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opsets), path)
    return path


@pytest.mark.parametrize("condition", ["", "c"])
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_loop_stacks_what_its_rounds_give_with_and_without_a_condition(
    null_backend: str, tmp_path: Path, condition: str, rounds: int
) -> None:
    given = {"x": X, "rounds": np.array(rounds), **({"c": np.array(True)} if condition else {})}
    states = [X * 2**each for each in range(rounds)]

    model = engine.load(save_loop(tmp_path, condition, "Identity"), target=null_backend)
    found = model(given)
    np.testing.assert_array_equal(found["y"], X * 2**rounds)
    np.testing.assert_array_equal(found["scans"], np.array(states).reshape(rounds, 2, 3))

    model = engine.load(save_loop(tmp_path, condition, "ReduceMax"), target=null_backend)
    expected = np.array([5 * 2**each for each in range(rounds)], np.float32)
    np.testing.assert_array_equal(model(given)["scans"], expected)
    assert model(given)["scans"].shape == (rounds,)


def test_a_condition_that_is_false_runs_no_round(null_backend: str, tmp_path: Path) -> None:
    model = engine.load(save_loop(tmp_path, "c", "Identity"), target=null_backend)
    found = model({"x": X, "rounds": np.array(3), "c": np.array(False)})
    np.testing.assert_array_equal(found["y"], X)
    assert found["scans"].shape == (0, 2, 3)


def test_each_call_of_a_function_has_its_own_attributes(null_backend: str, tmp_path: Path) -> None:
    leaky = helper.make_node("LeakyRelu", ["a"], ["b"])
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    function = helper.make_function(
        "own", "Leak", ["a"], ["b"], [leaky], [helper.make_opsetid("", 17)], ["slope"]
    )
    graph = helper.make_graph(
        [
            helper.make_node("Leak", ["x"], ["once"], domain="own", slope=0.5),
            helper.make_node("Leak", ["once"], ["y"], domain="own", slope=0.25),
        ],
        "leaks",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    path = tmp_path / "leaks.onnx"
    onnx.save(
        helper.make_model(graph, ir_version=8, opset_imports=opsets, functions=[function]), path
    )
    model = engine.load(path, target=null_backend)
    np.testing.assert_array_equal(model(-X)["y"], -X * 0.125)


def save(folder: Path, nodes: list[onnx.NodeProto], constants: dict, opset: int) -> Path:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "made",
        [value("x", TensorProto.FLOAT, [2, 3])],
        [value("y", TensorProto.FLOAT, [2, 3])],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    path = folder / "made.onnx"
    onnx.save(
        helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)]), path
    )
    return path


@pytest.mark.parametrize("opset", [10, 13, 17, 18, 19, 21])
def test_quantized_values_are_dequantized_in_every_operator_set(
    opset: int, null_backend: str, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    constants = {"scale": np.float32(0.5), "zero": np.uint8(3)}
    model = engine.load(save(tmp_path, nodes, constants, opset), target=null_backend)
    np.testing.assert_array_equal(model(x=X * 0.5 + 0.1)["y"], X * 0.5)


def test_an_operator_set_that_onnx_does_not_know_is_refused(
    null_backend: str, tmp_path: Path
) -> None:
    path = save(tmp_path, [helper.make_node("Neg", ["x"], ["y"])], {}, 17)
    model = onnx.load(path)
    model.opset_import[0].version = 99
    path.write_bytes(model.SerializeToString())
    with pytest.raises(engine.ModelError, match="operator set 99 is newer than what onnx"):
        engine.load(path, target=null_backend)
