"""Quantization: its configuration, and what cannot be done."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from graphs import parsed
from onnx import helper, numpy_helper
from quantize_models import DYNAMIC, WEIGHT, Config, job, maker, product, samples_of, weights

from engine.converter.quantize import asked, quantize
from engine.errors import InputError, ModelError


def test_only_sections_of_quantization_ask_for_it():
    assert asked(WEIGHT)
    assert asked({"full_quant_param": {"per_channel": "true"}})
    assert not asked({})
    assert not asked({"common_quant_param": {}, "ascend_context": {"provider": "ge"}})


def common(**keys: str) -> Config:
    return {"common_quant_param": {"quant_type": "WEIGHT_QUANT", **keys}}


def full_with(**keys: str) -> Config:
    return {**WEIGHT, "full_quant_param": keys}


def data_with(**keys: str) -> Config:
    return {**WEIGHT, "data_preprocess_param": keys}


MIXED: Config = {**WEIGHT, "mixed_bit_weight_quant_param": {"init_scale": "0.02"}}
BACK: Config = {**WEIGHT, "transform_quant_param": {"export_precision_mode": "QUANT"}}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"full_quant_param": {"per_channel": "true"}},
         r"quant_type is missing; expected FULL_QUANT or"),
        (common(quant_type="FULL_QUAN"),
         r"quant_type: expected .* got 'FULL_QUAN'; did you mean FULL_QUANT\?"),
        (common(bit_num="0"), r"bit_num: expected 4 or 8 for WEIGHT_QUANT, got 0 \(0, mixed bits"),
        (common(bit_num="16"), r"got 16; for 16 bits use weight_fp16"),
        (common(bit_num="7"), r"expected 4 or 8 for WEIGHT_QUANT, got 7"),
        (common(bit_num="eight"), r"bit_num: expected a whole number in 0\.\.16, got 'eight'"),
        (common(quant_type="DYNAMIC_QUANT", bit_num="4"), r"expected 8 for DYNAMIC_QUANT, got 4"),
        (common(min_quant_weight_size="-1"), r"expected a whole number in 0\.\.65535, got '-1'"),
        (common(enable_encode="maybe"), r"enable_encode: expected TRUE or FALSE, got 'maybe'"),
        (common(skip_quant_node="hiden"), r"no node 'hiden'; did you mean 'hidden'\?"),
        (common(quant_type="FULL_QUANT"), r"calibrate_path is missing: FULL_QUANT needs"),
        (full_with(activation_quant_method="MINMAX"),
         r"activation_quant_method: expected MAX_MIN or KL or REMOVAL_OUTLIER, got 'MINMAX'"),
        (full_with(target_device="TPU"), r"target_device: expected NVGPU or"),
        ({**DYNAMIC, "dynamic_quant_param": {"quant_strategy": "ACWL"}},
         r"ACWL, .* is not supported; use ALWC"),
        (MIXED, r"mixed-bit weights are not supported; use .*bit_num=8"),
        (BACK, r"convert the original float32 model"),
        (data_with(calibrate_path="image:/x"), r"input_type is missing; expected BIN or IMAGE"),
        (data_with(resize_width="8"), r"resize_width and resize_height go together"),
        (data_with(calibrate_size="0"), r"calibrate_size: expected a whole number in 1\.\.65535"),
        (data_with(normalize_mean="[a]"), r"normalize_mean: expected numbers like"),
        (data_with(normalize_std="[1, 0]"), r"normalize_std: expected numbers other than 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_an_error_that_says_what_can(digits, config, says):
    with pytest.raises(ModelError, match=says):
        quantize(digits, job(config))


def test_unknown_keys_and_keys_without_effect_are_noted(digits):
    config = {
        **common(bit_nums="8", enable_encode="'true'", debug_info_save_path=" "),
        "full_quant_param": {"bias_correction": "false", "what_is_this": "1"},
    }
    _, notes, _ = quantize(digits, job(config))
    assert (
        "configuration key [common_quant_param] bit_nums is unknown and not read; "
        "did you mean 'bit_num'?" in notes
    )
    assert any("what_is_this is unknown and not read; known: activation" in note for note in notes)
    assert any("enable_encode has no effect" in note for note in notes)
    assert not any("bias_correction has" in note for note in notes)


def test_a_model_with_nothing_to_quantize_is_refused(tmp_path):
    model = parsed("g (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }")
    values = np.ones((3, 4), np.float32)
    for config in (WEIGHT, DYNAMIC, samples_of(values, tmp_path / "x")):
        with pytest.raises(ModelError, match="finds nothing to quantize in the model"):
            quantize(model, job(config))


def test_a_float16_model_is_refused_and_where_to_start_is_said():
    model = product(np.random.default_rng(0))
    half = numpy_helper.from_array(weights(model)["w"].astype(np.float16), "w")
    model.graph.initializer[0].CopyFrom(half)
    for config in (WEIGHT, DYNAMIC):
        with pytest.raises(ModelError, match=r"weights are float16.*the original float32 model"):
            quantize(model, job(config))


def test_a_model_beyond_protobuf_is_quantized_by_its_weights_only(digits, full, monkeypatch):
    for module in ("engine.converter.quantize", "engine.converter.quantize.runtime"):
        monkeypatch.setattr(f"{module}.LARGEST", 70_000)  # the digits have 76,844 bytes
    with pytest.raises(ModelError, match=r"76844 bytes: expected at most 70000.*WEIGHT_QUANT"):
        quantize(digits, job(full))
    result, notes, measured = quantize(digits, job(WEIGHT))
    assert maker(result, "weight0").op_type == "DequantizeLinear"
    assert not measured
    assert "accuracy was not measured: the model is too large" in notes


def test_a_model_that_cannot_run_is_refused(tmp_path):
    model = product(np.random.default_rng(0))
    model.graph.node.append(helper.make_node("Unheard", ["y"], ["z"], "strange"))
    model.graph.output[0].name = "z"
    config = samples_of(np.ones((3, 8), np.float32), tmp_path / "x")
    with pytest.raises(ModelError, match=r"cannot be run by ONNX Runtime.*Unheard"):
        quantize(model, job(config))


def test_a_sample_that_the_model_cannot_run_on_is_named(digits, full, tmp_path):
    (tmp_path / "cut.bin").write_bytes(bytes(100))
    full["data_preprocess_param"]["calibrate_path"] = f"image:{tmp_path}"
    with pytest.raises(InputError, match=r"cut\.bin: .* expected a multiple of 256 bytes, got 100"):
        quantize(digits, job(full))


def test_a_missing_package_is_an_error_with_the_command(digits, full, monkeypatch):
    full["data_preprocess_param"]["input_type"] = "IMAGE"
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ModelError, match=r'needs PIL .*pip install "inference-engine\[quantize\]"'):
        quantize(digits, job(full))
