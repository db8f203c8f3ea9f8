"""Models that ONNX Runtime refuses as they are run on it all the same, and give the same results.

Expected values come from Python's and numpy's arithmetic.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import engine
from engine import Model
from engine.backends import open_backend
from engine.formats import open_source
from engine.types import CompileOptions, Device
from engine_testing import models

Build = Callable[..., Model]
node = helper.make_node
bfloat16 = ml_dtypes.bfloat16


def where(model: Model) -> list[str]:
    """The backends that the nodes run on, in their order."""
    return [place.backend for place in model.placement]


def load(path: Path) -> Any:
    """The model as the cpu backend reads it, without any other's help."""
    options = CompileOptions(device=Device("cpu"))
    return open_backend("cpu").load(open_source(path), options)


# ------------------------------------------------------------------------------------- versions


@pytest.mark.parametrize(("opset", "ir_version"), [(28, 13), (26, 14), (28, 14)])
def test_a_newer_file_runs_where_its_operators_mean_what_they_did(
    build: Build, opset: int, ir_version: int
) -> None:
    nodes = [node("Mul", ["x", "two"], ["d"]), node("Add", ["d", "one"], ["y"])]
    constants = {"two": np.float32([2]), "one": np.float32([1])}
    model = build(nodes, ["x:float[n]"], ["y:float[n]"], opset, constants, ir_version=ir_version)
    assert model(x=np.float32([1, 2]))["y"].tolist() == [3, 5]
    assert where(model) == ["cpu", "cpu"]


def test_a_file_from_the_future_is_reported_with_what_is_too_new(tmp_path: Path) -> None:
    [reason] = load(write(tmp_path, [node("Relu", ["x"], ["y"])], 99)).unsupported.values()
    assert reason.startswith("operator set 99 is newer than what onnx")


@pytest.mark.parametrize(
    ("mode", "expected"), [(None, [[0, 4]]), ("DCR", [[0, 4]]), ("CRD", [[0, 1]])]
)
def test_an_attribute_that_came_later_is_dropped_only_where_it_says_nothing_new(
    build: Build, mode: str | None, expected: list[Any]
) -> None:
    # DCR orders the blocks before the channels, CRD the channels before the blocks.
    attributes = {"mode": mode} if mode else {}
    nodes = [node("SpaceToDepth", ["x"], ["y"], blocksize=2, **attributes)]
    model = build(nodes, ["x:float[1,2,2,2]"], ["y:float[]"], 28)
    y = model(x=np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2))["y"]
    assert y.shape == (1, 8, 1, 1)
    assert y.ravel()[:2].tolist() == expected[0]


def test_broadcasting_of_old_operator_sets_is_kept(build: Build) -> None:
    nodes = [node("Add", ["x", "b"], ["y"], broadcast=1, axis=0)]
    inputs = ["x:float[2,3]", "b:float[2]"]
    model = build(nodes, inputs, ["y:float[2,3]"], 6, ir_version=3)
    y = model(x=np.zeros((2, 3), np.float32), b=np.float32([1, 2]))["y"]
    assert y.tolist() == [[1, 1, 1], [2, 2, 2]]
    assert where(model) == ["cpu"]


def test_one_slope_a_channel_is_kept_as_well(build: Build) -> None:
    model = build(
        [node("PRelu", ["x", "slope"], ["y"])], ["x:float[1,2,1,3]"], ["y:float[1,2,1,3]"], 6,
        {"slope": np.float32([2, 10])}, ir_version=4,
    )  # fmt: skip
    y = model(x=np.full((1, 2, 1, 3), -1, np.float32))["y"]
    assert y.tolist() == [[[[-2, -2, -2]], [[-10, -10, -10]]]]


def test_a_kernel_of_an_older_version_serves_where_only_types_were_added(build: Build) -> None:
    # ONNX Runtime has RoiAlign of version 16; what 22 added is bfloat16.
    roi = node("RoiAlign", ["x", "r", "i"], ["y"], output_height=1, output_width=1)
    inputs = ["x:float[1,1,4,4]", "r:float[1,4]", "i:int64[1]"]
    model = build([roi, node("MaxPool", ["x"], ["z"], kernel_shape=[4, 4])], inputs,
                  ["y:float[]", "z:float[]"], 22)  # fmt: skip
    x = np.full((1, 1, 4, 4), 3, np.float32)
    out = model(x=x, r=np.float32([[0, 0, 4, 4]]), i=np.array([0]))
    assert (out["y"].item(), out["z"].item()) == (3, 3)
    assert where(model) == ["cpu", "cpu"]


