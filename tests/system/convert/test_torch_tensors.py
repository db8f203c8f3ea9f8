"""Tensors of torch as inputs, and results as tensors of torch: the same memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import engine
from engine.model.model import model_state
from engine.runtime import fitting
from engine_testing import models

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("engine_cpu", reason="needs the cpu backend")


@pytest.fixture
def model(tmp_path: Path) -> Iterator[engine.Model]:
    """y = 2x + 1, x float32[batch, 3]."""
    with engine.load(models.affine(tmp_path)) as built:
        yield built


def test_a_result_goes_to_torch_without_a_copy(model):
    [y] = model.predict([torch.arange(6, dtype=torch.float32).reshape(2, 3)])
    for tensor in (torch.from_dlpack(y), torch.from_numpy(y.numpy())):
        assert tensor.data_ptr() == y.numpy().ctypes.data
        assert tensor.tolist() == [[1, 3, 5], [7, 9, 11]]


def test_a_torch_tensor_goes_in_without_a_copy_where_it_fits(model):
    built = model_state(model).built
    assert built is not None
    taken = partial(fitting.values, built.signature)  # what the backend gets of it
    fits = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    [array] = taken([fits], ())
    assert array.ctypes.data == fits.data_ptr()
    strided = torch.arange(6, dtype=torch.float32).reshape(3, 2).T
    [array] = taken([strided], ())
    assert array.ctypes.data != strided.data_ptr()
    assert array.flags.c_contiguous
    np.testing.assert_array_equal(array, strided.numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "uint8"])
def test_a_narrower_torch_tensor_is_cast(model, dtype):
    x = torch.arange(3).reshape(1, 3).to(getattr(torch, dtype))
    assert model(x=x)["y"].tolist() == [[1, 3, 5]]


def test_a_torch_tensor_that_does_not_fit_is_refused_with_what_to_do(model):
    with pytest.raises(engine.InputError, match=r"got float64.*to\(torch.float32\)"):
        model(x=torch.zeros(1, 3, dtype=torch.float64))
    with pytest.raises(engine.InputError, match=r"'x'.*detach"):
        model(x=torch.zeros(1, 3, requires_grad=True))
