"""TensorFlow's files become ONNX that gives TensorFlow's own results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import engine
from engine.converter.job import Job
from engine.converter.sources import tensorflow
from engine.errors import ModelError
from engine.tensor.enums import FmkType

pytestmark = pytest.mark.filterwarnings("ignore")  # TensorFlow's own
needs_tensorflow = pytest.mark.skipif(
    find_spec("tensorflow") is None or find_spec("tf2onnx") is None,
    reason='tensorflow is not installed: pip install "inference-engine[tensorflow]"',
)


def job_of(path: Path, shapes: Mapping[str, tuple[int, ...]] | None = None, **more: Any) -> Job:
    return Job(
        framework=FmkType.TF,
        model_file=path,
        output_file=path.with_suffix(".mindir"),
        input_shape=shapes or {},
        **more,
    )


def convert(path: Path, shapes: Mapping[str, tuple[int, ...]] | None = None) -> onnx.ModelProto:
    job = job_of(path, shapes)
    model, _ = tensorflow.read(job)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, job.output_file)
    return model


def names(values: Sequence[onnx.ValueInfoProto]) -> list[str]:
    return [value.name for value in values]


def shape_of(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def assert_same(
    path: Path, expected: Mapping[str, Any], inputs: Mapping[str, np.ndarray[Any, Any]]
) -> None:
    """The converted file at `path` gives these outputs by name."""
    with engine.load(path.with_suffix(".mindir"), target="cpu") as model:
        results = model(dict(inputs))
    assert results.keys() == expected.keys()
    for name, wanted in expected.items():
        assert results[name].dtype == np.asarray(wanted).dtype
        np.testing.assert_allclose(results[name], wanted, rtol=1e-4, atol=1e-4)


def images(batch: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(batch).normal(size=(batch, 8, 8, 3)).astype(np.float32)


def cnn() -> Any:
    """image float32[n, 8, 8, 3] -> float32[n, 5]; its batch norm has its own statistics."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    norm = layers.BatchNormalization()
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3), name="image"),
            layers.Conv2D(4, 3, padding="same"),
            norm,
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(5),
        ]
    )
    norm.moving_mean.assign([0.1, -0.2, 0.3, 0.0])
    norm.moving_variance.assign([0.5, 2.0, 1.0, 0.1])
    return model


@needs_tensorflow
def test_a_keras_file_with_lstm_and_attention_keeps_names_and_open_batch(tmp_path):
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    tokens = keras.Input((7,), dtype="int32", name="tokens")
    scale = keras.Input((1,), name="scale")
    embedded = layers.Embedding(11, 6)(tokens)
    states = layers.LSTM(5, return_sequences=True, name="states")(embedded)
    attended = layers.MultiHeadAttention(2, 3, name="attended")(embedded, embedded)
    scaled = layers.Multiply(name="scaled")([layers.GlobalMaxPooling1D()(states), scale])
    model = keras.Model([tokens, scale], [states, scaled, attended])
    path = tmp_path / "tagger.keras"
    model.save(path)

    converted = convert(path)
    assert names(converted.graph.input) == ["tokens", "scale"]
    assert names(converted.graph.output) == ["states", "scaled", "attended"]
    assert converted.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.INT32
    assert isinstance(shape_of(converted.graph.input[0])[0], str)
    for batch in (1, 3):
        given = {
            "tokens": (np.arange(batch * 7, dtype=np.int32) % 11).reshape(batch, 7),
            "scale": np.linspace(-1, 1, batch, dtype=np.float32).reshape(batch, 1),
        }
        expected = dict(zip(["states", "scaled", "attended"], model(list(given.values()))))
        assert_same(path, expected, given)


@needs_tensorflow
def test_an_hdf5_file_of_keras_with_its_batch_asked_for(tmp_path):
    model = cnn()
    path = tmp_path / "cnn.h5"
    model.save(path)
    converted = convert(path, {"image": (2, 8, 8, 3)})
    assert shape_of(converted.graph.input[0]) == [2, 8, 8, 3]
    assert shape_of(converted.graph.output[0]) == [2, 5]
    assert_same(path, {"output": model(images(2))}, {"image": images(2)})


