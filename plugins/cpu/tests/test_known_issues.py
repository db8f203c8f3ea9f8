"""Kernels of ONNX Runtime that give wrong results are not used, and right ones are left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import engine
from engine import Model
from engine.backends import open_backend
from engine.formats import open_source
from engine.types import CompileOptions, Device
from engine_cpu.known_issues import OPERATORS
from engine_cpu.prescreen import Risk, prescreen
from engine_testing import making

Build = Callable[..., Model]
node = helper.make_node


def where(model: Model) -> list[str]:
    return [place.backend for place in model.placement]


DFT = (
    [node("DFT", ["x", "", "axis"], ["y"])],
    ["x:float[1,100,1]"],
    ["y:float[1,100,2]"],
    20,
    {"axis": np.int64(1)},
)


def test_a_fourier_transform_is_as_exact_as_float32_allows(build: Build) -> None:
    # 100 is no power of two: there onnxruntime's float32 kernel loses three digits.
    model = build(*DFT)
    x = np.random.default_rng(0).standard_normal((1, 100, 1)).astype(np.float32)
    y = model(x=x)["y"]
    expected = np.fft.fft(x[0, :, 0].astype(np.float64))
    np.testing.assert_allclose(y[0, :, 0] + 1j * y[0, :, 1], expected, rtol=1e-5, atol=1e-6)
    assert where(model) == ["cpu"]
    assert "wider types" in model.placement[0].reason


def test_workarounds_can_be_turned_off(build: Build, tmp_path: Path) -> None:
    config = {"cpu_context": {"workarounds": "off"}}
    model = build(*DFT, config=config)
    assert "wider types" not in model.placement[0].reason
    x = np.random.default_rng(0).standard_normal((1, 100, 1)).astype(np.float32)
    path = str(tmp_path / "model.onnx")  # where it was built
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(model(x=x)["y"], session.run(None, {"x": x})[0])
    # A node that ends the process is no matter of taste.
    div = build([node("Div", ["x", "y"], ["z"])], ["x:int64[1]", "y:int64[1]"], ["z:int64[1]"], 13,
                config=config)  # fmt: skip
    smallest = np.int64([-(2**63)])
    assert div(x=smallest, y=np.int64([-1]))["z"] == smallest


def test_a_node_that_could_crash_is_not_mended_beyond_that_where_workarounds_are_off(
    build: Build, tmp_path: Path
) -> None:
    """A window that comes later may be empty; one of 100 is transformed less exactly in float32."""
    nodes = [node("STFT", ["x", "step", "w"], ["y"])]
    inputs, outputs = ["x:float[1,400,1]", "w:float[100]"], ["y:float[]"]
    x = np.random.default_rng(0).standard_normal((1, 400, 1)).astype(np.float32)
    w = np.ones(100, np.float32)
    given = {}
    for workarounds in ("on", "off"):
        model = build(nodes, inputs, outputs, 17, {"step": np.int64(50)},
                      config={"cpu_context": {"workarounds": workarounds}})  # fmt: skip
        given[workarounds] = model(x=x, w=w)["y"]
    path = str(tmp_path / "model.onnx")
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    [raw] = session.run(None, {"x": x, "w": w})
    np.testing.assert_array_equal(given["off"], raw)
    assert np.abs(given["on"] - raw).max() > 0


@pytest.mark.parametrize(
    ("frame", "is_wrong"), [(20, False), (64, False), (256, False), (100, True), (400, True)]
)
def test_a_kernel_that_only_rounds_is_used_as_it_is(
    tmp_path: Path, frame: int, is_wrong: bool
) -> None:
    """A speech model's STFT has frames of 20 samples: its kernel is within 8e-7 of float64."""
    stft = node("STFT", ["x", "step", "window"], ["y"])
    window = np.hanning(frame + 1)[:-1].astype(np.float32)
    path = write(tmp_path, [stft], 17, {"step": np.int64(5), "window": window}, shape=[1, 800, 1])
    model = engine.load(path, target="cpu")
    assert ("wider types" in model.placement[0].reason) is is_wrong
    x = np.random.default_rng(0).standard_normal((1, 800, 1)).astype(np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(x[0, :, 0].astype(np.float64), frame)[::5]
    exact = np.fft.rfft(frames * window)
    y = model(x=x)["y"][0]
    np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], exact, atol=5e-6 * np.abs(exact).max())
    if not is_wrong:
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        np.testing.assert_array_equal(y, session.run(None, {"x": x})[0][0])


