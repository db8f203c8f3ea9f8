"""Tensors of other libraries in and out: DLPack, `__cuda_array_interface__`, `__array__`.

numpy is the second implementation of DLPack on the host: it reads the capsules that are made here,
and its own are read here. For devices there are stand-ins that follow the protocols to the letter.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from dataclasses import replace
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import engine
from engine import DataType, Tensor
from engine.model.model import model_state
from engine.runtime import fitting
from engine.tensor import dlpack
from engine.types import Device, DeviceBuffer, DType, MemoryKind

X = np.arange(6, dtype=np.float32).reshape(2, 3)
NUMPY = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
         "float16", "float32", "float64", "complex64", "complex128"]  # fmt: skip


class Producer:
    """Gives capsules made here for an array, as another library would."""

    def __init__(self, array: Any, device: tuple[int, int] = (1, 0), is_old: bool = False) -> None:
        self.value = array
        self.device = device
        self.is_old = is_old
        self.asked: list[dict[str, Any]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **asked: Any) -> Any:
        self.asked.append(asked)
        if self.is_old and "max_version" in asked:
            raise TypeError("unexpected keyword argument 'max_version'")
        return dlpack.export(self.value, not self.is_old)


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("shape", [(), (0, 2), (2, 1, 3)])
def test_numpy_reads_what_is_given(name: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(name)
    for is_old in (False, True):
        taken = np.from_dlpack(Producer(array, is_old=is_old))
        assert (taken.dtype, taken.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(taken, array)
        assert np.shares_memory(taken, array) or not array.size


def test_memory_is_shared_and_lives_as_long_as_whoever_took_it() -> None:
    tensor = Tensor(X.copy())
    assert tensor.__dlpack_device__() == (1, 0)
    alive = weakref.ref(tensor.get_data_to_numpy())
    taken = np.from_dlpack(tensor)
    taken[0, 0] = 50
    assert tensor.get_data_to_numpy()[0, 0] == 50
    del tensor
    gc.collect()
    assert alive() is not None
    del taken
    gc.collect()
    assert alive() is None


def test_a_capsule_that_nobody_takes_frees_the_memory() -> None:
    array = X.copy()
    alive = weakref.ref(array)
    for is_versioned in (False, True):
        capsule = dlpack.export(array, is_versioned)
        del capsule
    del array
    gc.collect()
    assert alive() is None


def test_read_only_memory_is_said_or_refused() -> None:
    array = X.copy()
    array.flags.writeable = False
    assert not np.from_dlpack(Tensor(array)).flags.writeable
    with pytest.raises(BufferError, match="read-only"):
        Tensor(array).__dlpack__()


def test_a_copy_is_a_copy() -> None:
    tensor = Tensor(X.copy())
    taken = np.from_dlpack(tensor, copy=True)
    taken[:] = 0
    np.testing.assert_array_equal(tensor, X)
    with pytest.raises(BufferError, match=r"not shared with device \(2, 0\)"):
        tensor.__dlpack__(dl_device=(2, 0))


def test_what_dlpack_cannot_say_is_a_buffer_error() -> None:
    with pytest.raises(BufferError, match="no element type 'int4'"):
        dlpack.export(np.zeros(2, ml_dtypes.int4), True)
    with pytest.raises(BufferError, match="no data"):
        Tensor(shape=[-1]).__dlpack__()


def test_device_memory_is_given_with_its_device(fake: ModuleType) -> None:
    tensor = Tensor(X, device="fake:0")
    assert tensor.__dlpack_device__() == (12, 0)
    assert not hasattr(tensor, "__cuda_array_interface__")
    imported = dlpack._Imported(tensor.__dlpack__(max_version=(1, 0)))
    buffer = tensor._value
    assert isinstance(buffer, DeviceBuffer)
    assert dlpack._facts(imported.tensor) == ((2, 3), DType.FLOAT32, buffer.pointer)
    assert (imported.tensor.device_type, imported.tensor.device_id) == (12, 0)
    del tensor, buffer
    gc.collect()
    assert len(fake.memory) == 1  # the capsule's tensor holds it
    del imported
    gc.collect()
    assert not fake.memory


def test_device_memory_is_copied_to_the_host_where_that_is_asked_for(fake: ModuleType) -> None:
    tensor = Tensor(X, device="fake:0")
    np.testing.assert_array_equal(np.from_dlpack(tensor, device="cpu"), X)
    with pytest.raises(BufferError, match="not shared"):
        tensor.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(ValueError, match="needs a copy"):
        np.asarray(tensor, copy=False)


@pytest.mark.parametrize(
    ("own", "consumer", "orders", "kind"),
    [(None, 7, [], "device"), (5, 7, [(5, 7)], "device"), (5, None, [(5, 0)], "device"),
     (5, 1, [(5, 0)], "device"), (0, 1, [], "device"), (0, 2, [(0, 2)], "device"),
     (5, -1, [], "device"), (7, 7, [], "device"),
     # Numpy reads these at once, and waits for no stream: the thread does.
     (5, None, [(5, None)], "pinned"), (0, None, [(0, None)], "managed"),
     (5, 7, [(5, 7)], "pinned"), (5, 1, [(5, 0)], "managed")],
)  # fmt: skip
def test_a_gpus_consumer_is_ordered_after_what_makes_the_contents(
    own: int | None, consumer: int | None, orders: list[Any], kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    seen: list[Any] = []

    class Memory:
        class backend:
            name = "gpu_of_tests"

        @staticmethod
        def order(device: Device, earlier: int, later: int | None) -> bool:
            seen.append((earlier, later))
            return True

    monkeypatch.setattr("engine.tensor.memory.memory_of", lambda device: Memory)
    tensor = gpu_tensor(stream=own)
    tensor._value = replace(tensor._value, memory=MemoryKind(kind))
    capsule = tensor.__dlpack__(stream=consumer, max_version=(1, 0))
    assert tensor.__dlpack_device__() == ({"device": 2, "pinned": 3, "managed": 13}[kind], 1)
    assert capsule is not None
    assert seen == orders
    if own is not None:
        with pytest.raises(BufferError, match="stream 0 is ambiguous"):
            tensor.__dlpack__(stream=0)


def gpu_tensor(stream: int | None = None, dtype: DType = DType.FLOAT32) -> Tensor:
    tensor = Tensor()
    tensor._value = DeviceBuffer(4096, (2, 3), dtype, Device("gpu", 1), stream, object())
    return tensor


@pytest.mark.parametrize(("stream", "said"), [(None, None), (0, 1), (2, 2), (99, 99)])
def test_gpu_memory_has_a_cuda_array_interface(stream: int | None, said: int | None) -> None:
    assert gpu_tensor(stream).__cuda_array_interface__ == {
        "shape": (2, 3), "typestr": "<f4", "data": (4096, False), "strides": None,
        "stream": said, "version": 3,
    }  # fmt: skip
    assert not hasattr(gpu_tensor(dtype=DType.BFLOAT16), "__cuda_array_interface__")
    assert not hasattr(Tensor(X), "__cuda_array_interface__")


class Array:
    """An object with `__array__` alone."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return X