@needs_tensorflow
def test_a_saved_model_has_its_signatures_names(tmp_path):
    import tensorflow as tf

    class Affine(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable(np.arange(12, dtype=np.float32).reshape(3, 4) / 10)

        @tf.function(
            input_signature=[
                tf.TensorSpec((None, 3), tf.float32, name="b"),
                tf.TensorSpec((), tf.int64, name="a"),
            ]
        )
        def __call__(self, b: Any, a: Any) -> Any:
            return {"z": b @ self.weight + tf.cast(a, tf.float32), "y": a + 1}

        @tf.function(input_signature=[tf.TensorSpec((), tf.float32, name="x")])
        def another(self, x: Any) -> Any:
            return {"x2": x * 2}

    module = Affine()
    path = tmp_path / "affine"
    # A signature that comes first by name, and is not the one that serves.
    signatures = {"another": module.another, "serving_default": module.__call__}
    tf.saved_model.save(module, str(path), signatures=signatures)
    inputs = {"b": np.ones((5, 3), np.float32), "a": np.array(7, np.int64)}
    converted = convert(path / "saved_model.pb")
    assert sorted(names(converted.graph.input)) == ["a", "b"]
    expected = {name: value.numpy() for name, value in module(**inputs).items()}
    assert_same(path / "saved_model.pb", expected, inputs)


def frozen(path: Path) -> Callable[..., Any]:
    """Write a frozen graph of x float32[n, 3] and shift int32[3]; return what runs it."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (None, 3), name="x")
        shift = v1.placeholder(tf.int32, (3,), name="shift")
        moved = x + tf.cast(shift, tf.float32)
        tf.matmul(moved, tf.constant(np.eye(3, dtype=np.float32) * 2), name="doubled")
        tf.split(shift, 3, name="parts")
    path.write_bytes(graph.as_graph_def().SerializeToString())

    def run(**inputs: Any) -> dict[str, Any]:
        outputs = {"doubled": "doubled:0", "parts": "parts:0", "parts:1": "parts:1"}
        with v1.Session(graph=graph) as session:
            fed = {f"{name}:0": value for name, value in inputs.items()}
            return dict(session.run({**outputs, "parts:2": "parts:2"}, fed))

    return run


@needs_tensorflow
def test_the_ends_of_a_frozen_graph_are_its_inputs_and_outputs(tmp_path):
    path = tmp_path / "frozen.pb"
    run = frozen(path)
    converted = convert(path)
    assert names(converted.graph.input) == ["x", "shift"]
    assert names(converted.graph.output) == ["doubled", "parts", "parts:1", "parts:2"]
    inputs = {"x": images(1).reshape(-1, 3), "shift": np.array([1, 2, -3], np.int32)}
    assert_same(path, run(**inputs), inputs)


@needs_tensorflow
def test_a_shape_fills_in_what_is_open_and_changes_nothing_else(tmp_path):
    path = tmp_path / "frozen.pb"
    frozen(path)
    converted = convert(path, {"x": (4, 5)})  # 5 contradicts the model: a later step says so
    assert shape_of(converted.graph.input[0]) == [4, 3]


@needs_tensorflow
def test_what_cannot_be_converted_says_why(tmp_path, capfd):
    import tensorflow as tf

    v1 = tf.compat.v1
    path = tmp_path / "model.pb"
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (3,), name="x")
        v1.get_variable("weight", (3,), use_resource=False) * x
    path.write_bytes(graph.as_graph_def().SerializeToString())
    capfd.readouterr()
    with pytest.raises(ModelError, match=r"not frozen: 'weight' is a variable"):
        convert(path)
    with tf.Graph().as_default() as graph:
        tf.linalg.cholesky(v1.placeholder(tf.float32, (3, 3), name="x"))
    path.write_bytes(graph.as_graph_def().SerializeToString())
    with pytest.raises(ModelError, match="no ONNX operators for Cholesky"):
        convert(path)
    assert capfd.readouterr() == ("", "")


@needs_tensorflow
@pytest.mark.parametrize("name", ["model.pb", "model.keras", "folder"])
def test_a_damaged_file_is_an_error(tmp_path, name):
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
        (path / "saved_model.pb").write_bytes(b"\x08\x01\x12\xff\x01")
    else:
        path.write_bytes({".pb": b"\x0a\xff", ".keras": b"PK\x03\x04"}[path.suffix] + b"\x00" * 99)
    with pytest.raises(ModelError, match=f"{name}: cannot be converted from TensorFlow: ") as error:
        convert(path)
    assert "\n" not in str(error.value)


def test_a_missing_package_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    command = r'needs tensorflow and tf2onnx; run: pip install "inference-engine\[tensorflow\]"'
    with pytest.raises(ModelError, match=command):
        convert(tmp_path / "model.pb")
