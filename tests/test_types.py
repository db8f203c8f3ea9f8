"""The contract's values as users see them printed."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from engine.types import CompileOptions, Device, DType, TensorSpec, ValueKind


def test_a_spec_shows_its_name_type_and_shape() -> None:
    assert repr(TensorSpec("x", DType.FLOAT32, ("batch", 3))) == "TensorSpec(x: float32[batch, 3])"
    assert str(TensorSpec("x", DType.INT8, None, ValueKind.SEQUENCE)) == "sequence(int8[...])"
    assert str(TensorSpec("é", DType.BOOL, ())) == "bool[]"


def test_names_in_a_spec_never_drive_the_terminal() -> None:
    spec = TensorSpec("a\x1b[31m", DType.FLOAT32, ("b\n", 3))
    assert repr(spec) == r"TensorSpec(a\x1b[31m: float32[b\n, 3])"


@pytest.mark.parametrize(
    "value",
    [TensorSpec("x", DType.INT8, (2,)), Device("gpu", 1), CompileOptions(device=Device("cpu"))],
)
def test_a_value_of_the_contract_is_frozen_and_pickled_whole(value: Any) -> None:
    assert pickle.loads(pickle.dumps(value)) == value
    with pytest.raises(FrozenInstanceError):
        setattr(value, fields(value)[0].name, "y")


def test_devices_are_sorted_by_type_and_number() -> None:
    devices = [Device("gpu", 1), Device("cpu"), Device("gpu", 0)]
    assert sorted(devices) == [Device("cpu"), Device("gpu", 0), Device("gpu", 1)]
    assert replace(Device("gpu", 1), id=0) == Device("gpu", 0)
