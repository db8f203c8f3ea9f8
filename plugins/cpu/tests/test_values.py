"""Values of every type that ONNX Runtime computes with go in and come out, and so do lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from engine import Model, Tensor
from engine.types import DType

Build = Callable[..., Model]
node = helper.make_node

# Element types that numpy has no words for, by ONNX's textual name, with values that each holds.
ODD = {
    "bfloat16": (DType.BFLOAT16, [-3, 0, 0.5, 1.5, 2, 100, 0.25]),
    "float8e4m3fn": (DType.FLOAT8E4M3FN, [-3, 0, 0.5, 1.5, 2, 448, 0.25]),
    "float8e4m3fnuz": (DType.FLOAT8E4M3FNUZ, [-3, 0, 0.5, 1.5, 2, 240, 0.25]),
    "float8e5m2": (DType.FLOAT8E5M2, [-3, 0, 0.5, 1.5, 2, 57344, 0.25]),
    "float8e5m2fnuz": (DType.FLOAT8E5M2FNUZ, [-3, 0, 0.5, 1.5, 2, 57344, 0.25]),
    "float8e8m0": (DType.FLOAT8E8M0, [0.25, 0.5, 1, 2, 4, 1024, 2.0**100]),
    "int4": (DType.INT4, [-8, -1, 0, 1, 7, 3, 5]),
    "uint4": (DType.UINT4, [0, 1, 15, 8, 7, 3, 5]),
    "int2": (DType.INT2, [-2, -1, 0, 1, 1, 0, -2]),
    "uint2": (DType.UINT2, [0, 1, 2, 3, 3, 0, 1]),
}
odd = pytest.mark.parametrize(
    ("kind", "dtype", "values"), [(k, *v) for k, v in ODD.items()], ids=ODD
)


@odd
@pytest.mark.parametrize("count", [7, 6, 1, 0])
def test_odd_types_go_in(
    build: Build, kind: str, dtype: DType, values: list[float], count: int
) -> None:
    cast = node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    model = build([cast], [f"x:{kind}[n]"], ["y:float[n]"], 25, ir_version=13)
    x = np.array(values[:count], np.float32).astype(dtype.numpy)
    for _ in range(3):
        assert model(x=x)["y"].tolist() == values[:count]
    assert [place.backend for place in model.placement] == ["cpu"]


@odd
@pytest.mark.parametrize("shape", [(7,), (1, 3), (), (2, 0)])
def test_odd_types_come_out(
    build: Build, kind: str, dtype: DType, values: list[float], shape: tuple[int, ...]
) -> None:
    cast = node("Cast", ["x"], ["y"], to=dtype.onnx)
    model = build([cast], ["x:float[]"], [f"y:{kind}[]"], 25, ir_version=13)
    x = np.array(values[: int(np.prod(shape))], np.float32).reshape(shape)
    for _ in range(3):
        y = model(x=x)["y"]
        assert y.dtype == dtype.numpy
        assert y.shape == shape
        np.testing.assert_array_equal(y.astype(np.float32), x)


def test_results_of_odd_types_are_the_callers_own(build: Build) -> None:
    nodes = [node("Neg", ["x"], ["y"])]
    model = build(nodes, ["x:bfloat16[n]"], ["y:bfloat16[n]", "x:bfloat16[n]"], 22)
    x = np.array([1, 2], np.float32).astype(DType.BFLOAT16.numpy)
    first = model(x=x)
    first["y"][:] = 0
    first["x"][:] = 0  # an output that is an input is none of the caller's array
    assert x.tolist() == [1, 2]
    assert {name: value.tolist() for name, value in model(x=x).items()} == {
        "y": [-1, -2], "x": [1, 2],
    }  # fmt: skip


def test_given_buffers_of_odd_types_are_filled(build: Build) -> None:
    model = build([node("Neg", ["x"], ["y"])], ["x:bfloat16[n]"], ["y:bfloat16[n]"], 22)
    x = np.array([1, 2], np.float32).astype(DType.BFLOAT16.numpy)
    buffer = np.zeros(2, x.dtype)
    for _ in range(3):
        model.predict([x], [Tensor(buffer)])
        assert buffer.tolist() == [-1, -2]
        buffer[:] = 0


def test_deadlines_hold_for_odd_types_too(build: Build) -> None:
    model = build([node("Neg", ["x"], ["y"])], ["x:bfloat16[n]"], ["y:bfloat16[n]"], 22)
    x = np.ones(2, DType.BFLOAT16.numpy)
    with pytest.raises(TimeoutError):
        model.predict([x], timeout_s=1e-9)
    assert model.predict([x], timeout_s=1000)[0].get_data_to_numpy().tolist() == [-1, -1]


@pytest.mark.parametrize("dtype", ["bfloat16", "int4", "uint2", "float8e5m2"])
def test_odd_types_beside_strings_and_lists_are_carried_exactly(build: Build, dtype: str) -> None:
    """ONNX Runtime cannot give both such arrays and lists in one run, nor take strings then."""
    to, values = ODD[dtype]
    values = [value for value in values if value in (0, 1, 0.25, 3)]
    nodes = [
        node("Cast", ["x"], ["y"], to=to.onnx),
        node("Identity", ["y"], ["z"])
        if to is DType.BFLOAT16
        else node("Cast", ["y"], ["z"], to=1),
        node("SplitToSequence", ["x"], ["s"], keepdims=0),
        node("Identity", ["t"], ["u"]),
    ]
    z = "bfloat16" if to is DType.BFLOAT16 else "float"
    model = build(nodes, ["x:float[n]", "t:string[m]"],
                  [f"y:{dtype}[n]", f"z:{z}[n]", "s:seq(float)", "u:string[m]"], 25,
                  ir_version=13)  # fmt: skip
    out = model(x=np.float32(values), t=np.array(["a"], object))
    assert out["y"].dtype == to.numpy
    assert out["y"].astype(np.float32).tolist() == values
    assert out["z"].tolist() == values
    assert [each.tolist() for each in out["s"]] == values
    assert out["u"].tolist() == ["a"]
    assert {place.backend for place in model.placement} == {"cpu"}


def test_sequences_go_in_and_come_out_as_lists(build: Build) -> None:
    nodes = [node("SequenceInsert", ["s", "x"], ["t"]), node("SequenceLength", ["t"], ["n"])]
    model = build(nodes, ["s:seq(float[k])", "x:float[k]"], ["t:seq(float[k])", "n:int64"], 17)
    one, two = np.float32([1]), np.float32([2, 3])
    for given in ([], [one], [two, one]):
        out = model(s=given, x=two)
        assert [each.tolist() for each in out["t"]] == [[*map(float, e)] for e in (*given, two)]
        assert out["n"] == len(given) + 1


def test_an_absent_optional_is_none(build: Build) -> None:
    nodes = [node("OptionalHasElement", ["x"], ["h"]), node("Identity", ["x"], ["y"])]
    model = build(nodes, ["x:optional(float[n])"], ["h:bool", "y:optional(float[n])"], 18)
    out: dict[str, Any] = model(x=None)
    assert (bool(out["h"]), out["y"]) == (False, None)
    out = model(x=np.float32([4]))
    assert (bool(out["h"]), out["y"].tolist()) == (True, [4])


def test_the_maps_of_a_classifier_come_out_as_dicts(build: Build) -> None:
    nodes = [node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["a", "b"])]
    model = build(nodes, ["x:float[n,2]"], ["y:seq(map(string,float))"], 17,
                  opsets={"ai.onnx.ml": 3})  # fmt: skip
    [row] = model(x=np.float32([[0.25, 0.75]]))["y"]
    assert row == {"a": 0.25, "b": 0.75}
