"""Tensor: what the API's table says of it, and that memory is shared exactly where it says so."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from engine import DataType, Format, InputError, Tensor, TensorMeta

F32 = DataType.FLOAT32


def test_an_empty_tensor_has_the_documented_defaults() -> None:
    tensor = Tensor()
    assert (tensor.name, tensor.dtype, tensor.shape) == ("", F32, [])
    assert (tensor.format, tensor.element_num, tensor.data_size) == (Format.NCHW, 1, 4)
    assert tensor.device == "None:-1"


def test_str_is_the_documented_text() -> None:
    tensor = Tensor(np.zeros((2, 3), np.int8))
    tensor.name = "x"
    assert str(tensor) == (
        "name: x,\ndtype: DataType.INT8,\nshape: [2, 3],\nformat: Format.NCHW,\n"
        "element_num: 6,\ndata_size: 6.\ndevice: None:-1."
    )


def test_meta_has_the_documented_defaults_and_text() -> None:
    assert str(TensorMeta()) == (
        "name: ,\ndtype: DataType.UNKNOWN,\nshape: [],\nformat: Format.DEFAULT,\n"
        "element_num: 0,\ndata_size: 0."
    )


@pytest.mark.parametrize("dtype", [d for d in DataType if d.value not in (0, 2147483647)])
def test_every_data_type_has_its_numpy_dtype_and_back(dtype: DataType) -> None:
    expected = ml_dtypes.bfloat16 if dtype is DataType.BFLOAT16 else np.dtype(dtype.name.lower())
    assert dtype.to_numpy() == expected
    assert DataType.from_numpy(np.dtype(expected)) is dtype
    assert Tensor(np.zeros(3, expected)).dtype is dtype
    assert Tensor(shape=[3], dtype=dtype).get_data_to_numpy().dtype == expected


def test_a_tensor_shares_memory_with_the_array_it_wraps() -> None:
    array = np.zeros((2, 2), np.float32)
    tensor = Tensor(array)
    array[0, 0] = 5
    tensor.get_data_to_numpy()[1, 1] = 7
    assert tensor.get_data_to_numpy().tolist() == [[5, 0], [0, 7]]
    assert array.tolist() == [[5, 0], [0, 7]]


def test_a_tensor_of_a_tensor_is_a_copy() -> None:
    first = Tensor(np.ones(2, np.float32))
    second = Tensor(first)
    first.get_data_to_numpy()[:] = 9
    assert second.get_data_to_numpy().tolist() == [1, 1]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(3, 2)),
        np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
        np.arange(6, dtype=">f4").reshape(3, 2),
        np.frombuffer(b"\0" + np.arange(6, dtype=np.float32).tobytes(), np.float32, 6, 1)
        .reshape(3, 2),
    ],
    ids=["transposed", "fortran", "strided", "big endian", "unaligned and read-only"],
)  # fmt: skip
def test_any_memory_layout_just_works(array: np.ndarray) -> None:
    data = Tensor(array).get_data_to_numpy()
    assert data.dtype == np.float32
    assert data.dtype.isnative
    assert data.flags.c_contiguous
    assert data.flags.aligned
    np.testing.assert_array_equal(data, array)


def test_data_keeps_the_tensors_own_shape() -> None:
    tensor = Tensor(shape=[2, 3], dtype=F32)
    array = np.arange(6, dtype=np.float32)
    tensor.set_data_from_numpy(array)
    assert tensor.shape == [2, 3]
    array[0] = 42
    assert tensor.get_data_to_numpy()[0, 0] == 42


def test_an_open_axis_takes_the_arrays_size() -> None:
    tensor = Tensor(shape=[-1, 3], dtype=F32)
    assert (tensor.element_num, tensor.data_size) == (0, 0)
    assert tensor.get_data_to_numpy().shape == (0, 3)
    for rows in (2, 5):
        tensor.set_data_from_numpy(np.zeros((rows, 3), np.float32))
        assert tensor.shape == [rows, 3]
    with pytest.raises(RuntimeError, match="data size not equal"):
        tensor.set_data_from_numpy(np.zeros((2, 4), np.float32))


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: Tensor([1.0]), TypeError, "tensor must be MindSpore Lite's Tensor._tensor or num"),
        (lambda: Tensor(np.zeros(1, complex)), TypeError, "Unsupported numpy dtype value"),
        (lambda: Tensor(np.array(["a"])), TypeError, "Unsupported numpy dtype value"),
        (lambda: Tensor(shape=3, dtype=F32), TypeError, "shape must be list or tuple"),
        (lambda: Tensor(shape=[1, 2.0]), TypeError, "shape element must be int.*at index 1"),
        (lambda: Tensor(shape=[1], dtype=np.float32), TypeError, "dtype must be DataType"),
        (lambda: Tensor(device=1), TypeError, "device must be str"),
        (lambda: Tensor(device="tpu:0"), TypeError, "device must be 'ascend:index'"),
        (lambda: Tensor(device="ascend:-1"), TypeError, "device id should >= 0"),
        (
            lambda: Tensor(np.zeros(2, np.float32), shape=[3]), TypeError,
            "user set shape is not equal numpy shape",
        ),
        (
            lambda: Tensor(np.zeros(2, np.float32), dtype=DataType.INT8), TypeError,
            "user set dtype is not equal numpy dtype",
        ),
        (
            lambda: Tensor(Tensor(np.zeros(2, np.float32)), dtype=DataType.INT8), TypeError,
            "user set dtype is not equal tensor dtype",
        ),
        (lambda: setattr(Tensor(), "name", 1), TypeError, "name must be str"),
        (lambda: setattr(Tensor(), "dtype", 1), TypeError, "dtype must be DataType"),
        (lambda: setattr(Tensor(), "shape", "1"), TypeError, "shape must be list or tuple"),
        (lambda: setattr(Tensor(), "format", 1), TypeError, "format must be Format"),
        (lambda: Tensor().set_data_from_numpy([1]), TypeError, "numpy_obj must be numpy.ndarray"),
        (
            lambda: Tensor(shape=[2], dtype=F32).set_data_from_numpy(np.zeros(2)), RuntimeError,
            "data type not equal! Numpy type: DataType.FLOAT64, Tensor type: DataType.FLOAT32",
        ),
        (
            lambda: Tensor(shape=[2], dtype=F32).set_data_from_numpy(np.zeros(3, np.float32)),
            RuntimeError, "data size not equal! Numpy size: 12, Tensor size: 8",
        ),
        (
            lambda: Tensor(shape=[10**9, 10**9], dtype=F32).get_data_to_numpy(), InputError,
            "cannot allocate 4000000000000000000 bytes",
        ),
    ],
)  # fmt: skip
def test_wrong_use_raises_the_documented_error(call, kind, text) -> None:
    with pytest.raises(kind, match=text):
        call()


def test_renaming_one_result_leaves_the_others_of_its_output_alone() -> None:
    first = Tensor(shape=[1], dtype=F32)
    second = Tensor()
    second._description = first._description
    second.name = "mine"
    assert first.name == ""


def test_numpy_reads_a_tensor() -> None:
    tensor = Tensor(np.arange(3, dtype=np.float32))
    assert np.asarray(tensor).tolist() == [0, 1, 2]
    assert np.asarray(tensor, np.int64).dtype == np.int64
