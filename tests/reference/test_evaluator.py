"""Differences of the null and reference backends' evaluator from onnx's own."""

from __future__ import annotations

import contextvars
import sys
import time
from typing import Any

import numpy as np
import onnx.parser
import pytest

import engine
from engine.reference import evaluator

X = np.array([[0, 1, 2], [3, 4, 5]], np.float32)


LOOP = """<ir_version: 8, opset_import: ["": 17]>
loop (float[2,3] x, int64 rounds, bool c) => (float[2,3] y, float[rounds{shape}] scans) {{
    y, scans = Loop <body = body (int64 index, bool goes_on, float[2,3] state)
        => (bool went_on, float[2,3] doubled, float{scan} scan) {{
        doubled = Add(state, state)
        scan = {operator}(state)
        went_on = Identity(goes_on)
    }}> (rounds, c, x)
}}"""


def loop(condition: str, scanned: str) -> onnx.ModelProto:
    """A loop that doubles x in each round; its scan output is what `scanned` makes of the state."""
    model = onnx.parser.parse_model(
        LOOP.format(shape="", scan="", operator="ReduceMax <keepdims = 0>")
        if scanned == "ReduceMax"
        else LOOP.format(shape=",2,3", scan="[2,3]", operator=scanned)
    )
    if not condition:
        model.graph.node[0].input[1] = ""
        del model.graph.input[2]
    return model


@pytest.mark.parametrize("condition", ["", "c"])
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_loop_stacks_what_its_rounds_give_with_and_without_a_condition(
    null_backend: str, condition: str, rounds: int
) -> None:
    given = {"x": X, "rounds": np.array(rounds), **({"c": np.array(True)} if condition else {})}
    states = [X * 2**each for each in range(rounds)]

    model = engine.load(loop(condition, "Identity"), target=null_backend)
    found = model(given)
    np.testing.assert_array_equal(found["y"], X * 2**rounds)
    np.testing.assert_array_equal(found["scans"], np.array(states).reshape(rounds, 2, 3))

    model = engine.load(loop(condition, "ReduceMax"), target=null_backend)
    expected = np.array([5 * 2**each for each in range(rounds)], np.float32)
    np.testing.assert_array_equal(model(given)["scans"], expected)
    assert model(given)["scans"].shape == (rounds,)


def test_a_condition_that_is_false_runs_no_round(null_backend: str) -> None:
    model = engine.load(loop("c", "Identity"), target=null_backend)
    found = model({"x": X, "rounds": np.array(3), "c": np.array(False)})
    np.testing.assert_array_equal(found["y"], X)
    assert found["scans"].shape == (0, 2, 3)


LEAKS = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
leaks (float[2,3] x) => (float[2,3] y) {
    once = own.Leak <slope = 0.5> (x)
    y = own.Leak <slope = 0.25> (once)
}
<domain: "own", opset_import: ["": 17]>
Leak <slope> (a) => (b) { b = LeakyRelu <alpha: float = @slope> (a) }"""


def test_each_call_of_a_function_has_its_own_attributes(null_backend: str) -> None:
    model = engine.load(onnx.parser.parse_model(LEAKS), target=null_backend)
    np.testing.assert_array_equal(model(-X)["y"], -X * 0.125)


@pytest.mark.parametrize("opset", [10, 13, 17, 18, 19, 21])
def test_quantized_values_are_dequantized_in_every_operator_set(
    opset: int, null_backend: str
) -> None:
    text = f"""<ir_version: 8, opset_import: ["": {opset}]>
        made (float[2,3] x) => (float[2,3] y) <float scale = {{0.5}}, uint8 zero = {{3}}> {{
            q = QuantizeLinear(x, scale, zero)
            y = DequantizeLinear(q, scale, zero)
        }}"""
    model = engine.load(onnx.parser.parse_model(text), target=null_backend)
    np.testing.assert_array_equal(model(x=X * 0.5 + 0.1)["y"], X * 0.5)


def test_an_operator_set_that_onnx_does_not_know_is_refused(null_backend: str) -> None:
    text = '<ir_version: 8, opset_import: ["": 99]> g (float[2] x) => (float[2] y) {y = Neg(x)}'
    with pytest.raises(engine.ModelError, match="operator set 99 is newer than what onnx"):
        engine.load(onnx.parser.parse_model(text), target=null_backend)


ADD = """<ir_version: 8, opset_import: ["": 17]>
add (float[2,3] x) => (float[2,3] y) { y = Add(x, x) }"""


def test_a_predict_that_was_interrupted_as_it_began_stops_nothing_later(null_backend: str) -> None:
    proto = onnx.parser.parse_model(ADD)
    model = engine.load(proto, target=null_backend)
    model.predict({"x": X})

    def interrupt(frame: Any, event: str, argument: Any) -> None:
        if event == "c_return" and getattr(argument, "__self__", None) is evaluator._running:
            raise KeyboardInterrupt  # as a signal handler would, once the variable is set

    def later() -> Any:
        sys.setprofile(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                model.predict({"x": X}, timeout_s=0.05)
        finally:
            sys.setprofile(None)
        time.sleep(0.06)
        return evaluator.Evaluator(proto).run(None, {"x": X})

    [found] = contextvars.copy_context().run(later)
    np.testing.assert_array_equal(found, 2 * X)
