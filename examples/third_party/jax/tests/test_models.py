from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

import engine
from engine.errors import ModelError
from engine_jax.registry import OPERATORS

BOTH = ["jax", "cpu"]
STORED = os.environ.get("ENGINE_JAX_MODELS", "")
"""A folder of models of your own (.onnx, .mindir) that are compared, too."""


def values(model: engine.Model, name: str) -> list[Any]:
    """Return random inputs; symbolic sizes are 2."""
    random = np.random.default_rng(1)
    given = []
    for tensor in model.get_inputs():
        shape = [dim if dim > 0 else 2 for dim in tensor.shape]
        if name == "bert":
            shape = [2, 24]
        if tensor.dtype == engine.DataType.INT64:
            given.append(random.integers(1, 2 if tensor.name == "mask" else 100, shape))
        else:
            given.append(random.standard_normal(shape).astype(np.float32))
    return given


def outputs(model: engine.Model, given: list[Any]) -> list[Any]:
    return [tensor.get_data_to_numpy() for tensor in model.predict(given)]


def compared(path: Path) -> tuple[engine.Model, float]:
    """Return the model on jax and cpu, and its greatest error, relative to the largest output."""
    with engine.load(str(path), target="cpu") as alone:
        given = values(alone, path.stem)
        expected = outputs(alone, given)
    model = engine.load(str(path), target=BOTH)
    errors = []
    for got, wanted in zip(outputs(model, given), expected, strict=True):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        difference = np.abs(got.astype(float) - wanted.astype(float)).max(initial=0)
        errors.append(float(difference / max(np.abs(wanted).max(initial=0), 1e-30)))
    return model, max(errors)


def segments(model: engine.Model) -> int:
    """Return in how many runs of one backend the nodes lie, in the file's order."""
    backends = [node.backend for node in model.placement]
    return 1 + sum(one != other for one, other in pairwise(backends))


@pytest.mark.parametrize("build", graphs.BUILT, ids=lambda build: build.__name__)
def test_a_model_gives_what_cpu_gives(build: Callable[[Path], Path], tmp_path: Path) -> None:
    model, error = compared(build(tmp_path))
    with model:
        assert error < 1e-5


@pytest.mark.skipif(not STORED, reason="ENGINE_JAX_MODELS names no folder")
def test_models_of_ones_own_give_what_cpu_gives() -> None:
    paths = sorted(path for path in Path(STORED).iterdir() if path.suffix in (".onnx", ".mindir"))
    assert paths
    for path in paths:
        model, error = compared(path)
        print(f"{path.name}: {error:.1e} on {segments(model)} segments")
        model.close()
        assert error < 1e-5, path.name


@pytest.mark.parametrize("build", [graphs.unet, graphs.bert], ids=["unet", "bert"])
def test_whole_networks_are_one_segment(build: Callable[[Path], Path], tmp_path: Path) -> None:
    model, _ = compared(build(tmp_path))
    with model:
        assert segments(model) == 1
        assert {node.backend for node in model.placement} == {"jax"}
        given, seconds = values(model, build.__name__), []
        for _ in range(10):
            start = time.monotonic()
            model.predict(given)
            seconds.append(time.monotonic() - start)
    print(f"{build.__name__}: {1000 * min(seconds):.2f} ms")


def test_what_is_too_small_goes_with_the_operator_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.load(str(graphs.detector(tmp_path)), target=BOTH) as model:  # 24 nodes
        assert {node.backend for node in model.placement} == {"cpu"}
        assert any("fewer than 24 nodes" in node.reason for node in model.placement)
    monkeypatch.delitem(OPERATORS, "Resize")
    model, error = compared(graphs.unet(tmp_path))
    with model:
        nodes = Counter(node.backend for node in model.placement)
    assert error < 1e-5
    assert nodes["jax"] > nodes["cpu"] > 0


def test_alone_the_operator_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="NonMaxSuppression"):
        engine.load(str(graphs.detector(tmp_path)), target="jax")


# --------------------------------------------------------------------------------- what is refused


