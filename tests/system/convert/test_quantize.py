"""Quantization: what becomes int8, what it costs in accuracy, and what cannot be done."""

from __future__ import annotations

import csv
import importlib.util
import logging
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import engine
from engine.convert import edges, scratch
from engine.convert.job import Job
from engine.convert.quantize import accuracy, asked, quantize
from engine.enums import FmkType
from engine.errors import Cancelled, InputError, ModelError

Array: TypeAlias = np.ndarray[Any, Any]
Run: TypeAlias = Callable[..., dict[str, Array]]
Config: TypeAlias = dict[str, dict[str, str]]

ROOT = Path(__file__).parents[3]
DIGITS = ROOT / "examples" / "digits"
CALIBRATING = 100  # of the 360 held-back images; the other 260 judge


def job(config: Mapping[str, Mapping[str, str]], **fields: Any) -> Job:
    return Job(
        framework=FmkType.ONNX, model_file=Path("m"), output_file=Path("o"), config=config, **fields
    )


def weights(model: ModelProto) -> dict[str, Array]:
    return {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}


def operators(model: ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def node(model: ModelProto, name: str) -> onnx.NodeProto:
    [found] = [each for each in model.graph.node if each.name == name]
    return found


def maker(model: ModelProto, value: str) -> onnx.NodeProto:
    [found] = [each for each in model.graph.node if value in each.output]
    return found


def graph(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[Any]],
    outputs: dict[str, list[Any]],
    constants: dict[str, Array],
    opset: int = 17,
) -> ModelProto:
    """A model of float32 inputs and outputs."""
    return helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
            [numpy_helper.from_array(array, name) for name, array in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.fixture(scope="module")
def digits() -> ModelProto:
    return onnx.load(DIGITS / "digits.onnx")


@pytest.fixture(scope="module")
def images() -> tuple[Array, Array]:
    with np.load(DIGITS / "test_images.npz") as archive:
        return archive["image"], archive["label"]


@pytest.fixture(scope="module")
def folder(images: tuple[Array, Array], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calibration data of the digits."""
    path = tmp_path_factory.mktemp("samples")
    for place in range(CALIBRATING):
        images[0][place : place + 1].tofile(path / f"{place:03}.bin")
    return path


@pytest.fixture
def full(folder: Path) -> Config:
    return {
        "common_quant_param": {"quant_type": "FULL_QUANT"},
        "full_quant_param": {},
        "data_preprocess_param": {"calibrate_path": f"image:{folder}", "input_type": "BIN"},
    }


WEIGHT: Config = {"common_quant_param": {"quant_type": "WEIGHT_QUANT"}}
DYNAMIC: Config = {"common_quant_param": {"quant_type": "DYNAMIC_QUANT"}}


def samples_of(array: Array, folder: Path) -> Config:
    """Full quantization of input x, calibrated with the rows of `array`."""
    folder.mkdir()
    for place, row in enumerate(array):
        np.save(folder / f"{place:03}.npy", row[None])
    return {
        "common_quant_param": {"quant_type": "FULL_QUANT"},
        "data_preprocess_param": {"calibrate_path": f"x:{folder}", "input_type": "BIN"},
    }


def share_right(model: ModelProto, images: tuple[Array, Array], run: Run) -> float:
    """Of the images that did not calibrate, by their true labels."""
    pixels, labels = (each[CALIBRATING:] for each in images)
    return float((run(model, image=pixels)["label"] == labels).mean())


# ----------------------------------------------------------------------------- real accuracy


@pytest.mark.parametrize("method", ["MAX_MIN", "KL", "REMOVAL_OUTLIER"])
@pytest.mark.parametrize("per_channel", ["true", "FALSE"])
def test_full_int8_keeps_the_accuracy_and_a_third_of_the_size(
    digits: ModelProto, images: Any, full: Config, run: Run, method: str, per_channel: str
) -> None:
    full["full_quant_param"] = {"activation_quant_method": method, "per_channel": per_channel}
    result, notes, measured = quantize(digits, job(full))
    before = share_right(digits, images, run)
    assert share_right(result, images, run) >= before - 0.015
    assert result.ByteSize() < 0.36 * digits.ByteSize()
    assert measured["probabilities"]["cosine"] > 0.999
    assert measured["probabilities"]["top1_agreement"] >= 0.95
    assert any("80 calibrated, 20 others compared" in note for note in notes)
    assert any("2 weights quantized" in note for note in notes)


def test_full_int8_stores_int8_and_quantizes_what_goes_into_each_product(
    digits: ModelProto, full: Config
) -> None:
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


def test_a_skipped_node_is_left_alone(
    digits: ModelProto, full: Config, images: Any, run: Run
) -> None:
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


def test_weight_quantization_computes_in_float32_with_rounded_weights(
    digits: ModelProto, images: Any, run: Run
) -> None:
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


def test_dynamic_quantization_multiplies_integers(
    digits: ModelProto, images: Any, run: Run
) -> None:
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


def test_calibration_data_measures_weight_and_dynamic_quantization_too(
    digits: ModelProto, full: Config
) -> None:
    for config in (WEIGHT, DYNAMIC):
        both = {**full, **config}
        _, notes, measured = quantize(digits, job(both))
        assert measured["probabilities"]["top1_agreement"] >= 0.98
        assert not any("random" in note for note in notes)


def mobilenet(folder: Path) -> ModelProto:
    spec = importlib.util.spec_from_file_location("bench_models", ROOT / "bench" / "models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return onnx.load(module.mobilenet_v2(folder))


def test_a_convolutional_net_is_calibrated_with_images(
    tmp_path: Path, random: np.random.Generator
) -> None:
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


# ------------------------------------------------------------------------------- small models


def product(random: np.random.Generator, inside: int = 8, out: int = 20) -> ModelProto:
    """y = x @ w."""
    return graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        {"x": [None, inside]},
        {"y": [None, out]},
        {"w": random.standard_normal((inside, out)).astype(np.float32)},
    )


def scale_of(model: ModelProto, value: str) -> float:
    """The scale with which an input is quantized."""
    [found] = [
        each for each in model.graph.node
        if each.op_type == "QuantizeLinear" and each.input[0] == value
    ]  # fmt: skip
    return float(weights(model)[found.input[1]])


def test_methods_differ_in_what_they_make_of_an_outlier(
    tmp_path: Path, random: np.random.Generator
) -> None:
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


def test_normalization_goes_into_its_convolution_first(
    tmp_path: Path, random: np.random.Generator
) -> None:
    numbers = {
        "w": (4, 3, 3, 3), "gain": (4,), "shift": (4,), "mean": (4,), "variance": (4,),
    }  # fmt: skip
    model = graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1] * 4),
            helper.make_node(
                "BatchNormalization", ["c", "gain", "shift", "mean", "variance"], ["y"], "norm"
            ),
        ],
        {"x": [1, 3, 8, 8]},
        {"y": [1, 4, 8, 8]},
        {name: random.uniform(0.5, 1, size).astype("f") for name, size in numbers.items()},
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


def test_masks_of_minus_infinity_stay_out_of_int8(
    tmp_path: Path, run: Run, random: np.random.Generator
) -> None:
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
    tmp_path: Path, run: Run, random: np.random.Generator
) -> None:
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
def test_devices_without_zero_points_get_none(
    digits: ModelProto, full: Config, target: str
) -> None:
    full["full_quant_param"] = {"target_device": target}
    result, _, _ = quantize(digits, job(full))
    stored = weights(result)
    points = [n.input[2] for n in result.graph.node if n.op_type == "QuantizeLinear"]
    assert points
    assert all(not stored[name].any() for name in points)
    stays_float = any(array.dtype == np.int32 for array in stored.values())
    assert stays_float is (target != "NVGPU")


def test_weights_below_the_thresholds_stay_float32(random: np.random.Generator) -> None:
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


def test_four_bits_are_for_matrices_in_blocks_of_32(run: Run, random: np.random.Generator) -> None:
    model = graph(
        [
            helper.make_node("Conv", ["x", "k"], ["c"], "conv"),
            helper.make_node("Flatten", ["c"], ["f"], "flat"),
            helper.make_node("Gemm", ["f", "w"], ["y"], "dense", transB=1),
        ],
        {"x": ["n", 2, 5, 7]},
        {"y": ["n", 24]},
        {
            "k": random.standard_normal((20, 2, 5, 6)).astype("f"),
            "w": random.standard_normal((24, 40)).astype("f"),
        },
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
    values = random.standard_normal((3, 2, 5, 7)).astype(np.float32)
    got, wanted = (run(each, x=values)["y"] for each in (result, model))
    assert np.corrcoef(got.ravel(), wanted.ravel())[0, 1] > 0.98
    assert measured["y"]["cosine"] > 0.98


def test_a_weight_that_two_nodes_share_is_right_in_both(
    run: Run, random: np.random.Generator
) -> None:
    # An embedding and the projection back to its words: one reads rows, one transposes.
    table = random.standard_normal((24, 24)).astype(np.float32)
    model = graph(
        [
            helper.make_node("MatMul", ["x", "table"], ["h"], "forth"),
            helper.make_node("Gemm", ["h", "table"], ["y"], "back", transB=1),
        ],
        {"x": ["n", 24]},
        {"y": ["n", 24]},
        {"table": table},
    )
    values = random.standard_normal((5, 24)).astype(np.float32)
    wanted = values @ table @ table.T
    for config in (DYNAMIC, WEIGHT):
        result, _, _ = quantize(model, job(config))
        got = run(result, x=values)["y"]
        assert np.corrcoef(got.ravel(), wanted.ravel())[0, 1] > 0.999


def test_an_old_model_is_raised_to_an_opset_that_has_int8_by_channel(
    tmp_path: Path, run: Run, random: np.random.Generator
) -> None:
    model = graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Dropout", ["h"], ["d"], ratio=0.5),  # of another form since 12
            helper.make_node("Relu", ["d"], ["y"]),
        ],
        {"x": ["n", 8], "w": [8, 20]},
        {"y": ["n", 20]},
        {"w": random.standard_normal((8, 20)).astype("f")},
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


def test_convolutions_stay_float32_in_dynamic_quantization_and_it_is_said(
    random: np.random.Generator,
) -> None:
    model = graph(
        [
            helper.make_node("Conv", ["x", "k"], ["c"]),
            helper.make_node("MatMul", ["c", "w"], ["y"]),
        ],
        {"x": [1, 2, 5, 5]},
        {"y": [1, 3, 5, 20]},
        {
            "k": random.standard_normal((3, 2, 1, 1)).astype("f"),
            "w": random.standard_normal((5, 20)).astype("f"),
        },
    )
    result, notes, _ = quantize(model, job(DYNAMIC))
    assert operators(result)["Conv"] == 1
    assert any("1 convolutions stay float32" in note for note in notes)


# ------------------------------------------------------------------------------------ measures


def test_weights_may_be_described_among_the_values(
    random: np.random.Generator, tmp_path: Path
) -> None:
    """As torch's exporter has it: the quantizer transposes the weight of a Gemm."""
    model = graph(
        [helper.make_node("Gemm", ["x", "w"], ["y"], "dense", transB=1)],
        {"x": [None, 32]},
        {"y": [None, 10]},
        {"w": random.standard_normal((10, 32)).astype("f")},
    )
    model.graph.value_info.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [10, 32]))
    result, _, measured = quantize(model, job(DYNAMIC))
    assert operators(result)["MatMulInteger"] == 1
    assert measured["y"]["cosine"] > 0.99


