"""Operators of operators.toml are right on numbers at the edges of each type; others are left.

Expected values are those of onnx's reference evaluator, in the declared types.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import engine
from engine.errors import InputError, ModelError
from engine_openvino.nodes import TABLE, TYPES
from engine_openvino.nodes import bits as bits_of
from engine_testing.models import text_name

OPSETS = (14, 21)
UNARY = {
    "Abs", "Ceil", "Cos", "Elu", "Erf", "Floor", "HardSwish", "Identity", "IsInf", "IsNaN",
    "LeakyRelu", "Log", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sin",
    "Softplus", "Softsign", "Sqrt", "Tanh",
}  # fmt: skip
BINARY = {
    "Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mul", "Or",
    "PRelu", "Pow", "Sub", "Xor",
}  # fmt: skip
TRUTHS = {"IsInf", "IsNaN", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}


def edges(dtype: str, most_bits: int = 31) -> np.ndarray:
    """Return the extreme and usual numbers of a type; of int64, those that predict takes."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return np.array([True, False] * 8)
    if kind == "f":
        most = np.finfo(dtype).max
        return np.array(
            [0, -0.0, 1, -1, 0.5, 2.5, -2.5, 3.7, -3.7, 100, -100, 1e-3, most, -most, np.inf,
             -np.inf], dtype,
        )  # fmt: skip
    limits = np.iinfo(dtype)
    top = min(limits.max, 2**most_bits - 1)
    low = max(limits.min, -(2**most_bits))
    numbers = [0, 1, 2, 3, 5, 7, 9, 64, 100, 127, top, top - 1, top // 2, low, low + 1, low // 2]
    return np.array(numbers, dtype)


def run(text: str, inputs: dict[str, np.ndarray], opset: int = 17, **constants: np.ndarray) -> None:
    """Run a model on OpenVINO alone; compare with the reference evaluator."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g {text}')
    for name, values in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    onnx.checker.check_model(model)
    with np.errstate(all="ignore"):
        wanted = ReferenceEvaluator(model).run(None, inputs)
    with engine.load(model.SerializeToString(), target="openvino") as built:
        assert {place.backend for place in built.placement} == {"openvino"}
        got = list(built(**inputs).values())
    for value, expected in zip(got, wanted, strict=True):
        assert value.dtype == expected.dtype
        assert value.shape == expected.shape
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(value, expected, rtol=2e-5, atol=1e-30)
        else:
            np.testing.assert_array_equal(value, expected)


def cases(names: set[str]) -> list[tuple[str, str]]:
    return sorted((name, dtype) for name in names for dtype in TYPES[name])


def result(name: str, dtype: str) -> str:
    return "bool" if name in TRUTHS else text_name(engine_type(dtype))


def engine_type(dtype: str) -> engine.types.DType:
    return engine.types.DType(dtype)


@pytest.mark.parametrize(("name", "dtype"), cases(UNARY))
def test_an_operator_of_one_input_is_right_at_the_edges(name: str, dtype: str) -> None:
    if name in ("IsNaN", "IsInf") and dtype == "bool":
        pytest.skip("bool is the type of its output")
    kind = text_name(engine_type(dtype))
    x = edges(dtype)
    if name == "Erf":
        x = x[np.abs(x) >= 0.5]  # smaller results have an absolute error, of 2e-8
    for opset in OPSETS:
        text = f"({kind}[n] x) => ({result(name, dtype)}[n] y) {{ y = {name} (x) }}"
        run(text, {"x": x}, opset)


@pytest.mark.parametrize(("name", "dtype"), cases(BINARY))
def test_an_operator_of_two_inputs_is_right_at_the_edges(name: str, dtype: str) -> None:
    if name in TRUTHS and name != "Equal" and dtype == "bool":
        pytest.skip("bool is the type of its output")
    kind = text_name(engine_type(dtype))
    numbers = edges(dtype, 24 if name in TRUTHS else 31)
    if name == "PRelu":  # of which the reference evaluator makes NaN
        numbers = numbers[np.isfinite(numbers)]
    a, b = np.repeat(numbers, numbers.size), np.tile(numbers, numbers.size)
    for opset in OPSETS:
        text = f"({kind}[n] a, {kind}[n] b) => ({result(name, dtype)}[n] y) {{ y = {name} (a, b) }}"
        run(text, {"a": a, "b": b}, opset)


MOVES = {
    "Concat": "Concat <axis = 1> (x, x)",
    "Expand": "Expand (x, expanded)",
    "Flatten": "Flatten <axis = 2> (x)",
    "Gather": "Gather <axis = 1> (x, picked)",
    "GatherND": "GatherND (x, places)",
    "Reshape": "Reshape (x, rows)",
    "Slice": "Slice (x, begin, end, axes, steps)",
    "Squeeze": "Squeeze (x, first)",
    "Tile": "Tile (x, twice)",
    "Transpose": "Transpose <perm = [2, 0, 1]> (x)",
    "Unsqueeze": "Unsqueeze (x, first)",
    "Where": "Where (mask, x, x)",
}


@pytest.mark.parametrize("dtype", sorted(TYPES["Transpose"]))
@pytest.mark.parametrize("name", MOVES)
def test_a_move_keeps_every_bit(name: str, dtype: str) -> None:
    kind = text_name(engine_type(dtype))
    x = edges(dtype).reshape(1, 4, 4)
    constants = {
        "expanded": [2, 1, 4, 4], "picked": [3, -1, 0], "rows": [2, -1], "begin": [1, -1],
        "end": [2**63 - 1, -(2**63)], "axes": [1, 2], "steps": [1, -2], "first": [0],
        "twice": [2, 1, 2],
    }  # fmt: skip
    arrays = {key: np.array(value, np.int64) for key, value in constants.items()}
    arrays["places"] = np.array([[0, 3], [0, -1]], np.int64)
    arrays["mask"] = np.array([True, False, True, False])
    used = {key: value for key, value in arrays.items() if f" {key}" in MOVES[name]}
    used |= {key: value for key, value in arrays.items() if f"({key}" in MOVES[name]}
    run(f"({kind}[a, b, c] x) => ({kind}[?] y) {{ y = {MOVES[name]} }}", {"x": x}, **used)


@pytest.mark.parametrize("source", sorted(TABLE["casts"]))
def test_a_cast_keeps_every_number(source: str) -> None:
    kind, x = text_name(engine_type(source)), edges(source)
    for target in TABLE["casts"][source].split():
        to = engine_type(target)
        numbers = x[np.abs(x) <= 100] if target == "int32" and source == "float32" else x
        text = f"({kind}[n] x) => ({text_name(to)}[n] y) {{ y = Cast <to = {to.onnx}> (x) }}"
        run(text, {"x": numbers})


LEFT = {
    "float64": "(double[n] x) => (double[n] y) { y = Add (x, x) }",
    "sums of int64": "(int64[n] x) => (int64[n] y) { y = Add (x, x) }",
    "wide constants": "(int64[n] x) => (int64[n] y) { c = Constant <value_ints = [4294967296]> () y = Concat <axis = 0> (x, c) }",  # noqa: E501
    "computed int64, compared": "(float[n] x) => (bool[m] y) { s = Shape (x) y = Equal (s, s) }",
    "Greater, which is true of NaN": "(float[n] x) => (bool[n] y) { y = Greater (x, x) }",
    "Exp, which is infinite of NaN": "(float[n] x) => (float[n] y) { y = Exp (x) }",
    "int8 that saturates": "(int8[n] x) => (int8[n] y) { y = Add (x, x) }",
    "ReduceL1, whose axes are not read": "(float[n, m] x) => (float[n, k] y) { y = ReduceL1 <axes = [1]> (x) }",  # noqa: E501
    "repeats that are no constant": "(float[n] x, int64[1] r) => (float[m] y) { y = Tile (x, r) }",
    "operators in a branch": "(bool c, double[n] x) => (double[n] y) { y = If (c) < then_branch = t () => (double[n] a) { a = Neg (x) }, else_branch = e () => (double[n] b) { b = Abs (x) }> }",  # noqa: E501
}


@pytest.mark.parametrize("what", LEFT)
def test_what_openvino_computes_otherwise_is_left_to_the_next_target(what: str) -> None:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {LEFT[what]}')
    data = model.SerializeToString()
    with pytest.raises(ModelError, match="cannot run"):
        engine.load(data, target="openvino")
    with engine.load(data, target=["openvino", "cpu"]) as built:
        assert "cpu" in {place.backend for place in built.placement}


PADS = """
    p = Constant <value = int64[4] {0, 1, 0, 2}> ()
    s = Constant <value = int64[2] {2, 2}> ()
    f = Constant <value = int64[1] {-1}> ()
    r = Reshape (p, s)
    q = Reshape (r, f)
"""


def test_what_nodes_make_of_constants_alone_is_a_constant() -> None:
    run(
        f"(float[n, 4] x) => (float[?, ?] y) {{ {PADS} y = Pad (x, q) }}",
        {"x": edges("float32").reshape(4, 4)},
    )


def test_what_a_node_that_is_left_makes_of_constants_is_none() -> None:
    text = f"(float[n, 4] x) => (float[?, ?] y) {{ {PADS} d = Add (q, q) y = Pad (x, d) }}"
    check_with_cpu_behind(text, {"Add", "Pad"}, lambda x: np.pad(x, ((0, 0), (2, 4))))


def test_a_branch_of_a_constant_condition_may_give_what_is_no_constant() -> None:
    branches = "then_branch = t () => (int64[2] a) { a = Identity (r) }, else_branch = e () => (int64[2] b) { b = Identity (r) }"  # noqa: E501
    text = f"(float[n] x, int64[2] r) => (float[m] y) {{ c = Constant <value = bool {{1}}> () t = If (c) < {branches} > y = Tile (x, t) }}"  # noqa: E501
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    with pytest.raises(ModelError, match="Tile is exact in OpenVINO only where 't' is a constant"):
        engine.load(model.SerializeToString(), target="openvino")


def test_a_constant_that_comes_from_another_segment_is_none() -> None:
    text = (
        f"(float[n, 4] x) => (float[?, ?] y) {{ {PADS} a = Pad (x, q) e = Exp (a) y = Pad (e, q) }}"
    )
    pads = ((0, 0), (1, 2))
    check_with_cpu_behind(text, {"Exp", "Pad"}, lambda x: np.pad(np.exp(np.pad(x, pads)), pads))


def check_with_cpu_behind(
    text: str, on_cpu: set[str], expected: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Run a model on OpenVINO and cpu; compare where its nodes run and what it gives."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    x = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
    with engine.load(model.SerializeToString(), target=["openvino", "cpu"]) as built:
        assert {place.op_type for place in built.placement if place.backend == "cpu"} == on_cpu
        [y] = built(x).values()
    np.testing.assert_allclose(y, expected(x), rtol=1e-5)


def test_softmax_before_opset_13_is_left_to_the_next_target() -> None:
    text = '<ir_version: 7, opset_import: ["" : 11]> g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Softmax (x) }'  # noqa: E501
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 10
    with engine.load(parser.parse_model(text).SerializeToString(), target=["openvino", "cpu"]) as m:
        [y] = m(x).values()
    powers = np.exp(x.reshape(2, 12))  # of all axes from the first on
    expected = (powers / powers.sum(axis=1, keepdims=True)).reshape(2, 3, 4)
    np.testing.assert_allclose(y, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("(int64[n] x) => (float[n] y) { y = Cast <to = 1> (x) }", 31),
        ("(int64[n] x) => (bool[n] y) { y = Equal (x, x) }", 24),
    ],
)
def test_an_index_of_more_bits_is_refused_when_it_comes(text: str, most: int) -> None:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    with engine.load(model.SerializeToString(), target="openvino") as built:
        built(np.array([2**most - 1, -(2**most)]))
        for number in (2**most, -(2**most) - 1):
            with pytest.raises(InputError, match=f"input 'x': expected numbers of at most {most}"):
                built(np.array([0, number]))


@pytest.mark.parametrize(
    ("numbers", "bits"), [([], 0), ([0, -1], 0), ([127, -128], 7), ([-(2**63)], 63), ([2**31], 32)]
)
def test_bits_are_counted_as_twos_complement_has_them(numbers: list[int], bits: int) -> None:
    assert bits_of(np.array(numbers, np.int64)) == bits


@pytest.mark.parametrize("form", ["DequantizeLinear <axis = 1> (w, s)", "Mul (c, s)"])
def test_activations_are_not_quantized_for_weights_stored_as_int8(form: str) -> None:
    random = np.random.default_rng(0)
    weight = random.integers(-127, 128, (256, 64)).astype(np.int8)
    scale = random.uniform(0.01, 0.02, 64).astype(np.float32)
    x = random.standard_normal((8, 256)).astype(np.float32)
    cast = "" if "Dequantize" in form else f"c = Cast <to = {TensorProto.FLOAT}> (w)"
    text = f"(float[n, 256] x) => (float[n, 64] y) {{ {cast} m = {form} y = MatMul (x, m) }}"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    model.graph.initializer.extend(
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(scale, "s")]
    )
    with engine.load(model.SerializeToString(), target="openvino") as built:
        [y] = built(x).values()
    expected = x.astype(np.float64) @ (weight * scale.astype(np.float64))
    assert np.abs(y - expected).max() / np.abs(expected).max() < 2e-6


def test_every_listed_operator_exists() -> None:
    names = {*TYPES, *TABLE["indexes"], *TABLE["constants"], *TABLE["most"], *TABLE["attributes"]}
    assert names == {*TYPES}
    assert [name for name in names if not onnx.defs.has(name)] == []
