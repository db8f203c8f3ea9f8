"""Rewritten models compute the same, within the bound of each pattern; other graphs stay."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper
from rewrite_graphs import (
    DRAW,
    MODE,
    OF_NODES,
    Build,
    Drawn,
    Random,
    convolved,
    image,
    made,
    model_of,
    node,
    plain,
    rewritten,
    with_conv,
)

import engine
from engine.backends import open_backend
from engine.errors import EngineError
from engine.formats import open_source
from engine.types import CompileOptions, Device, NodeState
from engine_cpu.compiled import compiled_key
from engine_cpu.rewrites import PATTERNS, key, patterns


def check(build: Build, path: Path, name: str, random: Random, near: bool) -> None:
    pattern = next(pattern for pattern in PATTERNS if pattern.name == name)
    drawn = DRAW[name](random, near)
    model = made(build, drawn, MODE[name])
    reason = import_module(f"engine_cpu.rewrites.{name}").REASON
    if near:
        assert not any(reason in place.reason for place in model.placement), drawn
    else:  # by this pattern, or by one that is tried before
        assert rewritten(model), drawn
    result = np.asarray(model(**drawn.feeds)["y"])
    original = plain(path, drawn.feeds)
    assert result.shape == original.shape
    assert result.dtype == original.dtype
    if near and rewritten(model):  # by another pattern
        largest = float(np.abs(original[np.isfinite(original)]).max(initial=1))
        np.testing.assert_allclose(result, original, rtol=0, atol=1e-5 * largest)
    elif near or pattern.is_exact:
        assert result.tobytes() == original.tobytes(), drawn
    elif not pattern.bound:
        np.testing.assert_array_equal(result, original)
    else:
        assert drawn.expected is not None
        largest = float(np.abs(drawn.expected).max(initial=1))
        assert np.abs(result - drawn.expected).max(initial=0) <= pattern.bound * largest, drawn


@pytest.mark.parametrize("near", [False, True], ids=["match", "near"])
@pytest.mark.parametrize("name", DRAW)
@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_graphs_keep_their_results(
    build: Build, tmp_path: Path, count: int, name: str, near: bool
) -> None:
    random = np.random.default_rng(count)
    for _ in range(count):
        check(build, tmp_path / "model.onnx", name, random, near)


def test_every_pattern_of_nodes_draws_graphs() -> None:
    assert set(DRAW) == {pattern.name for pattern in OF_NODES}


@pytest.mark.parametrize("slope", [0.25, [0.25, 0.5, 0.75]])
def test_slopes_that_may_give_more_channels_stay(build: Build, slope: Any) -> None:
    """ONNX Runtime repeats an image of one channel for each of them."""
    slopes = np.broadcast_to(np.float32(slope), (3,)).reshape(3, 1, 1)
    drawn = Drawn([node("PRelu", ["x", "slope"], ["y"])], ["x:float[n,c,4,4]"],
                  {"slope": np.ascontiguousarray(slopes)}, {})  # fmt: skip
    model = made(build, drawn, "on")
    assert not rewritten(model)
    x = np.full((1, 1, 4, 4), -2, np.float32)
    np.testing.assert_array_equal(model(x=x)["y"], np.broadcast_to(-2 * slopes, (1, 3, 4, 4)))


@pytest.mark.parametrize(("shift", "count"), [(2.0, 2), (1e6, 0)])
def test_a_shift_that_takes_a_large_number_away_stays(
    build: Build, shift: float, count: int
) -> None:
    """x - 1000000 is without error where the sums of a Conv of x would have one of 0.1."""
    random = np.random.default_rng(8)
    weights = random.standard_normal((4, 3, 3, 3)).astype(np.float32)
    drawn = Drawn([node("Sub", ["x", "k"], ["s"]), node("Conv", ["s", "w"], ["y"])],
                  ["x:float[1,3,8,8]"], {"k": np.float32([shift]), "w": weights}, {})  # fmt: skip
    model = made(build, drawn, "on")
    assert len(rewritten(model)) == count
    x = (np.float32(shift) + random.integers(-4, 5, (1, 3, 8, 8)) / 4).astype(np.float32)
    expected = convolved(x.astype(np.float64) - shift, weights, np.zeros(4), 1, 0)
    np.testing.assert_allclose(model(x=x)["y"], expected, atol=1e-5, rtol=1e-5)


def test_the_weights_of_a_file_of_ir_version_3_are_constants(tmp_path: Path) -> None:
    """They are listed as inputs there, and nobody may replace them."""
    drawn = drawn_prelu()
    model, feeds = model_of(drawn)
    model.ir_version = 3
    model.graph.input.extend(
        image_info(name, array.shape) for name, array in drawn.constants.items()
    )
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    config = {"cpu_context": {"rewrites": "on", "measure_rewrites": "0"}}
    own = engine.load(tmp_path / "model.onnx", target="cpu", config=config)
    assert rewritten(own) == [1]
    np.testing.assert_array_equal(own(**feeds)["y"], plain(tmp_path / "model.onnx", feeds))


# ------------------------------------------------------------------------------------- the option


def test_weights_that_are_listed_as_inputs_are_constants(tmp_path: Path) -> None:
    """BatchNormalization is folded then, as in the same file without the list."""
    random = np.random.default_rng(3)
    constants = {
        "w": random.standard_normal((8, 3, 3, 3)).astype(np.float32),
        **{name: random.uniform(0.5, 2, 8).astype(np.float32) for name in ("s", "b", "m", "v")},
    }
    nodes = [node("Conv", ["x", "w"], ["c"]),
             node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
             node("Relu", ["n"], ["y"])]  # fmt: skip
    x = image_info("x", ["n", 3, 9, 9])
    listed = [image_info(name, value.shape) for name, value in constants.items()]
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    paths = []
    for inputs in ([x, *listed], [x]):
        graph = helper.make_graph(nodes, "g", inputs, [image_info("y", None)], tensors)
        opsets = [helper.make_opsetid("", 14)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=6)
        paths.append(tmp_path / f"{len(inputs)}.onnx")
        paths[-1].write_bytes(model.SerializeToString())
    values = random.standard_normal((2, 3, 9, 9)).astype(np.float32)
    expected = plain(paths[1], {"x": values})
    for mode, is_used in (("on", True), ("exact", False)):
        config = {"cpu_context": {"rewrites": mode, "measure_rewrites": "0"}}
        model = engine.load(paths[0], target="cpu", config=config)
        assert [spec.name for spec in model.inputs] == ["x"]
        result = model(x=values)["y"]
        assert rewritten(model) == ([0, 1] if is_used else [])
        assert (model.placement[1].state is NodeState.FUSED) is is_used
        same_as = expected if is_used else plain(paths[0], {"x": values})
        assert result.tobytes() == same_as.tobytes()
    config = {"cpu_context": {"rewrites": "on", "measure_rewrites": "0"}}
    model = engine.load(paths[0], target="cpu", config=config, variable_weights=["s"])
    model.update_weights({"s": constants["s"] * 2})
    assert not np.allclose(model(x=values)["y"], expected)
    assert not rewritten(engine.load(paths[1], target="cpu", config=config))


def test_a_convolution_of_other_channels_than_its_input_has_stays_an_error(build: Build) -> None:
    """ONNX Runtime's kernel for images would not see it."""
    random = np.random.default_rng(2)
    weights = {name: random.standard_normal((8, 16, 3)).astype(np.float32) for name in ("v", "w")}
    nodes = [node("Constant", [], ["one"], value_float=1.0), node("Conv", ["x", "v"], ["c"]),
             node("Mul", ["c", "one"], ["m"]), node("Conv", ["m", "w"], ["y"])]  # fmt: skip
    model = made(build, Drawn(nodes, ["x:float[n,16,w]"], weights, {}), "on")
    assert rewritten(model) == [1, 2]
    with pytest.raises(EngineError, match="channels"):
        model(x=np.ones((1, 16, 24), np.float32))


