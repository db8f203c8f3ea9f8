"""Weights stored as float16: the model computes as if its weights had been rounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from convert_models import changed
from graphs import parsed
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import engine
from engine import CancelToken, FmkType
from engine.converter import half
from engine.converter.job import Job

Array = np.ndarray[Any, Any]

CHANCE = np.random.default_rng(5)
X = CHANCE.normal(size=(3, 32)).astype(np.float32)
WEIGHT = CHANCE.normal(size=(32, 32)).astype(np.float32)
JOB = Job(
    framework=FmkType.ONNX, model_file=Path("m.onnx"), output_file=Path("o"), weight_fp16=True
)


def product_of(nodes: str, /, **weights: Array) -> ModelProto:
    """A model of x float32[n, 32] and y float32[n, m]."""
    return parsed(f"g (float[n, 32] x) => (float[n, m] y) {{ {nodes} }}", **weights)


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


PRODUCT = "y = MatMul(x, w)"


def assert_rounds(nodes: str, folder: Path, x: Array = X, **weights: Array) -> ModelProto:
    """The stored model gives what rounded weights give, bit for bit; returns it."""
    result, notes = store(product_of(nodes, **weights))
    assert notes == []
    expected = run(product_of(nodes, **{n: rounded(w) for n, w in weights.items()}), folder, x)
    np.testing.assert_array_equal(run(result, folder, x), expected)
    return result


def test_the_result_is_that_of_rounded_weights_bit_for_bit(tmp_path):
    result = assert_rounds(PRODUCT, tmp_path, w=WEIGHT)
    assert np.any(run(result, tmp_path) != run(product_of(PRODUCT, w=WEIGHT), tmp_path))
    assert stored(result) == {"w.float16": TensorProto.FLOAT16}


def test_the_file_is_about_half_as_large():
    model = product_of(PRODUCT, w=np.tile(WEIGHT, (1, 64)))
    result, _ = store(model)
    assert 0.5 < result.ByteSize() / model.ByteSize() < 0.51


def test_small_and_other_tensors_stay():
    more = {
        "small": np.ones(255, np.float32),  # 1020 bytes
        "wide": np.ones((16, 16)),
        "whole": np.ones((16, 16), np.int64),
    }
    result, notes = store(product_of(PRODUCT, w=WEIGHT, **more))
    assert notes == []
    assert stored(result) == {
        "w.float16": TensorProto.FLOAT16, "small": TensorProto.FLOAT,
        "wide": TensorProto.DOUBLE, "whole": TensorProto.INT64,
    }  # fmt: skip


def test_what_float16_cannot_hold_stays_and_is_said():
    large, tiny, few, infinite = (WEIGHT.copy() for _ in range(4))
    large[0, 0] = -7e4
    tiny[0] = 1e-9  # 32 of 1024 values, 3 %
    few[0, :4] = 1e-9  # 0.4 %
    infinite[0, 0] = np.inf
    nodes = "a = MatMul(x, large) b = MatMul(a, tiny) c = MatMul(b, few) y = MatMul(c, infinite)"
    result, notes = store(product_of(nodes, large=large, tiny=tiny, few=few, infinite=infinite))
    assert stored(result) == {
        "large": TensorProto.FLOAT, "tiny": TensorProto.FLOAT,
        "few.float16": TensorProto.FLOAT16, "infinite.float16": TensorProto.FLOAT16,
    }  # fmt: skip
    assert notes == [
        "weight 'large' stays float32: 1 of its 1024 values are beyond float16's 65504, "
        "up to 70000",
        "weight 'tiny' stays float32: 32 of its 1024 values are too small for float16, "
        "and would be zero",
    ]


def test_a_weight_with_several_readers_is_stored_once(tmp_path):
    nodes = "a = MatMul(x, w) b = MatMul(a, w) y = MatMul(b, w)"
    result = assert_rounds(nodes, tmp_path, w=WEIGHT)
    assert [node.op_type for node in result.graph.node].count("Cast") == 1


def test_a_name_that_is_taken_is_not_taken_again(tmp_path):
    nodes = '"w.float16" = MatMul(x, w) y = MatMul("w.float16", v)'
    result = assert_rounds(nodes, tmp_path, w=WEIGHT, v=WEIGHT.T.copy())
    assert set(stored(result)) == {"w.float16_2", "v.float16"}


def test_a_weight_may_be_an_output(tmp_path):
    model = product_of(PRODUCT, w=WEIGHT)
    model.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [32, 32]))
    result, _ = store(model)
    onnx.save(result, tmp_path / "model.onnx")
    with engine.load(tmp_path / "model.onnx", target="cpu") as built:
        np.testing.assert_array_equal(built(x=X)["w"], rounded(WEIGHT))


def constant(name: str, array: Array) -> NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


def test_constant_nodes_are_weights_too(tmp_path):
    model = product_of(PRODUCT)
    model.graph.node.insert(0, constant("w", WEIGHT))
    result, _ = store(model)
    assert result.ByteSize() < 0.6 * WEIGHT.nbytes
    expected = run(product_of(PRODUCT, w=rounded(WEIGHT)), tmp_path)
    np.testing.assert_array_equal(run(result, tmp_path), expected)


def branching(own: Array, outer: Array, constant_own: Array) -> ModelProto:
    """y = ((x @ own) @ outer) @ constant where the sum of x is positive, else x."""
    model = product_of(
        """
        sum = ReduceSum <keepdims = 0> (x)
        is_positive = Greater(sum, zero)
        y = If (is_positive) <
            then_branch = then () => (float[n, 32] t) {
                a = MatMul(x, own) b = MatMul(a, outer) t = MatMul(b, c)
            },
            else_branch = other () => (float[n, 32] e) { e = Identity(x) }
        >""",
        outer=outer,
        zero=np.zeros((), np.float32),
    )
    then = next(a.g for a in model.graph.node[-1].attribute if a.name == "then_branch")
    then.initializer.append(numpy_helper.from_array(own, "own"))
    then.node.insert(2, constant("c", constant_own))
    return model


def test_weights_of_subgraphs_are_stored_where_they_are(tmp_path):
    arrays = WEIGHT, WEIGHT.T.copy(), WEIGHT[::-1].copy()
    result, notes = store(branching(*arrays))
    assert notes == []
    assert result.ByteSize() < 0.6 * 3 * WEIGHT.nbytes
    expected = run(branching(*map(rounded, arrays)), tmp_path, abs(X))
    np.testing.assert_array_equal(run(result, tmp_path, abs(X)), expected)
    np.testing.assert_array_equal(run(result, tmp_path, -abs(X)), -abs(X))


def test_constants_of_functions_are_stored_too(tmp_path):
    def model(weight: Array) -> ModelProto:
        made = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "own": 1]>
            functions (float[n, 32] x) => (float[n, 32] y) { y = own.Dense(x) }
            <domain: "own", opset_import: ["": 17]> Dense (a) => (b) { b = MatMul(a, w) }""")
        made.functions[0].node.insert(0, constant("w", weight))
        return made

    result, _ = store(model(WEIGHT))
    assert result.ByteSize() < 0.6 * WEIGHT.nbytes
    expected = run(model(rounded(WEIGHT)), tmp_path)
    np.testing.assert_array_equal(run(result, tmp_path), expected)