def saved(text: str, path: Path, opset: int = 21) -> str:
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')
    onnx.save(model, path)
    return str(path)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ("y = Reshape (x, shape)", "'shape', depends on data"),
        ('y = Resize <mode = "cubic"> (x, , scales)', "mode='cubic'"),
        ("y = BatchNormalization <training_mode = 1> (x, one, one, one, one)", "training_mode=1"),
        ("y, at = MaxPool <kernel_shape = [1, 1]> (x)", "2 outputs"),
        ("y = Det2 (x)", "Det2"),
    ],
)
def test_a_node_that_is_not_covered_is_refused_with_its_reason(
    node: str, reason: str, tmp_path: Path
) -> None:
    text = f"""g (float[1, 1, 2, 2] x, int64[4] shape) => (float[a, b, c, d] y)
        <float[4] scales = {{1, 1, 2, 2}}, float[1] one = {{1}}> {{ {node} }}"""
    with pytest.raises(ModelError) as caught:
        engine.load(saved(text, tmp_path / "m.onnx"), target="jax")
    assert reason in str(caught.value)


def test_an_old_version_of_an_operator_is_refused(tmp_path: Path) -> None:
    text = "g (float[2] x) => (float[2] y) { y = Add <broadcast = 1> (x, x) }"
    path = saved(text, tmp_path / "m.onnx", opset=6)
    with pytest.raises(ModelError, match="version 6 of the operator is not covered"):
        engine.load(path, target="jax")


# --------------------------------------------------------------------------- not wrong in silence


@pytest.mark.parametrize("index", [3, -4])
def test_an_index_outside_is_an_error_and_no_number(index: int, tmp_path: Path) -> None:
    text = "g (float[3] x, int64[1] i) => (float[1] y) { y = Gather (x, i) }"
    with engine.load(saved(text, tmp_path / "m.onnx"), target="jax") as model:
        x = np.array([1, 2, 3], np.float32)
        [y] = outputs(model, [x, np.array([-1])])
        assert y.tolist() == [3]
        with pytest.raises(ModelError, match="outside an axis of 3"):
            model.predict([x, np.array([index])])
        [y] = outputs(model, [x, np.array([1])])
        assert y.tolist() == [2]


def test_a_branch_is_chosen_where_its_condition_is_known(tmp_path: Path) -> None:
    text = """g (float[n] x, bool c) => (float[n] y) {
        two = Constant <value_int = 2> () s = Size (x) big = Greater (s, two)
        y = If (CONDITION) <
            then_branch = t () => (float[n] a) { a = Neg (x) },
            else_branch = e () => (float[n] b) { b = Abs (x) }
        > }"""
    path = saved(text.replace("CONDITION", "big"), tmp_path / "m.onnx")
    with engine.load(path, target="jax") as model:
        for values, expected in (([1, -2], [1, 2]), ([1, -2, 3], [-1, 2, -3])):
            x = np.array(values, np.float32)
            assert outputs(model, [x, np.array(True)])[0].tolist() == expected
    path = saved(text.replace("CONDITION", "c"), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="which branch runs depends on data"):
        engine.load(path, target="jax")
    with engine.load(path, target=BOTH) as model:
        assert outputs(model, [np.float32([-1]), np.array(False)])[0].tolist() == [1]


def test_a_whole_number_over_nothing_is_an_error(tmp_path: Path) -> None:
    text = "g (int32[2] x, int32[2] d) => (int32[2] y) { y = Div (x, d) }"
    with engine.load(saved(text, tmp_path / "m.onnx"), target="jax") as model:
        x = np.array([7, -7], np.int32)
        assert outputs(model, [x, np.array([2, 2], np.int32)])[0].tolist() == [3, -3]
        with pytest.raises(ModelError, match="by 0"):
            model.predict([x, np.array([2, 0], np.int32)])


def test_a_division_by_a_constant_is_a_division(tmp_path: Path) -> None:
    """XLA would multiply by 1 / constant, which is another number for a quarter of these."""
    text = """g (float[1000] x) => (float[1000] y) {
        c = Constant <value_float = 3.0> () y = Div (x, c) }"""
    x = np.arange(1, 1001, dtype=np.float32)
    with engine.load(saved(text, tmp_path / "m.onnx"), target="jax") as model:
        [y] = outputs(model, [x])
    assert (x * (np.float32(1) / np.float32(3)) != x / np.float32(3)).any()
    np.testing.assert_array_equal(y, x / np.float32(3))