def test_predict_takes_what_has_dlpack_or_array(affine: engine.Model) -> None:
    for item in (Producer(X.copy()), Producer(X.copy(), is_old=True), Array()):
        np.testing.assert_array_equal(affine.predict([item])[0], 2 * X + 1)
        np.testing.assert_array_equal(affine(x=item)["y"], 2 * X + 1)


def test_bfloat16_is_taken_without_numpys_help() -> None:
    array = np.array([[1.5, -2, 3]], ml_dtypes.bfloat16)
    for is_old in (False, True):
        producer = Producer(array, is_old=is_old)
        taken = dlpack.take(producer)
        assert isinstance(taken, np.ndarray)
        assert taken.dtype == array.dtype
        assert np.shares_memory(taken, array)
        np.testing.assert_array_equal(taken, array)
    assert Tensor(array).dtype is DataType.BFLOAT16


def test_a_strided_host_tensor_is_read_with_its_strides(affine: engine.Model) -> None:
    class Strided(Producer):
        def __dlpack__(self, **asked: Any) -> Any:
            return X.T.copy().T.__dlpack__(**asked)

    np.testing.assert_array_equal(affine.predict([Strided(X)])[0], 2 * X + 1)


def test_gpu_memory_is_taken_ordered_on_the_legacy_stream_and_kept_alive() -> None:
    buffer = gpu_tensor()._value
    assert isinstance(buffer, DeviceBuffer)
    owner = Owner()
    buffer = replace(buffer, owner=owner)
    alive = weakref.ref(owner)
    producer = Producer(buffer, device=(2, 1))
    taken = dlpack.take(producer)
    assert isinstance(taken, DeviceBuffer)
    assert (taken.pointer, taken.shape, taken.dtype) == (4096, (2, 3), DType.FLOAT32)
    assert (taken.device, taken.stream) == (Device("gpu", 1), 0)
    assert producer.asked == [{"stream": 1, "max_version": (1, 0)}]
    del producer, buffer, owner
    gc.collect()
    assert alive() is not None  # not deleted while the buffer is there
    del taken
    gc.collect()
    assert alive() is None


class Owner:
    """Owns nothing; that it goes is seen."""