@pytest.mark.parametrize("folding", [True, False])
def test_a_value_may_be_scaled_before_and_between_products(build: Build, folding: bool) -> None:
    """ONNX Runtime's own fusion takes the value away that the second scaling reads."""
    nodes = [
        node("Mul", ["x", "c"], ["a"]), node("MatMul", ["a", "w"], ["b"]),
        node("Mul", ["b", "c"], ["y"]), node("Mul", ["a", "c"], ["d"]),
        node("MatMul", ["d", "w"], ["e"]), node("Div", ["e", "c"], ["z"]),
    ]  # fmt: skip
    w = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    left_out = {} if folding else {"optimization.disable_specified_optimizers": "ConstantFolding"}
    model = build(nodes, ["x:float[2,4,8]"], ["y:float[]", "z:float[]"], 17,
                  {"c": np.float32(0.5), "w": w}, config={"cpu_context": left_out})  # fmt: skip
    x = np.random.default_rng(1).standard_normal((2, 4, 8)).astype(np.float32)
    results = model(x=x)
    for name, factor in (("y", 0.25), ("z", 0.5)):
        np.testing.assert_allclose(results[name], x @ w * factor, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
def test_the_extreme_of_nothing_is_the_other_extreme(build: Build, operator: str) -> None:
    nodes = [node(operator, ["x", "axes"], ["y"], keepdims=0)]
    model = build(nodes, ["x:bool[0,2]"], ["y:bool[2]"], 20, {"axes": np.int64([0])})
    assert model(x=np.zeros((0, 2), bool))["y"].tolist() == [operator == "ReduceMin"] * 2
    assert where(model) == ["cpu"]


def test_scores_that_a_mask_forbids_are_minus_infinity(build: Build) -> None:
    attention = node("Attention", ["q", "k", "v"], ["y", "", "", "scores"], is_causal=1,
                     qk_matmul_output_mode=2)  # fmt: skip
    inputs = [f"{name}:float[1,1,3,4]" for name in "qkv"]
    model = build([attention], inputs, ["y:float[]", "scores:float[]"], 23)
    ones = np.ones((1, 1, 3, 4), np.float32)
    scores = model(q=ones, k=ones, v=ones)["scores"][0, 0]
    forbidden = np.triu(np.ones((3, 3), bool), 1)
    assert (scores[forbidden] == -np.inf).all()
    np.testing.assert_allclose(scores[~forbidden], 4 / np.sqrt(4))
    assert where(model) == ["cpu"]


def test_attention_that_is_right_is_left_to_its_kernel(tmp_path: Path) -> None:
    path = write(tmp_path, [node("Attention", ["x", "x", "x"], ["y"])], 23, shape=[1, 1, 3, 4])
    assert prescreen(open_source(path)) is Risk.NONE


def test_a_kernel_without_a_better_way_is_reported(tmp_path: Path) -> None:
    pool = node("MaxPool", ["x"], ["p", "i"], kernel_shape=[2, 2], strides=[2, 2])
    unpool = node("MaxUnpool", ["p", "i", "shape"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    constants = {"shape": np.int64([1, 1, 5, 5])}
    path = write(tmp_path, [pool, unpool], 11, constants, shape=[1, 1, 4, 4])
    loaded = open_backend("cpu").load(open_source(path), CompileOptions(device=Device("cpu")))
    assert dict(loaded.unsupported) == {
        1: "onnxruntime takes the indices for those in output_shape"
    }


@pytest.mark.parametrize(
    ("attributes", "is_found"),
    [
        ({"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}, False),
        ({"mode": "linear", "coordinate_transformation_mode": "align_corners"}, True),
    ],
)
def test_only_the_case_that_is_wrong_is_looked_at_closely(
    tmp_path: Path, attributes: dict[str, Any], is_found: bool
) -> None:
    resize = node("Resize", ["x", "", "s"], ["y"], **attributes)
    path = write(tmp_path, [resize], 19, {"s": np.float32([1, 1, 2, 2])}, shape=[1, 1, 4, 4])
    assert bool(prescreen(open_source(path))) is is_found
    assert where(engine.load(path, target="cpu")) == ["cpu"]


def test_it_is_found_in_subgraphs_and_functions(tmp_path: Path) -> None:
    body = "b = DFT (x, , axis)"
    texts = [
        f"""<ir_version: 10, opset_import: ["": 20]>
        g (float[1, 100, 1] x) => (float[] y) <int64 axis = {{1}}> {{
            sum = ReduceSum <keepdims = 0> (x)
            flag = Cast <to = 9> (sum)
            y = If (flag) <
                then_branch = one () => (float[] b) {{ {body} }},
                else_branch = other () => (float[] b) {{ {body} }}
            >
        }}""",
        f"""<ir_version: 10, opset_import: ["": 20, "own": 1]>
        g (float[1, 100, 1] x) => (float[] y) <int64 axis = {{1}}> {{ y = own.F (x, axis) }}
        <domain: "own", opset_import: ["": 20]> F (x, axis) => (b) {{ {body} }}""",
    ]
    path = tmp_path / "model.onnx"
    x = np.random.default_rng(0).standard_normal((1, 100, 1)).astype(np.float32)
    expected = np.fft.fft(x[0, :, 0].astype(np.float64))
    for text in texts:
        onnx.save(onnx.parser.parse_model(text), path)
        assert prescreen(open_source(path)) is Risk.WRONG
        model = engine.load(path, target="cpu")
        [y] = model(x=x).values()
        np.testing.assert_allclose(y[0, :, 0] + 1j * y[0, :, 1], expected, rtol=1e-5, atol=1e-6)
        assert set(where(model)) == {"cpu"}


def test_every_operator_of_the_table_is_one_of_onnxs() -> None:
    for operator in OPERATORS:
        assert onnx.defs.has(operator) or onnx.defs.has(operator, "ai.onnx.ml")


def write(
    folder: Path,
    nodes: list[Any],
    opset: int,
    constants: dict[str, Any] | None = None,
    shape: Any = None,
) -> Path:
    x, y = (helper.make_tensor_value_info(*value) for value in (("x", 1, shape), ("y", 1, None)))
    return making.write(folder, "model", [x], [y], nodes, constants, opset=opset, valid=False)
