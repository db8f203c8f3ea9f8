"""Upstream's own scripts and tests: their uses beyond the documented table, on the null backend."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conversions import converted
from graphs import written

import engine
from engine import Converter, FmkType, Model, Tensor
from engine.model.model import model_state
from engine_testing import models

X = np.arange(6, dtype=np.float32).reshape(2, 3)
Save = Callable[..., Model]


@pytest.fixture
def built(null_backend: str, tmp_path: Path) -> Save:
    """Builds the model of a graph in onnx's text."""

    def make(text: str, **weights: Any) -> Model:
        path = written(tmp_path / "net.onnx", text, **weights)
        return engine.load(path, target=null_backend)

    return make


def halved(built: Save, rows: Any = "n", size: Any = "h") -> Model:
    """Build a convolution of stride 2: what comes out follows from no name."""
    ends = f"(float[{rows}, 1, {size}, {size}] x) => (float[{rows}, 2, ?, ?] y)"
    w = np.ones((2, 1, 2, 2), np.float32)
    return built(f"net {ends} {{ y = Conv <strides = [2, 2]> (x, w) }}", w=w)


# ------------------------------------------------------------------------------- outputs' shapes


def test_after_resize_every_size_of_an_output_is_known(built):
    model = halved(built)
    assert model.get_outputs()[0].shape == [-1, 2, -1, -1]
    for rows, size in ((4, 8), (1, 6)):
        model.resize(model.get_inputs(), [[rows, 1, size, size]])
        [meta] = model.get_outputs()
        assert meta.shape == [rows, 2, size // 2, size // 2]
        assert meta.element_num == rows * 2 * (size // 2) ** 2
        assert meta.data_size == 4 * meta.element_num
        assert model.predict([np.ones((rows, 1, size, size), "f")])[0].shape == meta.shape


def test_after_predict_the_outputs_have_the_sizes_of_that_run(built):
    model = halved(built)
    for rows in (2, 3):
        [y] = model.predict([np.ones((rows, 1, 4, 4), "f")])
        assert model.get_outputs()[0].shape == y.shape == [rows, 2, 2, 2]


def test_sizes_that_depend_on_the_data_are_known_after_predict_alone(tmp_path, null_backend):
    with engine.load(models.nonzero(tmp_path), target=null_backend) as model:
        [x] = model.get_inputs()
        model.resize([x], [[4]])
        assert -1 in model.get_outputs()[0].shape
        [y] = model.predict([np.array([0, 1, 0, 1], x.dtype.to_numpy())])
        assert model.get_outputs()[0].shape == y.shape == [1, 2]


def test_a_model_from_memory_knows_its_outputs_sizes_too(built, tmp_path, null_context):
    halved(built)
    content = (tmp_path / "net.onnx").read_bytes()
    (tmp_path / "net.onnx").unlink()
    model = Model()
    model.build_from_buffer(content, context=null_context)
    model.resize(model.get_inputs(), [[4, 1, 8, 8]])
    assert model.get_outputs()[0].shape == [4, 2, 4, 4]


def test_a_file_that_is_gone_leaves_sizes_open_until_the_first_run(built, tmp_path):
    model = halved(built)
    (tmp_path / "net.onnx").unlink()
    model.resize(model.get_inputs(), [[4, 1, 8, 8]])
    assert model.get_outputs()[0].shape == [4, 2, -1, -1]
    model.predict([np.ones((4, 1, 8, 8), "f")])
    assert model.get_outputs()[0].shape == [4, 2, 4, 4]


# ------------------------------------------------------------------------- sizes the file fixes


def test_resize_changes_sizes_that_the_file_fixes_where_the_model_can_have_them(built):
    model = halved(built, rows=1, size=8)
    held = model.get_inputs()
    for size in (4, 16, 8):
        model.resize(model.get_inputs(), [[1, 1, size, size]])
        assert held[0].shape == model.get_inputs()[0].shape == [1, 1, size, size]
        assert model.get_outputs()[0].shape == [1, 2, size // 2, size // 2]
        y = model.predict([np.ones((1, 1, size, size), "f")])[0].get_data_to_numpy()
        np.testing.assert_array_equal(y, np.full((1, 2, size // 2, size // 2), 4))
    with pytest.raises(engine.InputError, match="data size not equal!"):
        model.predict([np.ones((1, 1, 4, 4), "f")])


def test_threads_go_on_while_the_model_is_built_for_other_sizes(built):
    model = halved(built, rows=1, size=8)
    arrays = {size: np.ones((1, 1, size, size), np.float32) for size in (4, 8)}
    stop, errors, counts = threading.Event(), [], {4: 0, 8: 0}

    def work() -> None:
        while not stop.is_set():
            for size, array in arrays.items():
                try:
                    [y] = model.predict([array])
                except engine.InputError:
                    continue  # the model has the other size just now
                except Exception as error:
                    errors.append(error)
                    return
                counts[size] += y.shape == [1, 2, size // 2, size // 2]

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for size in (4, 8) * 4:
        model.resize(model.get_inputs(), [[1, 1, size, size]])
        before = counts[size]
        deadline = time.monotonic() + 10
        while counts[size] == before and not errors and time.monotonic() < deadline:
            time.sleep(0.001)
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert min(counts.values()) > 3
    pool = model_state(model).plan.pool  # type: ignore[union-attr]
    model.close()
    assert pool.open_count == 0


def test_sizes_that_a_layer_cannot_take_leave_the_model_as_it_was(built):
    text = "net (float[1, 3] x) => (float[1, 2] y) { y = MatMul(x, w) }"
    model = built(text, w=np.ones((3, 2), np.float32))
    refused = (
        r"^resize failed! Error is The given input shape's value != original input shape's value\. "
        r"input 'x': dim 1 is fixed to 3 by the model, got 4, and the model cannot be built for th"
    )
    with pytest.raises(RuntimeError, match=refused) as caught:
        model.resize(model.get_inputs(), [[1, 4]])
    assert "\n" not in str(caught.value)
    assert model.get_outputs()[0].shape == [1, 2]
    assert model.predict([np.ones((1, 3), "f")])[0].get_data_to_numpy().tolist() == [[3, 3]]


def test_a_file_that_changed_since_is_not_taken_for_the_model(built, tmp_path):
    model = halved(built, rows=1, size=8)
    path = tmp_path / "net.onnx"
    path.rename(tmp_path / "old.onnx")
    path.write_bytes((tmp_path / "old.onnx").read_bytes())
    with pytest.raises(engine.InputError, match=r"net\.onnx: changed since the model was built"):
        model.resize(model.get_inputs(), [[1, 1, 4, 4]])


# ------------------------------------------------------------------------------ predict's inputs


@pytest.mark.parametrize(
    "tensor",
    [Tensor(), Tensor(X.astype(np.int32)), Tensor(X.astype(np.float64)), Tensor(X[:, :2])],
    ids=["no data", "int32", "float64", "size"],
)
@pytest.mark.parametrize("outputs", [None, [Tensor()]])
def test_a_tensor_that_does_not_fit_says_predict_failed(affine, tensor, outputs):
    with pytest.raises(RuntimeError, match="predict failed") as caught:
        affine.predict([tensor], outputs)
    assert "input 'x': " in str(caught.value)


def test_inputs_of_every_round_take_a_shape_of_their_own(affine, recwarn):
    for rows in (2, 5, 1, 5):
        inputs = affine.get_inputs()
        inputs[0].shape = [rows, 3]
        array = np.full((rows, 3), rows, np.float32)
        inputs[0].set_data_from_numpy(array)
        np.testing.assert_array_equal(affine.predict(inputs)[0], 2 * array + 1)
    assert not recwarn.list


def test_inputs_got_twice_are_tensors_of_their_own(affine):
    first, second = affine.get_inputs(), affine.get_inputs()
    first[0].set_data_from_numpy(X)
    second[0].set_data_from_numpy(X + 1)
    np.testing.assert_array_equal(affine.predict(first)[0], 2 * X + 1)
    np.testing.assert_array_equal(affine.predict(second)[0], 2 * X + 3)


def test_data_given_to_the_inputs_is_there_when_they_are_asked_for_again(affine):
    affine.get_inputs()[0].set_data_from_numpy(X)
    for _ in range(2):
        np.testing.assert_array_equal(affine.predict(affine.get_inputs())[0], 2 * X + 1)


def test_an_empty_list_of_outputs_means_that_none_are_given(affine):
    [y] = affine.predict([X], [])
    np.testing.assert_array_equal(y, 2 * X + 1)


def test_superfluous_weight_bytes_are_left_out_and_that_is_said(tmp_path, null_context, caplog):
    model = Model()
    content = models.affine(tmp_path).read_bytes()
    model.build_from_buffer(content, b"weights", engine.ModelType.MINDIR, null_context)
    np.testing.assert_array_equal(model.predict([X])[0], 2 * X + 1)
    assert "weight_bytes are not used" in caplog.text


# -------------------------------------------------------------------------------------- Converter


@pytest.mark.parametrize("chip", ["", ":910b", ":default"])
def test_a_goal_reads_back_without_its_chip_and_sets_the_device(tmp_path, chip):
    converter = Converter()
    converter.optimize = f"ascend_oriented{chip}"
    assert (converter.optimize, converter.device) == ("ascend_oriented", "Ascend")
    converter.convert(FmkType.ONNX, str(models.affine(tmp_path)), str(tmp_path / "out"))
    noted = {each.key: each.value for each in onnx.load(tmp_path / "out.mindir").metadata_props}
    assert noted["optimized_for"] == f"ascend_oriented{chip}"


def test_a_conversion_says_that_it_succeeded(tmp_path, capsys):
    path = str(models.affine(tmp_path))
    converted(path, tmp_path / "out")
    assert capsys.readouterr().out == "CONVERT RESULT SUCCESS:0\n"
    with pytest.raises(RuntimeError):
        converted(path, tmp_path / "out", FmkType.TFLITE)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("level", "count"), [("1", 2), ("0", 0), (None, 0)])
def test_graphs_are_written_as_text_where_the_variable_asks_for_it(
    tmp_path, monkeypatch, level, count
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MSLITE_DUMP_GRAPH_LEVEL", raising=False)
    if level is not None:
        monkeypatch.setenv("MSLITE_DUMP_GRAPH_LEVEL", level)
    report = converted(models.affine(tmp_path), tmp_path / "out", input_shape={"x": [4, 3]})
    files = sorted(tmp_path.glob("*.ir"))
    assert len(files) == count
    shapes = [onnx.parser.parse_model(file.read_text()).graph.input[0].type for file in files]
    dims = [[dim.dim_param or dim.dim_value for dim in kind.tensor_type.shape.dim]
            for kind in shapes]  # fmt: skip
    assert dims == [["batch", 3], [4, 3]][:count]
    assert sum("MSLITE_DUMP_GRAPH_LEVEL=1: " in note for note in report.notes) == count


def test_graphs_go_to_the_folder_that_another_variable_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MSLITE_DUMP_GRAPH_LEVEL", "1")
    monkeypatch.setenv("MSLITE_DUMP_GRAPH_PATH", "./dump_graph/")
    converted(models.affine(tmp_path), tmp_path / "out")
    assert len(list((tmp_path / "dump_graph").glob("*.ir"))) == 2
    assert not list(tmp_path.glob("*.ir"))


def test_graphs_of_a_model_with_a_key_are_not_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MSLITE_DUMP_GRAPH_LEVEL", "1")
    pytest.importorskip("cryptography")
    report = converted(
        models.affine(tmp_path), tmp_path / "out", enable_encryption=True, encrypt_key="00" * 16
    )
    assert not list(tmp_path.glob("*.ir"))
    assert any("encrypted model is written nowhere" in note for note in report.notes)
