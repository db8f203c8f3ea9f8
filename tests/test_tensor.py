"""Tensor beyond the API's table (tests/api): memory layouts, odd arrays, copies."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from engine import DataType, Format, Tensor, TensorMeta

F32 = DataType.FLOAT32
COUNT = np.arange(6, dtype=np.float32).reshape(3, 2)


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


LAYOUTS = {
    "transposed": COUNT.reshape(2, 3).T,
    "fortran": np.asfortranarray(COUNT),
    "strided": np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
    "backwards": COUNT[::-1],
    "broadcast": np.broadcast_to(COUNT[0], (3, 2)),
    "big endian": COUNT.astype(">f4"),
    "big endian, fortran": np.asfortranarray(COUNT.astype(">f4")),
    "unaligned and read-only": (
        np.frombuffer(b"\0" + COUNT.tobytes(), np.float32, 6, 1).reshape(3, 2)
    ),
    "read-only": read_only(COUNT),
    "empty": np.zeros((0, 2), np.float32),
    "scalar": np.array(3, np.float32),
    "field of a record": np.zeros((3, 2), [("a", "i1"), ("b", "f4")])["b"],
}  # fmt: skip


@pytest.mark.parametrize("array", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("way", ["constructor", "set_data_from_numpy"])
def test_any_memory_layout_just_works(array: np.ndarray, way: str) -> None:
    if way == "constructor":
        tensor = Tensor(array)
    else:
        tensor = Tensor(shape=array.shape, dtype=F32)
        tensor.set_data_from_numpy(array)
    data = tensor.get_data_to_numpy()
    assert type(data) is np.ndarray
    assert data.dtype == np.float32
    assert data.dtype.isnative
    assert data.flags.c_contiguous
    assert data.flags.aligned
    assert tensor.shape == list(array.shape)
    np.testing.assert_array_equal(data, array)


@pytest.mark.parametrize("name", ["read-only", "empty", "scalar"])
def test_an_array_that_can_be_read_in_place_is_not_copied(name: str) -> None:
    array = LAYOUTS[name]
    assert Tensor(array).get_data_to_numpy() is array


def test_subclasses_of_array_are_read_as_what_they_hold(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", COUNT)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r+")
    tensor = Tensor(mapped)
    tensor.get_data_to_numpy()[0, 0] = 9
    assert mapped[0, 0] == 9
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        matrix = np.matrix([[1, 2], [3, 4]], np.float32)
    for array in (mapped, matrix, np.ma.masked_array(COUNT), COUNT.view(np.recarray)):
        data = Tensor(array).get_data_to_numpy()
        assert type(data) is np.ndarray
        assert np.shares_memory(data, array)
        np.testing.assert_array_equal(data, np.asarray(array))


def test_masked_elements_are_refused_not_read() -> None:
    masked = np.ma.masked_array(COUNT, mask=COUNT > 4)
    with pytest.raises(TypeError, match=r"numpy ndarray, but got .* with masked .* filled\(\)"):
        Tensor(masked)
    with pytest.raises(TypeError, match=r"numpy\.ndarray, but got .* with masked .* filled\(\)"):
        Tensor(shape=[3, 2], dtype=F32).set_data_from_numpy(masked)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(2, [("a", "f4")]),
        np.array([object()]),
        np.zeros(2, "M8[s]"),
        np.zeros(2, "V4"),
        np.zeros(2, np.longdouble),
        np.array([b"a"]),
        np.zeros(2, ml_dtypes.float8_e5m2),
        np.zeros(2, ml_dtypes.int4),
        np.array(["a"], np.dtypes.StringDType()),
    ],
    ids=lambda array: str(array.dtype),
)
def test_an_array_of_no_data_type_is_refused_by_name(array: np.ndarray) -> None:
    text = f"Unsupported numpy dtype value {array.dtype}; supported: bool, int8"
    for call in (lambda: Tensor(array), lambda: Tensor().set_data_from_numpy(array)):
        with pytest.raises(TypeError) as caught:
            call()
        assert str(caught.value).startswith(text)


@pytest.mark.parametrize("dtype", ["longlong", "intp", "uintc", "?"])
def test_a_platforms_name_for_a_type_is_that_type(dtype: str) -> None:
    array = np.zeros(2, dtype)
    assert Tensor(array).dtype is DataType[array.dtype.name.upper()]


def test_bfloat16_is_ml_dtypes() -> None:
    array = np.array([1.5, -2], ml_dtypes.bfloat16)
    tensor = Tensor(array, dtype=DataType.BFLOAT16)
    assert tensor.get_data_to_numpy() is array
    assert tensor.data_size == 4
    assert Tensor(shape=[3], dtype=DataType.BFLOAT16).get_data_to_numpy().dtype == array.dtype


def test_an_open_axis_takes_the_arrays_size() -> None:
    tensor = Tensor(shape=[-1, 3], dtype=F32)
    assert (tensor.element_num, tensor.data_size) == (0, 0)
    assert tensor.get_data_to_numpy().shape == (0, 3)
    for rows in (2, 5, 0):
        tensor.set_data_from_numpy(np.zeros((rows, 3), np.float32))
        assert tensor.shape == [rows, 3]
    for shape in ((2, 4), (3,), (1, 2, 3)):
        with pytest.raises(
            RuntimeError, match=r"-1 takes any size, got .* \(data size not equal! "
        ):
            tensor.set_data_from_numpy(np.zeros(shape, np.float32))
    assert tensor.shape == [0, 3]


def test_a_tensor_that_wraps_an_array_can_be_opened_for_the_next() -> None:
    tensor = Tensor(np.ones((2, 3), np.float32))
    tensor.shape = [-1, 3]
    assert (tensor.shape, tensor.element_num) == ([2, 3], 6)
    tensor.set_data_from_numpy(np.ones((5, 3), np.float32))
    assert tensor.shape == [5, 3]
    tensor.shape = [5, 3]  # says nothing new
    tensor.set_data_from_numpy(np.ones((1, 3), np.float32))
    assert tensor.shape == [1, 3]
    with pytest.warns(UserWarning, match=r"shape \[-1, 4\] is ignored"):
        tensor.shape = [-1, 4]


def test_a_tensor_of_an_unnamed_type_takes_any_array() -> None:
    tensor = Tensor()
    tensor.dtype, tensor.shape = DataType.UNKNOWN, [2]
    for array in (np.array(["a", "b"], object), np.zeros(2, ml_dtypes.int4), np.zeros(2, "f4")):
        tensor.set_data_from_numpy(array)
        assert tensor.get_data_to_numpy() is array
    with pytest.raises(RuntimeError, match="data size not equal"):
        tensor.set_data_from_numpy(np.array(["a"], object))


def test_memory_of_its_own_can_be_reshaped() -> None:
    tensor = Tensor(shape=[2, 3], dtype=F32)
    tensor.get_data_to_numpy()[0, 1] = 5
    tensor.shape = [3, 2]
    assert tensor.get_data_to_numpy().tolist() == [[0, 5], [0, 0], [0, 0]]
    tensor.shape = [4]
    assert (tensor.shape, tensor.data_size) == ([4], 16)
    assert tensor.get_data_to_numpy().tolist() == [0, 0, 0, 0]
    tensor.dtype = DataType.INT8
    assert (tensor.shape, tensor.data_size) == ([4], 4)
    assert tensor.get_data_to_numpy().dtype == np.int8
    tensor.shape = [-1, 2]
    assert (tensor.shape, tensor.element_num) == ([-1, 2], 0)


def test_a_copy_of_a_tensor_without_data_has_none() -> None:
    first = Tensor()
    first.name, first.shape, first.dtype = "x", [-1, 2], DataType.INT8
    second = Tensor(first)
    assert repr(second) == repr(first)
    assert second.get_data_to_numpy().shape == (0, 2)


def test_renaming_one_result_leaves_the_others_of_its_output_alone() -> None:
    first = Tensor(shape=[1], dtype=F32)
    second = Tensor()
    second._description = first._description
    second.name, second.format = "mine", Format.NC
    second.set_data_from_numpy(np.ones(1, np.float32))
    assert (first.name, first.format) == ("", Format.NCHW)
    first.shape = [2]  # its memory is still its own
    assert (first.shape, second.shape) == ([2], [1])


def described(tensor: Tensor) -> tuple[object, ...]:
    return tensor.name, tensor.dtype, tensor.shape, tensor.format, tensor.data_size


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_tensor_pickles_through_numpy(protocol: int) -> None:
    tensor = Tensor(np.asfortranarray(COUNT))
    tensor.name, tensor.format = "x", Format.NC
    again = pickle.loads(pickle.dumps(tensor, protocol))
    assert described(again) == described(tensor)
    np.testing.assert_array_equal(again.get_data_to_numpy(), COUNT)
    again.get_data_to_numpy()[:] = 0
    assert tensor.get_data_to_numpy()[2, 1] == 5
    open_axis = Tensor(shape=[-1, 2], dtype=DataType.INT8)
    assert described(pickle.loads(pickle.dumps(open_axis, protocol))) == described(open_axis)


def test_a_deep_copy_has_memory_of_its_own_and_a_shallow_one_shares_it() -> None:
    tensor = Tensor(COUNT.copy())
    tensor.name = "x"
    deep, shallow = copy.deepcopy(tensor), copy.copy(tensor)
    assert described(deep) == described(shallow) == described(tensor)
    tensor.get_data_to_numpy()[0, 0] = 42
    assert (deep.get_data_to_numpy()[0, 0], shallow.get_data_to_numpy()[0, 0]) == (0, 42)
    shallow.name = "y"
    assert tensor.name == "x"


def test_repr_is_one_line() -> None:
    tensor = Tensor(COUNT)
    tensor.name = "x"
    assert repr([tensor]) == (
        "[Tensor(name='x', dtype=DataType.FLOAT32, shape=[3, 2], format=Format.NCHW)]"
    )
    assert repr(TensorMeta()) == (
        "TensorMeta(name='', dtype=DataType.UNKNOWN, shape=[], format=Format.DEFAULT)"
    )


def test_a_misspelt_attribute_of_a_tensor_is_an_error() -> None:
    with pytest.raises(AttributeError, match="nmae"):
        Tensor().nmae = "x"  # type: ignore[attr-defined]


def test_numpy_reads_a_tensor() -> None:
    array = np.arange(3, dtype=np.float32)
    tensor = Tensor(array)
    assert np.asarray(tensor) is array
    assert np.asarray(tensor, np.int64).tolist() == [0, 1, 2]
    assert not np.shares_memory(np.array(tensor, copy=True), array)
    with pytest.raises(ValueError, match="needs a copy"):
        np.asarray(tensor, np.int64, copy=False)


def test_a_tensor_is_read_as_its_array_is() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = Tensor(array)
    assert tensor.numpy() is array
    assert len(tensor) == 2
    assert (tensor[1, 2], tensor[-1].tolist(), tensor[:, ::2].shape) == (5, [3, 4, 5], (2, 2))
    assert tensor[array > 3].tolist() == [4, 5]
    assert [row.tolist() for row in tensor] == array.tolist()
    assert 5 in tensor
    assert 6 not in tensor
    tensor[0][:] = 7  # a view, as numpy's
    assert array[0].tolist() == [7, 7, 7]
    with pytest.raises(IndexError):
        tensor[2]
    with pytest.raises(TypeError, match="unsized"):
        len(Tensor(np.array(1.0)))


@pytest.mark.parametrize(("value", "truth"), [(0, False), (3, True), ([[0.0]], False), ([1], True)])
def test_the_truth_of_one_element_is_its_own(value: object, truth: bool) -> None:
    assert bool(Tensor(np.array(value))) is truth


def test_a_look_at_a_tensor_to_be_filled_allocates_nothing() -> None:
    tensor = Tensor()
    assert not tensor
    with pytest.raises(TypeError, match="unsized"):
        len(tensor)
    assert len(Tensor(shape=[2, 3], dtype=DataType.INT8)) == 2
    assert len(Tensor(shape=[-1], dtype=DataType.INT8)) == 0
    assert tensor._value is None


@pytest.mark.parametrize("shape", [(2,), (0,), (2, 3)])
def test_the_truth_of_several_elements_is_refused_with_what_was_meant(
    shape: tuple[int, ...],
) -> None:
    with pytest.raises(ValueError, match=r"is ambiguous; compare with `is None`, or use"):
        bool(Tensor(np.ones(shape)))
    with pytest.raises(ValueError, match="is ambiguous"):
        bool(Tensor(shape=[-1], dtype=DataType.INT8))


def test_a_tensor_of_one_element_is_a_number() -> None:
    assert float(Tensor(np.array([1.5], np.float32))) == 1.5
    assert int(Tensor(np.array([[7]]))) == 7
    for convert in (float, int):
        with pytest.raises(ValueError, match="size 1"):
            convert(Tensor(np.zeros(2, np.float32)))


def test_other_libraries_tensors_are_refused_with_what_makes_an_array_of_them() -> None:
    class Other:
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:  # type: ignore[type-arg]
            return np.zeros(2, np.float32)

    advice = r"numpy\.asarray\(\.\.\.\) gives an array of it$"
    with pytest.raises(TypeError, match=f"numpy ndarray, but got .*Other.*{advice}"):
        Tensor(Other())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=f"must be numpy.ndarray, but got .*Other.*{advice}"):
        Tensor(np.zeros(2, np.float32)).set_data_from_numpy(Other())  # type: ignore[arg-type]
    assert Tensor(np.asarray(Other())).shape == [2]