# ------------------------------------------------------------------------------------ functions


def test_an_operator_that_is_a_function_of_others_is_computed_by_them(build: Build) -> None:
    model = build([node("SwiGLU", ["a", "b"], ["y"])], ["a:float[n]", "b:float[n]"],
                  ["y:float[n]"], 28)  # fmt: skip
    a, b = np.float32([-1, 0, 2]), np.float32([3, 4, 5])
    np.testing.assert_allclose(model(a=a, b=b)["y"], a / (1 + np.exp(-a)) * b, rtol=1e-6)
    assert where(model) == ["cpu"]
    assert "operators it is of" in model.placement[0].reason


def test_functions_of_the_model_are_looked_into(build: Build) -> None:
    """The inner one needs another version of ONNX's operators, the attribute is the caller's."""
    inner = helper.make_function(
        "own", "Shift", ["v"], ["w"],
        [node("Constant", [], ["k"]), node("Add", ["v", "k"], ["w"])],
        [helper.make_opsetid("", 28)], attributes=["by"],
    )  # fmt: skip
    reference = onnx.AttributeProto(name="value_float", ref_attr_name="by", type=1)
    inner.node[0].attribute.append(reference)
    outer = helper.make_function(
        "own", "Twice", ["v"], ["w"],
        [node("Shift", ["v"], ["t"], domain="own", by=1.0),
         node("Shift", ["t"], ["w"], domain="own", by=10.0)],
        [helper.make_opsetid("own", 1)],
    )  # fmt: skip
    model = build([node("Twice", ["x"], ["y"], domain="own")], ["x:float[n]"], ["y:float[n]"],
                  28, opsets={"own": 1}, functions=[inner, outer])  # fmt: skip
    assert model(x=np.float32([0, 5]))["y"].tolist() == [11, 16]
    assert where(model) == ["cpu"]


def test_what_is_missing_in_a_function_is_said_of_its_call(tmp_path: Path) -> None:
    function = helper.make_function(
        "own", "F", ["v"], ["w"], [node("Frobnicate", ["v"], ["w"], domain="unheard.of")],
        [helper.make_opsetid("unheard.of", 1)],
    )  # fmt: skip
    path = write(tmp_path, [node("F", ["x"], ["y"], domain="own")], 20, functions=[function],
                 opsets={"own": 1, "unheard.of": 1})  # fmt: skip
    [(index, reason)] = load(path).unsupported.items()
    assert index == 0
    assert "in function 'F': operator 'Frobnicate' of domain 'unheard.of' is unknown" in reason


# ---------------------------------------------------------------------------------------- types


def test_bfloat16_is_computed_in_float32_and_rounded_once(build: Build) -> None:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Softmax", ["m"], ["y"])]
    w = np.eye(3, dtype=np.float32).astype(bfloat16)
    model = build(nodes, ["x:bfloat16[n,3]"], ["y:bfloat16[n,3]"], 22, {"w": w})
    x = np.array([[1, 2, 3]], np.float32).astype(bfloat16)
    exact = np.exp([1.0, 2, 3]) / np.exp([1.0, 2, 3]).sum()
    [y] = model(x=x).values()
    assert y.dtype == bfloat16
    np.testing.assert_array_equal(y[0], exact.astype(np.float32).astype(bfloat16))
    assert where(model) == ["cpu", "cpu"]
    assert all("in wider types" in place.reason for place in model.placement)


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_small_integers_are_computed_in_larger_ones(build: Build, dtype: str) -> None:
    kind = f"{dtype}[n]"
    nodes = [node("Max", ["a", "b"], ["m"]), node("Add", ["m", "b"], ["y"])]
    model = build(nodes, [f"a:{kind}", f"b:{kind}"], [f"y:{kind}"], 13)
    info = np.iinfo(dtype)
    a = np.array([info.min, info.max, 7], dtype)
    b = np.array([1, 1, 9], dtype)
    assert model(a=a, b=b)["y"].tolist() == (np.maximum(a, b) + b).tolist()  # wraps as numpy does
    assert where(model) == ["cpu", "cpu"]