def test_what_is_quantized_already_is_not_quantized_again(digits: ModelProto, full: Config) -> None:
    result, _, _ = quantize(digits, job(full))
    with pytest.raises(ModelError, match=r"it is quantized already; convert the original float32"):
        quantize(result, job(WEIGHT))


def test_weights_that_stay_float32_are_counted_with_the_reason(digits: ModelProto) -> None:
    _, notes, _ = quantize(digits, job(WEIGHT))
    [note] = [each for each in notes if "float32 stays" in each]
    assert note == (
        "float32 stays: 1 of the weights, such as 'weight1': at most min_quant_weight_channel=16 "
        "channels"
    )


def test_a_low_accuracy_gets_a_word_and_labels_are_compared_as_such() -> None:
    good = {"cosine": 0.999, "snr_db": 40.0}
    found = {"good": good, "bad": {"cosine": 0.972, "snr_db": 12.6}, "label": {"agreement": 0.5}}
    bad, label = accuracy.doubts(found)
    assert bad.startswith("the accuracy of output 'bad' is low (cosine 0.972, snr_db 12.6); try ")
    assert "'label' is low (agreement 0.5)" in label
    sums = accuracy._Difference()
    sums.add(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 9]))
    assert sums.measures() == {"agreement": 0.75}


def constant_error(error: list[list[float]]) -> dict[str, float]:
    """The measures of y = x + error against y = x, on x = [[3, 4], [0, 5]]."""
    models = [
        graph([helper.make_node("Add", ["x", "b"], ["y"])], {"x": [2, 2]}, {"y": [2, 2]}, {"b": b})
        for b in (np.zeros((2, 2), np.float32), np.array(error, np.float32))
    ]
    sample = {"x": np.array([[3, 4], [0, 5]], np.float32)}
    return accuracy.measure(*models, lambda index: sample, [0], job({}))["y"]


