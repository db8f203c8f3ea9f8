"""The proof that samples do not meet, held to what running the models shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from batch_cases import B, Case, case, opened
from batch_families import FAMILIES
from graphs import of_nodes
from onnx import helper

from engine.layouts.batch import Proof, prove

Array = np.ndarray[Any, Any]
BATCH = 6


def parts(case: Case, feeds: Mapping[str, Array], cuts: tuple[int, ...]) -> list[dict[str, Array]]:
    """Cut inputs along the batch."""
    made = []
    for start, end in zip((0, *cuts), (*cuts, BATCH), strict=True):
        part = {}
        for name, array in feeds.items():
            axis = case.axes()[name]
            index = (slice(None),) * (axis or 0) + (slice(start, end),)
            part[name] = array if axis is None else array[index]
        made.append(part)
    return made


def difference(case: Case, proof: Proof, seed: int) -> str:
    """Return how results of parts differ from those of the whole, "" for not at all."""
    chance = np.random.default_rng(seed)
    try:
        run = opened(case.model)
    except Exception:  # no model: sizes or types that do not go together
        return ""
    for kind in range(3):
        feeds = case.values(BATCH, chance, kind)
        try:
            whole = run(feeds)
        except Exception:  # not a value for it
            continue
        for cuts in (tuple(range(1, BATCH)), (2, 3)):
            results = [run(part) for part in parts(case, feeds, cuts)]
            for place, output in enumerate(case.model.graph.output):
                axis = proof.outputs[output.name].axis
                own = [result[place] for result in results]
                if axis is None:
                    same = all(np.array_equal(part, whole[place], equal_nan=True) for part in own)
                else:
                    joined = np.concatenate(own, axis)
                    same = joined.shape == whole[place].shape and np.allclose(
                        joined, whole[place], rtol=1e-4, atol=1e-4, equal_nan=True
                    )
                if not same:
                    return f"{case.name}: output {output.name} of {feeds}"
    return ""


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_sample_changes_the_results_of_others_where_that_is_proven(family: str) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnx's evaluator is not always exact")
    if family in ("indexing", "recurrent") and runtime.__version__.startswith("1.23."):
        pytest.skip("for lengths of 0 kernels of onnxruntime 1.23 leave what they give unset")
    wrong = []
    for number, one in enumerate(FAMILIES[family]()):
        proof = prove(one.model, one.axes())
        if not proof.reason:
            wrong.append(difference(one, proof, number))
    assert not [found for found in wrong if found]


@pytest.mark.parametrize(
    ("name", "proven"),
    [("call-11-1-0", True), ("call-11-0-0", False), ("call-11-1-2", False),
     ("call-13-1-2", True), ("call-13-1-1", False), ("call-13-2-2", False)],
)  # fmt: skip
def test_a_body_in_a_function_is_read_by_the_functions_operator_set(
    name: str, proven: bool
) -> None:
    [found] = [one for one in FAMILIES["calls"]() if one.name == name]
    assert (not prove(found.model, found.axes()).reason) == proven


def test_a_graph_of_thousands_of_nodes_and_doubling_sizes_is_followed_at_once() -> None:
    # Each step doubles the polynomial of a size; a rule that did not stop would not end.
    nodes = [helper.make_node("Shape", ["x"], ["s0"], start=1, end=2)]
    for step in range(2000):
        nodes.append(helper.make_node("Mul", [f"s{step}", f"s{step}"], [f"m{step}"]))
        nodes.append(helper.make_node("Add", [f"m{step}", f"s{step}"], [f"s{step + 1}"]))
    nodes.append(helper.make_node("Expand", ["x", "s2000"], ["y"], "wide"))
    inputs = {"x": (B, "n")}
    found = case("doubling", nodes, inputs, opset=17)
    assert prove(found.model, {"x": 0}).reason.startswith("Expand 'wide'")


def test_a_rule_that_meets_a_wrong_node_proves_nothing() -> None:
    for wrong in (
        helper.make_node("Conv", ["x", "x"], ["y"], "odd", strides=[0]),
        helper.make_node("Split", ["x"], ["y"], "odd"),
        helper.make_node("Einsum", ["x"], ["y"], "odd", equation="a,b->c"),
        helper.make_node("TopK", ["x"], ["y"], "odd"),
        helper.make_node("Gemm", ["x"], ["y"], "odd"),
    ):
        model = of_nodes([wrong], {"x": ["b", 2, 3]}, {"y": None})
        reason = prove(model, {"x": 0}).reason
        assert wrong.op_type == "Split" or f"{wrong.op_type} 'odd'" in reason
