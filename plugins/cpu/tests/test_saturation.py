"""Products that this processor may saturate are said, when a model loads and by its placement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forms import compiled, written
from onnx import TensorProto, helper, numpy_helper

from engine import Model
from engine.host import processor
from engine_cpu import node_states, saturation
from engine_cpu.known_issues import version

Build = Callable[..., Model]
Flags = Callable[..., None]
node = helper.make_node
Array = np.ndarray[Any, Any]

LARGE = np.array([[65, -3], [64, 5]], np.int8)  # 255 * (65 + 64) = 32895, beyond 32767
SMALL = np.array([[64, -64], [64, -64]], np.int8)  # 255 * (64 + 64) = 32640
NEGATIVE = np.array([[-128, 3], [-1, 5]], np.int8)  # 255 * -129 = -32895, beyond -32768
ALONE = np.array([[127, 1], [-128, 0]], np.int8)  # 255 * (127 + 1): no pair of one sign is larger
OLD = "fma avx2 avx512f avx512bw"


@pytest.fixture
def flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flags:
    """Give the processor other flags, on whatever machine this runs."""

    def give(text: str, machine: str = "x86_64") -> None:
        path = tmp_path / f"cpuinfo {text}"
        path.write_text(f"model name\t: a processor\nflags\t\t: {text}\n")
        monkeypatch.setattr(processor, "CPUINFO", str(path))
        monkeypatch.setattr("platform.machine", lambda: machine)

    return give


def notes(model: Model) -> list[str]:
    """Return the nodes that placement says the note of."""
    return [place.node for place in model.placement if saturation.NOTE in place.reason]


def integers(build: Build, weights: Array, x: str = "uint8", **more: Any) -> Model:
    """Build a MatMulInteger of a caller's values and of weights."""
    return build(
        [node("MatMulInteger", ["x", "w"], ["y"], "product")],
        [f"x:{x}[2,2]"], ["y:int32[2,2]"], 21, {"w": weights}, **more,
    )  # fmt: skip


def floats(build: Build, weights: Array, kind: Any, **more: Any) -> Model:
    """Build a MatMul between quantized values, its weights behind a Transpose."""
    return build(
        [
            node("QuantizeLinear", ["x", "s", "xz"], ["xq"]),
            node("DequantizeLinear", ["xq", "s", "xz"], ["xd"]),
            node("DequantizeLinear", ["w", "s", "wz"], ["wd"]),
            node("Transpose", ["wd"], ["wt"], perm=[1, 0]),
            node("MatMul", ["xd", "wt"], ["y"], "product"),
        ],
        ["x:float[2,2]"], ["y:float[2,2]"], 21,
        {"s": np.float32(0.1), "xz": kind(0), "w": weights, "wz": np.int8(0)}, **more,
    )  # fmt: skip


@pytest.mark.parametrize("weights", [LARGE, NEGATIVE])
def test_placement_and_a_warning_say_which_products_may_saturate(
    build: Build, flags: Flags, weights: Array, caplog: pytest.LogCaptureFixture
) -> None:
    flags(OLD)
    assert notes(integers(build, weights)) == ["product"]
    [warning] = caplog.messages
    assert "products may saturate" in warning
    assert "in MatMulInteger 'product' (kernels: 1)" in warning
    assert ("session.x64quantprecision = 1" in warning) is (version() >= (1, 30))


@pytest.mark.parametrize("kind", [np.uint8, np.int8])  # ONNX Runtime makes uint8 of the latter
def test_products_of_dequantized_values_are_found_too(
    build: Build, flags: Flags, kind: Any
) -> None:
    flags(OLD)
    assert "product" in notes(floats(build, LARGE, kind))
    assert not notes(floats(build, SMALL, kind))


def test_values_that_stay_floats_are_left_out(build: Build, flags: Flags) -> None:
    flags(OLD)
    config = {"cpu_context": {"session.disable_quant_qdq": "1"}}
    assert not notes(floats(build, LARGE, np.uint8, config=config))


@pytest.mark.parametrize("last", [1, 2])
def test_a_pair_may_lie_far_apart(build: Build, flags: Flags, last: int) -> None:
    flags(OLD)
    weights = np.zeros((1 << 12, 1 << 9), np.int8)
    weights[0, 0], weights[-1, -1] = 127, last
    model = build(
        [node("MatMulInteger", ["x", "w"], ["y"], "product")],
        ["x:uint8[1,4096]"], ["y:int32[1,512]"], 21, {"w": weights},
    )  # fmt: skip
    assert notes(model) == (["product"] if last == 2 else [])


