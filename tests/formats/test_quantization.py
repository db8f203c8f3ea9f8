"""Quantization of a model's inputs and outputs, as the core reads it from the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import parsed
from onnx import helper, numpy_helper

import engine
from engine.formats import open_source, source_from_bytes
from engine.types import Quantization, TensorSpec

SCALES = [0.5, 0.25, 2.0]
ZEROS = [1, -2, 3]
PER_TENSOR = Quantization(scale=(0.5,), zero_point=(3,))
PER_AXIS = Quantization(scale=(0.5, 0.25, 2.0), zero_point=(1, -2, 3), axis=1)


def array(values: Any, dtype: str) -> Any:
    if dtype == "bfloat16":
        ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 arrays need ml_dtypes")
        return np.array(values, ml_dtypes.bfloat16)
    return np.array(values, dtype)


def model(text: str, opset: int = 21, **constants: Any) -> onnx.ModelProto:
    return parsed(f"model {text}", opset=opset, ir_version=10, **constants)


def specs(text: str, opset: int = 21, **constants: Any) -> tuple[TensorSpec, TensorSpec]:
    """Return the first input and output of a model."""
    graph = source_from_bytes(model(text, opset, **constants).SerializeToString()).graph
    assert graph is not None
    return graph.inputs[0], graph.outputs[0]


def one(dtype: str = "int8") -> dict[str, Any]:
    return {"s": np.float32(0.5), "z": np.array(3, dtype)}


def three(dtype: str = "int8") -> dict[str, Any]:
    return {"s": np.array(SCALES, np.float32), "z": np.array(ZEROS, dtype)}


DEQUANTIZED = "(int8[n, 3] x) => (float[n, 3] y) {{ y = DequantizeLinear{}(x, s, z) }}"
QUANTIZED = "(float[n, 3] x) => (int8[n, 3] y) {{ y = QuantizeLinear{}(x, s, z) }}"


def test_an_input_that_is_dequantized_says_how() -> None:
    x, y = specs(DEQUANTIZED.format(""), **one())
    assert x.quantization == PER_TENSOR
    assert y.quantization is None


def test_an_output_that_was_quantized_says_how() -> None:
    x, y = specs(QUANTIZED.format(""), **one())
    assert (x.quantization, y.quantization) == (None, PER_TENSOR)


@pytest.mark.parametrize("axis", ["<axis = 1>", "<axis = -1>", ""])
def test_an_axis_is_never_negative(axis: str) -> None:
    assert specs(DEQUANTIZED.format(axis), **three())[0].quantization == PER_AXIS
    assert specs(QUANTIZED.format(axis), **three())[1].quantization == PER_AXIS


@pytest.mark.parametrize(
    ("input", "attributes"),
    [
        ("int8[3, 4]", ""),  # axis 1 has four
        ("int8[n, 3]", "<axis = 2>"),
        ("int8[n, 3]", "<axis = -3>"),
    ],
)
def test_an_axis_that_the_shape_does_not_have_is_no_quantization(
    input: str, attributes: str
) -> None:
    text = f"({input} x) => (float[a, b] y) {{ y = DequantizeLinear{attributes}(x, s, z) }}"
    assert specs(text, **three())[0].quantization is None


def test_one_number_in_a_vector_is_for_the_whole_tensor() -> None:
    found = specs(DEQUANTIZED.format(""), s=np.array([0.5], np.float32), z=np.array([3], np.int8))[
        0
    ].quantization
    assert found == PER_TENSOR


def test_a_zero_point_that_is_left_out_is_zero() -> None:
    text = "(uint8[n, 3] x) => (float[n, 3] y) { y = DequantizeLinear(x, s) }"
    found = specs(text, s=np.float32(0.25))[0].quantization
    assert found == Quantization(scale=(0.25,))
    found = specs(text, s=np.array(SCALES, np.float32))[0].quantization
    assert found == Quantization(scale=(0.5, 0.25, 2.0), zero_point=(0, 0, 0), axis=1)


@pytest.mark.parametrize(
    ("dtype", "zero", "kept"),
    [
        ("uint8", 200, "uint8"), ("int16", -300, "int16"), ("uint16", 60000, "uint16"),
        ("int32", 0, "int32"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_raw", [True, False])
def test_zero_points_of_all_integers_are_read(
    dtype: str, zero: int, kept: str, is_raw: bool
) -> None:
    z = numpy_helper.from_array(np.array(zero, kept), "z")
    if not is_raw:
        z = helper.make_tensor("z", z.data_type, (), [zero])
    text = f"({dtype}[n] x) => (float[n] y) {{ y = DequantizeLinear(x, s, z) }}"
    found = specs(text, s=np.float32(0.5), z=z)[0].quantization
    assert found == Quantization(scale=(0.5,), zero_point=(zero,))


@pytest.mark.parametrize("is_raw", [True, False])
@pytest.mark.parametrize(("dtype", "zeros"), [("int4", [-8, 7, -1]), ("uint4", [15, 0, 9])])
def test_zero_points_of_four_bits_are_read(dtype: str, zeros: list[int], is_raw: bool) -> None:
    kind = onnx.TensorProto.DataType.Value(dtype.upper())
    z = helper.make_tensor("z", kind, (3,), zeros)
    if is_raw:
        low, high, last = (number & 15 for number in zeros)
        z = onnx.TensorProto(
            name="z", data_type=kind, dims=(3,), raw_data=bytes([low | high << 4, last])
        )
    text = f"({dtype}[n, 3] x) => (float[n, 3] y) {{ y = DequantizeLinear(x, s, z) }}"
    found = specs(text, s=np.array(SCALES, np.float32), z=z)[0].quantization
    assert found == Quantization(scale=tuple(SCALES), zero_point=tuple(zeros), axis=1)


@pytest.mark.parametrize("is_raw", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_scales_of_all_types_are_read(dtype: str, is_raw: bool) -> None:
    s = numpy_helper.from_array(array(0.375, dtype), "s")
    if not is_raw:
        s = helper.make_tensor("s", s.data_type, (), [0.375])
    word = {"float32": "float"}.get(dtype, dtype)
    text = f"(int8[n] x) => ({word}[n] y) {{ y = DequantizeLinear(x, s, z) }}"
    found = specs(text, s=s, z=np.int8(3))[0].quantization
    assert found == Quantization(scale=(0.375,), zero_point=(3,))


def test_constant_nodes_are_constants_too() -> None:
    text = """(int8[n] x) => (float[n] y) {
        s = Constant<value_float = 0.5>()
        z = Constant<value = int8 {3}>()
        y = DequantizeLinear(x, s, z)
    }"""
    assert specs(text)[0].quantization == PER_TENSOR


def test_readers_that_agree_say_it_and_readers_that_differ_do_not() -> None:
    text = """(int8[n] x) => (float[n] y) {{
        a = DequantizeLinear(x, s, z)
        b = DequantizeLinear(x, t, z)
        y = Add(a, b)
    }}""".format()
    assert specs(text, t=np.float32(0.5), **one())[0].quantization == PER_TENSOR
    assert specs(text, t=np.float32(0.25), **one())[0].quantization is None


@pytest.mark.parametrize(
    "nodes",
    [
        "a = DequantizeLinear(x, s, z) b = Cast<to = 1>(x) y = Add(a, b)",  # another reader
        "y = DequantizeLinear(w, s, x)",  # it is the zero point
        "t = Neg(s) y = DequantizeLinear(x, t, z)",  # computed
        "y = Cast<to = 1>(x)",
        """a = DequantizeLinear(x, s, z) y = If(flag)<
            then_branch = one () => (float[n] b) { b = Cast<to = 1>(x) },
            else_branch = two () => (float[n] c) { c = Identity(a) }>""",
    ],
)
def test_an_input_with_any_other_reader_says_nothing(nodes: str) -> None:
    text = f"(int8[n] x) => (float[n] y) {{ {nodes} }}"
    assert specs(text, w=np.int8([1, 2]), flag=np.array(True), **one())[0].quantization is None


def test_an_input_that_is_an_output_too_says_nothing() -> None:
    text = "(int8[n] x) => (int8[n] x, float[n] y) { y = DequantizeLinear(x, s, z) }"
    assert specs(text, **one())[0].quantization is None


def test_blocks_are_no_axis() -> None:
    text = """(int8[4, 3] x) => (float[4, 3] y) {
        y = DequantizeLinear<axis = 0, block_size = 2>(x, s, z)
    }"""
    constants = {"s": np.ones((2, 3), np.float32), "z": np.zeros((2, 3), np.int8)}
    assert specs(text, **constants)[0].quantization is None


def test_scales_in_external_data_are_not_known(tmp_path: Path) -> None:
    proto = model(DEQUANTIZED.format(""), **one())
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w", size_threshold=0)
    graph = open_source(path).graph
    assert graph is not None
    assert graph.inputs[0].quantization is None


@pytest.mark.parametrize("isolate", ["false", "true"])
def test_a_model_says_what_its_integers_stand_for(
    null_backend: str, tmp_path: Path, isolate: str
) -> None:
    """By arithmetic: (integer - zero_point) * scale is what the model computes with."""
    text = """(int8[n, 3] x, float[n, 3] r) => (float[n, 3] y, uint8[n, 3] q) {
        y = DequantizeLinear(x, s, z)
        q = QuantizeLinear(r, t, u)
    }"""
    constants = {"t": np.float32(0.5), "u": np.uint8(7), **three()}
    path = tmp_path / "model.onnx"
    onnx.save(model(text, **constants), path)
    config = {"common_context": {"isolate": isolate}}
    with engine.load(path, target=null_backend, config=config) as loaded:
        known, output = loaded.inputs[0].quantization, loaded.outputs[1].quantization
        x = np.array([[10, 20, -30], [-128, 127, 0]], np.int8)
        r = np.array([[1.0, -3.5, 2.5]] * 2, np.float32)
        found = loaded(x=x, r=r)
        loaded.resize(loaded.get_inputs(), [[2, 3], [2, 3]])
        assert loaded.inputs[0].quantization == known
    assert known is not None
    assert output is not None
    real = (x.astype(np.float64) - known.zero_point) * known.scale
    np.testing.assert_array_equal(found["y"], real)
    numbers = (found["q"].astype(np.float64) - output.zero_point) * output.scale
    np.testing.assert_array_equal(numbers, r)


def test_a_backends_own_description_wins_over_none(
    plugin_folder: Path, install: Any, tmp_path: Path
) -> None:
    """A backend that describes its inputs itself, without quantization, hides nothing."""
    extra = """
@hookimpl
def engine_compile(loaded, options):
    executable = loaded.compile(options)
    executable.inputs = tuple(replace(spec, quantization=None) for spec in executable.inputs)
    return executable
"""
    install("bare", extra=extra)
    path = tmp_path / "model.onnx"
    onnx.save(model(DEQUANTIZED.format(""), **one()), path)
    with engine.load(path, target="bare") as loaded:
        assert loaded.inputs[0].quantization == PER_TENSOR
