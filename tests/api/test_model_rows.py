"""Model against the API's table: checks in their order, texts, defaults, what each call gives."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import engine
from engine import DataType, Format, Model, ModelType, Tensor, TensorMeta
from engine_testing import models

X = np.arange(6, dtype=np.float32).reshape(2, 3)
Step = tuple[type[Exception], str, dict[str, Any]]


def walk(call: Callable[..., Any], arguments: dict[str, Any], steps: list[Step]) -> Any:
    """Call with everything wrong, mend one thing after the other; each step is (error, text, mend).

    So what is checked, in which order and in which words, is one list. Returns the last answer.
    """
    for kind, text, mended in steps:
        with pytest.raises(kind) as caught:
            call(**arguments)
        assert str(caught.value).startswith(text)
        assert "\n" not in str(caught.value)
        arguments = {**arguments, **mended}
    return call(**arguments)


# --------------------------------------------------------------------------------- build_from_file


def test_build_from_file_checks_in_the_documented_order(tmp_path, null_context):
    path, config = str(models.affine(tmp_path)), tmp_path / "config.ini"
    config.write_text("[a]\nno equals sign\n")
    wrong = {
        "model_path": 1, "model_type": 0, "context": "cpu", "config_path": 1, "config_dict": [1],
        "dec_key": "key", "dec_mode": 1, "dec_num_parallel": "2",
    }  # fmt: skip
    steps: list[Step] = [
        (TypeError, "model_path must be str, but got <class 'int'>.", {"model_path": "nowhere"}),
        (TypeError, "model_type must be ModelType, but got", {"model_type": ModelType.MINDIR}),
        (TypeError, "context must be Context, but got", {"context": null_context}),
        (TypeError, "config_path must be str, but got", {"config_path": "nowhere.ini"}),
        (RuntimeError, "build_from_file failed, model_path does not exist! got 'nowhere'",
         {"model_path": path}),
        (RuntimeError, "build_from_file failed, config_path does not exist! got 'nowhere.ini'",
         {"config_path": str(config)}),
        (RuntimeError, "load configuration failed! Error is ", {"config_path": ""}),
        (TypeError, "config_dict must be dict, but got", {"config_dict": {1: {}}}),
        (TypeError, "config_dict_key must be str, but got", {"config_dict": {"a": 1}}),
        (TypeError, "config_dict_value must be dict, but got", {"config_dict": {"a": {1: ""}}}),
        (TypeError, "config_dict_value_key must be str", {"config_dict": {"a": {"b": 1}}}),
        (TypeError, "config_dict_value_value must be str", {"config_dict": {"a": {"": ""}}}),
        (RuntimeError, "update configuration failed! Error is ", {"config_dict": None}),
        (TypeError, "dec_key must be bytes, but got", {"dec_key": b"k" * 16}),
        (TypeError, "dec_mode must be str, but got", {"dec_mode": ""}),
        (TypeError, "dec_num_parallel must be int, but got", {"dec_num_parallel": -1}),
        (ValueError, "dec_num_parallel should be in range [0, 64]", {"dec_num_parallel": 65}),
        (ValueError, "dec_num_parallel should be in range [0, 64]", {"dec_num_parallel": 64}),
        (ValueError, "dec_mode must not be empty string!", {"dec_mode": "AES-GCM"}),
        (RuntimeError, "build_from_file failed! Error is ", {"dec_key": b""}),
    ]  # fmt: skip
    model = Model()
    walk(model.build_from_file, wrong, steps)
    np.testing.assert_array_equal(model.predict([X])[0], 2 * X + 1)
    with pytest.raises(RuntimeError, match=r"build_from_file failed! Error is .*already built"):
        model.build_from_file(path, ModelType.MINDIR, null_context)


def test_what_decryption_takes_is_not_looked_at_without_a_key(tmp_path, null_context):
    path = str(models.affine(tmp_path))
    for key in (None, b"", ""):
        model = Model()
        model.build_from_file(path, ModelType.MINDIR, null_context, "", None, key, 7, "many")
        assert model.predict([X])


@pytest.mark.parametrize("config_dict", [None, {}, [], "", 0])
def test_a_config_dict_that_is_nothing_leaves_the_files_settings_as_they_are(
    tmp_path, null_context, config_dict
):
    path = str(models.affine(tmp_path))
    file = tmp_path / "settings.cfg"
    file.write_text("[null_context]\ndelay_s=soon\n")
    model = Model()
    with pytest.raises(ValueError, match="'delay_s': expected float from 0, got 'soon'"):
        model.build_from_file(
            path, ModelType.MINDIR, null_context, str(file), config_dict=config_dict
        )
    model.build_from_file(path, ModelType.MINDIR, null_context, config_dict=config_dict)
    np.testing.assert_array_equal(model.predict([X])[0], 2 * X + 1)


@pytest.mark.parametrize("model_type", list(ModelType))
def test_the_files_content_decides_what_it_is(tmp_path, null_context, model_type):
    model = Model()
    model.build_from_file(str(models.affine(tmp_path)), model_type, null_context)
    assert model.predict([X])


@pytest.mark.parametrize("make", [models.truncated, models.mismatched, models.unknown_operator])
def test_a_model_that_cannot_be_built_is_a_runtime_error_that_names_the_file(
    tmp_path, null_context, make
):
    path = str(make(tmp_path))
    with pytest.raises(RuntimeError, match=r"^build_from_file failed! Error is .*\.onnx") as caught:
        Model().build_from_file(path, ModelType.MINDIR, null_context)
    assert isinstance(caught.value, engine.ModelError)
    assert caught.value.path == path


def test_a_target_that_cannot_be_had_begins_with_the_documented_text(tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_TARGET", "tpu")
    text = r"^build_from_file failed! Error is .*'tpu' is not installed"
    with pytest.raises(engine.BackendNotInstalled, match=text) as caught:
        Model().build_from_file(str(models.affine(tmp_path)), ModelType.MINDIR)
    assert caught.value.name == "tpu"


# ------------------------------------------------------------------------------- build_from_buffer


def test_build_from_buffer_checks_in_the_documented_order(tmp_path, null_context):
    wrong = {
        "model_bytes": bytearray(b"0"), "weight_bytes": "", "model_type": "MINDIR",
        "context": "", "config_path": 1, "config_dict": 1,
    }  # fmt: skip
    steps: list[Step] = [
        (TypeError, "model_bytes must be bytes, but got", {"model_bytes": b""}),
        (RuntimeError, "build_from_buffer failed, model_bytes is empty.", {"model_bytes": b"0"}),
        (TypeError, "weight_bytes must be bytes, but got", {"weight_bytes": b"weights"}),
        (TypeError, "model_type must be ModelType, but got",
         {"model_type": ModelType.MINDIR_LITE}),
        (RuntimeError, "build_from_buffer failed, model_type should be MINDIR",
         {"model_type": ModelType.MINDIR}),
        (TypeError, "context must be Context, but got", {"context": null_context}),
        (TypeError, "config_path must be str, but got", {"config_path": "nowhere.ini"}),
        (RuntimeError, "build_from_buffer failed, config_path does not exist! got",
         {"config_path": ""}),
        (TypeError, "config_dict must be dict, but got", {"config_dict": None}),
        (RuntimeError, "build_from_buffer failed! Error is model bytes: ",
         {"model_bytes": models.affine(tmp_path).read_bytes()}),
    ]  # fmt: skip
    model = Model()
    walk(model.build_from_buffer, wrong, steps)
    np.testing.assert_array_equal(model.predict([X])[0], 2 * X + 1)
    assert (str(model), model.model_path_) == ("model_path: .", "")
    with pytest.raises(RuntimeError, match=r"build_from_buffer failed! Error is .*already built"):
        model.build_from_buffer(models.affine(tmp_path).read_bytes(), context=null_context)


@pytest.mark.parametrize("weight_bytes", [None, b""])
def test_a_buffer_needs_no_type_and_no_weights(tmp_path, null_context, weight_bytes):
    model = Model()
    content = models.affine(tmp_path).read_bytes()
    model.build_from_buffer(content, weight_bytes, context=null_context)
    assert model.predict([X])


def test_bytes_cannot_have_external_data(tmp_path, null_context):
    content = models.external(tmp_path).read_bytes()
    with pytest.raises(engine.ModelError, match=r"build_from_buffer failed! Error is .*external"):
        Model().build_from_buffer(content, context=null_context)


# --------------------------------------------------------------------------- attributes and text


def test_a_new_model_has_the_documented_attributes():
    model = Model()
    assert (model.model_path_, model.provider, model.lora_name_map) == ("", "", {})
    assert str(model) == "model_path: ."


def test_a_built_model_says_its_path_and_how_it_runs(tmp_path, null_context):
    path = str(models.affine(tmp_path))
    model = Model()
    model.build_from_file(path, ModelType.MINDIR, null_context)
    assert (str(model), model.model_path_) == (f"model_path: {path}.", path)
    assert model.provider == ""
    null_context.ascend.provider = "ge"
    other = Model()
    other.build_from_file(path, ModelType.MINDIR, null_context)
    assert other.provider == "ge"


# -------------------------------------------------------------------------------------- resize


def test_resize_checks_in_the_documented_order(several):
    inputs = several.get_inputs()
    element = "dims element's element must be int, but got <class 'str'> at 1th dims element's 0th"
    invalid = "resize failed! Error is Invalid shape! input "
    steps: list[Step] = [
        (TypeError, "inputs must be list or tuple of Lite Tensor, but got", {"inputs": [1, 2]}),
        (TypeError, "dims must be list or tuple of shape, but got", {"dims": [[2, 3], 3]}),
        (TypeError, "inputs element must be Tensor, but got <class 'int'> at index 0.",
         {"inputs": inputs}),
        (TypeError, "dims element must be list or tuple of int, but got <class 'int'>",
         {"dims": [[2, 3], ["3"]]}),
        (TypeError, element, {"dims": [[2, 3], [2, 3]]}),
        (ValueError, "inputs' size does not match dims' size, but got inputs: 3 and dims: 2.",
         {"inputs": inputs[:2]}),
        (RuntimeError, "resize failed! Error is model input len:3 not equal input len:2",
         {"inputs": tuple(inputs), "dims": [[2, 3], [2, 3], [0]]}),
        (RuntimeError, invalid, {"dims": [[2, 3], [2, 3], [-1]]}),
        (RuntimeError, invalid, {"dims": [[2, 3], [2, -3], [3]]}),
        (RuntimeError, invalid, {"dims": [[2, 0], [2, 3], [3]]}),
        (RuntimeError, invalid, {"dims": [[2**31, 3]] * 3}),
        (RuntimeError, invalid, {"dims": [[2, 3], [2, 3], [3, 1]]}),
        (RuntimeError, "resize failed! Error is input 'm': expected 1 dims",
         {"dims": [[2, 3], [2, 3], [4]]}),
        (RuntimeError,
         "resize failed! Error is The given input shape's value != original input shape's "
         "value. input 'm': dim 0 is fixed to 3 by the model, got 4",
         {"dims": ((2, 3), [2, 3], [np.int64(3)])}),
    ]  # fmt: skip
    assert walk(several.resize, {"inputs": 1, "dims": 1}, steps) is None


# --------------------------------------------------------------------------------------- predict


def test_a_wrong_size_is_told_beside_the_right_one(affine):
    affine.resize(affine.get_inputs(), [[2, 3]])
    with pytest.raises(RuntimeError) as caught:
        affine.predict([np.zeros((2, 4), np.float32)])
    assert str(caught.value) == (
        "input 'x': expected float32[2, 3], got float32[2, 4]; axis 1 is fixed to 3 in the model's "
        "file: pass that size, try model.resize(model.get_inputs(), [[2, 4]]), or export the model "
        "with that axis open (data size not equal! Numpy size: 32, Tensor size: 24)"
    )


def test_another_rank_is_not_sent_to_resize(affine):
    with pytest.raises(RuntimeError, match=r"\[6, 1, 1\]; the model wants 2 axes, got 3: pass th"):
        affine.predict([np.zeros((6, 1, 1), np.float32)])


def test_an_array_as_fromfile_gives_it_takes_the_shape_of_the_input(affine):
    with pytest.raises(RuntimeError, match="data size not equal!"):
        affine.predict([X.ravel()])  # which shape is meant is open
    affine.resize(affine.get_inputs(), [[2, 3]])
    outputs = [Tensor()]
    for _ in range(2):
        np.testing.assert_array_equal(affine.predict([X.ravel()])[0], 2 * X + 1)
        affine.predict({"x": X.ravel()}, outputs)
        np.testing.assert_array_equal(outputs[0], 2 * X + 1)
    with pytest.raises(
        RuntimeError, match=r"^input 'x': expected float32\[2, 3\], got float32\[3, 2\]"
    ):
        affine.predict([X.T])  # as many bytes, but not in that order


def test_a_model_that_fails_while_it_runs_says_predict_failed(tmp_path, null_backend):
    with engine.load(models.pairs(tmp_path), target=null_backend) as model:
        with pytest.raises(RuntimeError, match=r"^predict failed! "):
            model.predict([np.zeros(3, np.float32)])
        assert model.predict([np.zeros(4, np.float32)])


# ---------------------------------------------------------------------------- inputs and outputs


def test_inputs_are_tensors_and_outputs_their_descriptions(several):
    inputs, outputs = several.get_inputs(), several.get_outputs()
    assert type(inputs) is list
    assert type(outputs) is tuple
    assert [(t.name, t.shape) for t in inputs] == [("z", [2, 3]), ("a", [2, 3]), ("m", [3])]
    assert {type(meta) for meta in outputs} == {TensorMeta}
    assert [meta.name for meta in outputs] == ["y", "b", "x"]
    first = outputs[0]
    assert (first.dtype, first.shape, first.format) == (DataType.FLOAT32, [2, 3], Format.NCHW)
    assert (first.element_num, first.data_size) == (6, 24)


# ---------------------------------------------------------------------------------- get_model_info


def test_before_building_only_the_process_is_known():
    for key in ("user_info", "input_shape", "dynamic_dims", "shareable_weight_mem_handle", "", "x"):
        assert Model().get_model_info(key) == ""
    assert Model().get_model_info("current_pid") == str(os.getpid())


def test_the_shapes_of_a_model_are_those_it_takes_now(several, affine):
    assert several.get_model_info("input_shape") == "z:2,3;a:2,3;m:3"
    assert affine.get_model_info("input_shape") == "x:-1,3"
    affine.resize(affine.get_inputs(), [[4, 3]])
    assert affine.get_model_info("input_shape") == "x:4,3"
    for key in ("shareable_weight_mem_handle", "dynamic_dims", "user_info", "something else"):
        assert affine.get_model_info(key) == ""
    assert affine.get_model_info("current_pid") == str(os.getpid())


def test_the_files_own_metadata_is_its_user_info(tmp_path, null_backend):
    path = models.affine(tmp_path)
    proto = onnx.load(path)
    onnx.helper.set_model_props(proto, {"author": "Zoë", "classes": "3"})
    onnx.save(proto, path)
    info = engine.load(path, target=null_backend).get_model_info("user_info")
    assert json.loads(info) == {"author": "Zoë", "classes": "3"}


def test_dynamic_dims_are_what_the_configuration_gave(tmp_path, null_backend):
    path = models.affine(tmp_path)
    config = {
        "gpu_context": {"dynamic_dims": "[1~2]"},
        "ascend_context": {"input_shape": "x:[-1,3]", "dynamic_dims": "[1~4],[8]"},
    }
    model = engine.load(path, target=null_backend, config=config)
    assert model.get_model_info("dynamic_dims") == "[1~2]"
    config["null_context"] = {"input_shape": "x:[-1,3]", "dynamic_dims": "[3]"}
    model = engine.load(path, target=null_backend, config=config)
    assert model.get_model_info("dynamic_dims") == "[3]"  # the backend's own section goes first