def test_the_measures_are_what_their_names_say() -> None:
    found = constant_error([[2, 0], [0, 0]])  # [5, 4] for [3, 4]
    assert found["max_abs_error"] == 2
    assert found["mean_abs_error"] == 0.5
    assert found["snr_db"] == pytest.approx(10 * np.log10(50 / 4))
    assert found["cosine"] == pytest.approx((15 + 16 + 25) / np.sqrt(50 * 66))
    assert found["top1_agreement"] == 0.5


def test_no_difference_is_200_db_and_finite_in_json() -> None:
    assert constant_error([[0, 0], [0, 0]]) == {
        "max_abs_error": 0, "mean_abs_error": 0, "cosine": pytest.approx(1), "snr_db": 200,
        "top1_agreement": 1,
    }  # fmt: skip


def test_debug_info_is_a_table_of_the_measures(
    digits: ModelProto, full: Config, tmp_path: Path
) -> None:
    full["common_quant_param"]["debug_info_save_path"] = str(tmp_path / "a" / "b")
    _, notes, measured = quantize(digits, job(full))
    path = tmp_path / "a" / "b" / "output_summary.csv"
    assert any(str(path) in note for note in notes)
    with path.open(newline="") as file:
        rows = {row.pop("output"): row for row in csv.DictReader(file)}
    assert rows.keys() == measured.keys() == {"probabilities", "label"}
    assert float(rows["probabilities"]["cosine"]) == measured["probabilities"]["cosine"]
    assert rows["label"]["top1_agreement"] == ""


