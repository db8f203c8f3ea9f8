"""Tensors on a device: allocated, copied, predicted from and into; what the host may not read."""

from __future__ import annotations

import gc
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest

import engine
from engine import DataType, Tensor
from engine.backends import installed
from engine.model.model import model_state
from engine.types import Device, DeviceBuffer, DType
from engine_testing import models

X = np.arange(6, dtype=np.float32).reshape(2, 3)
F32 = DataType.FLOAT32


def test_an_array_goes_to_the_device_and_comes_back_as_a_copy(fake: ModuleType) -> None:
    tensor = Tensor(X, device="fake:0")
    assert (tensor.device, tensor.shape, tensor.dtype) == ("fake:0", [2, 3], F32)
    assert (tensor.element_num, tensor.data_size) == (6, 24)
    array = tensor.get_data_to_numpy()
    np.testing.assert_array_equal(array, X)
    array[:] = 0
    np.testing.assert_array_equal(np.asarray(tensor), X)
    assert "device: fake:0." in str(tensor)
    assert fake.copies == [("host", "device"), ("device", "host"), ("device", "host")]
    small = Tensor(np.array([1.5, -2], ml_dtypes.bfloat16), device="fake")
    assert (small.dtype, small.numpy().tolist()) == (DataType.BFLOAT16, [1.5, -2])


def test_a_tensor_there_is_read_as_an_array_by_a_copy(fake: ModuleType) -> None:
    tensor = Tensor(X, device="fake:0")
    assert (len(tensor), tensor[1, 2], [row.sum() for row in tensor]) == (2, 5, [3, 12])
    tensor.numpy()[:] = 0
    assert tensor[1, 2] == 5
    assert bool(Tensor(X[1, 2:], device="fake:0")) is True


def test_shape_and_dtype_allocate_there_and_data_is_copied_into_that_memory(fake) -> None:
    tensor = Tensor(shape=[2, 3], dtype=F32, device="fake")
    [pointer] = fake.memory
    tensor.set_data_from_numpy(X)
    assert list(fake.memory) == [pointer]
    np.testing.assert_array_equal(fake.memory[pointer], X)
    with pytest.raises(engine.InputError, match="data size not equal"):
        tensor.set_data_from_numpy(np.zeros(7, np.float32))
    with pytest.raises(engine.InputError, match="data type not equal"):
        tensor.set_data_from_numpy(X.astype(np.float64))
    tensor.shape = [3, 2]
    assert tensor.get_data_to_numpy().tolist() == [[0, 1], [2, 3], [4, 5]]
    tensor.shape = [4]  # another size: without data, and to be allocated when it comes
    assert (tensor.device, tensor.shape) == ("fake:0", [4])
    tensor.set_data_from_numpy(np.ones(4, np.float32))
    assert (tensor.device, tensor.get_data_to_numpy().tolist()) == ("fake:0", [1] * 4)


def test_memory_is_freed_with_the_last_tensor_that_has_it(fake: ModuleType) -> None:
    tensor = Tensor(X, device="fake")
    copy = Tensor(tensor, device="fake")
    assert copy.device == "fake:0"
    assert len(fake.memory) == 2
    del tensor
    gc.collect()
    assert len(fake.memory) == 1
    np.testing.assert_array_equal(copy.get_data_to_numpy(), X)
    del copy
    gc.collect()
    assert not fake.memory


def test_a_copy_is_on_the_host_as_in_mindspore_lite(fake: ModuleType) -> None:
    tensor = Tensor(X, device="fake")
    tensor.name = "x"
    copy = Tensor(tensor)
    assert (copy.device, copy.name, copy.shape) == ("None:-1", "x", [2, 3])
    assert len(fake.memory) == 1
    copy.get_data_to_numpy()[0, 0] = 7
    np.testing.assert_array_equal(tensor.get_data_to_numpy(), X)
    empty = Tensor(Tensor(device="fake"))
    assert (empty.device, empty.shape) == ("None:-1", [])


def test_a_device_tensor_goes_in_as_it_is(fake, fake_affine) -> None:
    tensor = Tensor(X, device="fake:0")
    fake.copies.clear()
    for inputs in ([tensor], {"x": tensor}, [tensor._value]):
        [y] = fake_affine.predict(inputs)
        np.testing.assert_array_equal(y.get_data_to_numpy(), 2 * X + 1)
    assert fake.copies == []
    assert [inputs for inputs, _ in fake.given] == [[tensor._value]] * 3


def test_results_come_out_on_the_device_where_the_outputs_are_there(fake, fake_affine) -> None:
    x = Tensor(X, device="fake")
    with_memory, without = Tensor(shape=[2, 3], dtype=F32, device="fake"), Tensor(device="fake")
    held = with_memory._value
    fake.copies.clear()
    assert fake_affine.predict([x], [with_memory])[0] is with_memory
    assert with_memory._value is held
    fake_affine.predict([x], [without])
    assert (without.device, without.shape) == ("fake:0", [2, 3])
    fake_affine.predict([with_memory], [without])  # the result of one predict into the next
    assert fake.copies == []
    assert [outputs for _, outputs in fake.given] == [
        [held], [Device("fake", 0)], [without._value]
    ]  # fmt: skip
    np.testing.assert_array_equal(with_memory, 2 * X + 1)
    np.testing.assert_array_equal(without, 4 * X + 3)


