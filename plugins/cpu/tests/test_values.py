"""Values of every type that ONNX Runtime computes with go in and come out, and so do lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, parser

import engine
from engine import InputError, Model, Tensor
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
# These came later to onnxruntime than the lowest version that this backend takes.
NEWER = ("float8e8m0", "int2", "uint2")


def is_known(kind: str) -> bool:
    """Return True where this onnxruntime knows the type."""
    graph = parser.parse_graph(f"g ({kind}[1] x) => ({kind}[1] y) {{ y = Identity(x) }}")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    try:
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as error:
        return "Invalid tensor data type" not in str(error)
    return True


IS_OLD = not all(map(is_known, NEWER))
newer = pytest.mark.skipif(IS_OLD, reason=f"onnxruntime {ort.__version__} has no {NEWER}")
odd = pytest.mark.parametrize(
    ("kind", "dtype", "values"),
    [pytest.param(k, *v, marks=[newer] if k in NEWER else [], id=k) for k, v in ODD.items()],
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


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "int4", pytest.param("uint2", marks=newer), "float8e5m2"]
)
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
    # Older versions cast into few of the types.
    allowed = {"cpu", "reference"} if IS_OLD else {"cpu"}
    assert {place.backend for place in model.placement} <= allowed


def test_sequences_go_in_and_come_out_as_lists(build: Build) -> None:
    nodes = [node("SequenceInsert", ["s", "x"], ["t"]), node("SequenceLength", ["t"], ["n"])]
    model = build(nodes, ["s:seq(float[k])", "x:float[k]"], ["t:seq(float[k])", "n:int64"], 17)
    one, two = np.float32([1]), np.float32([2, 3])
    for given in ([], [one], [two, one]):
        out = model(s=given, x=two)
        assert [each.tolist() for each in out["t"]] == [[*map(float, e)] for e in (*given, two)]
        assert out["n"] == len(given) + 1


def test_an_array_in_place_of_a_list_is_refused_however_often_lists_were_given(
    build: Build,
) -> None:
    length = node("SequenceLength", ["s"], ["n"])
    model = build([length], ["s:seq(float[2])", "x:float[2]"], ["n:int64"], 17)
    one = np.float32([1, 2])
    for _ in range(3):
        assert model(s=[one, one], x=one)["n"] == 2
        with pytest.raises(TypeError, match=r"'s': expected sequence.*a list of arrays"):
            model(s=one, x=one)
    assert model(s=[], x=one)["n"] == 0


def test_tensors_beside_lists_are_checked_at_every_predict(build: Build) -> None:
    made = node("SequenceConstruct", ["x", "x"], ["s"])
    model = build([made], ["x:float[n,2]"], ["s:seq(float[n,2])"], 17)
    for rows in (1, 3, 1):
        x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        assert [each.tolist() for each in model(x=x)["s"]] == [x.tolist()] * 2
        with pytest.raises(InputError, match=r"expected float32\[n, 2\], got float32\[2, 3\]"):
            model(x=np.zeros((2, 3), np.float32))
        with pytest.raises(InputError, match="data type not equal"):
            model(x=x.astype(np.float64))
        assert model(x=x[:, ::-1])["s"][1].tolist() == x[:, ::-1].tolist()


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


def test_two_sequences_with_the_same_elements_are_memory_of_their_own(tmp_path: Path) -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"]))
    graph = helper.make_graph(
        [
            helper.make_node("SequenceConstruct", ["x", "x"], ["two"]),
            helper.make_node("SequenceInsert", ["two", "x"], ["three"]),
        ],
        "sharing",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_value_info("two", kind), helper.make_value_info("three", kind)],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "sharing.onnx")
    x = np.arange(3, dtype=np.float32)
    two, three = engine.load(tmp_path / "sharing.onnx").predict([x])
    for number, tensor in enumerate([*two, *three]):
        tensor.get_data_to_numpy()[:] = number
    assert [tensor.get_data_to_numpy()[0] for tensor in [*two, *three]] == [0, 1, 2, 3, 4]
    assert x.tolist() == [0, 1, 2]


def test_odd_outputs_that_are_inputs_or_constants_come_beside_strings(build: Build) -> None:
    nodes = [node("Identity", ["s"], ["t"]), node("Neg", ["x"], ["y"])]
    constant = np.array([1.5, -2], DType.BFLOAT16.numpy)
    model = build(nodes, ["s:string[1]", "x:bfloat16[2]"],
                  ["t:string[1]", "x:bfloat16[2]", "c:bfloat16[2]", "y:bfloat16[2]"], 20,
                  {"c": constant})  # fmt: skip
    x = np.array([3, 0.25], DType.BFLOAT16.numpy)
    t, same, c, y = (out.get_data_to_numpy() for out in model.predict([np.array(["a"], object), x]))
    assert t.tolist() == ["a"]
    assert same.tolist() == [3, 0.25]
    assert not np.may_share_memory(same, x)
    assert c.tolist() == [1.5, -2]
    assert y.tolist() == [-3, -0.25]
