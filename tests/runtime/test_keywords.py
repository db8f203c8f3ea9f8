"""Arguments that people bring from other libraries: a TypeError that says what to type."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import engine
from engine import Converter, FmkType, Model, ModelType
from engine import ModelParallelRunner as Runner
from engine.sharding import slice_model
from engine_testing import models

MINDIR, ONNX = ModelType.MINDIR, FmkType.ONNX
X = np.zeros((2, 3), np.float32)


def said(call: Callable[[], object]) -> str:
    with pytest.raises(TypeError) as error:
        call()
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("keyword", "value", "advice"),
    [
        ("providers", ["CPUExecutionProvider"], "engine.load(path, target='gpu')"),
        ("device", "cpu", "engine.load(path, target='gpu')"),
        ("device_name", "CPU", "engine.load(path, target='gpu')"),
        ("map_location", "cpu", "engine.load(path, target='gpu')"),
        ("sess_options", None, "config={'cpu_context': {key: value}}"),
        ("intra_op_num_threads", 1, "did you mean 'threads'?"),
        ("path_or_bytes", "m.onnx", "the model goes first: engine.load(path)"),
        ("dtype", "float16", "`engine convert --fp16` stores float16"),
        ("batch_size", 8, "open axes take any size"),
        ("tarjet", "cpu", "did you mean 'target'?"),
        ("trust_remote_code", True, "it takes: model, target, threads, device_id, config,"),
    ],
)
def test_load_is_told_its_own_keyword(
    tmp_path: Path, keyword: str, value: object, advice: str
) -> None:
    path = models.affine(tmp_path)
    text = said(lambda: engine.load(path, **{keyword: value}))  # type: ignore[arg-type]
    assert text.startswith(f"engine.load() got an unexpected keyword argument {keyword!r}; ")
    assert advice in text


def test_what_is_too_much_by_place_is_told_how_it_is_passed(affine: Model, tmp_path: Path) -> None:
    text = said(lambda: engine.load("m.onnx", "cpu", 4))  # type: ignore[misc]
    assert text.startswith("engine.load() takes at most 2 arguments by place, got 3; by keyword: ")
    assert "threads" in text
    text = said(lambda: affine.profile([X], 5, 2))  # type: ignore[misc]
    assert text.endswith("takes at most 2 arguments by place, got 3; by keyword: warmup")


@pytest.mark.parametrize("arguments", [{"path": "m.onnx"}, {"context": None}])
def test_a_model_is_made_of_nothing(arguments: dict[str, object]) -> None:
    advice = "; engine.load(path, target='cpu') builds one; Model() takes nothing"
    assert said(lambda: Model(**arguments)).endswith(advice)  # type: ignore[arg-type]
    assert said(lambda: Model("m.onnx")).endswith(advice)  # type: ignore[call-arg]
    assert isinstance(Model(), Model)


def test_profile_takes_its_inputs_in_one_argument(affine: Model) -> None:
    advice = "model.profile({'x': array}), or model.profile(array) by place"
    assert said(lambda: affine.profile(feeds={"x": X})).endswith(advice)  # type: ignore[call-arg]
    assert advice in said(lambda: affine.profile(x=X))  # type: ignore[call-arg]
    text = said(lambda: affine.profile([X], iterations=3))  # type: ignore[call-arg]
    assert text.endswith("did you mean 'predicts'?")
    text = said(lambda: affine.predict_async([X], timeout=1))  # type: ignore[call-arg]
    assert text.endswith("did you mean 'timeout_s', in seconds?")


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: engine.bench("m", device="cpu"), "did you mean 'target'?"),  # type: ignore[call-arg]
        (lambda: engine.bench("m", iterations=9), "did you mean 'runs'?"),  # type: ignore[call-arg]
        (lambda: engine.bench("m", warmup=1), "did you mean 'warmup_s'"),  # type: ignore[call-arg]
        (lambda: engine.bench("m", None, "cpu"), "by keyword: target, "),  # type: ignore[misc]
        (lambda: engine.compare("m", target="cpu"), "did you mean 'targets'"),  # type: ignore[call-arg]
        (lambda: engine.compare("m", tol=1), "did you mean 'atol'?"),  # type: ignore[call-arg]
        (lambda: engine.compare("m", feed={}), "did you mean 'inputs'?"),  # type: ignore[call-arg]
    ],
)
def test_bench_and_compare_are_told_their_own_keywords(
    call: Callable[[], object], advice: str
) -> None:
    assert advice in said(call)


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: Model().build_from_file("m", MINDIR, contxt=None), "did you mean 'context'?"),  # type: ignore[call-arg]
        (lambda: Model().build_from_file("m", MINDIR, device="cpu"), "context.target = ["),  # type: ignore[call-arg]
        (lambda: Model().build_from_file("m", MINDIR, config={}), "'config_dict' for a dict?"),  # type: ignore[call-arg]
        (lambda: Model().build_from_buffer(b"", threads=2), "context.cpu.thread_num"),  # type: ignore[call-arg]
        (lambda: Model().build_from_file("m"), "missing 1 required positional"),  # type: ignore[call-arg]
        (lambda: Converter().convert(ONNX, "m", "n", weight_fiel=""), "mean 'weight_file'?"),  # type: ignore[call-arg]
        (lambda: Converter().convert(ONNX, "m", "n", weight_fp16=True), "it is an attribute of"),  # type: ignore[call-arg]
        (lambda: Runner().build_from_file("m", max_batch=2), "did you mean 'max_batch_size'?"),  # type: ignore[call-arg]
        (lambda: Runner().build_from_file("m", model_type=MINDIR), "leave it out"),  # type: ignore[call-arg]
        (lambda: Runner().build_from_file("m", workers_num=2), "context.parallel.workers_num"),  # type: ignore[call-arg]
        (lambda: slice_model("m", "d", input_shape={}), "did you mean 'input_shapes'?"),  # type: ignore[call-arg]
        (lambda: slice_model("m", output="d"), "did you mean 'out'?"),  # type: ignore[call-arg]
        (lambda: slice_model("m", "d", 2), "takes at most 2 arguments by place, got 3"),  # type: ignore[misc]
    ],
)  # fmt: skip
def test_what_builds_converts_and_slices_is_told_its_own_keywords(
    call: Callable[[], object], advice: str
) -> None:
    text = said(call)
    assert advice in text
    names = ("Model.build_from_", "Converter.convert()", "ModelParallelRunner.build", "slice_model")
    assert text.startswith(names)


def test_the_functions_look_as_they_are_written() -> None:
    assert [*inspect.signature(engine.load).parameters][:3] == ["model", "target", "threads"]
    assert [*inspect.signature(Model).parameters] == []
    assert engine.load.__name__ == "load"
    assert [*inspect.signature(Model.build_from_file).parameters][1:3] == [
        "model_path", "model_type",
    ]  # fmt: skip
    for function in (engine.load, Model.build_from_file, slice_model):
        assert pickle.loads(pickle.dumps(function)) is function
