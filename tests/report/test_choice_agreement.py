"""Target auto: which results agree with the default's, and which errors are allowed."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from choices import WRONG, Install, Speeds, build, evidence_of, saved, trials_of, where

from engine.formats import ModelFile
from engine.report.choice.errors import beyond, error_of
from engine.report.choice.exact import in_float64
from engine_testing import models

WRONG_IN_PART = """
import numpy as np
@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    inputs = [{inputs} for x in inputs]
    return [{outputs} for y in context.run(inputs, outputs, deadline_s)]
"""
TWICE = "(float[b, 3] x) => (float[b, 3] y) {y = Add(x, x)}"
SMALL = "(float[b, 3] x) => (float[b, 3] y) {c = Constant<value = float {1e-7}>() y = Mul(x, c)}"
WHOLE = "(int64[b, 3] x) => (int64[b, 3] y) {y = Mul(x, x)}"


@pytest.mark.parametrize(
    ("graph", "inputs", "outputs"),
    [
        (TWICE, "np.abs(x)", "y"),
        (TWICE, "x", "np.concatenate([y[:1], 0 * y[1:]])"),
        (WHOLE, "(x > 0).astype(x.dtype)", "y"),
        (SMALL, "x", "0 * y"),
    ],
    ids=["below 0", "beyond the first row", "integers above 1", "small results"],
)
def test_a_backend_that_is_wrong_in_part_is_not_chosen(
    speeds: Speeds, install: Install, tmp_path: Path, graph: str, inputs: str, outputs: str
) -> None:
    install("wrong", extra=WRONG_IN_PART.format(inputs=inputs, outputs=outputs))
    speeds.of["wrong"] = [0.1]
    assert where(build(saved(tmp_path, graph))) == "base"
    assert "its results differ" in trials_of(tmp_path)["wrong,base"].why_not


ROUNDING = """
import numpy as np
asked = []
@hookimpl
def engine_compile(loaded, options):
    executable = loaded.compile(options)
    really, arithmetic = executable.open_context, options.arithmetic
    asked.append(str(arithmetic))
    def open_context():
        context = really()
        run = context.run
        def rounded(inputs, *more):
            results = run(inputs, *more)
            if arithmetic == "bfloat16":  # all but 8 of 24 bits
                return [(r.view(np.uint32) & 0xFFFF0000).view(np.float32) for r in results]
            return results
        context.run = rounded
        return context
    executable.open_context = open_context
    return executable