def test_the_bits_of_uint32_are_kept_where_elements_only_move(build: Build) -> None:
    model = build([node("ReverseSequence", ["x", "n"], ["y"], batch_axis=1, time_axis=0)],
                  ["x:uint32[2,1]", "n:int64[1]"], ["y:uint32[2,1]"], 10)  # fmt: skip
    x = np.array([[2**32 - 1], [2**31]], np.uint32)
    assert model(x=x, n=np.array([2]))["y"].ravel().tolist() == [2**31, 2**32 - 1]


def test_quantising_bfloat16_is_not_computed_in_float32(tmp_path: Path) -> None:
    # The division is in bfloat16 there: float32 could round to another integer.
    path = write(tmp_path, [node("QuantizeLinear", ["x", "s"], ["y"])], 21,
                 inputs=[("x", TensorProto.BFLOAT16), ("s", TensorProto.BFLOAT16)],
                 outputs=[("y", TensorProto.UINT8)])  # fmt: skip
    assert list(load(path).unsupported) == [0]


# ------------------------------------------------------------------------- operators said by hand

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_bits_of_every_integer_are_shifted_by_any_distance(
    build: Build, dtype: str, direction: str
) -> None:
    kind = f"{dtype}[n]"
    model = build([node("BitShift", ["x", "n"], ["y"], direction=direction)],
                  [f"x:{kind}", f"n:{kind}"], [f"y:{kind}"], 28)  # fmt: skip
    info = np.iinfo(dtype)
    values = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 5]
    values += [-1, -6] if info.min else []
    distances = [0, 1, 3, info.bits - 1, info.bits, info.bits + 1, min(info.max, 2**40)]
    distances += [-1, info.min] if info.min else []
    pairs = [(x, n) for x in values for n in distances]
    x, n = (np.array(column, dtype) for column in zip(*pairs, strict=True))
    expected = [shifted(x, n, info.bits, direction == "LEFT", info.min < 0) for x, n in pairs]
    assert model(x=x, n=n)["y"].tolist() == expected
    assert where(model) == ["cpu"]


