"""Settings of a conversion that hold for the model that is built of its result."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import written

import engine
from engine import (
    Context,
    Converter,
    FmkType,
    Model,
    ModelExecutor,
    ModelType,
    MultiModelRunner,
    Tensor,
)
from engine.config import declared
from engine.errors import InputError
from engine_testing import models

X = np.arange(16, dtype=np.float32).reshape(2, 8) / 8


def mlp(folder: Path) -> Path:
    """y = relu(x w0) w1"""
    random = np.random.default_rng(0)
    nodes = "[first] a = MatMul(x, w0) b = Relu(a) [second] y = MatMul(b, w1)"
    return written(
        folder / "mlp.onnx",
        f"mlp (float[n, 8] x) => (float[n, 4] y) {{ {nodes} }}",
        w0=random.standard_normal((8, 16), np.float32),
        w1=random.standard_normal((16, 4), np.float32),
    )


def convert(path: Path, config: dict[str, dict[str, str]], folder: Path) -> Path:
    converter = Converter()
    for section, keys in config.items():
        converter.set_config_info(section, keys)
    converter.convert(FmkType.ONNX, str(path), str(folder / "converted"))
    return folder / "converted.mindir"


def built(path: Path, context: Context, **config: dict[str, str]) -> Model:
    model = Model()
    model.build_from_file(str(path), ModelType.MINDIR, context, config_dict=config or None)
    return model


def whole(path: Path, weights: dict[str, np.ndarray]) -> np.ndarray:
    """Return the result of onnx's own evaluator with other weights."""
    from onnx.reference import ReferenceEvaluator

    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(onnx.numpy_helper.from_array(weights[tensor.name], tensor.name))
    [y] = ReferenceEvaluator(model).run(None, {"x": X})
    return np.asarray(y)


@pytest.mark.parametrize("line", ["w0", "mine,w0"])
def test_weights_that_the_converter_was_told_of_can_be_updated(line, null_context, tmp_path):
    path = mlp(tmp_path)
    names = tmp_path / "names.txt"
    names.write_text(line + "\n")
    result = convert(path, {"ascend_context": {"variable_weights_file": str(names)}}, tmp_path)
    names.unlink()  # what it said is in the model
    model = built(result, null_context)
    np.testing.assert_allclose(model(x=X)["y"], whole(path, {}), rtol=1e-5, atol=1e-6)
    [w0] = [t for t in onnx.load(path).graph.initializer if t.name == "w0"]
    fresh = np.full(tuple(w0.dims), 0.01, np.float32)
    update = Tensor(fresh)
    update.name = line.split(",")[0]
    model.update_weights([[update]])
    np.testing.assert_allclose(model(x=X)["y"], whole(path, {"w0": fresh}), rtol=1e-5, atol=1e-6)


def test_a_build_may_declare_others(null_context, tmp_path):
    config = {"ascend_context": {"variable_weights_list": "w0"}}
    result = convert(mlp(tmp_path), config, tmp_path)
    model = Model()
    model.build_from_file(str(result), ModelType.MINDIR, null_context, variable_weights=["w1"])
    assert model.get_model_info("variable_weights").startswith("w1:")


@pytest.mark.parametrize(
    ("section", "key"),
    [("acl_build_options", "ge.dynamicDims"), ("ascend_context", "dynamic_dims")],
)
def test_sizes_to_compile_for_are_known_later(section, key, null_context, tmp_path):
    config = {section: {"input_shape": "x:-1,8", key: "1;2;4"}}
    model = built(convert(mlp(tmp_path), config, tmp_path), null_context)
    assert model.get_model_info("dynamic_dims") == "1;2;4"
    assert model(x=X)["y"].shape[0] == 2


def test_a_name_that_is_no_weight_is_said_in_the_report(tmp_path):
    converter = Converter()
    converter.set_config_info("ascend_context", {"variable_weights_list": "w0,nothing"})
    converter.convert(FmkType.ONNX, str(mlp(tmp_path)), str(tmp_path / "out"))
    assert converter.report is not None
    assert (
        "variable weights nothing: part of others in the result, or not there; declare them "
        "when the model is built from what it was converted from" in converter.report.notes
    )
    assert "variable weights w0: kept" in converter.report.notes


def executors_of(path: Path, context: Context, split: str) -> list[ModelExecutor]:
    result = convert(path, {"SplitGraph": {"split_node_name": split}}, path.parent)
    runner = MultiModelRunner()
    runner.build_from_file(str(result), ModelType.MINDIR, context)
    return runner.get_model_executor()


def ends(executor: ModelExecutor) -> tuple[list[str], list[str]]:
    return [t.name for t in executor.get_inputs()], [m.name for m in executor.get_outputs()]


