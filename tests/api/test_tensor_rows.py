"""Tensor and TensorMeta against the API's table: forms, defaults, checks, sharing, text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import (
    BackendError,
    BackendUnavailable,
    DataType,
    Format,
    InputError,
    Tensor,
    TensorMeta,
)
from engine_testing import plugins

F32 = DataType.FLOAT32


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


# ------------------------------------------------------------------------------------ properties


def test_an_empty_tensor_has_the_documented_defaults():
    tensor = Tensor()
    assert (tensor.name, tensor.dtype, tensor.shape) == ("", F32, [])
    assert (tensor.format, tensor.element_num, tensor.data_size) == (Format.NCHW, 1, 4)
    assert tensor.device == "None:-1"
    assert type(tensor.shape) is list


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("name", "x", "x"),
        ("dtype", DataType.INT8, DataType.INT8),
        ("dtype", DataType.UNKNOWN, DataType.UNKNOWN),
        ("shape", [1, 3, 2, 2], [1, 3, 2, 2]),
        ("shape", (4,), [4]),
        ("shape", [], []),
        ("shape", [-1, 3], [-1, 3]),
        ("shape", [np.int64(2), 1], [2, 1]),
        ("format", Format.NHWC4, Format.NHWC4),
    ],
)
def test_a_property_takes_what_the_table_allows(name, value, expected):
    tensor, other = Tensor(), Tensor()
    before = getattr(other, name)
    setattr(tensor, name, value)
    assert getattr(tensor, name) == expected
    assert getattr(other, name) == before


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("name", 1, "name must be str, but got <class 'int'>."),
        ("name", None, "name must be str, but got <class 'NoneType'>."),
        ("dtype", 43, "dtype must be DataType, but got <class 'int'>."),
        ("dtype", np.float32, "dtype must be DataType, but got <class 'type'>."),
        ("dtype", None, "dtype must be DataType, but got <class 'NoneType'>."),
        ("shape", 224, "shape must be list or tuple, but got <class 'int'>."),
        ("shape", "12", "shape must be list or tuple, but got <class 'str'>."),
        ("shape", np.array([1, 2]), "shape must be list or tuple, but got <class 'numpy.ndarray'>"),
        ("shape", None, "shape must be list or tuple, but got <class 'NoneType'>."),
        ("shape", ["1"], "shape element must be int, but got <class 'str'> at index 0."),
        ("shape", (1, 2.0), "shape element must be int, but got <class 'float'> at index 1."),
        ("format", 0, "format must be Format, but got <class 'int'>."),
        ("format", "NCHW", "format must be Format, but got <class 'str'>."),
    ],
)
def test_a_property_refuses_the_rest_and_keeps_what_it_had(name, value, text):
    tensor = Tensor()
    before = getattr(tensor, name)
    with pytest.raises(TypeError) as caught:
        setattr(tensor, name, value)
    assert str(caught.value).startswith(text)
    assert getattr(tensor, name) == before


READ_ONLY = ("element_num", "data_size", "device")


@pytest.mark.parametrize("name", READ_ONLY)
def test_a_read_only_property_cannot_be_set(name):
    with pytest.raises(AttributeError):
        setattr(Tensor(), name, 1)


def test_the_tables_have_each_public_name_that_there_is():
    public = {name for name in vars(Tensor) if not name.startswith("_")}
    methods = {"numpy", "get_data_to_numpy", "set_data_from_numpy"}
    assert public == {"name", "dtype", "shape", "format", *READ_ONLY} | methods


@pytest.mark.parametrize(
    ("shape", "dtype", "element_num", "data_size"),
    [
        ([], F32, 1, 4),
        ([16, 16], F32, 256, 1024),
        ([2, 3], DataType.BOOL, 6, 6),
        ([2, 3], DataType.FLOAT16, 6, 12),
        ([5], DataType.BFLOAT16, 5, 10),
        ([5], DataType.UINT64, 5, 40),
        ([0, 3], F32, 0, 0),
        ([-1, 3], F32, 0, 0),
        ([2**40, 2**40], F32, 2**80, 2**82),
        ([2], DataType.UNKNOWN, 2, 0),
        ([2], DataType.INVALID, 2, 0),
    ],
)
def test_sizes_follow_from_shape_and_dtype(shape, dtype, element_num, data_size):
    tensor = Tensor()
    tensor.shape, tensor.dtype = shape, dtype
    assert (tensor.element_num, tensor.data_size) == (element_num, data_size)


# ----------------------------------------------------------------------------------- constructor


def test_an_array_is_wrapped_without_a_copy():
    array = ones(2, 2)
    tensor = Tensor(array, shape=(2, 2), dtype=F32)
    array[0, 0] = 5
    tensor.get_data_to_numpy()[1, 1] = 7
    assert tensor.get_data_to_numpy().tolist() == [[5, 1], [1, 7]]
    assert array.tolist() == [[5, 1], [1, 7]]
    assert (tensor.shape, tensor.dtype, tensor.data_size) == ([2, 2], F32, 16)


def test_a_tensor_is_copied_through_numpy():
    first = Tensor(ones(2))
    first.name, first.format = "x", Format.NC
    second = Tensor(first, shape=[2], dtype=F32)
    first.get_data_to_numpy()[:] = 9
    assert second.get_data_to_numpy().tolist() == [1, 1]
    assert (second.name, second.format) == ("x", Format.NC)


def test_shape_and_dtype_alone_allocate_zeros():
    tensor = Tensor(shape=[2, 3], dtype=DataType.INT16)
    data = tensor.get_data_to_numpy()
    assert data.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert data.dtype == np.int16
    data[1, 2] = 8
    assert tensor.get_data_to_numpy()[1, 2] == 8


def test_shape_or_dtype_alone_describe():
    assert (Tensor(shape=(2,)).shape, Tensor(shape=(2,)).dtype) == ([2], F32)
    assert (Tensor(dtype=DataType.INT8).shape, Tensor(dtype=DataType.INT8).data_size) == ([], 1)


WANTED = "tensor must be MindSpore Lite's Tensor._tensor or numpy ndarray, but got"
SHAPE = "user set shape is not equal numpy shape,"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Tensor([1.0]), f"{WANTED} <class 'list'>."),
        (lambda: Tensor("abc"), f"{WANTED} <class 'str'>."),
        (lambda: Tensor(np.float32(1)), f"{WANTED} <class 'numpy.float32'>."),
        (lambda: Tensor(0), f"{WANTED} <class 'int'>."),
        (lambda: Tensor(ones(1, dtype=complex)), "Unsupported numpy dtype value complex128"),
        (lambda: Tensor(np.array(["a"])), "Unsupported numpy dtype value <U1"),
        (lambda: Tensor(np.array([None])), "Unsupported numpy dtype value object"),
        (lambda: Tensor(ones(2), shape=[3]), f"{SHAPE} user shape: [3], numpy shape is: (2,)."),
        (lambda: Tensor(ones(2), shape=(2, 1)),
         f"{SHAPE} user shape: (2, 1), numpy shape is: (2,)."),
        (lambda: Tensor(ones(2), dtype=DataType.INT8),
         "user set dtype is not equal numpy dtype, user dtype: DataType.INT8, numpy dtype is: "
         "float32."),
        (lambda: Tensor(Tensor(ones(2)), shape=[3]),
         f"{SHAPE} user's shape: [3], tensor shape is: [2]."),
        (lambda: Tensor(Tensor(ones(2)), dtype=DataType.INT8),
         "user set dtype is not equal tensor dtype, user's dtype: DataType.INT8, "
         "tensor dtype is: DataType.FLOAT32."),
        (lambda: Tensor(shape=3, dtype=F32), "shape must be list or tuple, but got <class 'int'>."),
        (lambda: Tensor(shape=np.array([3])), "shape must be list or tuple, but got"),
        (lambda: Tensor(shape=[1, 2.0]),
         "shape element must be int, but got <class 'float'> at index 1."),
        (lambda: Tensor(shape=[1], dtype=np.float32), "dtype must be DataType, but got"),
        (lambda: Tensor(ones(1), dtype="float32"), "dtype must be DataType, but got <class 'str'>"),
        (lambda: Tensor(device=1), "device must be str, but got <class 'int'>."),
        (lambda: Tensor(device="ascend:0:1"), "device must be 'ascend:index', eg: 'ascend:0'"),
        (lambda: Tensor(device="tpu:0"), "now only support ascend device."),
        (lambda: Tensor(device=""), "now only support ascend device."),
        (lambda: Tensor(device="Ascend:0"), "now only support ascend device."),
        (lambda: Tensor(device="ascend:-1"), "device id should >= 0."),
        (lambda: Tensor(device="gpu:x"), "device id should >= 0."),
        (lambda: Tensor(device="gpu:"), "device id should >= 0."),
        (lambda: Tensor(device="gpu:²"), "device id should >= 0."),
        (lambda: Tensor(device="gpu:" + "9" * 5000), "device id should >= 0."),
        # Wrong arguments are refused before a device is looked for.
        (lambda: Tensor(ones(2), shape=[3], device="gpu:0"), SHAPE),
        (lambda: Tensor([1.0], device="gpu:0"), WANTED),
    ],
)  # fmt: skip
def test_the_constructor_refuses_what_the_table_refuses(call, text):
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value).startswith(text)


# --------------------------------------------------------------------------------------- devices

GPU = """
from dataclasses import replace
from engine.hookspecs import hookimpl
from engine_testing import null_device as null
from engine_testing.null_device import *
from engine.types import Device, DeviceInfo, Devices

