"""Quantization: what it costs in accuracy, on a trained model, and how that is measured."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import parsed
from modules import module_of
from onnx import ModelProto
from quantize_models import DYNAMIC, ROOT, WEIGHT, job, maker, node, operators, share_right, weights

from engine.converter.quantize import accuracy, quantize


@pytest.mark.parametrize("method", ["MAX_MIN", "KL", "REMOVAL_OUTLIER"])
@pytest.mark.parametrize("per_channel", ["true", "FALSE"])
def test_full_int8_keeps_the_accuracy_and_a_third_of_the_size(
    digits, images, full, run, method, per_channel
):
    full["full_quant_param"] = {"activation_quant_method": method, "per_channel": per_channel}
    result, notes, measured = quantize(digits, job(full))
    before = share_right(digits, images, run)
    assert share_right(result, images, run) >= before - 0.015
    assert result.ByteSize() < 0.36 * digits.ByteSize()
    assert measured["probabilities"]["cosine"] > 0.999
    assert measured["probabilities"]["top1_agreement"] >= 0.95
    assert any("80 calibrated, 20 others compared" in note for note in notes)
    assert any("2 weights quantized" in note for note in notes)


def test_full_int8_stores_int8_and_quantizes_what_goes_into_each_product(digits, full):
    result, _, _ = quantize(digits, job(full))
    stored = weights(result)
    for name, channels in (("hidden", 256), ("classes", 10)):
        data, weight, bias = (maker(result, each) for each in node(result, name).input)
        assert {data.op_type, weight.op_type, bias.op_type} == {"DequantizeLinear"}
        assert maker(result, data.input[0]).op_type == "QuantizeLinear"
        assert stored[weight.input[0]].dtype == np.int8
        assert stored[weight.input[1]].shape == (channels,)  # a scale for each
        assert stored[bias.input[0]].dtype == np.int32
    assert not any(a.dtype == np.float32 and a.size > 256 for a in stored.values())
    assert operators(result)["Softmax"] == 1
    assert maker(result, node(result, "best").input[0]).op_type == "Softmax"  # not rounded to int8


def test_a_skipped_node_is_left_alone(digits, full, images, run):
    original = weights(digits)
    for config in (full, WEIGHT):
        common = {**config["common_quant_param"], "skip_quant_node": " classes , "}
        more = {"min_quant_weight_channel": "0"} if config is WEIGHT else {}
        result, _, _ = quantize(digits, job({**config, "common_quant_param": {**common, **more}}))
        kept = node(result, "classes")
        np.testing.assert_array_equal(weights(result)[kept.input[1]], original["weight1"])
        np.testing.assert_array_equal(weights(result)[kept.input[2]], original["bias1"])
        assert maker(result, node(result, "hidden").input[1]).op_type == "DequantizeLinear"
        assert share_right(result, images, run) > 0.97


def test_weight_quantization_computes_in_float32_with_rounded_weights(digits, images, run):
    config = {
        **WEIGHT,
        "common_quant_param": {**WEIGHT["common_quant_param"], "min_quant_weight_channel": "0"},
    }
    result, _, _ = quantize(digits, job(config))
    assert operators(result) == operators(digits) + Counter({"DequantizeLinear": 2})
    stored, original = weights(result), weights(digits)
    for name in ("weight0", "weight1"):
        whole, scale = (stored[each] for each in maker(result, name).input)
        assert whole.dtype == np.int8
        np.testing.assert_allclose(scale, np.abs(original[name]).max(axis=0) / 127, rtol=1e-6)
        assert (np.abs(whole * scale - original[name]) <= scale * 0.5001).all()
    assert result.ByteSize() < 0.3 * digits.ByteSize()
    assert share_right(result, images, run) >= share_right(digits, images, run) - 0.01


def test_dynamic_quantization_multiplies_integers(digits, images, run):
    result, notes, measured = quantize(digits, job(DYNAMIC))
    assert operators(result)["MatMulInteger"] == 2
    assert operators(result)["DynamicQuantizeLinear"] == 2
    for each in result.graph.node:
        if each.op_type == "MatMulInteger":
            assert weights(result)[each.input[1]].dtype == np.int8
    assert result.ByteSize() < 0.36 * digits.ByteSize()
    assert share_right(result, images, run) >= share_right(digits, images, run) - 0.015
    assert measured["probabilities"]["cosine"] > 0.99
    assert any("random inputs, which says little" in note for note in notes)


def test_calibration_data_measures_weight_and_dynamic_quantization_too(digits, full):
    for config in (WEIGHT, DYNAMIC):
        both = {**full, **config}
        _, notes, measured = quantize(digits, job(both))
        assert measured["probabilities"]["top1_agreement"] >= 0.98
        assert not any("random" in note for note in notes)


def mobilenet(folder: Path) -> ModelProto:
    return onnx.load(module_of(ROOT / "bench" / "models.py").mobilenet_v2(folder))


@pytest.mark.slow
def test_a_convolutional_net_is_calibrated_with_images(tmp_path, random):
    from PIL import Image

    (tmp_path / "images").mkdir()
    for place in range(6):
        coarse = Image.fromarray(random.integers(0, 256, (7, 7, 3), dtype=np.uint8))
        coarse.resize((260, 250)).save(tmp_path / "images" / f"{place}.jpg")
    model = mobilenet(tmp_path)
    config = {
        "common_quant_param": {"quant_type": "FULL_QUANT"},
        "data_preprocess_param": {
            "calibrate_path": f"x:{tmp_path / 'images'}", "calibrate_size": "4",
            "input_type": "IMAGE", "image_to_format": "RGB", "resize_width": "256",
            "resize_height": "256", "center_crop_width": "224", "center_crop_height": "224",
            "normalize_mean": "[127.5, 127.5, 127.5]", "normalize_std": "[127.5, 127.5, 127.5]",
        },
    }  # fmt: skip
    result, notes, measured = quantize(model, job(config))
    assert result.ByteSize() < 0.3 * model.ByteSize()
    [[_, found]] = measured.items()
    assert found["cosine"] > 0.98
    assert any("4 calibrated, 2 others compared" in note for note in notes)
    assert operators(result)["Clip"] == 0  # the range of int8 does it
    for each in result.graph.node:
        if each.op_type == "Conv":
            assert maker(result, each.input[1]).op_type == "DequantizeLinear"


# -------------------------------------------------------------------------------- measures


def test_a_low_accuracy_gets_a_word_and_labels_are_compared_as_such():
    good = {"cosine": 0.999, "snr_db": 40.0}
    found = {"good": good, "bad": {"cosine": 0.972, "snr_db": 12.6}, "label": {"agreement": 0.5}}
    bad, label = accuracy.doubts(found)
    assert bad.startswith("the accuracy of output 'bad' is low (cosine 0.972, snr db 12.6); try ")
    assert "'label' is low (agreement 0.5)" in label
    sums = accuracy._Difference()
    sums.add(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 9]))
    assert sums.measures() == {"agreement": 0.75}


def constant_error(error: list[list[float]]) -> dict[str, float]:
    """The measures of y = x + error against y = x, on x = [[3, 4], [0, 5]]."""
    models = [
        parsed("g (float[2, 2] x) => (float[2, 2] y) { y = Add(x, b) }", b=b)
        for b in (np.zeros((2, 2), np.float32), np.array(error, np.float32))
    ]
    sample = {"x": np.array([[3, 4], [0, 5]], np.float32)}
    return accuracy.measure(*models, lambda index: sample, [0], job({}))["y"]


def test_the_measures_are_what_their_names_say():
    found = constant_error([[2, 0], [0, 0]])  # [5, 4] for [3, 4]
    assert found["max_abs_error"] == 2
    assert found["mean_abs_error"] == 0.5
    assert found["snr_db"] == pytest.approx(10 * np.log10(50 / 4))
    assert found["cosine"] == pytest.approx((15 + 16 + 25) / np.sqrt(50 * 66))
    assert found["top1_agreement"] == 0.5


def test_no_difference_is_200_db_and_finite_in_json():
    assert constant_error([[0, 0], [0, 0]]) == {
        "max_abs_error": 0, "mean_abs_error": 0, "cosine": pytest.approx(1), "snr_db": 200,
        "top1_agreement": 1,
    }  # fmt: skip


def test_debug_info_is_a_table_of_the_measures(digits, full, tmp_path):
    full["common_quant_param"]["debug_info_save_path"] = str(tmp_path / "a" / "b")
    _, notes, measured = quantize(digits, job(full))
    path = tmp_path / "a" / "b" / "output_summary.csv"
    assert any(str(path) in note for note in notes)
    with path.open(newline="") as file:
        rows = {row.pop("output"): row for row in csv.DictReader(file)}
    assert rows.keys() == measured.keys() == {"probabilities", "label"}
    assert float(rows["probabilities"]["cosine"]) == measured["probabilities"]["cosine"]
    assert rows["label"]["top1_agreement"] == ""


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_results_that_are_not_finite_are_infinitely_far_off(bad):
    wanted, got = np.array([1, 2, 3, 4], np.float32), np.array([1, 2, bad, 4], np.float32)
    total = accuracy._Difference()
    total.add(wanted, got)
    found = total.measures()
    assert found["max_abs_error"] == found["mean_abs_error"] == np.inf
    assert found["snr_db"] == -np.inf
    assert found["cosine"] == 0
    assert found["not_finite"] == 1
    [note] = accuracy.doubts({"y": found})
    assert note.startswith("output 'y' has 1 values that are infinite or NaN where the original's")


def test_an_original_without_finite_values_is_said_to_allow_no_comparison():
    total = accuracy._Difference()
    total.add(np.full(4, np.nan, np.float32), np.ones(4, np.float32))
    assert total.has_seen
    found = total.measures()
    assert np.isnan(found["max_abs_error"])
    assert found["not_compared"] == 4
    [note] = accuracy.doubts({"y": found})
    assert note.startswith("output 'y' cannot be compared: the original itself gives infinite")