"""


def allowing(error: object) -> dict[str, Any]:
    return {"common_context": {"auto_budget_s": "1000", "max_error": str(error)}}


def test_less_precise_arithmetic_is_chosen_where_its_error_is_allowed(
    speeds: Speeds, install: Install, path: Path, tmp_path: Path
) -> None:
    install("rounding", extra=ROUNDING)
    speeds.of["rounding"] = [0.9, 0.5]
    model = build(path, config=allowing(0.01))
    assert "rounding,base arithmetic=bfloat16 takes 0.50 of" in model.placement[0].reason
    trials = trials_of(tmp_path)
    own = trials["rounding,base"].error
    assert own is not None
    assert 0 < own < 2**-24, "of float32, against float64"
    error = trials["rounding,base arithmetic=bfloat16"].error
    assert error is not None
    assert 2**-12 < error < 2**-7, "cut off below the 8th bit"
    same = trials["rounding,base arithmetic=float16"]
    assert (same.error, same.why_not) == (own, "it changes nothing of this model")
    x = np.float32([[1.2345678, 0, 0]])
    assert np.max(np.abs(model(x=x)["y"] - (2 * x + 1))) > 1e-4


def test_less_precise_arithmetic_is_refused_where_its_error_is_larger(
    speeds: Speeds, install: Install, path: Path, tmp_path: Path
) -> None:
    install("rounding", extra=ROUNDING)
    speeds.of["rounding"] = [0.9, 0.1]
    model = build(path, config=allowing(1e-4))
    assert "rounding,base takes 0.90 of" in model.placement[0].reason
    why_not = trials_of(tmp_path)["rounding,base arithmetic=bfloat16"].why_not
    assert re.fullmatch(r"its error is 0\.00\d+, above 0\.0001", why_not)


def test_less_precise_arithmetic_is_not_tried_unless_an_error_is_allowed(
    speeds: Speeds, install: Install, path: Path, tmp_path: Path
) -> None:
    module = install("rounding", extra=ROUNDING)
    speeds.of["rounding"] = [0.5]
    build(path)
    assert set(module.asked) == {"None"}
    build(path, config={**allowing(0.01), "rounding_context": {"arithmetic": "exact"}})
    assert set(module.asked) == {"None", "exact"}


def test_results_beyond_the_usual_tolerances_are_within_an_error_that_is_allowed(
    speeds: Speeds, install: Install, path: Path, tmp_path: Path
) -> None:
    off = WRONG.replace("result + 1", "result * np.float32(1.005)")
    install("off", extra="import numpy as np\n" + off)
    speeds.of["off"] = [0.5]
    assert where(build(path)) == "base"
    assert where(build(path, config=allowing(0.01))) == "off"
    assert where(build(path, config=allowing(0.001))) == "base"


def test_integers_that_a_model_refuses_are_not_tried(speeds: Speeds, tmp_path: Path) -> None:
    table = "t = Constant<value = float[2] {3.0, 4.0}>()"
    graph = f"(int64[b, 3] x) => (float[b, 3] y) {{{table} y = Gather(t, x)}}"
    speeds.of["other"] = [0.5]
    assert where(build(saved(tmp_path, graph))) == "other"


NINE = "c = Constant<value = float {9.0}>()"  # above all inputs that are tried


@pytest.mark.parametrize(
    "graph",
    [
        f"(float[b, 3] x) => (float[b, 3] y) {{{NINE} d = Sub(x, c) y = Log(d)}}",
        f"(float[b] x) => (float[k] y) {{{NINE} d = Greater(x, c) y = Compress(x, d)}}",
    ],
    ids=["NaN", "empty"],
)
def test_results_without_a_number_do_not_show_that_a_backend_agrees(
    speeds: Speeds, install: Install, tmp_path: Path, graph: str
) -> None:
    install("wrong", extra=WRONG)
    speeds.of["wrong"] = [0.1]
    assert where(build(saved(tmp_path, graph))) == "base"
    assert "output 'y' has no number there" in trials_of(tmp_path)["base"].why_not
    assert speeds.compared == []


def test_sizes_are_tried_until_results_have_numbers(speeds: Speeds, tmp_path: Path) -> None:
    """The first 100 numbers are cut off, which is all of 64."""
    ends = "s = Constant<value = int64[1] {100}>() e = Constant<value = int64[1] {99999}>()"
    axis = "a = Constant<value = int64[1] {1}>()"
    graph = f"(float[1, t] x) => (float[1, u] y) {{{ends} {axis} y = Slice(x, s, e, a)}}"
    speeds.of["other"] = [0.5]
    assert where(build(saved(tmp_path, graph))) == "other"
    assert evidence_of(tmp_path).inputs == {"x": [1, 128]}


A = np.float32([3, 4])
NAN, INFINITE = np.float32([np.nan, 4]), np.float32([np.inf, 4])


@pytest.mark.parametrize(
    ("own", "expected", "error"),
    [
        (np.float32([3, 4.5]), A, 0.1),  # 0.5 of a norm of 5
        (A, A, 0.0),
        (np.zeros(2, np.float32), np.zeros(2, np.float32), 0.0),
        (A, np.zeros(2, np.float32), math.inf),
        (np.float64([3e180, 4.5e180]), np.float64([3e180, 4e180]), 0.1),
        (np.float64([3e-180, 4.5e-180]), np.float64([3e-180, 4e-180]), 0.1),
        (np.float64([1e308, -1e308]), np.float64([-1e308, 1e308]), math.inf),
        (A.astype(np.float16), A, math.inf),
        (A[None], A, math.inf),
        (NAN, A, math.inf),
        (NAN, NAN, 0.0),
        (INFINITE, -INFINITE, math.inf),
        (INFINITE, INFINITE, 0.0),
        (np.int64([1, 2]), np.int64([1, 2]), 0.0),
        (np.int64([1, 2]), np.int64([1, 3]), math.inf),
        (np.array(["a"], object), np.array(["a"], object), 0.0),
        (np.array(["a"], object), np.array(["b"], object), math.inf),
    ],
)
def test_an_error_is_the_norm_of_the_difference_over_the_norm(
    own: Any, expected: Any, error: float
) -> None:
    exact = {"y": np.float64([0.0, 0.0])}
    other = {"y": A, "z": own}
    assert error_of({"z": own}, {"z": expected}, None) == pytest.approx(error)
    assert error_of(other, {"y": A, "z": expected}, None) == pytest.approx(error)
    assert error_of({"y": A}, {"z": A}, None) == math.inf
    assert error_of({"y": A}, {"y": A}, exact) == math.inf, "against float64 where it is there"
    assert error_of({"y": A}, {"y": A}, {"y": np.float64([3, 5])}) == pytest.approx(34**-0.5)


@pytest.mark.parametrize(
    ("error", "limit", "text"),
    [
        (0.25, 0.01, "its error is 0.25, above 0.01"),
        (0.010004, 0.01, "its error is 0.010004, above 0.01"),
        (math.nextafter(0.01, 1), 0.01, "its error is 0.010000000000000002, above 0.01"),
        (math.inf, 0.01, "its error is inf, above 0.01"),
    ],
)
def test_an_error_beyond_the_limit_is_said_with_enough_digits_to_differ(
    error: float, limit: float, text: str
) -> None:
    assert beyond(error, limit) == text


def test_exact_outputs_are_those_of_float64(tmp_path: Path) -> None:
    source = ModelFile(models.affine(tmp_path))()
    x = np.float32([[0.1, 1e8, 3]])
    found = in_float64(source, [[x]], 60.0)
    assert found is not None
    [outputs] = found
    np.testing.assert_array_equal(outputs["y"], 2 * x.astype(np.float64) + 1)
    assert outputs["y"].dtype == np.float64
    assert in_float64(source, [[x]], -1.0) is None, "there is no time for it"