def test_a_runner_has_the_executors_that_the_converter_was_told_of(null_context, tmp_path):
    """As MindSpore Lite has them: one that begins inside has one before it that leads there."""
    path = mlp(tmp_path)
    first, rest, second = executors_of(path, null_context, "[[x],[first]],[[first],[second]]")
    assert ends(first) == ends(rest) == (["x"], ["first"])
    assert ends(second) == (["first"], ["second"])
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    a = X @ weights["w0"]
    for executor in (first, rest):
        [got] = executor.predict([X])
        np.testing.assert_allclose(got.get_data_to_numpy(), a, rtol=1e-5, atol=1e-6)
    for rows in (2, 1, 0):  # the open axis is open in each part
        [y] = second.predict([a[:rows]])
        np.testing.assert_allclose(
            y.get_data_to_numpy(), np.maximum(a[:rows], 0) @ weights["w1"], rtol=1e-5, atol=1e-6
        )
    model = built(path.parent / "converted.mindir", null_context)  # and is one model for Model
    np.testing.assert_allclose(model(x=X)["y"], whole(path, {}), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("[[x],[y]]", [(["x"], ["y"])]),
        ("[ [ x ] , [ second ] ]", [(["x"], ["second"])]),
        ("[[],[b]]", [(["x"], ["b"])]),
        ("[[b],[y]]", [(["x"], ["b"]), (["b"], ["y"])]),
        ("[[x],[first,y]];[[b],[y]]", [(["x"], ["first", "y"]), (["x"], ["b"]), (["b"], ["y"])]),
    ],
)  # fmt: skip
def test_executors_begin_and_end_where_they_are_declared(split, expected, null_context, tmp_path):
    path = mlp(tmp_path)
    found = executors_of(path, null_context, split)
    assert [*map(ends, found)] == expected
    for executor in found:
        if ends(executor)[0] == ["x"] and "y" in (names := ends(executor)[1]):
            y = executor.predict([X])[names.index("y")].get_data_to_numpy()
            np.testing.assert_allclose(y, whole(path, {}), rtol=1e-5, atol=1e-6)


def branches(folder: Path) -> Path:
    """p = 2x1, c = |p| + (q = 3x2), d = c * q; a constant that both parts read."""
    text = """branches (float[n] x1, float[n] x2) => (float[n] d) {
        two = Constant <value = float {2}> ()
        [P] p = Mul(x1, two)
        [Q] q = Mul(x2, three)
        [R] r = Abs(p)
        [C] c = Add(r, q)
        [E] e = Mul(c, q)
        [D] d = Mul(e, two)
    }"""
    return written(folder / "branches.onnx", text, three=np.float32(3))


def test_an_executor_takes_what_it_needs_of_parts_before_it(null_context, tmp_path):
    split = "[[x1],[P]],[[x2],[Q]],[[C],[D]]"
    found = executors_of(branches(tmp_path), null_context, split)
    assert [*map(ends, found)] == [
        (["x1"], ["P"]), (["x2"], ["Q"]), (["x1", "x2"], ["C", "Q"]), (["C", "Q"], ["D"]),
    ]  # fmt: skip
    x1, x2 = np.array([-1, 2], np.float32), np.array([5, 7], np.float32)
    c, q = np.abs(2 * x1) + 3 * x2, 3 * x2
    for executor, given, wanted in zip(
        found, [[x1], [x2], [x1, x2], [c, q]], [[2 * x1], [q], [c, q], [2 * c * q]], strict=True
    ):
        got = [tensor.get_data_to_numpy() for tensor in executor.predict(given)]
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("[x],[first]", "expected \\[\\[inputs\\],\\[outputs\\]\\] for each executor"),
        ("[[x],[first]] and more", "expected .* for each executor"),
        ("[[x],[]]", "an executor without outputs"),
        ("[[x],[frist]]", "got 'frist'; did you mean 'first'"),
        ("[[second],[first]]", "'y' is an input of an executor, but no node reads it"),
        ("[[b],[first]]", "'a' is an output of an executor, but is not computed after 'b'"),
        ("[[x],[x]]", "'x' is an output of an executor, but is not computed after 'x'"),
        ("[[x,b],[first]]", "'b' is an input of an executor, but its outputs, 'a', do not depend"),
    ],
)
def test_executors_that_cannot_be_end_the_conversion(split, message, tmp_path):
    with pytest.raises(InputError, match=message) as caught:
        convert(mlp(tmp_path), {"SplitGraph": {"split_node_name": split}}, tmp_path)
    assert "[SplitGraph] split_node_name" in str(caught.value)
    assert not (tmp_path / "converted.mindir").exists()


def test_executors_that_do_not_fit_the_model_any_more_are_an_error(null_context, tmp_path):
    model = onnx.load(models.affine(tmp_path))
    text = json.dumps({"executors": [[["x"], ["gone"]]], "names": {}})
    model.metadata_props.add(key=declared.KEY, value=text)
    onnx.save(model, tmp_path / "odd.onnx")
    with pytest.raises(engine.ModelError, match=r"'gone' is neither an input .*convert it again"):
        MultiModelRunner().build_from_file(
            str(tmp_path / "odd.onnx"), ModelType.MINDIR, null_context
        )


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "1", '{"variable_weights": 1}', '{"variable_weights": [["a"], 1]}',
             '{"ascend_context": 1}', '{"executors": []}', '{"executors": [["x"]], "names": {}}',
             '{"executors": [[["x"], [1]]], "names": {}}', '{"executors": [[["x"], ["y"]]]}',
             "[" * 9999],
)  # fmt: skip
def test_metadata_of_others_under_that_key_means_nothing(text):
    assert declared.sections({declared.KEY: text}) == {}
    assert declared.declaration({declared.KEY: text}, {}) is None
    assert declared.executors({declared.KEY: text}) is None


def test_metadata_that_names_no_weight_is_an_error_of_the_build(null_context, tmp_path):
    model = onnx.load(models.affine(tmp_path))
    model.metadata_props.add(key=declared.KEY, value=json.dumps({"variable_weights": [["a", "b"]]}))
    onnx.save(model, tmp_path / "odd.onnx")
    with pytest.raises(InputError, match="variable weight 'b' is neither a weight nor a node"):
        built(tmp_path / "odd.onnx", null_context)
    assert engine.load(models.affine(tmp_path), target=null_context.target[0])
