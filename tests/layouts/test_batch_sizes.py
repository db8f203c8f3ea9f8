"""The sizes that the proof takes axes to have, held to those that running the models shows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from batch_cases import B, Case, case, opened
from onnx import helper

from engine.layouts.batch.rules import OF_ANY_KIND, RULES
from engine.layouts.batch.sizes import BATCH, Dim
from engine.layouts.batch.values import Value, divided
from engine.layouts.batch.walk import Walk

COUNT = 3


def windows() -> Iterator[Case]:
    """Pools and convolutions with all sorts of strides, paddings and gaps."""
    weights = {"w": np.ones((3, 2, 3), np.float32)}
    for op_type, padding, ceil, stride, dilation, size in product(
        ("MaxPool", "LpPool", "Conv"), ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"), (0, 1),
        (1, 2, 3), (1, 2), (6, 7),
    ):  # fmt: skip
        given = {"strides": [stride], "dilations": [dilation], "auto_pad": padding}
        if padding == "NOTSET":
            given["pads"] = [1, 1]
        if op_type != "Conv":
            given["ceil_mode"] = ceil
        inputs = ["x", "w"] if op_type == "Conv" else ["x"]
        one = helper.make_node(op_type, inputs, ["y"], kernel_shape=[3], **given)
        yield case(f"{op_type} {given} {size}", [one], {"x": (B, 2, size)}, weights)


def slices() -> Iterator[Case]:
    """Cuts that begin and end anywhere, forward and back."""
    ends = (-9, -4, -1, 0, 3, 9, 2**31 - 1, 2**63 - 1, -(2**63))
    one = helper.make_node("Slice", ["x", "start", "end", "axis", "step"], ["y"])
    for start, end, step in product((-9, -3, 0, 2, 9), ends, (1, 2, -1, -2)):
        numbers = {"start": [start], "end": [end], "axis": [1], "step": [step]}
        yield case(f"Slice {numbers}", [one], {"x": (B, 5)}, numbers)


def resizes() -> Iterator[Case]:
    """Scales whose products are next to integers."""
    one = helper.make_node("Resize", ["x", "", "s"], ["y"])
    for scale, size in product((0.15789473, 0.3, 0.7, 1.3, 2.3), (3, 7, 10, 19)):
        scales = {"s": np.array([1, scale], np.float32)}
        yield case(f"Resize {size} {scale}", [one], {"x": (B, size)}, scales)


def claimed(found: Case) -> Value:
    """Return what is known of a model's output."""
    walk = Walk.of(found.model, RULES, OF_ANY_KIND)
    [(name, (dtype, shape))] = found.inputs.items()
    sizes: tuple[Dim, ...] = tuple(BATCH if size == B else size for size in shape)
    scope = {name: divided(0, sizes, dtype)}
    walk.graph(found.model.graph, scope)  # type: ignore[arg-type]
    return scope["y"]


@pytest.mark.parametrize("family", [windows, slices, resizes])
def test_axes_have_the_sizes_that_the_proof_takes_them_to_have(family: object) -> None:
    pytest.importorskip("onnxruntime")
    compared = 0
    for found in family():  # type: ignore[operator]
        try:
            [result] = opened(found.model)(found.values(COUNT, np.random.default_rng(0), 0))
        except Exception:  # no model: options that do not go together
            continue
        shape = claimed(found).dims
        assert len(shape) == result.ndim
        for size, real in zip(shape[1:], result.shape[1:], strict=True):
            assert not isinstance(size, int) or size == real, found.name
            compared += isinstance(size, int)
    assert compared > 15
