"""Quantization: what becomes of a model's nodes and weights."""

from __future__ import annotations

import re

import numpy as np
import pytest
from graphs import parsed
from onnx import ModelProto, TensorProto, helper, numpy_helper
from quantize_models import (
    DYNAMIC,
    WEIGHT,
    graph,
    job,
    maker,
    node,
    operators,
    product,
    samples_of,
    weights,
)

import engine
from engine.converter import edges
from engine.converter.quantize import quantize
from engine.errors import ModelError


def scale_of(model: ModelProto, value: str) -> float:
    """The scale with which an input is quantized."""
    [found] = [
        each for each in model.graph.node
        if each.op_type == "QuantizeLinear" and each.input[0] == value
    ]  # fmt: skip
    return float(weights(model)[found.input[1]])


def test_methods_differ_in_what_they_make_of_an_outlier(tmp_path, random):
    values = random.uniform(-1, 1, (40, 1000)).astype(np.float32)
    values[3, 5] = 50
    model = product(random, inside=1000)
    config = samples_of(values, tmp_path / "x")
    scales = {}
    for method in ("MAX_MIN", "REMOVAL_OUTLIER", "KL"):
        result, _, _ = quantize(
            model, job({**config, "full_quant_param": {"activation_quant_method": method}})
        )
        scales[method] = scale_of(result, "x")
    lowest = values[[i for i in range(40) if i % 5 != 4]].min()
    assert scales["MAX_MIN"] == pytest.approx((50 - lowest) / 255, rel=1e-5)
    # One value in 32,000 is less than the 0.01 % that are cut off: what is left is [-1, 1].
    assert scales["REMOVAL_OUTLIER"] == pytest.approx(2 / 255, rel=0.1)
    assert scales["KL"] < 0.6 * scales["MAX_MIN"]


def test_normalization_goes_into_its_convolution_first(tmp_path, random):
    numbers = {
        "w": (4, 3, 3, 3), "gain": (4,), "shift": (4,), "mean": (4,), "variance": (4,),
    }  # fmt: skip
    model = parsed(
        """g (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) {
            [conv] c = Conv <pads = [1, 1, 1, 1]> (x, w)
            [norm] y = BatchNormalization(c, gain, shift, mean, variance)
        }""",
        **{name: random.uniform(0.5, 1, size).astype("f") for name, size in numbers.items()},
    )
    values = random.standard_normal((10, 3, 8, 8)).astype(np.float32)
    result, _, measured = quantize(model, job(samples_of(values, tmp_path / "x")))
    assert operators(result)["BatchNormalization"] == 0
    assert measured["y"]["snr_db"] > 30

    config = samples_of(values, tmp_path / "again")
    config["common_quant_param"]["skip_quant_node"] = "norm"  # then it has to stay
    result, _, measured = quantize(model, job(config))
    assert node(result, "norm").op_type == "BatchNormalization"
    assert maker(result, node(result, "conv").input[1]).op_type == "DequantizeLinear"
    assert measured["y"]["snr_db"] > 30


def test_masks_of_minus_infinity_stay_out_of_int8(tmp_path, run, random):
    mask = np.zeros(20, np.float32)
    mask[7] = -np.inf
    model = product(random)
    model.graph.initializer.append(numpy_helper.from_array(mask, "mask"))
    model.graph.node.append(helper.make_node("Relu", ["y"], ["r"], "rectify"))
    model.graph.node.append(helper.make_node("Add", ["r", "mask"], ["z"], "masked"))
    model.graph.output[0].name = "z"
    values = random.standard_normal((10, 8)).astype(np.float32)
    result, notes, measured = quantize(model, job(samples_of(values, tmp_path / "x")))
    [note] = [each for each in notes if "not finite" in each]
    assert "such as 'masked'" in note
    assert run(result, x=values)["z"][:, 7].tolist() == [-np.inf] * 10
    assert maker(result, node(result, "product").input[1]).op_type == "DequantizeLinear"
    assert measured["z"]["snr_db"] > 30


