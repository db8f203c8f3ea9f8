"""Nodes whose kernels would end the process are refused, or written otherwise, before a session is.

Nothing here runs in a process of its own: without the checks, these tests end theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, defs, helper, numpy_helper

import engine
from engine import Model
from engine.errors import InputError, ModelError
from engine.formats import open_source
from engine_cpu import element_types, node_rules
from engine_cpu.known_issues import ENDS_PROCESS, OPERATORS, divisors_at_risk
from engine_cpu.nodes import NOTHING, Needles
from engine_cpu.prescreen import Risk, prescreen
from engine_testing.making import graph

Build = Callable[..., Model]
node = helper.make_node
NUMPY = {"float": "float32"}
SMALLEST = {"int32": -(2**31), "int64": -(2**63)}


@pytest.mark.parametrize(
    ("part", "is_there"),
    [
        (b"\x22\x03Div", True),
        (b"\n\x01x\x22\x04Divs\n", True),
        (b"\x22\x04Div", False),
        (b"\x22\x03Di\nv", False),
        (b"\x12\x03Div", False),
        (b"Div\x0a\x00", True),
        (b"", False),
    ],
)
def test_operators_are_found_by_their_whole_names(part: bytes, is_there: bool) -> None:
    assert Needles({"Div", "Divs"}, [b"\x0a\x00"]).are_in(memoryview(part)) is is_there
    assert not NOTHING.are_in(memoryview(part))


# ------------------------------------------------------------------------------------- divisions


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("opset", [7, 13, 20, 28])
def test_the_smallest_integer_is_divided_by_minus_one(build: Build, dtype: str, opset: int) -> None:
    model = build([node("Div", ["x", "y"], ["z"])], [f"x:{dtype}[n]", f"y:{dtype}[n]"],
                  [f"z:{dtype}[n]"], opset)  # fmt: skip
    x = np.array([SMALLEST[dtype], 7, -7, 7, -7, 0, SMALLEST[dtype]], dtype)
    y = np.array([-1, -1, -1, 2, 2, -1, 3], dtype)
    exact = [2 ** (31 if dtype == "int32" else 63), -7, 7, 3, -3, 0, -(-SMALLEST[dtype] // 3)]
    assert model(x=x, y=y)["z"].tolist() == [SMALLEST[dtype], *exact[1:]]  # the first one wraps
    assert {place.backend for place in model.placement} == {"cpu"}


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("fmod", [0, 1])
def test_the_remainder_by_minus_one_is_nothing(build: Build, dtype: str, fmod: int) -> None:
    model = build([node("Mod", ["x", "y"], ["z"], fmod=fmod)],
                  [f"x:{dtype}[n]", f"y:{dtype}[n]"], [f"z:{dtype}[n]"], 13)  # fmt: skip
    x, y = np.array([SMALLEST[dtype], 7, -7, 7], dtype), np.array([-1, -1, 4, -4], dtype)
    assert model(x=x, y=y)["z"].tolist() == [0, 0, *([-3, 3] if fmod else [1, -1])]
    assert {place.backend for place in model.placement} == {"cpu"}


def test_constants_are_divided_while_the_model_loads(build: Build) -> None:
    nodes = [node("Div", ["a", "b"], ["c"]), node("Add", ["x", "c"], ["z"])]
    constants = {"a": np.int64([SMALLEST["int64"]]), "b": np.int64([-1])}
    model = build(nodes, ["x:int64[1]"], ["z:int64[1]"], 13, constants)
    assert model(x=np.int64([1]))["z"].tolist() == [SMALLEST["int64"] + 1]


def test_a_division_by_zero_is_an_error_or_nothing_at_all(build: Build) -> None:
    model = build([node("Div", ["x", "y"], ["z"])], ["x:int64[1]", "y:int64[1]"],
                  ["z:int64[1]"], 13)  # fmt: skip
    if 0 in divisors_at_risk(TensorProto.INT64):
        assert model(x=np.int64([5]), y=np.int64([0]))["z"].tolist() == [0]
    else:
        with pytest.raises(ModelError, match="division by zero"):
            model(x=np.int64([5]), y=np.int64([0]))


NESTED = {
    "a branch": """<ir_version: 9, opset_import: ["": 16]>
        g (int64[1] x, int64[1] y) => (int64[1] z) {
            least = ReduceMin <keepdims = 0> (x)
            flag = Cast <to = 9> (least)
            z = If (flag) <
                then_branch = one () => (int64[1] q) { q = Div (x, y) },
                else_branch = other () => (int64[1] q) { q = Div (x, y) }
            >
        }""",
    "a function": """<ir_version: 9, opset_import: ["": 16, "own": 1]>
        g (int64[1] x, int64[1] y) => (int64[1] z) { z = own.F (x, y) }
        <domain: "own", opset_import: ["": 16]>
        F (x, y) => (q) { q = Div (x, y) }""",
}


def saved(folder: Path, text: str) -> Path:
    """Write a model in ONNX's textual form."""
    path = folder / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