def convolution(build: Build, weights: Array, x: str, group: int = 1) -> Model:
    constants = {"s": np.float32(1), "xz": np.uint8(0), "w": weights, "wz": np.int8(0)}
    inputs = ["x", "s", "xz", "w", "s", "wz", "s", "xz"]
    return build(
        [node("QLinearConv", inputs, ["y"], "product", group=group)], [f"x:uint8{x}"],
        ["y:uint8[]"], 21, constants,
    )  # fmt: skip


def test_one_filter_a_channel_is_exact(build: Build, flags: Flags) -> None:
    flags(OLD)
    weights = np.full((4, 1, 3, 3), 127, np.int8)
    assert not notes(convolution(build, weights, "[1,4,5,5]", group=4))
    assert notes(convolution(build, weights, "[1,1,5,5]")) == ["product"]


@pytest.mark.parametrize(("x", "found"), [("int8", ["product"]), ("uint8", [])])
def test_integer_convolutions_have_the_factors_the_other_way_round(
    build: Build, flags: Flags, x: str, found: list[str]
) -> None:
    flags(OLD)
    weights = np.full((4, 2, 3, 3), 200, np.uint8) if found else np.full((4, 2, 3, 3), 127, np.int8)
    model = build(
        [node("ConvInteger", ["x", "w"], ["y"], "product")], [f"x:{x}[1,2,5,5]"],
        ["y:int32[1,4,3,3]"], 21, {"w": weights},
    )  # fmt: skip
    assert notes(model) == found


@pytest.mark.parametrize("weights", [SMALL, ALONE, LARGE.astype(np.uint8)])
def test_nothing_is_said_where_no_sum_is_too_large(
    build: Build, flags: Flags, weights: Array, caplog: pytest.LogCaptureFixture
) -> None:
    flags(OLD)
    assert not notes(integers(build, weights))
    assert not caplog.messages


def test_two_int8_are_multiplied_exactly_everywhere(build: Build, flags: Flags) -> None:
    flags(OLD)
    assert not notes(integers(build, LARGE, "int8"))


@pytest.mark.parametrize(
    ("text", "machine"),
    [("avx2 avx512_vnni", "x86_64"), ("avx2 avx_vnni", "AMD64"), ("asimddp", "aarch64")],
)
def test_nothing_is_said_on_a_processor_with_exact_products(
    build: Build, flags: Flags, text: str, machine: str, caplog: pytest.LogCaptureFixture
) -> None:
    flags(text, machine)
    assert not notes(integers(build, LARGE))
    assert not caplog.messages


@pytest.mark.skipif(version() < (1, 30), reason="onnxruntime aborts there before 1.30")
def test_with_the_option_that_the_warning_names_products_are_exact(
    build: Build, flags: Flags, caplog: pytest.LogCaptureFixture
) -> None:
    flags(OLD)
    model = integers(build, LARGE, config={"cpu_context": {saturation.EXACT: "1"}})
    assert not notes(model)
    assert not caplog.messages
    x = np.full((2, 2), 255, np.uint8)
    np.testing.assert_array_equal(model(x=x)["y"], x.astype(np.int32) @ LARGE.astype(np.int32))


def test_a_product_in_a_subgraph_is_in_the_warning(
    build: Build, flags: Flags, caplog: pytest.LogCaptureFixture
) -> None:
    flags(OLD)
    result = helper.make_tensor_value_info("z", TensorProto.INT32, None)
    branches = [
        helper.make_graph(
            [node("MatMulInteger", ["x", "v"], ["z"], name)], name, [], [result],
            [numpy_helper.from_array(weights, "v")],
        )
        for name, weights in (("large", LARGE), ("small", SMALL))
    ]  # fmt: skip
    chosen = node("If", ["c"], ["y"], "chosen", then_branch=branches[0], else_branch=branches[1])
    build([chosen], ["c:bool", "x:uint8[2,2]"], ["y:int32[]"], 21)
    assert "in MatMulInteger 'large' (kernels: 1)" in caplog.text


def test_a_float_model_with_a_subgraph_is_not_compiled_once_more(
    build: Build, flags: Flags, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags(OLD)
    monkeypatch.setattr(node_states, "observed", lambda *_: pytest.fail("it is compiled again"))
    result = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    branches = [
        helper.make_graph([node(name, ["x"], ["z"])], name, [], [result]) for name in ("Sin", "Cos")
    ]
    chosen = node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    build([chosen], ["c:bool", "x:float[2,2]"], ["y:float[]"], 21)


def test_a_model_that_is_opened_from_its_compiled_form_is_named_once_in_the_log(
    build: Build, flags: Flags, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flags(OLD)
    integers(build, LARGE)
    source = written(tmp_path / "model.onnx", tmp_path)
    [place] = compiled(source).placement()
    assert saturation.NOTE in place.reason
    assert len(caplog.messages) == 1