def test_statistics_and_scales_stay_as_they_are(tmp_path):
    channels = 512
    statistics = {
        "scale": CHANCE.normal(size=channels).astype(np.float32),
        "shift": CHANCE.normal(size=channels).astype(np.float32),
        "mean": CHANCE.normal(size=channels).astype(np.float32),
        "variance": CHANCE.uniform(0.1, 1, channels).astype(np.float32),
        "step": CHANCE.uniform(0.01, 0.02, channels).astype(np.float32),
    }
    nodes = """
        a = MatMul(x, w)
        b = BatchNormalization(a, scale, shift, mean, variance)
        q = QuantizeLinear <axis = 1> (b, step)
        y = DequantizeLinear <axis = 1> (q, step)
    """
    weight = CHANCE.normal(size=(32, channels)).astype(np.float32)
    result, notes = store(product_of(nodes, w=weight, **statistics))
    assert notes == []
    kept = dict.fromkeys(statistics, TensorProto.FLOAT)
    assert stored(result) == {"w.float16": TensorProto.FLOAT16, **kept}
    expected = run(product_of(nodes, w=rounded(weight), **statistics), tmp_path)
    np.testing.assert_array_equal(run(result, tmp_path), expected)


@pytest.mark.parametrize("ir_version", [3, 8])
def test_weights_may_be_listed_as_inputs(ir_version, tmp_path):
    listed = ", float[32, 32] w" if ir_version < 4 else ""
    text = f"g (float[n, 32] x{listed}) => (float[n, m] y) {{ {PRODUCT} }}"
    model = parsed(text, opset=8, w=WEIGHT)
    model.ir_version = ir_version
    result, _ = store(model)
    assert stored(result) == {"w.float16": TensorProto.FLOAT16}
    onnx.save(result, tmp_path / "listed.onnx")
    with engine.load(tmp_path / "listed.onnx", target="cpu") as built:
        assert [each.name for each in built.inputs] == ["x"]
        expected = run(product_of(PRODUCT, w=rounded(WEIGHT)), tmp_path)
        np.testing.assert_array_equal(built(x=X)["y"], expected)


def test_where_there_is_nothing_to_store_it_says_so(tmp_path):
    weight = np.full((32, 1), 0.5, np.float32)
    result, notes = store(product_of(PRODUCT, w=weight))
    assert notes == ["weight_fp16: no float32 weight of 1 KiB or more could be stored so"]
    np.testing.assert_allclose(run(result, tmp_path), X @ weight, rtol=1e-5)


def test_a_cancelled_conversion_stops():
    token = CancelToken()
    token.cancel()
    job = Job(framework=FmkType.ONNX, model_file=Path("m"), output_file=Path("o"), cancel=token)
    with pytest.raises(engine.Cancelled):
        half.store(product_of(PRODUCT, w=WEIGHT), job)