@pytest.mark.parametrize("place", NESTED)
def test_divisions_are_found_where_the_file_nests_them(tmp_path: Path, place: str) -> None:
    path = saved(tmp_path, NESTED[place])
    assert prescreen(open_source(path)) is Risk.FATAL
    z = engine.load(path, target="cpu")(x=np.int64([SMALLEST["int64"]]), y=np.int64([-1]))["z"]
    assert z.tolist() == [SMALLEST["int64"]]


@pytest.mark.parametrize(
    ("kinds", "nodes", "constants", "risk"),
    [
        (("float", "float"), "z = Div (x, x)", {}, Risk.NONE),
        (("int64", "int64"), "z = Div (x, c)", {"c": np.int64(3)}, Risk.NONE),
        (("int64", "int64"), "z = Div (x, c)", {"c": np.int64(-1)}, Risk.FATAL),
        (("int64", "int64"), "c = Constant <value_int = 2> ()  z = Div (x, c)", {},
         Risk.NONE),
        (("int64", "int64"), "c = Constant <value = int64[1] {4}> ()  z = Div (x, c)", {},
         Risk.NONE),
        (("float", "int64"), "s = Shape (x)  z = Div (s, s)", {}, Risk.FATAL),
        (("float", "float"), "a = Relu (x)  b = Mul (a, a)  c = Sqrt (b)  z = Div (b, c)", {},
         Risk.NONE),
    ],
)  # fmt: skip
def test_only_divisions_of_integers_by_what_is_not_known_are_suspect(
    tmp_path: Path, kinds: tuple[str, str], nodes: str, constants: Any, risk: Risk
) -> None:
    text = f"({kinds[0]}[n] x) => ({kinds[1]}[] z) {{ {nodes} }}"
    path = graph(tmp_path, "model", text, constants, valid=False)
    assert prescreen(open_source(path)) is risk


