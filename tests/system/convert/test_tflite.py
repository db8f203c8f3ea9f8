"""TensorFlow Lite files become ONNX that gives TensorFlow Lite's own results."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import engine
from engine.converter.job import Job
from engine.converter.sources import tflite
from engine.errors import ModelError
from engine.tensor.enums import FmkType

pytestmark = pytest.mark.filterwarnings("ignore")  # TensorFlow's own
needs_tensorflow = pytest.mark.skipif(
    find_spec("tensorflow") is None or find_spec("tf2onnx") is None,
    reason='tensorflow is not installed: pip install "inference-engine[tensorflow]"',
)


def convert(path: Path) -> onnx.ModelProto:
    result = path.with_suffix(".mindir")
    model, _ = tflite.read(Job(framework=FmkType.TFLITE, model_file=path, output_file=result))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, result)
    return model


def names(values: Sequence[onnx.ValueInfoProto]) -> list[str]:
    return [value.name for value in values]


def run(path: Path, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the outputs of the converted file and of TensorFlow Lite by the signature's names."""
    import tensorflow as tf

    with engine.load(path.with_suffix(".mindir"), target="cpu") as model:
        results = model(dict(inputs))
    return results, dict(tf.lite.Interpreter(str(path)).get_signature_runner()(**inputs))


def saved_model(folder: Path) -> str:
    """image float32[n, 8, 8, 3], shift int32[4] -> mean float32[n, 4], big int32[4]."""
    import tensorflow as tf

    weight = np.random.default_rng(0).normal(size=(3, 3, 3, 4)).astype(np.float32)

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, 8, 8, 3), tf.float32, name="image"),
            tf.TensorSpec((4,), tf.int32, name="shift"),
        ]
    )
    def call(image: Any, shift: Any) -> Any:
        x = tf.nn.relu(tf.nn.conv2d(image, weight, 1, "SAME"))
        return {"mean": tf.reduce_mean(x, (1, 2)) + tf.cast(shift, tf.float32), "big": shift * 2}

    module = tf.Module()
    module.call = call
    tf.saved_model.save(module, str(folder), signatures=call)
    return str(folder)


def inputs(batch: int) -> dict[str, Any]:
    image = np.random.default_rng(batch).normal(size=(batch, 8, 8, 3)).astype(np.float32)
    return {"image": image, "shift": np.array([1, -2, 3, 0], np.int32)}


@needs_tensorflow
def test_a_model_keeps_its_signatures_names_and_its_open_batch(tmp_path):
    import tensorflow as tf

    path = tmp_path / "net.tflite"
    folder = saved_model(tmp_path / "saved")
    path.write_bytes(tf.lite.TFLiteConverter.from_saved_model(folder).convert())
    converted = convert(path)
    assert sorted(names(converted.graph.input)) == ["image", "shift"]
    assert sorted(names(converted.graph.output)) == ["big", "mean"]
    for batch in (1, 3):
        results, expected = run(path, inputs(batch))
        assert results.keys() == expected.keys()
        for name, wanted in expected.items():
            assert results[name].dtype == wanted.dtype
            np.testing.assert_allclose(results[name], wanted, rtol=1e-4, atol=1e-4)


@needs_tensorflow
def test_an_int8_model_stays_int8_and_within_a_step_of_its_results(tmp_path):
    import tensorflow as tf

    weight = np.random.default_rng(0).normal(size=(3, 3, 3, 4)).astype(np.float32)

    @tf.function(input_signature=[tf.TensorSpec((1, 8, 8, 3), tf.float32, name="image")])
    def call(image: Any) -> Any:
        x = tf.nn.relu(tf.nn.conv2d(image, weight, 2, "SAME") + tf.constant([0.1, 0, -0.1, 1]))
        return {"pooled": tf.nn.max_pool2d(x, 2, 2, "VALID")}

    def samples() -> Iterator[list[Any]]:
        for batch in range(20):
            yield [inputs(batch + 1)["image"][:1]]

    module = tf.Module()
    module.call = call
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures=call)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "saved"))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = samples
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    path = tmp_path / "net.tflite"
    path.write_bytes(converter.convert())

    converted = convert(path)
    assert converted.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.INT8
    assert "QuantizeLinear" in {node.op_type for node in converted.graph.node}
    image = np.random.default_rng(9).integers(-128, 128, (1, 8, 8, 3), np.int8)
    results, expected = run(path, {"image": image})
    assert results["pooled"].dtype == np.int8
    assert len(np.unique(expected["pooled"])) > 8
    assert np.abs(results["pooled"].astype(int) - expected["pooled"].astype(int)).max() <= 1


@needs_tensorflow
def test_a_damaged_file_is_an_error(tmp_path):
    path = tmp_path / "net.tflite"
    path.write_bytes(b"\x1c\x00\x00\x00TFL3" + bytes(range(200)))
    with pytest.raises(ModelError, match=r"the file (is|may be) damaged"):
        convert(path)


def test_files_of_other_kinds_are_told(tmp_path):
    path = tmp_path / "net.tflite"
    path.write_bytes(b"\x08\x01 not a flatbuffer")
    with pytest.raises(ModelError, match=r"net\.tflite: is no TensorFlow Lite model: .*b'TFL3'"):
        convert(path)


def test_a_missing_package_names_the_command(tmp_path, monkeypatch):
    path = tmp_path / "net.tflite"
    path.write_bytes(b"\x1c\x00\x00\x00TFL3")
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    command = r'needs tensorflow; run: pip install "inference-engine\[tensorflow\]"'
    if find_spec("tf2onnx") is None:
        command = command.replace("tensorflow;", "tensorflow and tf2onnx;")
    with pytest.raises(ModelError, match=command):
        convert(path)