def test_with_integer_edges_it_takes_and_gives_int8_by_the_scales_that_are_noted(
    tmp_path, run, random
):
    model = product(random)
    values = random.uniform(-1, 1, (40, 8)).astype(np.float32)
    floats, _, _ = quantize(model, job(samples_of(values, tmp_path / "x")))
    result, notes = edges.adapt(
        floats, job({}, input_dtype=engine.DataType.INT8, output_dtype=engine.DataType.INT8)
    )
    scales = [re.search(r"is (\S+) \* \(number - (\S+)\)$", note) for note in notes]
    (scale, zero), (step, shift) = ((float(each[1]), int(each[2])) for each in scales if each)
    numbers = np.clip(np.rint(values / scale) + zero, -128, 127).astype(np.int8)
    found = run(result, x=numbers)["y"]
    assert found.dtype == np.int8
    expected = run(floats, x=values)["y"]
    np.testing.assert_allclose(step * (found.astype(np.float32) - shift), expected, atol=step / 9)


@pytest.mark.parametrize("target", ["NVGPU", "ascend"])
def test_devices_without_zero_points_get_none(digits, full, target):
    full["full_quant_param"] = {"target_device": target}
    result, _, _ = quantize(digits, job(full))
    stored = weights(result)
    points = [n.input[2] for n in result.graph.node if n.op_type == "QuantizeLinear"]
    assert points
    assert all(not stored[name].any() for name in points)
    stays_float = any(array.dtype == np.int32 for array in stored.values())
    assert stays_float is (target != "NVGPU")


def test_weights_below_the_thresholds_stay_float32(random):
    shapes = {"small": (4, 20), "narrow": (20, 16), "large": (20, 17)}
    model = graph(
        [helper.make_node("MatMul", [f"x_{n}", n], [f"y_{n}"], f"of_{n}") for n in shapes],
        {f"x_{name}": [1, shape[0]] for name, shape in shapes.items()},
        {f"y_{name}": [1, shape[1]] for name, shape in shapes.items()},
        {name: random.standard_normal(shape).astype("f") for name, shape in shapes.items()},
    )
    config = {
        "common_quant_param": {
            "quant_type": "weight_quant", "min_quant_weight_size": "'80'",
            "min_quant_weight_channel": "16",
        }
    }  # fmt: skip
    result, _, _ = quantize(model, job(config))
    assert set(weights(result)) == {"small", "narrow", "large_quantized", "large_scale"}


def test_four_bits_are_for_matrices_in_blocks_of_32(run, random):
    model = parsed(
        """g (float[n, 2, 5, 7] x) => (float[n, 24] y) {
            [conv] c = Conv(x, k)
            [flat] f = Flatten(c)
            [dense] y = Gemm <transB = 1> (f, w)
        }""",
        k=random.standard_normal((20, 2, 5, 6)).astype("f"),
        w=random.standard_normal((24, 40)).astype("f"),
    )
    config = {"common_quant_param": {"quant_type": "WEIGHT_QUANT", "bit_num": "4"}}
    result, notes, measured = quantize(model, job(config))
    stored, original = weights(result), weights(model)["w"]
    whole, scale = (stored[each] for each in maker(result, "w").input)
    assert str(whole.dtype) == "int4"
    assert scale.shape == (24, 2)  # 32 weights of each row, and the other 8
    np.testing.assert_allclose(scale[:, 1], np.abs(original[:, 32:]).max(axis=1) / 7, rtol=1e-6)
    spread = scale.repeat(32, axis=1)[:, :40]
    assert (np.abs(whole.astype("f") * spread - original) <= spread * 0.5001).all()
    assert stored[maker(result, "k").input[0]].dtype == np.int8
    assert "bit_num=4: 1 weights that are no matrices have 8 bits" in notes
    assert any(
        note.startswith("weights of 1 convolutions are made float32 again") for note in notes
    )
    values = random.standard_normal((3, 2, 5, 7)).astype(np.float32)
    got, wanted = (run(each, x=values)["y"] for each in (result, model))
    assert np.corrcoef(got.ravel(), wanted.ravel())[0, 1] > 0.98
    assert measured["y"]["cosine"] > 0.98


