"""`engine compare` and engine.compare: one model on two targets, or two models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import written
from onnx import numpy_helper

import engine
from engine.errors import InputError


def scaled(path: Path, factor: float, name: str = "y", shape: str = "batch, 3") -> Path:
    """A model whose output is `factor` times its input."""
    text = f"scaled (float[{shape}] x) => (float[{shape}] {name}) {{ {name} = Mul(x, factor) }}"
    return written(path, text, factor=np.float32(factor))


def retyped(path: Path, source: Path, dtype: type) -> Path:
    """Such a model of another type."""
    model = onnx.load(source)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    [factor] = model.graph.initializer
    factor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(factor).astype(dtype), "factor"))
    onnx.save(model, path)
    return path


def test_a_model_is_compared_with_the_reference_on_random_inputs(cli, digits):
    done = cli("compare", digits / "digits.onnx")
    assert done.status == 0
    assert "a: " in done.out
    assert "digits.onnx on cpu:0 (reference)" in done.out
    assert "input image: float32[1, 1, 8, 8], generated: random" in done.out
    [probabilities] = [row for row in done.out.splitlines() if row.startswith("probabilities")]
    assert probabilities.split()[-1] == "within"


def test_two_files_that_differ_are_told_where_with_exit_status_1(cli, tmp_path):
    a, b = scaled(tmp_path / "a.onnx", 2.0), scaled(tmp_path / "b.onnx", 2.5)
    np.save(tmp_path / "x.npy", np.float32([[1, 2, 0], [3, 8, 1]]))
    command = ("compare", a, b, "--input", tmp_path / "x.npy")
    done = cli(*command, "--json")
    assert done.status == 1
    [output] = done.json["outputs"]
    assert done.json["is_within"] is False
    # 8 * 2 against 8 * 2.5; a zero is equal, the other five differ by a fifth of b.
    assert output["largest_absolute"] == {"error": 4.0, "at": [1, 1], "a": 16.0, "b": 20.0}
    assert output["largest_relative"]["error"] == pytest.approx(0.2)
    assert (output["differing"], output["shape"]) == (5, [[2, 3], [2, 3]])
    assert done.json["b"]["devices"][0]["backend"] == "cpu"
    shown = cli(*command)
    assert "4 at [1, 1]" in shown.out
    assert "differs: 5 of 6 values" in shown.out
    assert cli(*command, "--rtol", "0.21").status == 0


def test_a_setting_of_one_side_is_for_that_side_alone(cli, tmp_path):
    model = scaled(tmp_path / "m.onnx", 2.0)
    done = cli("compare", model, "--b", "cpu", "--set-b", "cpu_context.spin_us=0", "--json")
    assert (done.status, done.json["outputs"][0]["is_equal"]) == (0, True)
    cli("compare", model, "--set-a", "cpu_context.spinus=0").fails("did you mean 'spin_us'", 2)
    assert cli("compare", model, "--rtol", "-1").status == 2


def test_both_sides_get_the_same_inputs_where_their_names_are_others(cli, tmp_path):
    a, b = scaled(tmp_path / "a.onnx", 2.0), scaled(tmp_path / "b.onnx", 2.0, "z")
    done = cli("compare", a, b, "--shape", "x=5,3", "--seed", "3", "--json")
    assert (done.status, done.json["inputs"][0]["shape"]) == (0, [5, 3])
    assert done.json["outputs"][0]["shape"] == [[5, 3], [5, 3]]


def test_compare_is_a_function_too(tmp_path):
    a, b = scaled(tmp_path / "a.onnx", 2.0), scaled(tmp_path / "b.onnx", 2.5)
    assert engine.compare(a).is_within
    x = np.float32([[1, 2, 4]])
    found = engine.compare(a, b, {"x": x})
    assert not found.is_within
    [output] = found.outputs
    assert output.absolute is not None
    assert (output.absolute.error, output.absolute.at) == (2.0, (0, 2))
    assert (
        str(found)
        == "y: differs: 3 of 3 values (absolute error 2 at [0, 2], relative error 0.2 at [0, 0])"
    )
    with engine.load(a) as built:
        assert engine.compare(built, a, [x]).outputs[0].is_equal
        assert built(x=x)["y"].shape == (1, 3)  # it is still the caller's
        with pytest.raises(TypeError, match="give b"):
            engine.compare(built)
    with pytest.raises(TypeError, match=r"targets must be two, as .*, but got 'cpu'"):
        engine.compare(a, targets="cpu")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="inputs: expected x, got image"):
        engine.compare(a, b, {"image": x})


# ------------------------------------------------------------------------------- sides that differ


def test_the_sizes_that_b_fixes_are_those_of_the_inputs(cli, tmp_path):
    a = scaled(tmp_path / "a.onnx", 2.0)
    b = scaled(tmp_path / "b.onnx", 2.0, "z", "7, 3")  # at the same place, by another name
    done = cli("compare", a, b, "--json")
    assert (done.status, done.json["inputs"][0]["shape"]) == (0, [7, 3])
    assert cli("compare", b, a, "--json").json["inputs"][0]["shape"] == [7, 3]
    assert engine.compare(a, b).outputs[0].shapes == ((7, 3), (7, 3))
    with engine.load(b) as built:
        assert engine.compare(a, built).is_within


def test_one_symbol_has_one_size_in_all_inputs(cli, tmp_path):
    def added(name: str, x: str, y: str, z: str) -> Path:
        text = f"g (float[{x}] x, float[{y}] y) => (float[{z}] z) {{ z = Add(x, y) }}"
        return written(tmp_path / name, text)

    a, b = added("a.onnx", "n", "n", "rows"), added("b.onnx", "4", "m", "?")
    done = cli("compare", a, b, "--json")
    assert done.status == 0, done.err
    assert [given["shape"] for given in done.json["inputs"]] == [[4], [4]]


def test_models_that_no_input_fits_are_both_named(cli, tmp_path):
    a = scaled(tmp_path / "a.onnx", 2.0)
    b = scaled(tmp_path / "b.onnx", 2.0, shape="batch, 4")
    error = (
        f"input 'x': a ({a}) takes float32[batch, 3] and b ({b}) float32[batch, 4]; "
        "no array fits both"
    )
    assert cli("compare", a, b).err == f"error: {error}\n"
    with pytest.raises(InputError) as caught:
        engine.compare(a, b)
    assert str(caught.value) == error


def test_models_whose_inputs_differ_in_type_are_told_so(cli, tmp_path):
    a = scaled(tmp_path / "a.onnx", 2.0)
    b = retyped(tmp_path / "b.onnx", a, np.int64)
    error = (
        f"input 'x': a ({a}) takes float32[batch, 3] and b ({b}) int64[batch, 3]: the inputs "
        "differ in type, and neither of float32 and int64 is cast to the other"
    )
    done = cli("compare", a, b)
    assert (done.status, done.err.startswith(f"error: {error}")) == (1, True), done.err
    with pytest.raises(InputError) as caught:
        engine.compare(a, b)
    assert str(caught.value).startswith(error)


def test_a_float16_model_is_compared_in_either_order(cli, tmp_path):
    a = scaled(tmp_path / "a.onnx", 2.0)
    b = retyped(tmp_path / "b.onnx", a, np.float16)
    for one, two in ((a, b), (b, a)):
        done = cli("compare", one, two, "--json")
        assert done.status == 0, done.err
        assert [given["dtype"] for given in done.json["inputs"]] == ["float16"]
        assert done.json["outputs"][0]["rtol"] == 1e-2  # of the less precise type
        assert engine.compare(one, two).is_within
    with engine.load(b) as built:
        assert engine.compare(a, built).is_within


def test_an_error_says_which_side_it_is_of_and_its_file(cli, tmp_path):
    a, b = scaled(tmp_path / "a.onnx", 2.0), scaled(tmp_path / "b.onnx", 2.0, shape="7, 3")
    gone = tmp_path / "gone.onnx"
    assert cli("compare", gone, a).err.startswith(f"error: a: {gone}: no such file")
    done = cli("compare", a, gone)
    assert done.err.startswith(f"error: b: {gone}: no such file")
    assert done.out == ""  # before a was run
    done = cli("compare", a, b, "--shape", "x=2,3")
    assert f"error: b: {b}: input 'x': expected float32[7, 3], got float32[2, 3]" in done.err
    done = cli("compare", a, b, "--shape", "x=2,5")
    assert f"error: a: {a}: input 'x': expected float32[batch, 3]" in done.err
    done = cli("compare", a, b, "--b", "cppu")
    assert done.err.startswith("error: invalid value for --b: target elements must be")
    assert done.status == 2
    assert f"error: a: {a}: it took longer" in cli("compare", a, "--timeout", "1e-9").err
    wrong = cli("compare", a, b, "--set-b", "cpu_context.spinus=0")
    assert "invalid value for --set, --set-b: " in wrong.err
    with pytest.raises(RuntimeError, match=f"b: engine.compare failed, there is no file '{gone}'"):
        engine.compare(a, gone)
