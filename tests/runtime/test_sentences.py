"""Messages about an input begin with it, with what was expected and what came, for any caller."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine import Model, Tensor
from engine.config.wording import own_text
from engine_testing import models

X = np.ones((2, 3), np.float32)
SIZE, TYPE = "data size not equal! Numpy size: ", "data type not equal! Numpy type: "
# Values that do not fit float32[batch, 3], and the words of MindSpore Lite that scripts look for.
UNFIT: list[tuple[Any, str]] = [
    (X[0], SIZE), (X[None], SIZE), (X[:, :2], SIZE), (X.reshape(3, 2), SIZE),
    (X.astype("f8"), TYPE), (X.astype("c8"), TYPE), (X.astype(object), TYPE),
    (X.astype("i8"), TYPE), (X.astype("M8[s]"), "Unsupported numpy dtype value 'datetime64[s]'"),
]  # fmt: skip


CALLS: dict[str, Callable[[Model, Any], Any]] = {
    "a list": lambda model, value: model.predict([value]),
    "a dict": lambda model, value: model.predict({"x": value}),
    "a bare array": lambda model, value: model.predict(value),
    "with outputs": lambda model, value: model.predict([value], [Tensor()]),
    "a call": lambda model, value: model(x=value),
}


def check(error: BaseException, words: str) -> None:
    said = str(error)
    assert said.startswith("input 'x': expected float32[batch, 3], got "), said
    assert said.count("expected float32[batch, 3]") == 1
    assert said.endswith(")")
    assert words in said.rpartition("; ")[2], said  # behind the advice
    assert words not in own_text(error)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("value", "words"), UNFIT, ids=lambda part: str(part)[:30])
def test_a_value_that_does_not_fit_is_named_before_anything_else(
    affine: Model, call: str, value: Any, words: str
) -> None:
    with pytest.raises((engine.InputError, TypeError)) as caught:
        CALLS[call](affine, value)
    check(caught.value, words)


def test_of_a_tensor_the_words_about_predict_stand_behind_too(affine: Model) -> None:
    with pytest.raises(engine.InputError) as caught:
        affine.predict([Tensor(X.astype("f8"))])
    check(caught.value, f"(predict failed! {TYPE}")


def test_clients_of_a_runner_read_the_same(null_backend: str, tmp_path: Path) -> None:
    path = models.affine(tmp_path)
    context = engine.Context()
    context.target = [null_backend]
    with engine.ModelParallelRunner() as runner:
        runner.build_from_file(str(path), context)
        with pytest.raises(engine.InputError) as caught:
            runner.predict([X[:, :2]])
        check(caught.value, SIZE)
        future: Future[list[Tensor]] = runner.submit({"x": X.astype("f8")})
        error = future.exception()
    assert error is not None
    check(error, TYPE)


class Torch:
    """An array of torch's, as far as messages look."""

    __module__ = "torch"

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.array


def test_torch_is_advised_in_its_own_words_also_where_these_come_first(affine: Model) -> None:
    with pytest.raises(engine.InputError) as caught:
        affine.predict([Torch(X.astype("f8"))])
    check(caught.value, TYPE)
    assert "to(torch.float32)" in own_text(caught.value)


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (X.astype("f8"), "tensor 'x': expected float32[-1, 3], got float64[2, 3]; convert"),
        (X[:, :2], "tensor 'x': expected shape [-1, 3], in which -1 takes any size, got [2, 2]; "),
    ],
)
def test_a_tensor_that_is_given_another_array_says_so_first(affine, array, text) -> None:
    with pytest.raises(engine.InputError) as caught:
        affine.get_inputs()[0].set_data_from_numpy(array)
    assert str(caught.value).startswith(text)
    assert "not equal! Numpy" in str(caught.value)


def test_engine_load_begins_with_the_file_not_with_a_method_that_nobody_called(
    null_backend: str, tmp_path: Path
) -> None:
    path = models.affine(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    for model in (path, path.read_bytes()):
        with pytest.raises(engine.ModelError) as caught:
            engine.load(model, target=null_backend)
        assert "failed!" not in str(caught.value)
    with pytest.raises(engine.ModelError, match=r"^build_from_file failed! Error is "):
        Model().build_from_file(str(path), engine.ModelType.MINDIR)