# -------------------------------------------------------------------------------- configuration


def test_only_sections_of_quantization_ask_for_it() -> None:
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
        (
            {"full_quant_param": {"per_channel": "true"}},
            r"quant_type is missing; expected FULL_QUANT or",
        ),
        (
            common(quant_type="FULL_QUAN"),
            r"quant_type: expected .* got 'FULL_QUAN'; did you mean FULL_QUANT\?",
        ),
        (common(bit_num="0"), r"bit_num: expected 4 or 8 for WEIGHT_QUANT, got 0 \(0, mixed bits"),
        (common(bit_num="16"), r"got 16; for 16 bits use weight_fp16"),
        (common(bit_num="7"), r"expected 4 or 8 for WEIGHT_QUANT, got 7"),
        (common(bit_num="eight"), r"bit_num: expected a whole number in 0\.\.16, got 'eight'"),
        (common(quant_type="DYNAMIC_QUANT", bit_num="4"), r"expected 8 for DYNAMIC_QUANT, got 4"),
        (common(min_quant_weight_size="-1"), r"expected a whole number in 0\.\.65535, got '-1'"),
        (common(enable_encode="maybe"), r"enable_encode: expected TRUE or FALSE, got 'maybe'"),
        (common(skip_quant_node="hiden"), r"no node 'hiden'; did you mean 'hidden'\?"),
        (common(quant_type="FULL_QUANT"), r"calibrate_path is missing: FULL_QUANT needs"),
        (
            full_with(activation_quant_method="MINMAX"),
            r"activation_quant_method: expected MAX_MIN or KL or REMOVAL_OUTLIER, got 'MINMAX'",
        ),
        (full_with(target_device="TPU"), r"target_device: expected NVGPU or"),
        (
            {**DYNAMIC, "dynamic_quant_param": {"quant_strategy": "ACWL"}},
            r"ACWL, .* is not supported; use ALWC",
        ),
        (MIXED, r"mixed-bit weights are not supported; use .*bit_num=8"),
        (BACK, r"convert the original float32 model"),
        (data_with(calibrate_path="image:/x"), r"input_type is missing; expected BIN or IMAGE"),
        (data_with(resize_width="8"), r"resize_width and resize_height go together"),
        (data_with(calibrate_size="0"), r"calibrate_size: expected a whole number in 1\.\.65535"),
        (data_with(normalize_mean="[a]"), r"normalize_mean: expected numbers like"),
        (data_with(normalize_std="[1, 0]"), r"normalize_std: expected numbers other than 0"),
    ],
)
def test_what_cannot_be_done_is_an_error_that_says_what_can(
    digits: ModelProto, config: Config, says: str
) -> None:
    with pytest.raises(ModelError, match=says):
        quantize(digits, job(config))


