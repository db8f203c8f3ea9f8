"""Element types and layouts at a model's edges: the same numbers, given and taken otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from convert_models import changed, dims
from graphs import parsed
from onnx import ModelProto, TensorProto, helper

import engine
from engine import DataType, FmkType, Format
from engine.converter import edges, pipeline
from engine.converter.job import Job

Array = np.ndarray[Any, Any]
Run = Callable[..., dict[str, Array]]
FLOAT = TensorProto.FLOAT

IMAGE = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)


def job(framework: FmkType = FmkType.ONNX, **asked: Any) -> Job:
    return Job(framework=framework, model_file=Path("m.onnx"), output_file=Path("o"), **asked)


def adapt(model: ModelProto, asked: Job) -> tuple[ModelProto, list[str]]:
    return changed(edges.adapt, model, asked)


def shapes(model: ModelProto) -> dict[str, list[int | str]]:
    return dims((*model.graph.input, *model.graph.output))


def picture() -> ModelProto:
    """y = 2x, x and y float32[n, 3, h, 5]; m = mean of x over the last two axes, [n, 3]."""
    return parsed(
        """g (float[n, 3, h, 5] x) => (float[n, 3, h, 5] y, float[n, 3] m) {
            y = Mul(x, two)
            m = ReduceMean <axes = [2, 3], keepdims = 0> (x)
        }""",
        two=np.float32(2),
    )


def test_inputs_and_outputs_of_four_axes_are_given_and_taken_channels_last(run):
    result, notes = adapt(picture(), job(input_format=Format.NHWC, output_format=Format.NHWC))
    assert shapes(result) == {"x": ["n", "h", 5, 3], "y": ["n", "h", 5, 3], "m": ["n", 3]}
    assert notes == [
        "input 'x' is NHWC; the model's is NCHW",
        "output 'y' is NHWC; the model's is NCHW",
    ]
    given = np.ascontiguousarray(IMAGE.transpose(0, 2, 3, 1))
    found = run(result, x=given)
    np.testing.assert_array_equal(found["y"], 2 * given)
    np.testing.assert_array_equal(found["m"], IMAGE.mean((2, 3)))


def test_each_edge_has_its_own_layout(run):
    result, _ = adapt(picture(), job(output_format=Format.NHWC))
    found = run(result, x=IMAGE)
    np.testing.assert_array_equal(found["y"], 2 * IMAGE.transpose(0, 2, 3, 1))


@pytest.mark.parametrize("framework", [FmkType.TF, FmkType.TFLITE])
def test_what_comes_from_tensorflow_is_channels_last_itself(framework, run):
    same, notes = adapt(
        picture(), job(framework, input_format=Format.NHWC, output_format=Format.NHWC)
    )
    assert notes == []
    assert same == picture()
    result, _ = adapt(picture(), job(framework, input_format=Format.NCHW))
    assert shapes(result)["x"] == ["n", 5, 3, "h"]
    given = np.ascontiguousarray(IMAGE.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(run(result, x=given)["y"], 2 * IMAGE)


def test_floating_inputs_and_outputs_are_cast(run):
    result, notes = adapt(
        picture(), job(input_dtype=DataType.FLOAT16, output_dtype=DataType.FLOAT16)
    )
    assert notes == [
        "input 'x' is float16, the model's is float32",
        "output 'y' is float16, the model's is float32",
        "output 'm' is float16, the model's is float32",
    ]
    found = run(result, x=IMAGE.astype(np.float16))
    assert found["y"].dtype == found["m"].dtype == np.float16
    np.testing.assert_array_equal(found["y"], 2 * IMAGE)


def test_type_and_layout_change_together(run):
    asked = job(
        input_dtype=DataType.UINT8, input_format=Format.NHWC,
        output_dtype=DataType.INT32, output_format=Format.NHWC,
    )  # fmt: skip
    result, notes = adapt(picture(), asked)
    assert "input 'x' is uint8, the model's is float32; a plain cast, without scale" in notes
    assert any(note.startswith("output 'y' is int32") and "cut off" in note for note in notes)
    given = np.ascontiguousarray(IMAGE.transpose(0, 2, 3, 1)).astype(np.uint8)
    found = run(result, x=given)
    assert found["y"].dtype == np.int32
    np.testing.assert_array_equal(found["y"], 2 * given.astype(np.int32))


@pytest.mark.parametrize("dtype", [None, DataType.UNKNOWN, DataType.FLOAT32])
def test_what_is_not_asked_or_is_so_already_stays(dtype):
    model = picture()
    result, notes = edges.adapt(
        model, job(input_dtype=dtype, output_dtype=dtype, input_format=Format.NCHW)
    )
    assert notes == []
    assert result is model


def lookup() -> ModelProto:
    """y = table[ids], ids int64[n]; top = ids; table is 0, 10, 20, 30."""
    return parsed(
        """g (int64[n] ids) => (float[n] y, int64[n] top) {
            y = Gather(table, ids)
            top = Identity(ids)
        }""",
        table=np.arange(0, 40, 10, dtype=np.float32),
    )


def test_token_ids_stay_integers(run):
    result, notes = adapt(
        lookup(), job(input_dtype=DataType.FLOAT16, output_dtype=DataType.FLOAT16)
    )
    assert notes == [
        "input 'ids' stays int64: only floating ones become float16 safely",
        "output 'y' is float16, the model's is float32",
        "output 'top' stays int64: only floating ones become float16 safely",
    ]
    found = run(result, ids=np.array([3, 1]))
    np.testing.assert_array_equal(found["y"], np.array([30, 10], np.float16))


def test_token_ids_may_be_given_as_int32_but_are_not_cut_down_to_it(run):
    result, notes = adapt(lookup(), job(input_dtype=DataType.INT32, output_dtype=DataType.INT32))
    assert "input 'ids' is int32, the model's is int64" in notes
    assert "output 'top' stays int64: only floating ones become int32 safely" in notes
    found = run(result, ids=np.array([3, 1], np.int32))
    np.testing.assert_array_equal(found["top"], np.array([3, 1], np.int64))
    np.testing.assert_array_equal(found["y"], np.array([30, 10], np.int32))


def test_an_input_that_is_an_output_stays_unless_both_change_alike(run):
    model = parsed("g (float[2] x) => (float[2] x, float[2] y) { y = Neg(x) }")
    x = np.array([1.5, -2], np.float32)
    result, notes = adapt(model, job(input_dtype=DataType.FLOAT16))
    assert notes == ["'x' stays as it is: an input and an output that are one value"]
    np.testing.assert_array_equal(run(result, x=x)["x"], x)
    both = job(input_dtype=DataType.FLOAT16, output_dtype=DataType.FLOAT16)
    result, _ = adapt(model, both)
    found = run(result, x=x.astype(np.float16))
    assert found["x"].dtype == found["y"].dtype == np.float16
    np.testing.assert_array_equal(found["x"], x)
    np.testing.assert_array_equal(found["y"], -x)


def test_weights_that_are_listed_as_inputs_or_outputs_stay_weights(tmp_path):
    text = "g (float[2] x, float[2] w) => (float[2] y, float[2] w) { y = Add(x, w) }"
    model = parsed(text, w=np.array([1, 2], np.float32))
    result, _ = adapt(model, job(input_dtype=DataType.FLOAT16, output_dtype=DataType.FLOAT16))
    path = tmp_path / "model.onnx"
    onnx.save(result, path)
    with engine.load(path, target="cpu") as built:
        assert [each.name for each in built.inputs] == ["x"]
        found = built(x=np.ones(2, np.float16))
    assert found["w"].dtype == np.float16
    np.testing.assert_array_equal(found["w"], [1, 2])
    np.testing.assert_array_equal(found["y"], [2, 3])


def test_inputs_that_only_subgraphs_read_are_adapted(run):
    # In the Loop z is another name of what comes in as x.
    model = parsed(
        """g (bool c, float[2] x) => (float[2] y) {
            y = If (c) <
                then_branch = then () => (float[2] sum) { sum = Add(x, x) },
                else_branch = other () => (float[2] negated) {
                    negated = Loop (three, "", x) <
                        body = inner (int64 i, bool k, float[2] z) => (bool k2, float[2] zn) {
                            k2 = Identity(k)
                            zn = Neg(z)
                        }
                    >
                }
            >
        }""",
        three=np.array(3),
    )
    result, notes = adapt(model, job(input_dtype=DataType.FLOAT16, output_dtype=DataType.FLOAT64))
    assert "input 'c' stays bool: only floating ones become float16 safely" in notes
    x = np.array([1, 2], np.float16)
    for condition, expected in ((True, 2 * x), (False, -x)):
        found = run(result, c=np.array(condition), x=x)["y"]
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, expected)


def test_names_that_are_taken_are_not_taken_again(run):
    nodes = '"x.inner" = Neg(x) y = Neg("x.inner")'
    model = parsed(f'g (float[2] x) => (float[2] y, float[2] "x.inner") {{ {nodes} }}')
    result, _ = adapt(model, job(input_dtype=DataType.FLOAT16))
    found = run(result, x=np.array([1, 2], np.float16))
    np.testing.assert_array_equal(found["y"], [1, 2])
    np.testing.assert_array_equal(found["x.inner"], [-1, -2])


def test_an_output_that_other_nodes_read_keeps_its_own_type_inside(run):
    model = parsed("g (float[1] x) => (float[1] y, float[1] z) { y = Mul(x, x) z = Sqrt(y) }")
    result, _ = adapt(model, job(output_dtype=DataType.FLOAT16))
    found = run(result, x=np.array([300], np.float32))
    assert found["y"] == np.inf  # 90000 is beyond float16
    assert found["z"] == 300


def test_sequences_and_unknown_ranks_are_left_alone():
    nodes = "s = SequenceConstruct(x) y = Identity(x)"
    model = parsed(f"g (float[n, 3, 4, 5] x) => (seq(float[]) s, float[] y) {{ {nodes} }}")
    result, notes = edges.adapt(
        model, job(output_dtype=DataType.FLOAT16, output_format=Format.NHWC)
    )
    assert notes == [
        "output 's' stays as it is: it is no tensor",
        "output 'y' is float16, the model's is float32",
        "output 'y' keeps its layout: its rank is not known",
    ]
    assert result.graph.output[0] == model.graph.output[0]


# -------------------------------------------------------------------------- quantized models


THREE = np.int8(3)


def quantized(
    more: str = "", *outputs: str, zero: Any = THREE, scale: Any = 0.5, **weights: Array
) -> ModelProto:
    """y = relu(x), x and y float32[2, 3, 4, 5]; inside both are int8: 0.5 * (number - 3)."""
    ends = ", ".join(f"float[2, 3, 4, 5] {name}" for name in ("y", *outputs))
    text = f"""g (float[2, 3, 4, 5] x) => ({ends}) {{
        x8 = QuantizeLinear(x, s, z)
        xf = DequantizeLinear(x8, s, z)
        r = Relu(xf)
        r8 = QuantizeLinear(r, s, z)
        y = DequantizeLinear(r8, s, z)
        {more}
    }}"""
    return parsed(text, s=np.array(scale, np.float32), z=np.array(zero), **weights)


INT8 = job(input_dtype=DataType.INT8, output_dtype=DataType.INT8)


def types(model: ModelProto) -> dict[str, int]:
    edges = (*model.graph.input, *model.graph.output)
    return {each.name: each.type.tensor_type.elem_type for each in edges}


def test_a_quantized_model_takes_and_gives_its_own_integers(run):
    result, notes = adapt(quantized(), INT8)
    assert types(result) == {"x": TensorProto.INT8, "y": TensorProto.INT8}
    assert [node.op_type for node in result.graph.node] == [
        "DequantizeLinear", "Relu", "QuantizeLinear",
    ]  # fmt: skip
    assert notes == [
        "input 'x' is int8; the model's float is 0.5 * (number - 3)",
        "output 'y' is int8; the model's float is 0.5 * (number - 3)",
    ]
    numbers = np.arange(-60, 60, dtype=np.int8).reshape(IMAGE.shape)
    found = run(result, x=numbers)["y"]
    np.testing.assert_array_equal(found, np.maximum(numbers, 3))  # 3 is zero


@pytest.mark.parametrize(
    ("zero", "asked"), [(np.uint8(131), DataType.INT8), (np.int8(3), DataType.UINT8)]
)
def test_integers_of_the_other_sign_are_moved_by_128(run, zero, asked):
    """The numbers at the edges are moved; not one of them is rounded."""
    result, notes = adapt(quantized(zero=zero), job(input_dtype=asked, output_dtype=asked))
    dtype = np.int8 if asked is DataType.INT8 else np.uint8
    moved = 3 if asked is DataType.INT8 else 131
    assert notes == [
        f"input 'x' is {dtype.__name__}; the model's float is 0.5 * (number - {moved})",
        f"output 'y' is {dtype.__name__}; the model's float is 0.5 * (number - {moved})",
    ]
    assert types(result) == dict.fromkeys("xy", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    numbers = np.arange(moved - 60, moved + 60).astype(dtype).reshape(IMAGE.shape)
    found = run(result, x=numbers)["y"]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.maximum(numbers, moved))


def test_its_integers_change_their_layout_too(run):
    asked = replace(INT8, input_format=Format.NHWC, output_format=Format.NHWC)
    result, _ = adapt(quantized(), asked)
    numbers = np.arange(-60, 60, dtype=np.int8).reshape(2, 4, 5, 3)
    np.testing.assert_array_equal(run(result, x=numbers)["y"], np.maximum(numbers, 3))


NEGATED = "(float[2, 3, 4, 5] n) { n = Neg(y) }"
BRANCHES = f"<then_branch = then () => {NEGATED}, else_branch = other () => {NEGATED}>"


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(quantized(scale=[0.5] * 3, zero=np.full(3, 3, np.int8)), id="by channel"),
        pytest.param(quantized("n = Neg(x) m = Neg(y)", "n", "m"), id="both floats are read"),
        pytest.param(quantized("m = Neg(y)", "m"), id="the output is read"),
        pytest.param(quantized(f"m = If (yes) {BRANCHES}", "m", yes=np.array(True)), id="a branch"),
    ],
)
def test_what_else_reads_an_edge_or_has_other_integers_gets_a_cast(model):
    nodes = len(model.graph.node)
    result, notes = edges.adapt(model, INT8)
    assert types(result)["y"] == TensorProto.INT8
    assert any(note.startswith("output 'y' is int8") and "without scale" in note for note in notes)
    operators = [node.op_type for node in result.graph.node]
    assert operators.count("DequantizeLinear") == 2
    assert len(operators) > nodes


def test_one_edge_alone_becomes_integer(run):
    result, _ = adapt(quantized(), replace(INT8, output_dtype=None))
    assert types(result) == {"x": TensorProto.INT8, "y": FLOAT}
    numbers = np.arange(-60, 60, dtype=np.int8).reshape(IMAGE.shape)
    expected = np.maximum(0.5 * (numbers.astype(np.float32) - 3), 0)
    np.testing.assert_array_equal(run(result, x=numbers)["y"], expected)


def test_a_result_says_its_layout_to_the_next_conversion(tmp_path):
    """NHWC from the start, made NHWC, and back; other ONNX files are NCHW."""
    onnx.save(picture(), tmp_path / "first.onnx")

    def converted(source: str, result: str, **asked: Any) -> ModelProto:
        model_file, output_file = tmp_path / source, tmp_path / f"{result}.onnx"
        given = {"framework": FmkType.ONNX, "model_file": model_file, "output_file": output_file}
        pipeline.convert(Job(**{**given, **asked}))
        return onnx.load(output_file)

    nhwc = converted("first.onnx", "nhwc", input_format=Format.NHWC, output_format=Format.NHWC)
    assert shapes(nhwc)["x"] == ["n", "h", 5, 3]
    again = converted("nhwc.onnx", "again", input_format=Format.NHWC)
    assert shapes(again) == shapes(nhwc)
    back = converted("again.onnx", "back", input_format=Format.NCHW, output_format=Format.NCHW)
    assert shapes(back) == shapes(picture())
    assert not {"input_format", "output_format"} & {each.key for each in back.metadata_props}