@pytest.mark.parametrize("is_linked", [False, True])
def test_external_data_is_constant_too(tmp_path: Path, is_linked: bool) -> None:
    random = np.random.default_rng(4)
    weights = random.standard_normal((8, 3, 3, 3)).astype(np.float32)
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Mul", ["c", "two"], ["y"])]
    drawn = Drawn(nodes, ["x:float[1,3,9,9]"], {"w": weights, "two": np.float32([2])}, {})
    model, _ = model_of(drawn)
    folder = tmp_path / "real"
    folder.mkdir()
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="w.data",
              size_threshold=0)  # fmt: skip
    path = folder / "model.onnx"
    if is_linked:
        path = tmp_path / "link.onnx"
        path.symlink_to(folder / "model.onnx")
        (tmp_path / "w.data").symlink_to(folder / "w.data")
    config = {"cpu_context": {"rewrites": "on", "measure_rewrites": "0"}}
    own = engine.load(path, target="cpu", config=config)
    assert rewritten(own) == [0, 1]
    x = random.standard_normal((1, 3, 9, 9)).astype(np.float32)
    expected = 2 * convolved(x, weights, np.zeros(8), 1, 0)
    np.testing.assert_allclose(own(x=x)["y"], expected, atol=1e-5, rtol=1e-5)