class StridedOnDevice(Producer):
    """Says that its memory is the transposed."""

    def __dlpack__(self, **asked: Any) -> Any:
        capsule = super().__dlpack__(**asked)
        tensor, _ = dlpack._read(capsule)
        # numpy before 2.4 leaves the strides of what is C-contiguous out.
        self.strides = (ctypes.c_int64 * 2)(1, 2)
        tensor.strides = self.strides
        return capsule


def test_gpu_memory_that_is_not_contiguous_is_refused_and_let_go() -> None:
    owner = Owner()
    alive = weakref.ref(owner)
    buffer = replace(gpu_tensor()._value, owner=owner)
    with pytest.raises(BufferError, match="not C-contiguous"):
        dlpack.take(StridedOnDevice(buffer, device=(2, 0)))
    del owner, buffer
    gc.collect()
    assert alive() is None


def test_a_capsule_is_taken_once() -> None:
    capsule = dlpack.export(np.zeros(2, ml_dtypes.bfloat16), True)
    imported = dlpack._Imported(capsule)
    assert imported.tensor.ndim == 1
    with pytest.raises(BufferError, match="not yet taken over"):
        dlpack._Imported(capsule)


def test_a_newer_major_version_is_refused() -> None:
    array = np.zeros(2, ml_dtypes.bfloat16)
    capsule = dlpack.export(array, True)
    _, managed = dlpack._read(capsule)
    managed.major = 2
    with pytest.raises(BufferError, match=r"version 2\.0, expected 1\.x"):
        dlpack._Imported(capsule)
    managed.major = 1  # as its destructor wants it


INTERFACE = {"shape": (2, 3), "typestr": "<f4", "data": (4096, True), "version": 3}


def cuda(**changes: Any) -> Any:
    """Return an object of this interface."""
    return type("Cuda", (), {"__cuda_array_interface__": INTERFACE | changes})()


@pytest.mark.parametrize(("said", "stream"), [(None, None), (1, 0), (2, 2), (99, 99)])
def test_a_cuda_array_interface_is_taken(said: int | None, stream: int | None) -> None:
    producer = cuda(stream=said)
    taken = dlpack.take_cuda_interface(producer, Device("gpu", 1))
    assert taken == DeviceBuffer(4096, (2, 3), DType.FLOAT32, Device("gpu", 1), stream, taken.owner)
    assert taken.owner is producer


@pytest.mark.parametrize(
    ("change", "message"),
    [({"strides": (4, 8)}, "not C-contiguous"), ({"typestr": ">f4"}, "native byte order"),
     ({"stream": 0}, "forbids"), ({"mask": object()}, "mask"), ({"shape": (-1,)}, r"shape \[-1\]"),
     ({"shape": (2**70,)}, "shape"), ({"strides": ()}, "0 strides for 2 axes"),
     ({"strides": (4, 4, 4)}, "3 strides for 2 axes"), ({"data": ("a", False)}, "address 'a'"),
     ({"data": (0, False)}, "address 0"), ({"stream": "q"}, "stream 'q'")],
)  # fmt: skip
def test_a_cuda_array_interface_that_no_model_reads_is_refused(change, message) -> None:
    with pytest.raises(BufferError, match=message):
        dlpack.take_cuda_interface(cuda(**change), Device("gpu"))


class Gradient(Producer):
    def __dlpack__(self, **asked: Any) -> Any:
        raise BufferError("requires grad")


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (Gradient(X), engine.InputError,
         r"'x': expected float32\[batch, 3\], and .*Gradient.* requires grad; pass a"),
        (Producer(X, device=(10, 0)), engine.InputError, "device of DLPack's type 10"),
        (Producer(X.astype(np.float64)), engine.InputError, "got float64"),
        (object(), TypeError, "inputs element must be Tensor, of numpy"),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_is_an_error_with_the_reason(affine, given, error, says) -> None:
    with pytest.raises(error, match=says):
        affine.predict([given])


def test_an_array_of_another_kind_with_masked_elements_is_refused(affine: engine.Model) -> None:
    class Masked:
        def __array__(self, *arguments: Any, **options: Any) -> np.ndarray:
            return np.ma.masked_array(np.ones((1, 3), np.float32), mask=[[True, False, False]])

    with pytest.raises(engine.InputError, match="masked elements"):
        affine.predict([Masked()])


def test_a_result_goes_to_another_library_without_a_copy_and_comes_in_so(affine) -> None:
    [y] = affine.predict([Producer(X)])
    taken = np.from_dlpack(y)
    assert taken.ctypes.data == y.numpy().ctypes.data
    np.testing.assert_array_equal(taken, 2 * X + 1)
    signature = model_state(affine).require_built().signature
    [given] = fitting.values(signature, [Producer(taken)], ())  # what the backend gets
    assert given.ctypes.data == taken.ctypes.data
    [given] = fitting.values(signature, [Producer(taken.astype(np.float16))], ())
    assert given.dtype == np.float32  # only where it must be: cast
