"""Models that ONNX Runtime's constant folding spoils are built without it, and only these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

from engine import Model, ModelError

Build = Callable[..., Model]
node = helper.make_node
SIZES = np.int64([3, 5])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("is_expanded", [False, True])
def test_constants_that_break_a_rule_for_shapes_alone_are_computed_in_predict(
    build: Build, axis: int, is_expanded: bool
) -> None:
    """Range of parts of a constant of sizes, as the functions of AffineGrid have it."""
    parts = ["a", "b"]
    nodes = [
        node("Split", ["sizes"], parts, axis=0),
        node("Range", ["zero", parts[axis], "one"], ["r"]),
        node("Cast", ["r"], ["f"], to=1),
        node("Add", ["x", "f"], ["y"]),
    ]
    if is_expanded:
        nodes[0] = node("Split", ["sizes", "ones"], parts, axis=0)
    constants = {"sizes": SIZES, "zero": np.int64(0), "one": np.int64(1), "ones": np.int64([1, 1])}
    model = build(nodes, ["x:float[1]"], ["y:float[]"], 17, constants)
    found = model(x=np.float32([2]))["y"]
    np.testing.assert_array_equal(found, np.arange(SIZES[axis], dtype=np.float32) + 2)
    assert {place.backend for place in model.placement} == {"cpu"}


def test_a_model_that_breaks_such_a_rule_as_it_is_stays_refused(build: Build) -> None:
    nodes = [node("Range", ["zero", "end", "one"], ["r"]), node("Cast", ["r"], ["y"], to=1)]
    constants = {"zero": np.int64(0), "end": np.int64([3, 5]), "one": np.int64(1)}
    with pytest.raises(ModelError, match=r"scalars"):
        build(nodes, ["x:float[1]"], ["y:float[]"], 17, constants)


def test_onnxruntime_itself_still_refuses_what_it_has_folded(build: Build, tmp_path: Any) -> None:
    """Where this fails, a newer one takes it: see whether session.py needs its remedy still."""
    nodes = [
        node("Split", ["sizes"], ["a", "b"], axis=0),
        node("Range", ["zero", "a", "one"], ["y"]),
    ]
    constants = {"sizes": SIZES, "zero": np.int64(0), "one": np.int64(1)}
    build(nodes, ["x:float[1]"], ["y:int64[]"], 17, constants)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    with pytest.raises(Exception, match="scalars"):
        ort.InferenceSession(str(tmp_path / "model.onnx"), options)
