"""Lists, numbers and other element types as inputs: cast where nothing is lost, else refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import engine
from engine import Tensor
from engine.runtime.casting import listed, widened
from engine.types import DType, TensorSpec

pytestmark = pytest.mark.usefixtures("null_backend")


def cast(item: Any, dtype: str) -> Any:
    wanted = DType(dtype)
    return listed(item, TensorSpec("x", wanted, None), wanted.numpy)


@pytest.mark.parametrize(
    ("item", "dtype"),
    [
        ([1.5, 0.1], "float32"),
        ([1, 2], "float32"),
        (7, "int64"),
        (0.1, "float16"),
        ([[1, 0], [True, False]], "bool"),
        ((True, False), "int8"),
        ([2.0, -3.0], "int32"),
        ([255, 0], "uint8"),
        ([-8, 7], "int4"),
        ([2**63], "uint64"),
        ([0.5], "bfloat16"),
        ([1, 2.5, 3j], "complex64"),
        ([float("nan"), float("inf")], "float32"),
        ([], "int64"),
        ([[], []], "float32"),
        ([2**24], "float32"),
    ],
)
def test_lists_and_numbers_become_what_the_model_declares(item: Any, dtype: str) -> None:
    wanted = DType(dtype).numpy
    found = cast(item, dtype)
    assert found.dtype == wanted
    np.testing.assert_array_equal(found, np.asarray(item).astype(wanted))


@pytest.mark.parametrize(
    ("item", "dtype", "named"),
    [
        (300, "uint8", "300"),
        ([0, -1], "uint8", "-1"),
        (0.5, "int64", "0.5"),
        ([1.0, float("nan")], "int32", "nan"),
        ([2.0**63], "int64", "9.223372036854776e\\+18"),
        ([2.0**31], "int32", "2147483648.0"),
        ([1, 2], "bool", "2"),
        ([2**24 + 1], "float32", "16777217"),
        ([1e39], "float32", "1e\\+39"),
        ([70000.0], "float16", "70000.0"),
        ([1j], "float32", "complex numbers"),
        ("cat", "float32", "elements of type str"),
        ([8], "int4", "8"),
        ([7.5], "int4", "7.5"),
        ([2**64 - 1], "int64", "18446744073709551615"),
        ([0, -1], "uint64", "-1"),
        ([2**53 + 1, 0.5], "int64", "0.5"),
        ([2**63 + 1, 1.0], "int64", "9223372036854775809"),
    ],
)
def test_what_the_type_cannot_hold_is_named(item: Any, dtype: str, named: str) -> None:
    with pytest.raises(engine.InputError, match=rf"'x': .* got {named}, which {dtype} cannot hold"):
        cast(item, dtype)


def test_whole_numbers_are_not_rounded_for_a_float_among_them() -> None:
    assert cast([[2**53 + 1], [1.0]], "int64").tolist() == [[2**53 + 1], [1]]
    assert cast([2**64 - 1, 0.0], "uint64").tolist() == [2**64 - 1, 0]
    assert cast([2**63 + 1, 1], "uint64").tolist() == [2**63 + 1, 1]


def test_a_list_of_arrays_is_judged_by_their_type() -> None:
    assert cast([np.float64(0.1)], "float32").dtype == np.float64  # and refused as such an array
    assert cast([np.zeros(2, np.int8)] * 2, "int8").shape == (2, 2)
    assert cast([None], "float32") is cast({}, "float32") is cast({1.0}, "float32") is None


def test_masked_elements_in_a_list_are_refused_not_read() -> None:
    row = np.ma.masked_array([1, 2], [0, 1], np.float32)
    for item in ([row], [[row], [row]], [np.ones(2, np.float32), row]):
        with pytest.raises(engine.InputError, match=r"'x': .*masked elements; .* filled\(\)"):
            cast(item, "float32")


def test_a_list_inside_itself_is_an_error_and_no_endless_search() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(engine.InputError, match="lists that are not of one length"):
        cast(endless, "float32")


WIDER = {
    "bool": {"int8", "float32"}, "uint8": {"int16", "float16", "bfloat16", "float32", "int64"},
    "int8": {"float32", "int64"}, "int16": {"float32"}, "int32": {"int64", "float64"},
    "float16": {"float32"}, "bfloat16": {"float32"}, "float32": {"float64", "complex64"},
}  # fmt: skip
NARROWER = {
    "int64": {"int32", "float64", "float32", "complex128"}, "int32": {"float32", "uint32"},
    "uint64": {"float64", "int64"}, "int16": {"float16", "bfloat16", "uint16"},
    "float64": {"float32", "int64"}, "float32": {"float16", "bfloat16", "int32"},
    "uint8": {"int8"}, "complex64": {"float32"},
}  # fmt: skip


@pytest.mark.parametrize("given", WIDER)
def test_an_array_goes_to_every_type_that_holds_all_of_its_types_values(given: str) -> None:
    source = DType(given).numpy
    low, high = (0, 1) if given == "bool" else (-1, 1)
    if source.kind in "iu":
        low, high = np.iinfo(source).min, np.iinfo(source).max
    array = np.array([low, high, 1]).astype(source)
    for name in WIDER[given]:
        found = widened(array, DType(name).numpy)
        assert found is not None, name
        assert found.dtype == DType(name).numpy
        assert found.astype(object).tolist() == array.astype(object).tolist()


@pytest.mark.parametrize("given", NARROWER)
def test_an_array_is_refused_by_its_type_whatever_it_holds(given: str) -> None:
    for name in NARROWER[given]:
        assert widened(np.zeros(1, DType(given).numpy), DType(name).numpy) is None, name


def test_a_model_takes_lists_numbers_and_narrower_arrays(affine: engine.Model) -> None:
    wanted = [[1, 3, 5]]
    narrower = [np.arange(3, dtype=dtype)[None] for dtype in ("u1", "f2", ml_dtypes.bfloat16)]
    for x in ([[0, 1, 2]], ((0.0, 1.0, 2.0),), *narrower):
        assert affine(x=x)["y"].tolist() == affine(x)["y"].tolist() == wanted
        [y] = affine.predict([x])
        assert y.numpy().tolist() == wanted
    with pytest.raises(engine.InputError, match=r"astype\('float32'\) \(data type not equal!"):
        affine(x=np.arange(3.0)[None])
    with pytest.raises(engine.InputError, match="data type not equal!"):
        affine.predict([Tensor(np.arange(3, dtype="f2")[None])])  # it was said to be of its type


def test_lists_do_not_spoil_what_is_bound_for_the_next_call(affine: engine.Model) -> None:
    output = Tensor(np.zeros((1, 3), np.float32))
    for first in (0, 5, 0):
        affine.predict([[[first, 1, 2]]], [output])
        assert output.numpy().tolist() == [[2 * first + 1, 3, 5]]


def test_strings_come_in_lists() -> None:
    assert cast(["a", "ß"], "string").tolist() == ["a", "ß"]
