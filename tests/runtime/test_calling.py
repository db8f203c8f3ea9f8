"""`model(...)` with options: outputs, a deadline, a token; and inputs that are named like them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import onnx
import pytest
from predict_steps import parsed

import engine
from engine import CancelToken, Model
from engine_testing import models

pytestmark = pytest.mark.usefixtures("null_backend")

Z, A, M = (np.full(s, v, np.float32) for s, v in (((2, 3), 5), ((2, 3), 3), ((3,), 2)))
WAYS = (
    lambda model, **options: model(z=Z, a=A, m=M, **options),
    lambda model, **options: model(Z, A, M, **options),
    lambda model, **options: model({"a": A, "m": M, "z": Z}, **options),
)


@pytest.mark.parametrize("way", WAYS, ids=["by name", "by place", "dict"])
def test_outputs_are_chosen_by_name_and_come_in_that_order(several: Model, way) -> None:
    found = way(several, outputs=["x", "y"])
    assert {name: array[0, 0] for name, array in found.items()} == {"x": 7, "y": 2}
    assert [*found] == ["x", "y"]
    assert [*way(several, outputs="b", timeout_s=60)] == ["b"]
    assert [*way(several, outputs=())] == []
    assert [*way(several, timeout_s=60)] == ["y", "b", "x"]
    with pytest.raises(engine.InputError, match="unknown output 'q'; the model has: 'y', 'b', 'x'"):
        way(several, outputs=["q"])
    for wrong in (3, [engine.Tensor()], {"y"}):
        with pytest.raises(TypeError, match="outputs must be the names of outputs in a list"):
            way(several, outputs=wrong)


@pytest.mark.parametrize("way", WAYS, ids=["by name", "by place", "dict"])
def test_a_call_can_be_stopped(several: Model, way) -> None:
    token = CancelToken()
    assert [*way(several, cancel=token)] == ["y", "b", "x"]
    token.cancel()
    with pytest.raises(engine.Cancelled):
        way(several, cancel=token)
    with pytest.raises(ValueError, match="timeout_s must be above 0"):
        way(several, timeout_s=-1)
    with pytest.raises(TypeError, match="timeout_s must be a number"):
        way(several, timeout_s="1")


def test_a_slow_call_ends_at_its_deadline(null_backend: str, tmp_path: Path) -> None:
    config = {f"{null_backend}_context": {"delay_s": 5}}
    with (
        engine.load(models.affine(tmp_path), target=null_backend, config=config) as model,
        pytest.raises(engine.DeadlineExceeded),
    ):
        model(x=Z, timeout_s=0.05)


@pytest.fixture
def named_so(null_backend: str) -> Model:
    """y = outputs - timeout_s, d = outputs + timeout_s."""
    return parsed(
        "(float[3] outputs, float[3] timeout_s) => (float[3] y, float[3] d)"
        "{y = Sub(outputs, timeout_s) d = Add(outputs, timeout_s)}",
        null_backend,
    )


def test_inputs_may_be_named_like_options(named_so: Model) -> None:
    outputs, timeout_s = np.full(3, 5, np.float32), np.full(3, 2, np.float32)
    assert named_so(outputs=outputs, timeout_s=timeout_s)["y"].tolist() == [3] * 3
    token = CancelToken()
    assert [*named_so(outputs=outputs, timeout_s=timeout_s, cancel=token)] == ["y", "d"]
    for inputs in ((outputs, timeout_s), ({"outputs": outputs, "timeout_s": timeout_s},)):
        found = named_so(*inputs, outputs=["d"], timeout_s=60)
        assert {name: array.tolist() for name, array in found.items()} == {"d": [7] * 3}


def test_unknown_keywords_are_named(several: Model) -> None:
    with pytest.raises(engine.InputError, match="unknown input 'timeout'"):
        several(z=Z, a=A, m=M, timeout=1)
    with pytest.raises(TypeError, match="by name, not both; 'timeout' is none of the options outp"):
        several(Z, A, M, timeout=1)
    with pytest.raises(TypeError, match="all inputs by place or all by name"):
        several(Z, a=A, m=M)
    with pytest.raises(engine.InputError, match="input 'a' is missing"):
        several(z=Z, timeout_s=1)
    with pytest.raises(engine.ModelStateError, match="predict failed! the model is not built"):
        Model()(x=Z, timeout_s=1)


def test_one_array_serves_a_model_of_one_input(affine: Model) -> None:
    wanted = (2 * Z + 1).tolist()
    assert affine(Z)["y"].tolist() == wanted
    assert affine([Z])["y"].tolist() == wanted
    assert affine((Z,), outputs=["y"])["y"].tolist() == wanted
    assert affine([engine.Tensor(Z)])["y"].tolist() == wanted
    assert affine(Z.tolist())["y"].tolist() == wanted
    for inputs in (Z, [Z], (Z,), engine.Tensor(Z), {"x": Z}):
        [y] = affine.predict(inputs)
        assert y.numpy().tolist() == wanted
        assert affine.predict(inputs, [engine.Tensor()])[0].numpy().tolist() == wanted
    assert asyncio.run(affine.predict_async(Z))[0].numpy().tolist() == wanted
    assert affine([Z[0]])["y"].tolist() == wanted[:1]  # rows in a list are one input
    assert affine([Z[0], Z[1]])["y"].tolist() == wanted


def test_a_list_of_arrays_is_taken_in_the_order_of_the_inputs(several: Model) -> None:
    wanted = {name: array.tolist() for name, array in several(z=Z, a=A, m=M).items()}
    for way in (lambda: several([Z, A, M]), lambda: several((Z, A, M), timeout_s=60)):
        assert {name: array.tolist() for name, array in way().items()} == wanted
    having = "'z' float32[2, 3], 'a' float32[2, 3], 'm' float32[3]"
    for wrong in (lambda: several([Z, A]), lambda: several(Z, A), lambda: several.predict([Z, A])):
        with pytest.raises(engine.InputError) as error:
            wrong()
        assert str(error.value) == (
            f"model input len:3 not equal input len:2! The model has: {having} (predict failed!)"
        )
    with pytest.raises(TypeError) as not_all:
        several.predict(Z)
    assert str(not_all.value) == (
        "inputs must be list or tuple, but got <class 'numpy.ndarray'>. Or a dict by input name; "
        f"the model has: {having}"
    )


def test_an_archive_of_arrays_is_taken_by_name(several: Model, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", m=M, a=A, z=Z)
    with np.load(tmp_path / "inputs.npz") as archive:
        assert several(archive)["x"][0, 0] == 7
        assert several.predict(archive)


def test_a_misspelt_name_is_told_the_nearest(named_so: Model) -> None:
    with pytest.raises(engine.InputError, match="unknown input 'output'; did you mean 'outputs'"):
        named_so.predict({"output": Z[0], "timeout_s": Z[0]})
    with pytest.raises(engine.InputError, match="unknown output 'Y'; did you mean 'y'"):
        named_so(Z[0], Z[0], outputs=["Y"])


def test_an_optional_input_may_be_left_out_beside_options(null_backend, tmp_path) -> None:
    with engine.load(models.optionals(tmp_path), target=null_backend) as model:
        assert len(model.inputs) == 1
        plain = model()
        assert [*model(timeout_s=60)] == [*plain]


def test_inputs_and_outputs_read_as_a_signature(several: Model, affine: Model) -> None:
    assert repr(affine.inputs) == str(affine.inputs) == "(x: float32[batch, 3])"
    assert repr(several.outputs) == "(y: float32[2, 3], b: float32[2, 3], x: float32[2, 3])"
    [x] = affine.inputs
    assert (x.name, x.dtype, x.shape) == ("x", "float32", ("batch", 3))
    affine.resize(affine.get_inputs(), [[4, 3]])
    assert repr(affine.inputs) == "(x: float32[4, 3])"


def test_metadata_is_what_the_file_says(null_backend: str, tmp_path: Path) -> None:
    path = models.affine(tmp_path)
    with engine.load(path, target=null_backend) as model:
        assert model.metadata == {}
    proto = onnx.load(path)
    onnx.helper.set_model_props(proto, {"labels": "cat,dog"})
    with engine.load(proto, target=null_backend) as model:
        assert model.metadata == {"labels": "cat,dog"}
        model.metadata.clear()
        assert model.metadata == {"labels": "cat,dog"}


def test_a_keyword_like_an_option_s_is_told_the_option(affine: Model) -> None:
    x = np.zeros((2, 3), np.float32)
    for name, near in (("timeout", "timeout_s"), ("output", "outputs"), ("cancels", "cancel")):
        meant = f"unknown input '{name}'; did you mean the option '{near}'"
        with pytest.raises(engine.InputError, match=meant):
            affine(x=x, **{name: None})
    with pytest.raises(engine.InputError, match="unknown input 'image'; the model has: 'x'"):
        affine(x=x, image=x)


def test_habits_of_other_calls_are_told_the_one_here(affine: Model) -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(
        engine.InputError, match=r"go by keyword: model\(inputs, outputs=\[\.\.\.\]\)"
    ):
        affine(x, ["y"])
    assert [*affine(x, outputs=["y"])] == ["y"]
    with pytest.raises(engine.InputError, match=r"in a list: model\.predict\(\[x\]\)"):
        affine.predict(x.tolist())
    assert affine.predict([x.tolist()])[0].shape == [2, 3]
    with pytest.raises(TypeError, match="inputs go first"):
        affine.predict(None, {"x": x})