def image_info(name: str, shape: Any) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def drawn_prelu() -> Drawn:
    random = np.random.default_rng(5)
    drawn = Drawn([node("PRelu", ["x", "slope"], ["p"], name="p"),
                   node("Sigmoid", ["p"], ["y"], name="s")], ["x:float[n,8,h,w]"],
                  {"slope": np.linspace(0.1, 0.9, 8, dtype=np.float32).reshape(8, 1, 1)},
                  {"x": image(random, 8)})  # fmt: skip
    return with_conv(random, drawn, 8)


def test_nothing_is_rewritten_unless_it_is_asked_for(build: Build) -> None:
    for mode, expected in (("off", []), ("exact", []), ("on", [1])):
        assert rewritten(made(build, drawn_prelu(), mode)) == expected
    drawn = drawn_prelu()
    assert not rewritten(build(drawn.nodes, drawn.inputs, ["y:float[]"], 17, drawn.constants))


def test_nothing_is_rewritten_without_the_optimiser_that_it_is_for(build: Build) -> None:
    drawn = drawn_prelu()
    for level, count in (("all", 1), ("extended", 0), ("none", 0)):
        config = {
            "cpu_context": {"rewrites": "on", "measure_rewrites": "0", "graph_optimization": level}
        }
        model = build(drawn.nodes, drawn.inputs, ["y:float[]"], 17, drawn.constants, None, config)
        assert len(rewritten(model)) == count


def test_the_key_names_the_patterns_and_their_versions() -> None:
    def of(**options: str) -> Mapping[str, str]:
        return compiled_key(CompileOptions(device=Device("cpu"), options=options), "1")

    assert "rewrites" not in of(rewrites="off")
    assert of() == of(rewrites="exact")
    assert of()["rewrites"] == "leaky_relu=2, measured"
    assert of(measure_rewrites="0")["rewrites"] == key("exact") == "leaky_relu=2"
    assert of(rewrites="on")["rewrites"] == key("on") + ", measured"
    assert len(key("on").split()) == len(PATTERNS) == len(patterns("on"))


@pytest.mark.parametrize("is_secret", [False, True])
def test_a_compiled_form_keeps_placement_and_bits(
    build: Build, tmp_path: Path, is_secret: bool
) -> None:
    drawn = drawn_prelu()
    made(build, drawn, "on")
    backend, folder = open_backend("cpu"), tmp_path / "form"
    folder.mkdir()
    source = open_source(tmp_path / "model.onnx")
    source = replace(source, data=(tmp_path / "model.onnx").read_bytes(), is_secret=is_secret)
    options = CompileOptions(
        device=Device("cpu"), options={"rewrites": "on", "measure_rewrites": "0"}
    )
    seen = []
    for given, save_to in ((source, None), (source, folder), (source, folder)):
        is_written = any(folder.iterdir())
        assert not (is_written and is_secret)
        opened = replace(given, compiled=folder) if is_written else given
        own = replace(options, save_to=None if is_written else save_to)
        executable = backend.compile(backend.load(opened, own), own)
        [y] = backend.predict(executable.open_context(), [*drawn.feeds.values()], None, None)
        seen.append((list(executable.placement()), np.asarray(y).tobytes()))
    assert is_secret or is_written
    assert seen[0] == seen[1] == seen[2]
    assert "rewritten: " in seen[0][0][1].reason