def test_the_same_tensors_again_are_the_same_lists(fake_affine: engine.Model) -> None:
    seen: list[tuple[int, int]] = []
    model = fake_affine
    built = model_state(model).built
    assert built is not None
    real = built.predict

    def noting(context, inputs, outputs, deadline_s):
        seen.append((id(inputs), id(outputs)))
        return real(context, inputs, outputs, deadline_s)

    model_state(model).built = built._replace(predict=noting)
    x, y = Tensor(X, device="fake"), [Tensor(shape=[2, 3], dtype=F32, device="fake")]
    for factor in (1, 5, 9):
        x.set_data_from_numpy(X * factor)
        np.testing.assert_array_equal(model.predict([x], y)[0], 2 * X * factor + 1)
    assert len(set(seen)) == 1


def test_a_model_on_the_host_copies_from_and_to_the_device(fake, null_backend, tmp_path) -> None:
    model = engine.load(models.affine(tmp_path), target=null_backend)
    x, y = Tensor(X, device="fake"), Tensor(shape=[2, 3], dtype=F32, device="fake")
    held = y._value
    for outputs in ([y], [Tensor(device="fake")]):
        [result] = model.predict([x], outputs)
        assert result.device == "fake:0"
        np.testing.assert_array_equal(result, 2 * X + 1)
    assert y._value is held
    x.set_data_from_numpy(X + 1)
    np.testing.assert_array_equal(model.predict([x], [y])[0], 2 * X + 3)


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (X.astype(np.float64), r"'x': expected float32.*float64\[2, 3\] on fake:0"),
        (np.zeros((2, 4), "f"), r"'x': expected float32.*float32\[2, 4\] on fake:0"),
        (None, "no data"),
    ],
)
def test_device_memory_that_does_not_fit_is_refused(fake_affine, x, says) -> None:
    with pytest.raises(engine.InputError, match=says):
        fake_affine.predict([Tensor(x, device="fake") if x is not None else Tensor(device="fake")])


def test_an_output_in_device_memory_of_another_size_is_refused(fake_affine) -> None:
    small = Tensor(shape=[1, 3], dtype=F32, device="fake")
    with pytest.raises(engine.InputError, match=r"'y': expected a buffer of float32\[2, 3\], got"):
        fake_affine.predict([X], [small])


def test_two_outputs_in_one_device_memory_are_refused(fake: ModuleType, tmp_path: Path) -> None:
    model = engine.load(models.several(tmp_path), target="fake")
    z, a, m = np.ones((2, 3), "f"), np.zeros((2, 3), "f"), np.full(3, 9, "f")
    first, second, third = (Tensor(shape=[2, 3], dtype=F32, device="fake") for _ in range(3))
    model.predict([z, a, m], [first, second, third])
    assert isinstance(first._value, DeviceBuffer)
    second._value = DeviceBuffer(first._value.pointer + 12, (2, 3), DType.FLOAT32, Device("fake"))
    with pytest.raises(engine.InputError, match="two outputs were given the same memory"):
        model.predict([z, a, m], [first, second, third])


def test_a_device_that_is_not_there_or_has_no_memory_for_tensors_is_named(
    fake: ModuleType, plugin_folder: Path
) -> None:
    with pytest.raises(engine.BackendUnavailable, match=r"'fake:3': .* no such device; .* fake:0"):
        Tensor(X, device="fake:3")
    fake.announced.discard("device_buffers")
    from engine.backends import forget

    forget("fake")
    with pytest.raises(engine.BackendUnavailable, match=r"copies tensors.*leave device out"):
        Tensor(X, device="fake:0")


def test_engine_target_keeps_tensors_on_the_host(fake, null_backend, monkeypatch) -> None:
    monkeypatch.setenv("ENGINE_TARGET", null_backend)
    for device in ("fake:0", "ascend:3", "gpu"):
        tensor = Tensor(X, device=device)
        assert tensor.device == "None:-1"
        assert tensor.get_data_to_numpy() is X
        assert Tensor(shape=[2], dtype=F32, device=device).get_data_to_numpy().tolist() == [0, 0]
    assert not fake.memory
    monkeypatch.setenv("ENGINE_TARGET", f"{null_backend},fake")
    assert Tensor(X, device="fake:0").device == "fake:0"


@pytest.mark.parametrize(
    ("device", "hint"),
    [("openvino", ""), ("cuda:0", "; did you mean 'gpu'?"), ("npu", "; did you mean 'ascend'?")],
)
def test_a_device_that_is_none_is_told_what_there_is(null_backend, device, hint) -> None:
    with pytest.raises(TypeError) as caught:
        Tensor(X, device=device)
    text = str(caught.value)
    assert text.startswith("now only support ascend device. Or gpu, or cpu for the host, or the ")
    assert f"(installed: {', '.join(installed())}), but got {device!r}{hint}" in text
    assert text.endswith(hint or repr(device))
