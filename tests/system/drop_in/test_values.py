"""OrtValue and IOBinding, of sessions that onnxruntime runs and of those that others run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import engine.onnxruntime as ort
from engine.onnxruntime.binding import TensorBinding
from engine.onnxruntime.values import TensorValue
from engine_testing import models

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def session(tmp_path: Path) -> ort.InferenceSession:
    return ort.InferenceSession(models.affine(tmp_path))


@pytest.mark.parametrize("kind", [ort.OrtValue, TensorValue], ids=["runtime", "engine"])
def test_a_value_says_of_itself_what_onnxruntimes_says(kind: Any) -> None:
    theirs, own = onnxruntime.OrtValue.ortvalue_from_numpy(X), kind.ortvalue_from_numpy(X)
    for method in (
        "shape", "data_type", "element_type", "device_name", "is_tensor", "is_sparse_tensor",
        "is_tensor_sequence", "has_value", "tensor_size_in_bytes", "data_ptr", "__dlpack_device__",
    ):  # fmt: skip
        assert getattr(own, method)() == getattr(theirs, method)(), method
    assert np.shares_memory(own.numpy(), X) == np.shares_memory(theirs.numpy(), X)
    np.testing.assert_array_equal(np.asarray(own), X)
    np.testing.assert_array_equal(np.from_dlpack(own), X)


@pytest.mark.parametrize("kind", [ort.OrtValue, TensorValue], ids=["runtime", "engine"])
def test_a_value_is_made_of_a_shape_of_dlpack_and_of_words(kind: Any) -> None:
    empty = kind.ortvalue_from_shape_and_type([2, 3], np.float32)
    empty.update_inplace(X)
    np.testing.assert_array_equal(empty.numpy(), X)
    numbered = kind.ortvalue_from_shape_and_type([4], 7)
    assert numbered.data_type() == "tensor(int64)"
    np.testing.assert_array_equal(kind.from_dlpack(X).numpy(), X)
    words = np.array([0x3F80, 0x4000], np.uint16)  # 1 and 2 in bfloat16
    half = kind.ortvalue_from_numpy_with_onnx_type(words, 16)
    assert (half.data_type(), half.element_type()) == ("tensor(bfloat16)", 16)


@pytest.mark.parametrize("kind", [ort.OrtValue, TensorValue], ids=["runtime", "engine"])
def test_a_device_that_is_not_there_is_refused(kind: Any) -> None:
    with pytest.raises(Exception, match=r"(?i)cuda|gpu|hardware"):
        kind.ortvalue_from_numpy(X, "cuda", 0)
    with pytest.raises(Exception, match="Unsupported device type: pencil"):
        kind.ortvalue_from_numpy(X, "pencil", 0)


@pytest.mark.parametrize("kind", [ort.OrtValue, TensorValue, onnxruntime.OrtValue])
def test_a_session_runs_on_values(kind: Any, session: Any) -> None:
    value = kind.ortvalue_from_numpy(X)
    np.testing.assert_array_equal(session.run(None, {"x": value})[0], 2 * X + 1)


def test_a_run_gives_values(session: Any) -> None:
    [y] = session.run_with_ort_values(["y"], {"x": ort.OrtValue.ortvalue_from_numpy(X)})
    assert isinstance(y, ort.OrtValue)
    np.testing.assert_array_equal(y.numpy(), 2 * X + 1)


@pytest.fixture(params=["runtime", "engine"])
def binding(request: pytest.FixtureRequest, session: Any) -> Any:
    if request.param == "engine":
        return TensorBinding(session)
    return session.io_binding()


def test_bound_inputs_and_outputs_are_run(binding: Any, session: Any) -> None:
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], 2 * X + 1)
    [y] = binding.get_outputs()
    assert isinstance(y, ort.OrtValue)
    np.testing.assert_array_equal(y.numpy(), 2 * X + 1)


def test_memory_is_bound_by_its_address(binding: Any, session: Any) -> None:
    y = np.zeros_like(X)
    binding.bind_input("x", "cpu", 0, np.float32, X.shape, X.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    np.testing.assert_array_equal(y, 2 * X + 1)
    with pytest.raises(ValueError, match="are to be provided if pre-allocated memory"):
        binding.bind_output("y", "cpu", 0, buffer_ptr=y.ctypes.data)


def test_values_are_bound_and_let_go(binding: Any, session: Any) -> None:
    x, y = (ort.OrtValue.ortvalue_from_numpy(array) for array in (X.copy(), np.zeros_like(X)))
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", y)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(y.numpy(), 2 * X + 1)
    x.update_inplace(X + 1)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(y.numpy(), 2 * X + 3)
    binding.clear_binding_outputs()
    binding.clear_binding_inputs()
    with pytest.raises(Exception, match=r"(?i)input|x"):
        session.run_with_iobinding(binding)


def test_a_binding_of_another_session_is_refused(session: Any, tmp_path: Path) -> None:
    other = ort.InferenceSession(models.affine(tmp_path))
    with pytest.raises(ValueError, match="must be used with the session that created it"):
        session.run_with_iobinding(other.io_binding())


def test_a_device_has_onnxruntimes_numbers() -> None:
    device = ort.OrtDevice.make("cpu", 0)
    numbers = (device.device_type(), device.device_id(), device.device_vendor_id())
    assert numbers == (0, 0, 0)


def test_what_only_onnxruntime_has_is_its_own() -> None:
    assert ort.SparseTensor is onnxruntime.SparseTensor
    assert ort.LoraAdapter is onnxruntime.LoraAdapter
    with pytest.raises(AttributeError, match="has no attribute 'no_such_thing'"):
        ort.no_such_thing  # noqa: B018