def test_unknown_keys_and_keys_without_effect_are_noted(digits: ModelProto) -> None:
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


def test_a_model_with_nothing_to_quantize_is_refused(tmp_path: Path) -> None:
    model = graph([helper.make_node("Relu", ["x"], ["y"])], {"x": [1, 4]}, {"y": [1, 4]}, {})
    values = np.ones((3, 4), np.float32)
    for config in (WEIGHT, DYNAMIC, samples_of(values, tmp_path / "x")):
        with pytest.raises(ModelError, match="finds nothing to quantize in the model"):
            quantize(model, job(config))


def test_a_float16_model_is_refused_and_where_to_start_is_said() -> None:
    model = product(np.random.default_rng(0))
    half = numpy_helper.from_array(weights(model)["w"].astype(np.float16), "w")
    model.graph.initializer[0].CopyFrom(half)
    for config in (WEIGHT, DYNAMIC):
        with pytest.raises(ModelError, match=r"weights are float16.*the original float32 model"):
            quantize(model, job(config))


def test_a_model_beyond_protobuf_is_quantized_by_its_weights_only(
    digits: ModelProto, full: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("engine.convert.quantize", "engine.convert.quantize.runtime"):
        monkeypatch.setattr(f"{module}.LARGEST", 70_000)  # the digits have 76,844 bytes
    with pytest.raises(ModelError, match=r"76844 bytes: expected at most 70000.*WEIGHT_QUANT"):
        quantize(digits, job(full))
    result, notes, measured = quantize(digits, job(WEIGHT))
    assert maker(result, "weight0").op_type == "DequantizeLinear"
    assert not measured
    assert "accuracy was not measured: the model is too large" in notes


def test_a_model_that_cannot_run_is_refused(tmp_path: Path) -> None:
    model = product(np.random.default_rng(0))
    model.graph.node.append(helper.make_node("Unheard", ["y"], ["z"], "strange"))
    model.graph.output[0].name = "z"
    config = samples_of(np.ones((3, 8), np.float32), tmp_path / "x")
    with pytest.raises(ModelError, match=r"cannot be run by ONNX Runtime.*Unheard"):
        quantize(model, job(config))


def test_a_sample_that_the_model_cannot_run_on_is_named(
    digits: ModelProto, full: Config, tmp_path: Path
) -> None:
    (tmp_path / "cut.bin").write_bytes(bytes(100))
    full["data_preprocess_param"]["calibrate_path"] = f"image:{tmp_path}"
    with pytest.raises(InputError, match=r"cut\.bin: .* expected a multiple of 256 bytes, got 100"):
        quantize(digits, job(full))


def test_a_missing_package_is_an_error_with_the_command(
    digits: ModelProto, full: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    full["data_preprocess_param"]["input_type"] = "IMAGE"
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ModelError, match=r'needs PIL .*pip install "inference-engine\[quantize\]"'):
        quantize(digits, job(full))


# ------------------------------------------------------------------------------------ long work


def test_calibration_says_how_far_it_is(digits: ModelProto, full: Config) -> None:
    seen: list[tuple[str, int, int | None]] = []
    quantize(digits, job(full, progress=lambda *step: seen.append(step)))
    assert [step for step in seen if step[0] == "calibrating"] == [
        ("calibrating", done, 80) for done in range(81)
    ]
    assert [step for step in seen if step[0] == "comparing"] == [
        ("comparing", done, 20) for done in range(21)
    ]


@pytest.mark.parametrize(
    "phase", ["calibrating", "calibrating (histograms)", "finding thresholds", "comparing"]
)
def test_a_cancel_stops_it_and_leaves_nothing_behind(
    digits: ModelProto, full: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    full["full_quant_param"] = {"activation_quant_method": "KL"}
    cancel = engine.CancelToken()
    seen: list[str] = []

    def show(name: str, done: int, total: int | None) -> None:
        seen.append(name)
        if name == phase and done == 1:
            cancel.cancel()

    with pytest.raises(Cancelled):
        quantize(digits, job(full, progress=show, cancel=cancel))
    assert seen[-1] == phase
    assert seen.count(phase) == 2
    assert not any(tmp_path.iterdir())
    assert tempfile.tempdir == str(tmp_path)


@pytest.mark.parametrize("make", [lambda full: full, lambda full: DYNAMIC, lambda full: WEIGHT])
def test_the_original_stays_as_it_is_and_nothing_is_printed_or_logged(
    digits: ModelProto,
    full: Config,
    capfd: pytest.CaptureFixture[str],
    make: Callable[[Config], Config],
) -> None:
    before = digits.SerializeToString(deterministic=True)
    handlers, filters = (list(each) for each in (logging.root.handlers, logging.root.filters))
    result, _, _ = quantize(digits, job(make(full)))
    assert digits.SerializeToString(deterministic=True) == before
    assert capfd.readouterr() == ("", "")
    assert (logging.root.handlers, logging.root.filters) == (handlers, filters)
    assert [(each.name) for each in result.graph.input] == ["image"]
    assert [(each.name) for each in result.graph.output] == ["probabilities", "label"]
    assert list(result.metadata_props) == list(digits.metadata_props)


@pytest.mark.skipif(not scratch.MEMORY.is_dir(), reason="there are no files in memory here")
@pytest.mark.parametrize("key", ["decrypt_key", "encrypt_key"])
def test_of_an_encrypted_model_nothing_is_written_to_the_disk(
    digits: ModelProto, full: Config, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    for config in (full, DYNAMIC):
        quantize(digits, job(config, **{key: bytes(16)}))
        with pytest.raises(FileNotFoundError, match="/nowhere/"):
            quantize(digits, job(config))
    assert tempfile.tempdir == "/nowhere"


def test_without_files_in_memory_an_encrypted_model_is_refused(
    digits: ModelProto, full: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "MEMORY", tmp_path / "none")
    with pytest.raises(
        ModelError, match=r"nothing may be written to disk in clear: expected .*non"
    ):
        quantize(digits, job(full, decrypt_key=bytes(16)))


def test_several_are_quantized_at_once_and_leave_the_process_as_it_was(
    digits: ModelProto, full: Config, capfd: pytest.CaptureFixture[str]
) -> None:
    def state() -> tuple[object, ...]:
        root = logging.root
        return sys.stdout, tempfile.tempdir, [*root.handlers], [*root.filters]

    before = state()
    full["full_quant_param"] = {"activation_quant_method": "KL"}
    asked = [job(config, encrypt_key=bytes(16)) for config in (full, DYNAMIC) * 3]
    with ThreadPoolExecutor(len(asked)) as pool:
        results = [found for found, _, _ in pool.map(lambda each: quantize(digits, each), asked)]
    assert state() == before
    assert capfd.readouterr() == ("", "")
    assert results[0] == results[2] == results[4] == quantize(digits, asked[0])[0]
    assert results[1] == results[3] == results[5] == quantize(digits, asked[1])[0]