def test_the_types_of_operators_are_those_of_onnxs_schemas() -> None:
    floats = {f"tensor({name})" for name in ("float", "double", "float16", "bfloat16")}
    floats |= {f"tensor(float8{name})" for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")}
    seen = set()
    for schema in defs.get_all_schemas_with_history():
        if schema.domain or schema.deprecated or not schema.outputs:
            continue
        seen.add(schema.name)
        allowed = {item.type_param_str: set(item.allowed_type_strs) for item in
                   schema.type_constraints}  # fmt: skip
        gives = schema.outputs[0].type_str
        if schema.name in element_types.FLOATS:
            assert allowed.get(gives, {gives}) <= floats, schema
        if schema.name in element_types.INT64 and schema.since_version >= 7:
            assert allowed.get(gives, {gives}) <= {"tensor(int64)"}, schema
        for index in element_types.SAME.get(schema.name, ()):
            formal = schema.inputs[min(index, len(schema.inputs) - 1)]
            assert formal.type_str == gives, schema
    named = element_types.FLOATS | element_types.INT64 | element_types.SAME.keys()
    assert named <= seen


# -------------------------------------------------------------------------- what is left out


@pytest.mark.parametrize("operator", ["Max", "Min", "Sum", "Mean", "Concat"])
def test_a_variadic_input_may_not_be_left_out(build: Build, operator: str) -> None:
    attributes = {"axis": 0} if operator == "Concat" else {}
    with pytest.raises(ModelError, match=rf"\({operator}\): input 1 is left out"):
        build([node(operator, ["x", ""], ["y"], **attributes)], ["x:float[2]"], ["y:float[]"], 13)


def test_a_node_is_given_something(build: Build) -> None:
    with pytest.raises(ModelError, match=r"\(EyeLike\): none of its inputs is given"):
        build([node("EyeLike", [""], ["y"])], ["x:float[2,2]"], ["y:float[]"], 13)


def test_parts_of_a_split_may_be_left_out(build: Build) -> None:
    split = node("Split", ["x"], ["", "y", ""], axis=0, num_outputs=3)
    model = build([split], ["x:float[3]"], ["y:float[1]"], 18)
    assert model(x=np.float32([1, 2, 3]))["y"].tolist() == [2]


def test_a_batchs_variance_may_be_left_out(build: Build) -> None:
    norm = node("BatchNormalization", ["x", "one", "zero", "zero", "one"], ["y", "mean", ""],
                training_mode=1, momentum=0.5)  # fmt: skip
    model = build([norm], ["x:float[2,1]"], ["y:float[2,1]", "mean:float[1]"], 15,
                  {"one": np.ones(1, np.float32), "zero": np.zeros(1, np.float32)})  # fmt: skip
    out = model(x=np.float32([[1], [3]]))
    np.testing.assert_allclose(out["y"], [[-1], [1]], rtol=1e-4)
    assert out["mean"].tolist() == [1]  # half of nothing and half of the batch's 2


def test_what_a_loop_carries_need_not_come_out(build: Build) -> None:
    kinds = {"i": (7, []), "c": (9, []), "v": (1, [2]), "d": (9, []), "w": (1, [2]), "s": (1, [2])}
    values = {name: helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()}
    nodes = [node("Identity", ["c"], ["d"]), node("Add", ["v", "v"], ["w"]),
             node("Identity", ["w"], ["s"])]  # fmt: skip
    body = helper.make_graph(nodes, "body", [values[n] for n in "icv"], [values[n] for n in "dws"])
    loop = node("Loop", ["trips", "", "x"], ["", "z"], body=body)
    model = build([loop], ["x:float[2]"], ["z:float[]"], 16, {"trips": np.int64(3)})
    assert model(x=np.float32([1, 2]))["z"].tolist() == [[2, 4], [4, 8], [8, 16]]


def test_an_optional_input_may_be_left_out_at_the_end(build: Build) -> None:
    norm = node("LayerNormalization", ["x", "scale", ""], ["y", "mean", "deviation"], axis=-1)
    model = build([norm], ["x:float[1,2]"], ["y:float[]", "mean:float[]", "deviation:float[]"], 17,
                  {"scale": np.ones(2, np.float32)})  # fmt: skip
    np.testing.assert_allclose(model(x=np.float32([[1, 3]]))["y"], [[-1, 1]], rtol=1e-4)


def test_the_operators_with_variadic_inputs_are_onnxs() -> None:
    variadic, free, outputs = {}, set(), set()
    for schema in defs.get_all_schemas_with_history():
        if schema.domain not in ("", "ai.onnx.ml") or schema.deprecated:
            continue
        options = [formal.option for formal in schema.inputs]
        if defs.OpSchema.FormalParameterOption.Variadic in options:
            variadic[schema.name] = max(variadic.get(schema.name, 0), len(options) - 1)
        if options and defs.OpSchema.FormalParameterOption.Single not in options and not (
            schema.inputs[-1].option is defs.OpSchema.FormalParameterOption.Variadic
            and len(options) < 3
        ):  # fmt: skip
            free.add(schema.name)
        if schema.outputs and schema.outputs[-1].option is (
            defs.OpSchema.FormalParameterOption.Variadic
        ):
            outputs.add(schema.name)
    assert dict(node_rules.VARIADIC) == variadic
    assert free == node_rules.WITHOUT_INPUTS
    assert outputs | {"BatchNormalization"} == node_rules.NAMED_OUTPUTS


# ------------------------------------------------------------------------------------ attributes


@pytest.mark.parametrize("operator", ["RandomNormal", "RandomNormalLike"])
def test_random_numbers_without_variance_are_their_mean(build: Build, operator: str) -> None:
    inputs, extra = (["x"], {}) if operator.endswith("Like") else ([], {"shape": [2, 3]})
    nodes = [node(operator, inputs, ["r"], mean=2.5, scale=0.0, **extra),
             node("Add", ["x", "r"], ["y"])]  # fmt: skip
    model = build(nodes, ["x:float[2,3]"], ["y:float[2,3]"], 13)
    assert model(x=np.ones((2, 3), np.float32))["y"].tolist() == [[3.5] * 3] * 2


@pytest.mark.parametrize(
    ("operator", "attributes", "message"),
    [
        ("RandomNormalLike", {"scale": -1.0}, "'scale' is -1.0, expected 0 or more"),
        ("RandomNormalLike", {"scale": float("nan")}, "'scale' is nan, expected 0 or more"),
        ("RandomUniformLike", {"low": 2.0, "high": 1.0}, "2.0 and 1.0, expected low <= high"),
        ("RandomUniformLike", {"low": 2.0}, "2.0 and 1, expected low <= high"),
        ("DepthToSpace", {"blocksize": 2**40}, f"'blocksize' is {2**40}, expected 1..2147483647"),
        ("SpaceToDepth", {"blocksize": 2**40}, f"'blocksize' is {2**40}, expected 1..2147483647"),
    ],
)
def test_an_attribute_out_of_its_bounds_is_refused(
    build: Build, operator: str, attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=rf"node 0 \({operator}\): .*{message}"):
        build([node(operator, ["x"], ["y"], **attributes)], ["x:float[]"], ["y:float[]"], 13)


@pytest.mark.parametrize("is_written", [False, True])
def test_a_number_is_not_an_empty_constant(build: Build, is_written: bool) -> None:
    nodes = [node("OneHot", ["i", "depth", "v"], ["y"])]
    constants = {"depth": np.zeros((0, 3), np.int64), "v": np.float32([0, 1])}
    if is_written:
        depth = numpy_helper.from_array(constants.pop("depth"))
        nodes.insert(0, node("Constant", [], ["depth"], value=depth))
    with pytest.raises(ModelError, match="input 1 is one number, but 'depth' is empty"):
        build(nodes, ["i:int64[2]"], ["y:float[]"], 13, constants)


@pytest.mark.parametrize("batch_dims", [-(2**31), -5, -1])
def test_batch_axes_are_counted_from_nought(build: Build, batch_dims: int) -> None:
    with pytest.raises(ModelError, match=f"'batch_dims' is {batch_dims}, expected 0..64"):
        build([node("GatherND", ["x", "i"], ["y"], batch_dims=batch_dims)],
              ["x:float[4,4]", "i:int64[1,2]"], ["y:float[]"], 13)  # fmt: skip


def test_an_axis_no_tensor_has_is_refused(build: Build) -> None:
    with pytest.raises(ModelError, match=r"'axis' is 1000, expected -64\.\.63"):
        build([node("OneHot", ["i", "d", "v"], ["y"], axis=1000)], ["i:int64[]"], ["y:float[]"], 13,
              {"d": np.int64(3), "v": np.float32([0, 1])})  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ngram_indexes": [0, 1]}, "'ngram_indexes' has 2 elements, expected 7"),
        ({"max_skip_count": 2**62}, "'max_skip_count' is 4611686018427387904, expected 0..65536"),
        ({"ngram_counts": [0, 5]}, "'ngram_counts' is not where n-grams"),
        ({"ngram_counts": [5, 4]}, "'ngram_counts' is not where n-grams"),
    ],
)
def test_each_ngram_has_an_index(build: Build, changes: dict[str, Any], message: str) -> None:
    attributes = {"max_gram_length": 2, "max_skip_count": 0, "min_gram_length": 1, "mode": "TF",
                  "ngram_counts": [0, 4], "ngram_indexes": [*range(7)],
                  "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7]}  # fmt: skip
    sound = node("TfIdfVectorizer", ["x"], ["y"], **attributes)
    model = build([sound], ["x:int64[4]"], ["y:float[7]"], 9)
    assert model(x=np.int64([5, 6, 7, 2]))["y"].tolist() == [1, 0, 1, 0, 1, 0, 1]
    with pytest.raises(ModelError, match=message):
        build([node("TfIdfVectorizer", ["x"], ["y"], **{**attributes, **changes})],
              ["x:int64[4]"], ["y:float[]"], 9)  # fmt: skip


@pytest.mark.parametrize("kind", ["int64", "string"])
def test_each_ngram_of_a_large_vocabulary_has_an_index(build: Build, kind: str) -> None:
    numbers = range(100_000, 103_000)
    words = [f"word {n}" for n in numbers]
    pool = {"pool_strings": words} if kind == "string" else {"pool_int64s": [*numbers]}
    attributes = {"max_gram_length": 1, "max_skip_count": 0, "min_gram_length": 1, "mode": "TF",
                  "ngram_counts": [0], "ngram_indexes": [*range(3000)], **pool}  # fmt: skip
    sound = node("TfIdfVectorizer", ["x"], ["y"], **attributes)
    model = build([sound], [f"x:{kind}[2]"], ["y:float[3000]"], 9)
    x = np.array(words[7:9], object) if kind == "string" else np.int64([100_007, 100_008])
    assert np.flatnonzero(model(x=x)["y"]).tolist() == [7, 8]
    attributes["ngram_indexes"] = [*range(2000)]
    with pytest.raises(ModelError, match="'ngram_indexes' has 2000 elements, expected 3000"):
        build([node("TfIdfVectorizer", ["x"], ["y"], **attributes)],
              [f"x:{kind}[2]"], ["y:float[]"], 9)  # fmt: skip


@pytest.mark.parametrize("heads", [{"kv_num_heads": 0}, {"q_num_heads": -3}])
def test_attention_has_heads(build: Build, heads: dict[str, int]) -> None:
    attention = node("Attention", ["x"] * 3, ["y"],
                     **{"q_num_heads": 3, "kv_num_heads": 3, **heads})  # fmt: skip
    with pytest.raises(ModelError, match=r"num_heads' is (0|-3), expected 1"):
        build([attention], ["x:float[1,2,12]"], ["y:float[]"], 23)


def test_a_bad_attribute_is_found_in_a_branch(tmp_path: Path) -> None:
    text = """(float[] x) => (float[] y) {
        sum = ReduceSum <keepdims = 0> (x)
        flag = Cast <to = 9> (sum)
        y = If (flag) <
            then_branch = one () => (float[] b) { b = RandomNormalLike <scale = -1.0> (x) },
            else_branch = other () => (float[] b) { b = RandomNormalLike <scale = -1.0> (x) }
        >
    }"""
    path = graph(tmp_path, "model", text, valid=False, opset=13)
    with pytest.raises(ModelError, match=r"in a subgraph or function: .*'scale' is -1\.0"):
        engine.load(path, target="cpu")


def in_function(folder: Path, body: str, call: str) -> Path:
    """Write a model of one call of a function, both in ONNX's textual form."""
    text = f"""
        <ir_version: 10, opset_import: ["": 18, "own": 1]>
        g (float[1, 2, 4] x) => (float[] y) {{ y = own.F {call} (x) }}
        <domain: "own", opset_import: ["": 18]>
        F <number> (x) => (y) {{ {body} }}
        """
    return saved(folder, text)


CONVOLUTION = """
    w = Constant <value = float[2, 1, 1] {2, 3}> ()
    y = Conv <group: int = @number> (x, w)
    """


def test_an_attribute_of_a_function_has_the_value_that_its_caller_gives(tmp_path: Path) -> None:
    model = engine.load(in_function(tmp_path, CONVOLUTION, "<number = 2>"), target="cpu")
    x = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    assert model(x=x)["y"].tolist() == (x * np.float32([[2], [3]])).tolist()


@pytest.mark.parametrize(
    ("body", "call", "message"),
    [
        (CONVOLUTION, "<number = 0>", r"\(Conv\): attribute 'group' is 0, expected 1"),
        ("y = DepthToSpace <blocksize: int = @number> (x)", "<number = 0>", "'blocksize' is 0"),
        ("y = RandomNormalLike <scale: float = @number> (x)", "<number = -1.0>", "'scale' is -1"),
    ],
)
def test_a_function_passes_no_attribute_on_that_ends_the_process(
    tmp_path: Path, body: str, call: str, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        engine.load(in_function(tmp_path, body, call), target="cpu")


def test_random_numbers_of_a_function_need_no_variance(tmp_path: Path) -> None:
    body = "y = RandomNormalLike <mean = 2.5, scale: float = @number> (x)"
    model = engine.load(in_function(tmp_path, body, "<number = 0.0>"), target="cpu")
    assert model(x=np.ones((1, 2, 4), np.float32))["y"].tolist() == [[[2.5] * 4] * 2]


def test_a_text_beside_an_attribute_does_not_hide_it(tmp_path: Path) -> None:
    text = "(float[] x) => (float[] y) { y = DepthToSpace <blocksize = 0> (x) }"
    path = graph(tmp_path, "model", text, valid=False, opset=13)
    model = onnx.load(path)
    model.graph.node[0].attribute[0].doc_string = "d" * 10_000
    onnx.save(model, path)
    with pytest.raises(ModelError, match="'blocksize' is 0, expected 1"):
        engine.load(path, target="cpu")


@pytest.mark.parametrize("channels", [0, 3])
def test_a_causal_convolution_of_no_channels_ends_no_process(build: Build, channels: int) -> None:
    """Its definition has one group for each channel; onnxruntime divides by their number."""
    model = build([node("CausalConvWithState", ["x", "w"], ["y", "s"])],
                  [f"x:float[1,{channels},4]", f"w:float[{channels},1,2]"],
                  ["y:float[]", "s:float[]"], 27)  # fmt: skip
    x, w = np.ones((1, channels, 4), np.float32), np.ones((channels, 1, 2), np.float32)
    if channels:
        y, state = (out.get_data_to_numpy() for out in model.predict([x, w]))
        assert y.tolist() == [[[1, 2, 2, 2]] * 3]
        assert state.tolist() == [[[1]] * 3]
    else:
        with pytest.raises(ModelError, match="the model failed on this data"):
            model.predict([x, w])


def test_the_rules_are_about_attributes_that_onnx_has() -> None:
    for (domain, operator), rules in node_rules.RULES.items():
        attributes = defs.get_schema(operator, domain).attributes
        for rule in rules:
            assert rule.attribute in attributes
            assert rule.source
    assert ENDS_PROCESS <= OPERATORS
    for operator, indices in node_rules.SCALARS.items():
        assert max(indices) < len(defs.get_schema(operator).inputs)


# ------------------------------------------------------------------------------------------ STFT


@pytest.mark.parametrize(
    ("name", "value"),
    [("window", np.ones(0, np.float32)), ("window", np.float32(1)), ("length", np.int64(0))],
)
def test_frames_of_no_length_are_an_error(build: Build, name: str, value: Any) -> None:
    given, kind = (
        ["x", "step", *([""] if name == "length" else []), name],
        value.dtype.name.replace("32", ""),
    )
    nodes = [node("STFT", given, ["y"]), node("STFT", given, ["same"])]
    model = build(nodes, ["x:float[1,64,1]", "step:int64[]", f"{name}:{kind}[]"],
                  ["y:float[]", "same:float[]"], 17)  # fmt: skip
    x = np.random.default_rng(0).standard_normal((1, 64, 1)).astype(np.float32)
    with pytest.raises(ModelError, match="length of STFT's frames"):
        model.predict([x, np.array(8), np.array(value)])
    good = np.ones(16, np.float32) if name == "window" else np.array(16)
    y, _ = model.predict([x, np.array(8), good])
    frames = np.stack([np.fft.rfft(x[0, first : first + 16, 0]) for first in range(0, 49, 8)])
    y = y.get_data_to_numpy()
    np.testing.assert_allclose(y[0, ..., 0] + 1j * y[0, ..., 1], frames, atol=1e-5)


# ------------------------------------------------------------------------------- slices of nothing


@pytest.mark.parametrize("dtype", ["float", "string", "float16"])
@pytest.mark.parametrize("axis", [0, -2])
@pytest.mark.parametrize("shape", [(3, 2, 0), (2, 0, 2), (0, 2, 3), (0, 0, 0), (2, 3, 4)])
def test_slices_of_nothing_are_all_equal(
    build: Build, dtype: str, axis: int, shape: tuple[int, ...]
) -> None:
    model = build([node("Unique", ["x"], ["y", "first", "which", "count"], axis=axis)],
                  [f"x:{dtype}[a,b,c]"], [f"y:{dtype}[]", *(f"{name}:int64[]" for name in
                  ("first", "which", "count"))], 11)  # fmt: skip
    x = np.random.default_rng(0).integers(0, 2, shape)
    x = x.astype(str).astype(object) if dtype == "string" else x.astype(NUMPY.get(dtype, dtype))
    given = model(x=x)
    y, *others = np.unique(x.astype(str) if dtype == "string" else x, axis=axis,
                           return_index=True, return_inverse=True, return_counts=True)  # fmt: skip
    assert given["y"].tolist() == y.astype(x.dtype).tolist()
    assert given["y"].shape == (y.shape if x.size or x.shape[axis] else x.shape)
    for name, other in zip(("first", "which", "count"), others, strict=True):
        assert given[name].tolist() == other.tolist(), name


def test_slices_that_cannot_be_empty_are_left_to_the_kernel(build: Build) -> None:
    model = build([node("Unique", ["x"], ["y"], axis=0)], ["x:float[n,2]"], ["y:float[]"], 11)
    assert "computed" not in model.placement[0].reason
    assert model(x=np.float32([[1, 2], [0, 5], [1, 2]]))["y"].tolist() == [[0, 5], [1, 2]]


# ----------------------------------------------------------------------------------------- ranks


@pytest.mark.parametrize(
    ("operator", "inputs", "shapes"),
    [
        ("Conv", ["x", "y"], [(4,), (4,)]),
        ("Concat", ["x", "y"], [(0, 17, 2), (4, 4, 1, 3)]),
        ("MaxRoiPool", ["x", "y"], [(1, 2), ()]),
    ],
)
def test_inputs_of_no_declared_rank_must_be_of_one_that_the_nodes_take(
    build: Build, operator: str, inputs: list[str], shapes: list[tuple[int, ...]]
) -> None:
    attributes = {"Concat": {"axis": 1}, "MaxRoiPool": {"pooled_shape": [1, 1]}}.get(operator, {})
    model = build([node(operator, inputs, ["z"], **attributes)],
                  [f"{name}:float[]" for name in inputs], ["z:float[]"], 13)  # fmt: skip
    arrays = [np.ones(shape, np.float32) for shape in shapes]
    for _ in range(2):
        with pytest.raises(InputError, match=f"the model takes no 'x' of {len(shapes[0])} axes"):
            model.predict(arrays)


def test_any_rank_that_fits_is_taken(build: Build) -> None:
    model = build([node("Concat", ["x", "y"], ["z"], axis=0)], ["x:float[]", "y:float[]"],
                  ["z:float[]"], 13)  # fmt: skip
    for shape in ((2,), (2, 3), (2, 3, 4), (5,)):
        [z] = model.predict([np.ones(shape, np.float32)] * 2)
        assert z.shape == [2 * shape[0], *shape[1:]]


# --------------------------------------------------------------------------------- damaged models


@pytest.mark.parametrize("opset", [17, 28])
def test_a_model_that_onnxruntime_calls_damaged_runs_nowhere_else(build: Build, opset: int) -> None:
    """Nor does onnx's inference see it, which this axis makes read beside the shape."""
    both = node("Concat", ["x", "s"], ["y"], axis=0)
    with pytest.raises(ModelError, match="ShapeInferenceError"):
        build([both], ["x:float[4,4]", "s:float[3]"], ["y:float[]"], opset)
    norm = node("LayerNormalization", ["x", "s"], ["y", "m"], axis=7267600717026457778)
    with pytest.raises(ModelError, match=r"'axis' is 7267600717026457778, expected -64\.\.63"):
        build([norm], ["x:float[4,4]", "s:float[4]"], ["y:float[]", "m:float[]"], opset)


def test_protobuf_that_onnxruntime_cannot_read_is_no_lack() -> None:
    from engine_cpu.errors import is_lack

    with pytest.raises(Exception, match="INVALID_PROTOBUF") as info:
        ort.InferenceSession(b"\xff" * 64, providers=["CPUExecutionProvider"])
    assert not is_lack(str(info.value))
    assert onnx.defs.has("Relu")
