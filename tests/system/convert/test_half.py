"""Weights stored as float16: the model computes as if its weights had been rounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from convert_models import build, changed, value
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import engine
from engine import CancelToken, FmkType
from engine.convert import half
from engine.convert.job import Job

Array = np.ndarray[Any, Any]

CHANCE = np.random.default_rng(5)
X = CHANCE.normal(size=(3, 32)).astype(np.float32)
WEIGHT = CHANCE.normal(size=(32, 32)).astype(np.float32)
JOB = Job(
    framework=FmkType.ONNX, model_file=Path("m.onnx"), output_file=Path("o"), weight_fp16=True
)


def product_of(
    nodes: Sequence[NodeProto], weights: Mapping[str, Array], ir_version: int = 8, opset: int = 17
) -> ModelProto:
    """A model of x float32[n, 32] and y float32[n, m]."""
    inputs = [value("x", ["n", 32])]
    if ir_version < 4:
        inputs += [value(name, array.shape) for name, array in weights.items()]
    return build(nodes, inputs, [value("y", ["n", "m"])], weights, ir_version, opset)


def store(model: ModelProto) -> tuple[ModelProto, list[str]]:
    return changed(half.store, model, JOB)


def run(model: ModelProto, folder: Path, x: Array = X) -> Array:
    path = folder / "model.onnx"
    onnx.save(model, path)
    with engine.load(path, target="cpu") as built:
        y: Array = built(x=x)["y"]
        return y


def rounded(array: Array) -> Array:
    return array.astype(np.float16).astype(np.float32)


def stored(model: ModelProto) -> dict[str, int]:
    return {each.name: each.data_type for each in model.graph.initializer}


def product(weight: str = "w", x: str = "x", y: str = "y") -> NodeProto:
    return helper.make_node("MatMul", [x, weight], [y])


def test_the_result_is_that_of_rounded_weights_bit_for_bit(tmp_path: Path) -> None:
    result, notes = store(product_of([product()], {"w": WEIGHT}))
    assert notes == []
    expected = run(product_of([product()], {"w": rounded(WEIGHT)}), tmp_path)
    np.testing.assert_array_equal(run(result, tmp_path), expected)
    assert np.any(expected != run(product_of([product()], {"w": WEIGHT}), tmp_path))
    assert stored(result) == {"w.float16": TensorProto.FLOAT16}


def test_the_file_is_about_half_as_large() -> None:
    model = product_of([product()], {"w": np.tile(WEIGHT, (1, 64))})
    result, _ = store(model)
    assert 0.5 < result.ByteSize() / model.ByteSize() < 0.51


def test_small_and_other_tensors_stay(tmp_path: Path) -> None:
    weights = {
        "w": WEIGHT,
        "small": np.ones(255, np.float32),  # 1020 bytes
        "wide": np.ones((16, 16)),
        "whole": np.ones((16, 16), np.int64),
    }
    result, notes = store(product_of([product()], weights))
    assert notes == []
    assert stored(result) == {
        "w.float16": TensorProto.FLOAT16,
        "small": TensorProto.FLOAT,
        "wide": TensorProto.DOUBLE,
        "whole": TensorProto.INT64,
    }


def test_what_float16_cannot_hold_stays_and_is_said(tmp_path: Path) -> None:
    large, tiny, few, infinite = (WEIGHT.copy() for _ in range(4))
    large[0, 0] = -7e4
    tiny[0] = 1e-9  # 32 of 1024 values, 3 %
    few[0, :4] = 1e-9  # 0.4 %
    infinite[0, 0] = np.inf
    nodes = [
        product("large", "x", "a"),
        product("tiny", "a", "b"),
        product("few", "b", "c"),
        product("infinite", "c", "y"),
    ]
    weights = {"large": large, "tiny": tiny, "few": few, "infinite": infinite}
    result, notes = store(product_of(nodes, weights))
    assert stored(result) == {
        "large": TensorProto.FLOAT,
        "tiny": TensorProto.FLOAT,
        "few.float16": TensorProto.FLOAT16,
        "infinite.float16": TensorProto.FLOAT16,
    }
    assert notes == [
        "weight 'large' stays float32: 1 of its 1024 values are beyond float16's 65504, "
        "up to 70000",
        "weight 'tiny' stays float32: 32 of its 1024 values are too small for float16, "
        "and would be zero",
    ]


def test_a_weight_with_several_readers_is_stored_once(tmp_path: Path) -> None:
    nodes = [product("w", "x", "a"), product("w", "a", "b"), product("w", "b", "y")]
    result, _ = store(product_of(nodes, {"w": WEIGHT}))
    assert [node.op_type for node in result.graph.node].count("Cast") == 1
    expected = run(product_of(nodes, {"w": rounded(WEIGHT)}), tmp_path)
    np.testing.assert_array_equal(run(result, tmp_path), expected)


def test_a_name_that_is_taken_is_not_taken_again(tmp_path: Path) -> None:
    nodes = [product("w", "x", "w.float16"), product("v", "w.float16", "y")]
    result, _ = store(product_of(nodes, {"w": WEIGHT, "v": WEIGHT.T.copy()}))
    assert set(stored(result)) == {"w.float16_2", "v.float16"}
    expected = run(
        product_of(nodes, {"w": rounded(WEIGHT), "v": rounded(WEIGHT.T.copy())}), tmp_path
    )
    np.testing.assert_array_equal(run(result, tmp_path), expected)


def test_a_weight_may_be_an_output(tmp_path: Path) -> None:
    model = product_of([product()], {"w": WEIGHT})
    model.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [32, 32]))
    result, _ = store(model)
    path = tmp_path / "model.onnx"
    onnx.save(result, path)
    with engine.load(path, target="cpu") as built:
        np.testing.assert_array_equal(built(x=X)["w"], rounded(WEIGHT))


def constant(name: str, array: Array) -> NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


def test_constant_nodes_are_weights_too(tmp_path: Path) -> None:
    result, _ = store(product_of([constant("w", WEIGHT), product()], {}))
    assert result.ByteSize() < 0.6 * WEIGHT.nbytes
    expected = run(product_of([product()], {"w": rounded(WEIGHT)}), tmp_path)
    np.testing.assert_array_equal(run(result, tmp_path), expected)


def branching(own: Array, outer: Array, constant_own: Array) -> ModelProto:
    """y = ((x @ own) @ outer) @ constant where the sum of x is positive, else x."""
    then = helper.make_graph(
        [
            product("own", "x", "a"),
            product("outer", "a", "b"),
            constant("c", constant_own),
            product("c", "b", "then"),
        ],
        "then",
        [],
        [helper.make_tensor_value_info("then", TensorProto.FLOAT, ["n", 32])],
        [numpy_helper.from_array(own, "own")],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["else"])],
        "else",
        [],
        [helper.make_tensor_value_info("else", TensorProto.FLOAT, ["n", 32])],
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["is_positive"]),
        helper.make_node("If", ["is_positive"], ["y"], then_branch=then, else_branch=other),
    ]
    return product_of(nodes, {"outer": outer, "zero": np.zeros((), np.float32)})


def test_weights_of_subgraphs_are_stored_where_they_are(tmp_path: Path) -> None:
    arrays = WEIGHT, WEIGHT.T.copy(), WEIGHT[::-1].copy()
    result, notes = store(branching(*arrays))
    assert notes == []
    assert result.ByteSize() < 0.6 * 3 * WEIGHT.nbytes
    expected = run(branching(*map(rounded, arrays)), tmp_path, abs(X))
    np.testing.assert_array_equal(run(result, tmp_path, abs(X)), expected)
    np.testing.assert_array_equal(run(result, tmp_path, -abs(X)), -abs(X))


def test_constants_of_functions_are_stored_too(tmp_path: Path) -> None:
    def model(weight: Array) -> ModelProto:
        function = helper.make_function(
            "own",
            "Dense",
            ["a"],
            ["b"],
            [constant("w", weight), product("w", "a", "b")],
            [helper.make_opsetid("", 17)],
        )
        graph = helper.make_graph(
            [helper.make_node("Dense", ["x"], ["y"], domain="own")],
            "functions",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 32])],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        return helper.make_model(graph, ir_version=8, opset_imports=opsets, functions=[function])

    result, _ = store(model(WEIGHT))
    assert result.ByteSize() < 0.6 * WEIGHT.nbytes
    expected = run(model(rounded(WEIGHT)), tmp_path)
    np.testing.assert_array_equal(run(result, tmp_path), expected)


def test_statistics_and_scales_stay_as_they_are(tmp_path: Path) -> None:
    channels = 512
    statistics = {
        "scale": CHANCE.normal(size=channels).astype(np.float32),
        "shift": CHANCE.normal(size=channels).astype(np.float32),
        "mean": CHANCE.normal(size=channels).astype(np.float32),
        "variance": CHANCE.uniform(0.1, 1, channels).astype(np.float32),
        "step": CHANCE.uniform(0.01, 0.02, channels).astype(np.float32),
    }
    nodes = [
        product("w", "x", "a"),
        helper.make_node("BatchNormalization", ["a", "scale", "shift", "mean", "variance"], ["b"]),
        helper.make_node("QuantizeLinear", ["b", "step"], ["q"], axis=1),
        helper.make_node("DequantizeLinear", ["q", "step"], ["y"], axis=1),
    ]
    weight = CHANCE.normal(size=(32, channels)).astype(np.float32)
    result, notes = store(product_of(nodes, {"w": weight, **statistics}))
    assert notes == []
    assert stored(result) == {
        "w.float16": TensorProto.FLOAT16,
        **dict.fromkeys(statistics, TensorProto.FLOAT),
    }
    expected = run(product_of(nodes, {"w": rounded(weight), **statistics}), tmp_path)
    np.testing.assert_array_equal(run(result, tmp_path), expected)


@pytest.mark.parametrize("ir_version", [3, 8])
def test_weights_may_be_listed_as_inputs(ir_version: int, tmp_path: Path) -> None:
    model = product_of([product()], {"w": WEIGHT}, ir_version=ir_version, opset=8)
    result, _ = store(model)
    assert stored(result) == {"w.float16": TensorProto.FLOAT16}
    path = tmp_path / "model.onnx"
    onnx.save(result, path)
    with engine.load(path, target="cpu") as built:
        assert [each.name for each in built.inputs] == ["x"]
        expected = run(product_of([product()], {"w": rounded(WEIGHT)}), tmp_path)
        np.testing.assert_array_equal(built(x=X)["y"], expected)


def test_where_there_is_nothing_to_store_it_says_so(tmp_path: Path) -> None:
    weight = np.full((32, 1), 0.5, np.float32)
    result, notes = store(product_of([product()], {"w": weight}))
    assert notes == ["weight_fp16: no float32 weight of 1 KiB or more could be stored so"]
    np.testing.assert_allclose(run(result, tmp_path), X @ weight, rtol=1e-5)


def test_a_cancelled_conversion_stops() -> None:
    token = CancelToken()
    token.cancel()
    job = Job(framework=FmkType.ONNX, model_file=Path("m"), output_file=Path("o"), cancel=token)
    with pytest.raises(engine.Cancelled):
        half.store(product_of([product()], {"w": WEIGHT}), job)