@pytest.mark.parametrize("layers", [1, 2])
def test_a_sum_of_convolutions_with_repeated_weights_is_right(layers: int, tmp_path: Path) -> None:
    """YNNPACK, which XLA would use, reads memory here that nothing has written."""
    text = """g (float[1, 64, 14, 14] x) => (float[1, 64, 1, 1] y) {
        shape = Constant <value = int64[4] {64, 64, 3, 3}> ()
        w = ConstantOfShape <value = float[1] {0.0078125}> (shape)
        c0 = Identity (x) LAYERS y = GlobalAveragePool (cN) }"""
    convs = [f"c{at + 1} = Conv <pads = [1, 1, 1, 1]> (c{at}, w)" for at in range(layers)]
    text = text.replace("LAYERS", " ".join(convs)).replace("cN", f"c{layers}")
    x = np.ones((1, 64, 14, 14), np.float32)
    expected = np.ones((14, 14))  # each output is half of the sum of 3x3 places, 0 outside
    for _ in range(layers):
        padded = np.pad(expected, 1)
        cuts = [padded[i : i + 14, j : j + 14] for i in range(3) for j in range(3)]
        expected = np.sum(cuts, axis=0) / 2
    with engine.load(saved(text, tmp_path / "m.onnx"), target="jax") as model:
        for _ in range(10):
            [y] = outputs(model, [x])
            np.testing.assert_allclose(y, np.full(y.shape, expected.mean()), rtol=1e-5)


DIFFERENCES = (
    "y = Softmax (m)",
    "z = LogSoftmax (m) y = Exp (z)",
    "z = ReduceMax (m, axes) d = Sub (m, z) e = Exp (d) t = ReduceSum (e, axes) y = Div (e, t)",
    "z = ReduceMax (m, axes) n = Neg (z) d = Add (m, n) e = Exp (d) y = Div (e, e4)",
    "z = ReduceMax (m, axes) n = Neg (z) d = Sum (n, m) e = Exp (d) y = Div (e, e4)",
)


@pytest.mark.parametrize("text", DIFFERENCES)
def test_equal_large_numbers_have_no_difference(text: str, tmp_path: Path) -> None:
    """LLVM would compute a mean and the difference as one, without the rounding of the mean."""
    text = f"""g (float[64, 169] x) => (float[64] y) {{
        axes = Constant <value_ints = [0]> () e4 = Constant <value_float = 64.0> ()
        last = Constant <value_ints = [1]> () r = Relu (x)
        m = ReduceMean <keepdims = 0> (r, last) {text} }}"""
    text = text.replace("Softmax (m)", "Softmax <axis = 0> (m)")
    path = saved(text, tmp_path / "m.onnx")
    for value in (10455853056.0, 1.1e20, 3.3e13):
        x = np.full((64, 169), value, np.float32)
        with engine.load(path, target="jax") as model:
            np.testing.assert_allclose(outputs(model, [x])[0], np.full(64, 1 / 64), rtol=1e-6)


def test_float16_does_not_depend_on_what_is_fused(tmp_path: Path) -> None:
    """Each result is rounded: 2049 is no float16, so 2048 + 1 + 1 is 2048 and not 2050."""
    text = "g (float16[1] x, float16[1] i) => (float16[1] y) { a = Add (x, i) y = Add (a, i) }"
    with engine.load(saved(text, tmp_path / "m.onnx"), target="jax") as model:
        [y] = outputs(model, [np.float16([2048]), np.float16([1])])
    assert y.tolist() == [2048]


def test_the_process_keeps_its_types_of_32_bits(tmp_path: Path) -> None:
    """64-bit types are a setting of the thread while this backend works, not of the process."""
    import jax
    import jax.numpy as jnp

    text = "g (int64[1] x) => (int64[1] y) { y = Add (x, x) }"
    with engine.load(saved(text, tmp_path / "m.onnx"), target="jax") as model:
        assert outputs(model, [np.array([2**40])])[0].tolist() == [2**41]
        assert jnp.arange(3).dtype == np.int32
        assert not jax.config.jax_enable_x64


def test_programs_are_kept_for_as_many_shapes_as_asked(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10),
        tmp_path / "m.onnx",
    )
    config = {"jax_context": {"kept_programs": "1"}}
    with engine.load(str(tmp_path / "m.onnx"), target="jax", config=config) as model:
        for size in (1, 2, 1, 3, 2):
            [y] = outputs(model, [np.full(size, -1, np.float32)])
            assert y.tolist() == [0] * size