def test_a_weight_that_two_nodes_share_is_right_in_both(run, random):
    # An embedding and the projection back to its words: one reads rows, one transposes.
    table = random.standard_normal((24, 24)).astype(np.float32)
    model = parsed(
        """g (float[n, 24] x) => (float[n, 24] y) {
            [forth] h = MatMul(x, table)
            [back] y = Gemm <transB = 1> (h, table)
        }""",
        table=table,
    )
    values = random.standard_normal((5, 24)).astype(np.float32)
    wanted = values @ table @ table.T
    for config in (DYNAMIC, WEIGHT):
        result, _, _ = quantize(model, job(config))
        got = run(result, x=values)["y"]
        assert np.corrcoef(got.ravel(), wanted.ravel())[0, 1] > 0.999


def test_an_old_model_is_raised_to_an_opset_that_has_int8_by_channel(tmp_path, run, random):
    model = parsed(
        """g (float[n, 8] x, float[8, 20] w) => (float[n, 20] y) {
            h = MatMul(x, w)
            d = Dropout <ratio = 0.5> (h)
            y = Relu(d)
        }""",
        w=random.standard_normal((8, 20)).astype("f"),
        opset=9,
    )
    model.ir_version = 3  # weights are among the inputs
    values = random.standard_normal((12, 8)).astype(np.float32)
    for config in (WEIGHT, DYNAMIC, samples_of(values, tmp_path / "x")):
        result, _, measured = quantize(model, job(config))
        assert result.opset_import[0].version >= 13
        assert [each.name for each in result.graph.input] == ["x"]
        assert measured["y"]["snr_db"] > 25
        wanted = np.maximum(values @ weights(model)["w"], 0)
        got = run(result, x=values)["y"]
        assert np.abs(got - wanted).max() < 0.05 * wanted.max()


def test_convolutions_stay_float32_in_dynamic_quantization_and_it_is_said(random):
    model = parsed(
        """g (float[1, 2, 5, 5] x) => (float[1, 3, 5, 20] y) {
            c = Conv(x, k)
            y = MatMul(c, w)
        }""",
        k=random.standard_normal((3, 2, 1, 1)).astype("f"),
        w=random.standard_normal((5, 20)).astype("f"),
    )
    result, notes, _ = quantize(model, job(DYNAMIC))
    assert operators(result)["Conv"] == 1
    assert any("1 convolutions stay float32" in note for note in notes)


def test_weights_may_be_described_among_the_values(random, tmp_path):
    """As torch's exporter has it: the quantizer transposes the weight of a Gemm."""
    model = parsed(
        """g (float[?, 32] x) => (float[?, 10] y) {
            [dense] y = Gemm <transB = 1> (x, w)
        }""",
        w=random.standard_normal((10, 32)).astype("f"),
    )
    model.graph.value_info.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [10, 32]))
    result, _, measured = quantize(model, job(DYNAMIC))
    assert operators(result)["MatMulInteger"] == 1
    assert measured["y"]["cosine"] > 0.99


def test_what_is_quantized_already_is_not_quantized_again(digits, full):
    result, _, _ = quantize(digits, job(full))
    with pytest.raises(ModelError, match=r"it is quantized already; convert the original float32"):
        quantize(result, job(WEIGHT))


def test_weights_that_stay_float32_are_counted_with_the_reason(digits):
    _, notes, _ = quantize(digits, job(WEIGHT))
    [note] = [each for each in notes if "float32 stays" in each]
    assert note == (
        "float32 stays: 1 of the weights, such as 'weight1': at most min_quant_weight_channel=16 "
        "channels"
    )
