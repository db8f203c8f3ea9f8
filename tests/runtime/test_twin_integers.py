"""numpy has two dtypes of int64: whichever a caller or a backend uses, a backend gets one."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine.tensor.description import canonical
from engine_testing import plugins
from engine_testing.making import graph

TWINS = {"int64": np.dtype("q"), "uint64": np.dtype("Q")}
pytestmark = pytest.mark.skipif(
    np.dtype("q") is np.dtype("int64"), reason="int64 is numpy's long long here"
)

RECORDING = """
from engine_testing.null import *
from engine_testing import null
from dataclasses import replace
from engine.hookspecs import hookimpl
import numpy as np

seen = []


@hookimpl
def engine_backend():
    return replace(null.engine_backend(), name="recording")


@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    seen.extend(value for value in (*inputs, *(outputs or ())) if value is not None)
    results = null.engine_predict(context, inputs, outputs, deadline_s)
    return [y.view("q") if y.dtype == "i8" and not outputs else y for y in results]
"""


@pytest.fixture
def seen(plugin_folder: Path) -> list[Any]:
    """Return the values that the backend "recording" gets: it gives numpy's other int64."""
    import recording_of_twins as module

    module.seen.clear()
    return module.seen


@pytest.fixture(autouse=True)
def _installed(plugin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins.install(plugin_folder, "recording", "recording_of_twins", source=RECORDING)


def doubled(folder: Path, dtype: str) -> Path:
    return graph(folder, "doubled", f"({dtype}[2, n] x) => ({dtype}[2, n] y) {{ y = Add (x, x) }}")


@pytest.mark.parametrize("dtype", TWINS)
def test_an_input_arrives_as_the_type_of_its_name_and_is_not_copied(
    dtype: str, seen: list[Any], tmp_path: Path
) -> None:
    numbers = np.arange(6).reshape(2, 3)
    with engine.load(doubled(tmp_path, dtype), target="recording") as model:
        for x in (
            numbers.astype(TWINS[dtype]),
            numbers.astype(TWINS[dtype])[:, :2],  # copied: it is not contiguous
            numbers.astype(TWINS[dtype].newbyteorder(">")),
        ):
            seen.clear()
            assert model(x=x)["y"].tolist() == (x + x).tolist()
            [tensor] = model.predict([engine.Tensor(x)])
            assert tensor.get_data_to_numpy().tolist() == (x + x).tolist()
            assert [value.dtype.num for value in seen] == [np.dtype(dtype).num] * 2
            if x.flags.c_contiguous and x.dtype.isnative:
                assert all(np.shares_memory(value, x) for value in seen)


def test_an_array_of_the_type_itself_arrives_as_it_is(seen: list[Any], tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.int64).reshape(2, 3)
    with engine.load(doubled(tmp_path, "int64"), target="recording") as model:
        model.predict([x])
        model.predict([x])
    assert [value is x for value in seen] == [True, True]


def test_a_buffer_arrives_as_the_type_of_its_name_and_is_filled(
    seen: list[Any], tmp_path: Path
) -> None:
    x = np.arange(6, dtype="q").reshape(2, 3)
    y = np.zeros((2, 3), "q")
    tensors = [engine.Tensor(x)], [engine.Tensor(y)]
    with engine.load(doubled(tmp_path, "int64"), target="recording") as model:
        for value in range(3):
            x[:] = value
            model.predict(*tensors)
            assert y.tolist() == [[2 * value] * 3] * 2
            assert tensors[1][0].get_data_to_numpy().tolist() == y.tolist()
    assert {value.dtype.num for value in seen} == {np.dtype("int64").num}


def test_what_one_backend_gives_reaches_the_next_as_the_type_of_its_name(
    seen: list[Any], tmp_path: Path
) -> None:
    if find_spec("engine_cpu") is None:
        pytest.skip("the cpu backend is not installed")
    text = """(int64[2, n] x) => (int64[2, n] y) {
        twice = Add (x, x)
        less = Sub (twice, one)
        y = Add (less, less)
    }"""
    path = graph(tmp_path, "parts", text, {"one": np.array(1, np.int64)})
    x = np.arange(6, dtype=np.int64).reshape(2, 3)
    config = {"recording_context": {"unsupported_ops": "Sub"}}
    with engine.load(path, target=["recording", "reference"], config=config) as model:
        assert len({placed.backend for placed in model.placement}) == 2
        for _ in range(3):
            assert model(x=x)["y"].tolist() == (2 * (2 * x - 1)).tolist()
    assert {value.dtype.num for value in seen} == {np.dtype("int64").num}


@pytest.mark.parametrize("char", "bBhHiIlLqQefd?O")
def test_a_dtype_without_a_twin_stays(char: str) -> None:
    array = np.zeros((2, 3), char)
    found = canonical(array)
    assert found.dtype is np.dtype(array.dtype.name if char in "lLqQiI" else char)
    assert (found is array) == (char not in "qQ")
    assert np.shares_memory(found, array)
