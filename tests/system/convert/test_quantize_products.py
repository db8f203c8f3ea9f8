"""Quantization: products are right on every processor, also where 16 bits hold sums of two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from graphs import parsed
from onnx import ModelProto
from quantize_models import DYNAMIC, Array, Config, job, maker, node, samples_of, weights

from engine.converter.quantize import quantize

# x86 processors without VNNI add two products of uint8 and int8 in 16 bits.
HIGHEST = 2**15 - 1
PAIR_OF_ACTIVATIONS = 2 * 255


def of_node(node: str, inside: str, out: str, **weights: Array) -> ModelProto:
    text = f"g (float[1, {inside}] x) => (float[1, {out}] y) {{ [product] {node} }}"
    return parsed(text, **weights)


def matmul(weight: Array) -> ModelProto:
    return of_node("y = MatMul(x, w)", "64", "20", w=weight.reshape(64, 20))


def gemm(weight: Array) -> ModelProto:
    held = {"w": weight.reshape(20, 64), "b": np.zeros(20, np.float32)}
    return of_node("y = Gemm <transB = 1> (x, w, b)", "64", "20", **held)


def conv(weight: Array) -> ModelProto:
    return of_node("y = Conv(x, w)", "16, 2, 2", "20, 1, 1", w=weight.reshape(20, 16, 2, 2))


def lstm(weight: Array) -> ModelProto:
    """One step; gates [i, o, f, c] of 5 cells over 64 inputs, small enough not to be 1."""
    held = {"w": weight.reshape(1, 20, 64) / 100, "r": np.full((1, 20, 5), 0.1, np.float32)}
    return of_node('"", y = LSTM <hidden_size = 5> (x, w, r)', "1, 64", "1, 5", **held)


def kept_full(folder: Path, values: Array, per_channel: str) -> Config:
    return {
        **samples_of(values, folder), "full_quant_param": {"per_channel": per_channel},
    }  # fmt: skip


def outputs(model: ModelProto, values: Array, *, is_exact: bool = False) -> Array:
    """Plain onnxruntime's results for each row of `values`; is_exact: without saturation."""
    options = onnxruntime.SessionOptions()
    if is_exact:
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.concatenate([session.run(None, {"x": row[None]})[0] for row in values])


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (matmul, ("true", "false", "dynamic")),
        (gemm, ("true", "false", "dynamic")),
        (conv, ("true", "false")),
        (lstm, ("dynamic",)),
    ],
)
def test_large_activations_times_large_weights_of_one_sign_do_not_saturate(
    tmp_path, random, make, kinds, sign
):
    weight = sign * random.uniform(0.8, 1, 20 * 64).astype(np.float32)
    model = make(weight)
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    values = random.uniform(0.8, 1, (10, *shape[1:])).astype(np.float32)
    wanted = outputs(model, values)
    for kind in kinds:
        config = DYNAMIC if kind == "dynamic" else kept_full(tmp_path / kind, values, kind)
        result, _, measured = quantize(model, job(config))
        products = [
            array for array in weights(result).values() if array.dtype == np.int8 and array.ndim > 1
        ]
        assert products
        for array in products:
            largest = np.abs(array.astype(int)).max()
            assert PAIR_OF_ACTIVATIONS * largest <= HIGHEST
        found = outputs(result, values)
        np.testing.assert_allclose(found, wanted, rtol=0.02)
        np.testing.assert_array_equal(found, outputs(result, values, is_exact=True))
        assert all(each["snr_db"] > 35 for each in measured.values())


def test_only_weights_of_products_lose_a_bit(tmp_path, random):
    model = parsed(
        """g (float[1, 2, 8] x) => (float[1, 2, 20] y) {
            [gather] g = Gather(table, rows)
            [add] a = Add(x, g)
            [product] m = MatMul(a, w)
            [multiply] y = Mul(m, gain)
        }""",
        table=random.uniform(-1, 1, (9, 8)).astype("f"),
        rows=np.array([[1, 4]]),
        w=random.standard_normal((8, 20)).astype("f"),
        gain=np.linspace(0, 1, 20, dtype="f"),
    )
    values = random.uniform(-1, 1, (10, 2, 8)).astype(np.float32)
    result, _, _ = quantize(model, job(samples_of(values, tmp_path / "x")))
    stored = weights(result)
    product, gain = (
        stored[maker(result, node(result, name).input[1]).input[0]]
        for name in ("product", "multiply")
    )
    assert np.abs(product.astype(int)).max() == 64
    assert (gain.min(), gain.max()) == (0, 255)


@pytest.mark.parametrize(
    ("target", "given", "largest"),
    [("", "", 64), ("", "false", 127), ("DSP", "", 64), ("NVGPU", "", 127), ("ASCEND", "", 127),
     ("ASCEND", "true", 64)],
)  # fmt: skip
def test_weights_have_8_bits_where_the_configuration_says_that_nothing_saturates(
    tmp_path, random, target, given, largest
):
    model = matmul(np.ones(20 * 64, np.float32))
    values = random.uniform(0.8, 1, (10, 64)).astype(np.float32)
    config = samples_of(values, tmp_path / "x")
    config["full_quant_param"] = {"target_device": target}
    config["common_quant_param"]["reduce_range"] = given
    result, notes, measured = quantize(model, job(config))
    [product] = [each for each in weights(result).values() if each.ndim == 2]
    assert np.abs(product.astype(int)).max() == largest
    # Measured as a device has it that does not saturate, not as this processor may.
    assert measured["y"]["snr_db"] > 35
    assert any("without VNNI" in note for note in notes) is (largest == 127)


def test_dynamic_quantization_takes_8_bits_too_and_weight_quantization_says_no_effect(random):
    model = matmul(random.uniform(0.8, 1, 20 * 64).astype(np.float32))
    for kind, largest in (("DYNAMIC_QUANT", 127), ("WEIGHT_QUANT", 127)):
        config = {"common_quant_param": {"quant_type": kind, "reduce_range": "false"}}
        result, notes, measured = quantize(model, job(config))
        [product] = [each for each in weights(result).values() if each.ndim == 2]
        assert np.abs(product.astype(int)).max() == largest
        assert measured["y"]["snr_db"] > 35
        has_no_effect = any("reduce_range has no effect" in note for note in notes)
        assert has_no_effect is (kind == "WEIGHT_QUANT")