def shifted(x: int, n: int, bits: int, is_left: bool, is_signed: bool) -> int:
    """Python's integers have no width; a distance out of range leaves the sign."""
    if not 0 <= n < bits:
        return -1 if x < 0 and not is_left else 0
    wide = (x << n if is_left else x >> n) % (1 << bits)
    return wide - (1 << bits) if is_signed and wide >> (bits - 1) else wide


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_remainders_of_floats_have_the_divisors_sign(build: Build, dtype: str) -> None:
    kind = {"float16": "float16[n]", "float32": "float[n]", "float64": "double[n]"}[dtype]
    model = build([node("Mod", ["x", "y"], ["z"])], [f"x:{kind}", f"y:{kind}"], [f"z:{kind}"], 28)
    values = np.array([-7.5, -4, -0.5, -0.0, 0.0, 0.25, 3, 8, np.inf, -np.inf, np.nan], dtype)
    x, y = (each.ravel() for each in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        expected = np.mod(x, y)
    z = model(x=x, y=y)["z"]
    np.testing.assert_array_equal(z, expected)
    np.testing.assert_array_equal(np.signbit(z)[z == 0], np.signbit(expected)[z == 0])


@pytest.mark.parametrize(("operator", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_layers_with_the_batch_first_are_those_with_it_second_transposed(
    build: Build, operator: str, gates: int
) -> None:
    random = np.random.default_rng(0)
    w, r = (random.standard_normal((1, gates * 2, k)).astype(np.float32) for k in (3, 2))
    x, h = (random.standard_normal(s).astype(np.float32) for s in ((4, 5, 3), (4, 1, 2)))

    def run(layout: int, x: Any, h: Any) -> list[Any]:
        nodes = [node(operator, ["x", "w", "r", "", "", "h"], ["y", "last"], hidden_size=2,
                      layout=layout)]  # fmt: skip
        model = build(nodes, ["x:float[a,b,3]", "h:float[c,d,2]"], ["y:float[]", "last:float[]"],
                      22, {"w": w, "r": r})  # fmt: skip
        assert where(model) == ["cpu"]
        return list(model(x=x, h=h).values())

    y, last = run(1, x, h)
    other, other_last = run(0, x.transpose(1, 0, 2).copy(), h.transpose(1, 0, 2).copy())
    np.testing.assert_array_equal(y, other.transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(last, other_last.transpose(1, 0, 2))


@pytest.mark.parametrize("axes", [None, [2, 3]])
@pytest.mark.parametrize("scales", [(0.6, 0.6), (1.7, 1.0), (1.0, 2.3), (0.3, 3.0)])
def test_corners_are_aligned_as_onnx_puts_them_where_sizes_are_not_whole(
    build: Build, scales: tuple[float, float], axes: list[int] | None
) -> None:
    attributes = {"axes": axes} if axes else {}
    factors = np.float32(scales if axes else (1, 1, *scales))
    resize = node("Resize", ["x", "", "s"], ["y"], mode="linear",
                  coordinate_transformation_mode="align_corners", **attributes)  # fmt: skip
    model = build([resize], ["x:float[1,1,h,w]"], ["y:float[]"], 19, {"s": factors})
    x = np.float32([[0, 1, 4, 9], [10, 20, 40, 80], [5, 5, 6, 6], [1, 2, 3, 4]])
    y = model(x=x[None, None])["y"][0, 0]
    rows, columns = (places(4, np.float32(scale)) for scale in scales)
    expected = interpolated(interpolated(x, rows).T, columns).T
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    assert where(model) == ["cpu"]


def places(size: int, scale: np.float32) -> Any:
    """Return the places from which ONNX takes the elements of a resized axis."""
    length = np.float64(size) * scale
    count = int(length)
    return np.zeros(1) if count == 1 else np.arange(count) * (size - 1) / (length - 1)


def interpolated(x: Any, at: Any) -> Any:
    return np.stack([np.interp(at, np.arange(len(x)), column) for column in x.T], axis=1)


def test_letters_are_lowered_in_any_locale(build: Build) -> None:
    model = build([node("StringNormalizer", ["x"], ["y"], case_change_action="LOWER")],
                  ["x:string[n]"], ["y:string[m]"], 10)  # fmt: skip
    assert model(x=np.array(["ÄPFEL", "Mon"], object))["y"].tolist() == ["äpfel", "mon"]
    assert where(model) == ["cpu"]


# ------------------------------------------------------------------------------ graphs in graphs


def test_nodes_in_subgraphs_are_said_otherwise_too(build: Build) -> None:
    """Each branch has an operator without a kernel; one reads a value of the graph around it."""
    branches = {
        "then_branch": [node("Max", ["x", "z"], ["t"])],
        "else_branch": [node("BitShift", ["x", "one"], ["e"], direction="LEFT")],
    }
    graphs = {
        name: helper.make_graph(nodes, name, [],
                                [helper.make_tensor_value_info(nodes[0].output[0], 5, ["n"])])
        for name, nodes in branches.items()
    }  # fmt: skip
    nodes = [node("Neg", ["x"], ["z"]), node("If", ["c"], ["y"], **graphs)]
    model = build(nodes, ["c:bool", "x:int16[n]"], ["y:int16[n]"], 28,
                  {"one": np.int16([1])})  # fmt: skip
    x = np.array([-3, 2], np.int16)
    assert model(c=np.array(True), x=x)["y"].tolist() == [3, 2]
    assert model(c=np.array(False), x=x)["y"].tolist() == [-6, 4]
    assert where(model) == ["cpu", "cpu"]


# ------------------------------------------------------------------------ what it cannot be told


def write(
    folder: Path,
    nodes: list[Any],
    opset: int,
    inputs: Any = (("x", TensorProto.FLOAT),),
    outputs: Any = (("y", TensorProto.FLOAT),),
    opsets: dict[str, int] | None = None,
    functions: Any = (),
) -> Path:
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(*each, ["n"]) for each in inputs],
        [helper.make_tensor_value_info(*each, None) for each in outputs],
    )  # fmt: skip
    imports = [helper.make_opsetid(*each) for each in {"": opset, **(opsets or {})}.items()]
    model = helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_exactly_the_nodes_that_cannot_run_are_reported(tmp_path: Path) -> None:
    to = TensorProto.FLOAT4E2M1
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Cast", ["a"], ["b"], to=to),
        node("Cast", ["b"], ["c"], to=TensorProto.FLOAT),
        node("Neg", ["c"], ["y"]),
    ]
    unsupported = load(write(tmp_path, nodes, 23)).unsupported
    assert list(unsupported) == [1, 2]
    words = "operator 'Cast' (version 23) has no CPU kernel", "not currently registered"  # 1.23's
    assert any(text in unsupported[1] for text in words)


def test_an_operator_nobody_knows_is_reported_and_what_reads_it_is_not(tmp_path: Path) -> None:
    nodes = [
        node("Frobnicate", ["x"], ["a"], domain="unheard.of"),
        node("Relu", ["a"], ["b"]),
        node("Frobnicate", ["b"], ["y"], domain="unheard.of"),
    ]
    unsupported = load(write(tmp_path, nodes, 20, opsets={"unheard.of": 1})).unsupported
    assert list(unsupported) == [0, 2]
    assert "operator 'Frobnicate' of domain 'unheard.of' is unknown" in unsupported[0]


def test_types_behind_onnxruntimes_own_operators_are_known_from_itself(tmp_path: Path) -> None:
    """onnx cannot infer past FusedMatMul; Max of int16 behind it is told from the Cast's type."""
    nodes = [
        node("QuickGelu", ["x"], ["a"], domain="com.microsoft"),
        node("Cast", ["a"], ["b"], to=TensorProto.INT16),
        node("Max", ["b", "b"], ["c"]),
        node("Cast", ["c"], ["y"], to=TensorProto.FLOAT),
    ]
    loaded = load(write(tmp_path, nodes, 20, opsets={"com.microsoft": 1}))
    assert not loaded.unsupported
    assert list(loaded.rewritten) == [2]


def test_a_model_that_contradicts_itself_is_refused_in_onnxruntimes_words(tmp_path: Path) -> None:
    with pytest.raises(engine.ModelError, match=r"mismatched\.onnx"):
        engine.load(models.mismatched(tmp_path), target="cpu")


# -------------------------------------------------------------------------------------- the rest


def test_external_data_stays_where_it_is(tmp_path: Path) -> None:
    path = models.external(tmp_path)  # y = x + [0, 1, ... 255]
    model = onnx.load(path, load_external_data=False)
    model.opset_import[0].version = 28
    model.ir_version = 14
    path.write_bytes(model.SerializeToString())
    x = np.ones((1, 256), np.float32)
    linked = tmp_path / "elsewhere"
    linked.mkdir()
    for file in tmp_path.iterdir():
        if file.is_file():
            (linked / file.name).symlink_to(file)
    for each in (path, linked / path.name):
        y = engine.load(each, target="cpu")(x=x)["y"]
        np.testing.assert_array_equal(y[0], 1 + np.arange(256))


def test_constants_of_an_old_file_stay_constants(build: Build) -> None:
    """Up to IR version 3 they are inputs as well; as inputs they would no longer be folded."""
    model = build([node("Add", ["x", "b"], ["y"], broadcast=1)], ["x:float[2,1]", "b:float[1]"],
                  ["y:float[2,1]"], 6, {"b": np.float32([3])}, ir_version=3)  # fmt: skip
    assert [tensor.name for tensor in model.get_inputs()] == ["x"]
    assert model(x=np.zeros((2, 1), np.float32))["y"].tolist() == [[3], [3]]


ONNX_IS_IMPORTED = """
import sys, numpy as np, engine
model = engine.load(sys.argv[1], target="cpu")
model.predict([np.ones((2, 3), np.float32)])
print("onnx" in sys.modules, "ml_dtypes" in sys.modules)
"""


def test_a_model_that_onnxruntime_takes_whole_needs_no_onnx(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ONNX_IS_IMPORTED, str(models.affine(tmp_path))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("False False\n", "")


def test_nothing_is_printed_however_a_session_fails(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime's own second attempt prints a banner."""
    config = {"cpu_context": {"session.intra_op_thread_affinities": "nonsense"}}
    with pytest.raises(engine.SettingError, match="nonsense"):
        engine.load(models.affine(tmp_path), target="cpu", threads=2, config=config)
    with pytest.raises(engine.ModelError):
        engine.load(models.unknown_operator(tmp_path), target="cpu")
    assert capfd.readouterr() == ("", "")


def test_a_session_keeps_no_copy_of_the_file(tmp_path: Path) -> None:
    loaded = load(models.heavy(tmp_path))
    assert isinstance(loaded.session, ort.InferenceSession)
    assert not any(isinstance(each, bytes) for each in vars(loaded.session).values())