def test_a_variable_weight_is_no_constant(build: Build, tmp_path: Path) -> None:
    drawn = drawn_prelu()
    made(build, drawn, "off")
    config = {"cpu_context": {"rewrites": "on", "measure_rewrites": "0"}}
    model = engine.load(
        tmp_path / "model.onnx", target="cpu", config=config, variable_weights=["slope"]
    )
    assert not rewritten(model)
    model.update_weights({"slope": np.full((8, 1, 1), 2, np.float32)})
    x = drawn.feeds["image"]
    expected = 1 / (1 + np.exp(-np.where(x < 0, 2 * x, x).astype(np.float64)))
    np.testing.assert_allclose(model(image=x)["y"], expected, rtol=1e-5)


def test_the_parts_of_a_cut_model_are_rewritten(build: Build) -> None:
    drawn = drawn_prelu()
    nodes = [*drawn.nodes[:-1], node("Cast", ["p"], ["wide"], to=TensorProto.DOUBLE),
             node("Erf", ["wide"], ["y"])]  # fmt: skip
    cut = drawn._replace(nodes=nodes, outputs=("y:double[]",))
    model, original = made(build, cut, "on"), made(build, cut, "off")
    assert [place.backend for place in model.placement][-1] == "reference"
    assert rewritten(model) == [1]
    result, expected = (own(**drawn.feeds)["y"] for own in (model, original))
    np.testing.assert_array_equal(result, expected)


def test_the_states_of_a_large_model_are_known_too(build: Build, tmp_path: Path) -> None:
    random = np.random.default_rng(6)
    weights = random.standard_normal((512, 512, 3, 3)).astype(np.float32)  # 9 MB: not kept
    nodes = [node("Mul", ["x", "two"], ["m"]), node("Conv", ["m", "w"], ["c"]),
             node("Relu", ["c"], ["y"])]  # fmt: skip
    drawn = Drawn(nodes, ["x:float[1,512,4,4]"], {"two": np.float32([2]), "w": weights}, {})
    model = made(build, drawn, "on")
    assert rewritten(model) == [0, 1]
    places = [(place.state, place.fused_into) for place in model.placement]
    assert places == [(NodeState.FUSED, 2), (NodeState.FUSED, 2), (NodeState.RUNS, None)]
    config = {"cpu_context": {"rewrites": "on", "measure_rewrites": "0"}}
    model = engine.load((tmp_path / "model.onnx").read_bytes(), target="cpu", config=config)
    assert model.placement[0].state is NodeState.FUSED


def test_a_profile_names_the_node_of_each_kernel(build: Build) -> None:
    drawn = drawn_prelu()
    profile = made(build, drawn, "on").profile(drawn.feeds, 2)
    kernels = {kernel.nodes for kernel in profile.kernels if kernel.op_type == "Conv"}
    assert (0,) in kernels
    assert kernels - {(0,)}, kernels
    assert all(1 in nodes for nodes in kernels - {(0,)}), kernels


def test_a_model_without_candidates_needs_no_onnx(build: Build, tmp_path: Path) -> None:
    drawn = Drawn([node("Relu", ["x"], ["y"])], ["x:float[n]"], {}, {})
    made(build, drawn, "off")
    program = f"""
import sys, engine
config = {{"cpu_context": {{"rewrites": "on", "measure_rewrites": "0"}}}}
engine.load({str(tmp_path / "model.onnx")!r}, target="cpu", config=config)
assert "onnx" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_nodes_of_one_group_are_fused_into_its_last(build: Build) -> None:
    model = made(build, drawn_prelu(), "on")
    conv, prelu, sigmoid = model.placement
    assert conv.state is sigmoid.state is NodeState.RUNS
    assert (prelu.state, prelu.fused_into) == (NodeState.FUSED, 2)  # in the last depthwise Conv