@hookimpl
def engine_backend():
    return replace(
        null.engine_backend(), name="some_gpu", device_types=("gpu",), capabilities=frozenset()
    )

@hookimpl
def engine_devices():
    return Devices(found=(DeviceInfo(Device("gpu", 0), "first"), DeviceInfo(Device("gpu", 1), "")))
"""


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_the_cpu_is_the_host(device):
    tensor = Tensor(shape=[2], dtype=F32, device=device)
    assert tensor.device == "None:-1"
    assert tensor.get_data_to_numpy().tolist() == [0, 0]


@pytest.mark.parametrize("device", ["gpu", "gpu:0", "gpu:1"])
def test_a_device_that_is_there_needs_no_tensor_of_its_own(device, plugin_folder, monkeypatch):
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", "gpu_trt")
    plugins.install(plugin_folder, "some_gpu", "some_gpu_backend", source=GPU)
    named = device if ":" in device else "gpu:0"
    with pytest.raises(
        BackendUnavailable,
        match=f"device '{named}': backend 'some_gpu' copies tensors.*leave device out",
    ):
        Tensor(ones(2), device=device)


def test_a_device_number_that_is_not_there_is_named_with_those_that_are(plugin_folder, monkeypatch):
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", "gpu_trt")
    plugins.install(plugin_folder, "some_gpu", "some_gpu_backend", source=GPU)
    with pytest.raises(BackendUnavailable, match=r"has no such device; it has: gpu:0, gpu:1"):
        Tensor(device="gpu:2")


@pytest.mark.parametrize(("kind", "backend"), [("gpu", "gpu_trt"), ("ascend", "ascend_ge")])
def test_a_device_whose_backend_cannot_be_had_raises_that_backends_error(
    kind, backend, monkeypatch
):
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", backend)
    with pytest.raises(BackendError, match=f"backend '{backend}' is (not installed|disabled)"):
        Tensor(shape=[10**9, 10**9], dtype=F32, device=f"{kind}:0")


# ------------------------------------------------------------------------------------------ data


def test_data_is_zero_copy_both_ways_and_keeps_the_array_alive():
    tensor = Tensor(shape=[2, 3], dtype=F32)
    array = np.arange(6, dtype=np.float32)
    tensor.set_data_from_numpy(array)
    assert tensor.shape == [2, 3]
    array[5] = 42
    tensor.get_data_to_numpy()[0, 0] = -1
    assert array.tolist() == [-1, 1, 2, 3, 4, 42]
    del array
    assert tensor.get_data_to_numpy().tolist() == [[-1, 1, 2], [3, 4, 42]]


@pytest.mark.parametrize("shape", [[0], [2, 0], [-1, 3], [-1, -1], [0, -1]])
def test_a_dim_below_one_gives_an_empty_array(shape):
    tensor = Tensor(shape=shape, dtype=F32)
    assert tensor.get_data_to_numpy().size == 0
    assert tensor.shape == shape


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (1, TypeError, "numpy_obj must be numpy.ndarray, but got <class 'int'>."),
        ([1.0, 2.0], TypeError, "numpy_obj must be numpy.ndarray, but got <class 'list'>."),
        (np.float32(1), TypeError, "numpy_obj must be numpy.ndarray, but got"),
        (Tensor(ones(2)), TypeError, "numpy_obj must be numpy.ndarray, but got"),
        (ones(2, dtype=complex), TypeError, "Unsupported numpy dtype value complex128"),
        (np.array(["a", "b"]), TypeError, "Unsupported numpy dtype value <U1"),
        (ones(2, dtype=np.float64), RuntimeError,
         "data type not equal! Numpy type: <class 'numpy.float64'>, "
         "Tensor type: DataType.FLOAT32"),
        (ones(3), RuntimeError, "data size not equal! Numpy size: 12, Tensor size: 8"),
        (ones(), RuntimeError, "data size not equal! Numpy size: 4, Tensor size: 8"),
        (ones(0), RuntimeError, "data size not equal! Numpy size: 0, Tensor size: 8"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("held", [None, ones(2)], ids=["empty", "with data"])
def test_data_of_another_kind_is_refused_and_changes_nothing(data, kind, text, held):
    tensor = Tensor(shape=[2], dtype=F32) if held is None else Tensor(held)
    before = tensor.get_data_to_numpy()
    with pytest.raises(kind) as caught:
        tensor.set_data_from_numpy(data)
    assert text in str(caught.value)
    assert tensor.get_data_to_numpy() is before


def test_only_the_byte_size_counts_not_the_shape():
    tensor = Tensor(shape=[2, 3], dtype=F32)
    for array in (ones(6), ones(3, 2), ones(1, 6, 1)):
        tensor.set_data_from_numpy(array)
        assert tensor.shape == [2, 3]


@pytest.mark.parametrize("change", [("shape", [3, 2]), ("dtype", DataType.INT32)])
@pytest.mark.parametrize("given", ["constructor", "set_data_from_numpy"])
def test_a_tensor_that_wraps_an_array_ignores_shape_and_dtype_with_a_warning(change, given):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = Tensor(array) if given == "constructor" else Tensor(shape=[2, 3], dtype=F32)
    tensor.set_data_from_numpy(array)
    with pytest.warns(UserWarning, match=f"{change[0]} .* is ignored: tensor") as caught:
        setattr(tensor, *change)
    assert caught[0].filename == __file__
    assert (tensor.shape, tensor.dtype) == ([2, 3], F32)
    assert tensor.get_data_to_numpy() is array
    tensor.shape, tensor.dtype = [2, 3], F32  # no change, no warning


# ------------------------------------------------------------------------------------------ text


def test_the_text_is_the_documented_one():
    assert str(Tensor()) == (
        "name: ,\ndtype: DataType.FLOAT32,\nshape: [],\nformat: Format.NCHW,\n"
        "element_num: 1,\ndata_size: 4.\ndevice: None:-1."
    )
    tensor = Tensor(ones(2, 3, dtype=np.int8))
    tensor.name, tensor.format = "x", Format.NHWC
    assert str(tensor) == (
        "name: x,\ndtype: DataType.INT8,\nshape: [2, 3],\nformat: Format.NHWC,\n"
        "element_num: 6,\ndata_size: 6.\ndevice: None:-1."
    )


def test_meta_has_the_documented_defaults_and_text():
    meta = TensorMeta()
    assert vars(meta) == {
        "name": "", "dtype": DataType.UNKNOWN, "shape": [], "format": Format.DEFAULT,
        "element_num": 0, "data_size": 0,
    }  # fmt: skip
    assert str(meta) == (
        "name: ,\ndtype: DataType.UNKNOWN,\nshape: [],\nformat: Format.DEFAULT,\n"
        "element_num: 0,\ndata_size: 0."
    )


def test_metas_attributes_are_plain():
    meta, other = TensorMeta(), TensorMeta()
    assert meta != other
    meta.name, meta.shape, meta.extra = 1, "anything", None  # type: ignore[assignment, attr-defined]
    meta.shape, other.shape = [2], other.shape
    assert str(meta).startswith("name: 1,\ndtype: DataType.UNKNOWN,\nshape: [2],")
    assert other.shape == []
    assert not hasattr(meta, "get_data_to_numpy")


@pytest.mark.parametrize(
    ("shape", "size"),
    [([10**9, 10**9], 4 * 10**18), ([2**62], 2**64), ([2**70], 2**72), ([1] * 70, 4)],
    ids=["too much", "more than an address", "more than an int", "too many axes"],
)
def test_memory_that_cannot_be_had_is_an_input_error(shape, size):
    tensor = Tensor()
    tensor.name, tensor.shape = "x", shape
    with pytest.raises(
        InputError, match=f"^tensor 'x': cannot allocate {size} bytes for"
    ) as caught:
        tensor.get_data_to_numpy()
    assert caught.value.name == "x"
    assert tensor.shape == shape
    with pytest.raises(RuntimeError, match="cannot allocate"):
        Tensor(shape=shape, dtype=F32)
