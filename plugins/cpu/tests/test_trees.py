"""Tree ensembles that lead nowhere, in a circle or too deep are refused before ONNX Runtime.

Without the check some of these end the process, and some never come back from predict.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import AttributeProto, NodeProto, helper, numpy_helper

from engine import Model
from engine.errors import ModelError
from engine.types import NodeInfo
from engine_cpu import trees
from engine_cpu.lists import Damaged, Lists

Build = Callable[..., Model]


def regressor(branches: int, **changes: Any) -> NodeProto:
    """A chain of branches on x <= 0.5: each leads to a leaf of 2, the last else to one of 1."""
    ids = range(branches + 2)
    attributes: dict[str, Any] = {
        "nodes_treeids": [0] * len(ids), "nodes_nodeids": [*ids],
        "nodes_featureids": [0] * len(ids), "nodes_values": [0.5] * len(ids),
        "nodes_modes": ["BRANCH_LEQ"] * branches + ["LEAF"] * 2,
        "nodes_truenodeids": [branches + 1] * branches + [0, 0],
        "nodes_falsenodeids": [*range(1, branches + 1), 0, 0],
        "target_treeids": [0, 0], "target_nodeids": [branches, branches + 1],
        "target_ids": [0, 0], "target_weights": [1.0, 2.0], "n_targets": 1,
    }  # fmt: skip
    attributes.update(changes)
    return helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **attributes
    )


def ensemble(branches: int, **changes: Any) -> NodeProto:
    """The same as a TreeEnsemble."""
    floats = numpy_helper.from_array
    attributes: dict[str, Any] = {
        "n_targets": 1, "tree_roots": [0], "nodes_featureids": [0] * branches,
        "nodes_modes": floats(np.zeros(branches, np.uint8)),
        "nodes_splits": floats(np.full(branches, 0.5, np.float32)),
        "nodes_truenodeids": [1] * branches, "nodes_trueleafs": [1] * branches,
        "nodes_falsenodeids": [*range(1, branches), 0],
        "nodes_falseleafs": [0] * (branches - 1) + [1],
        "leaf_targetids": [0, 0], "leaf_weights": floats(np.float32([1, 2])),
    }  # fmt: skip
    attributes.update(changes)
    return helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", **attributes)


def check(node: NodeProto) -> None:
    info = NodeInfo(0, "", node.op_type, node.domain, (), (), {"n_targets": 1})
    trees.check(info, memoryview(node.SerializeToString()))


@pytest.mark.parametrize(("make", "opset"), [(regressor, 3), (ensemble, 5)])
def test_sound_trees_of_some_depth_are_run(build: Build, make: Any, opset: int) -> None:
    model = build(
        [make(4000)], ["x:float[n,1]"], ["y:float[n,1]"], 20, opsets={"ai.onnx.ml": opset}
    )
    assert model(x=np.float32([[0], [1]]))["y"].tolist() == [[2], [1]]


BRANCHES = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)


class Forest:
    """Trees on x[0] and x[1], their nodes and leaves in any order, with leaves in common."""

    def __init__(self, draw: random.Random, trees: int) -> None:
        self.weights = [float(2**i) for i in range(6)]
        count, self.roots = 0, list[int]()
        links: dict[tuple[int, int], int] = {}
        for _ in range(trees):
            self.roots.append(count)
            free = [(count, 0), (count, 1)]
            count += 1
            for _ in range(draw.randint(0, 5)):
                links[free.pop(draw.randrange(len(free)))] = count
                free += [(count, 0), (count, 1)]
                count += 1
        place = draw.sample(range(count), count)
        self.roots = [place[root] for root in self.roots]
        self.links = [[draw.randrange(6), draw.randrange(6)] for _ in range(count)]
        self.are_leaves = [[1, 1] for _ in range(count)]
        for (index, side), to in links.items():
            self.links[place[index]][side] = place[to]
            self.are_leaves[place[index]][side] = 0
        self.features = [draw.randrange(2) for _ in range(count)]
        self.modes = [draw.randrange(6) for _ in range(count)]
        self.splits = [draw.choice((0.0, 1.0, 2.0)) for _ in range(count)]

    def node(self) -> NodeProto:
        floats = numpy_helper.from_array
        columns = {f"nodes_{side}{what}": [pair[i] for pair in pairs]
                   for what, pairs in (("nodeids", self.links), ("leafs", self.are_leaves))
                   for i, side in enumerate(("true", "false"))}  # fmt: skip
        return ensemble(
            1, tree_roots=self.roots, nodes_featureids=self.features,
            nodes_modes=floats(np.uint8(self.modes)), nodes_splits=floats(np.float32(self.splits)),
            leaf_targetids=[0] * 6, leaf_weights=floats(np.float32(self.weights)), **columns,
        )  # fmt: skip

    def sum(self, x: Any) -> float:
        total = 0.0
        for index in self.roots:
            is_leaf = 0
            while not is_leaf:
                holds = BRANCHES[self.modes[index]](x[self.features[index]], self.splits[index])
                side = 0 if holds else 1
                index, is_leaf = self.links[index][side], self.are_leaves[index][side]
            total += self.weights[index]
        return total


@pytest.mark.parametrize("trees", [1, 3])
def test_nodes_and_leaves_may_be_in_any_order(build: Build, trees: int) -> None:
    draw = random.Random(trees)
    x = np.float32([[a, b] for a in range(-1, 4) for b in range(-1, 4)])
    for _ in range(20):
        forest = Forest(draw, trees)
        model = build([forest.node()], ["x:float[n,2]"], ["y:float[n,1]"], 20,
                      opsets={"ai.onnx.ml": 5})  # fmt: skip
        assert model(x=x)["y"].ravel().tolist() == [forest.sum(row) for row in x]
        assert {place.backend for place in model.placement} == {"cpu"}


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (regressor, {"nodes_truenodeids": [5, 5, 5, 1, 0, 0]}, "in a circle"),
        (regressor, {"nodes_falsenodeids": [1, 0, 3, 4, 0, 0]}, "in a circle"),
        (regressor, {"nodes_falsenodeids": [1, 2, 3, 9, 0, 0]}, "has 9, expected 0..5"),
        (regressor, {"nodes_treeids": [0, 0, 0, 0, 0, 1]}, "node 5, which its tree has not"),
        (regressor, {"nodes_nodeids": [0, 1, 2, 3, 4, 4]}, "node 4 of tree 0 twice"),
        (regressor, {"nodes_featureids": [0, 0, -3, 0, 0, 0]}, "has -3, expected 0.."),
        (regressor, {"nodes_featureids": [0]}, "of several: .*'nodes_featureids' 1"),
        (regressor, {"nodes_modes": ["LEAF"] * 5}, "of several: .*'nodes_modes' 5"),
        (regressor, {"nodes_modes": ["BRANCH_LEQ"] * 5 + ["?"]}, "not a plain list"),
        (regressor, {"target_ids": [0, 1]}, "'target_ids' has 1, expected 0..0"),
        (regressor, {"target_nodeids": [0, 6]}, "'target_nodeids' has 6, expected 0..5"),
        (regressor, {"target_treeids": [0, 2]}, "has 2, which is no tree"),
        (ensemble, {"nodes_falsenodeids": [1, 2, 0, 0]}, "in a circle"),
        (ensemble, {"nodes_falsenodeids": [1, 2, 4, 0]}, "has 4, expected 0..3"),
        (ensemble, {"nodes_truenodeids": [1, 1, 1, 2**40]}, "expected 0..1"),
        (ensemble, {"nodes_truenodeids": [1, 1, 3, 1], "nodes_trueleafs": [1, 1, 0, 1]},
         "two of its nodes lead to node 3"),
        (ensemble, {"nodes_trueleafs": [1, 1, 1]}, "of several: .*'nodes_trueleafs' 3"),
        (ensemble, {"nodes_featureids": [0, -1, 0, 0]}, "has -1, expected 0.."),
        (ensemble, {"tree_roots": [4]}, "'tree_roots' has 4, expected 0..3"),
        (ensemble, {"leaf_targetids": [0, -1]}, "'leaf_targetids' has -1, expected 0..0"),
    ],
)  # fmt: skip
def test_damaged_trees_are_refused_by_what_is_wrong(
    build: Build, make: Any, changes: dict[str, Any], message: str
) -> None:
    opset = 3 if make is regressor else 5
    with pytest.raises(ModelError, match=rf"node 0 \(TreeEnsemble\w*\): .*{message}"):
        build([make(4, **changes)], ["x:float[n,1]"], ["y:float[n,1]"], 20,
              opsets={"ai.onnx.ml": opset})  # fmt: skip


@pytest.mark.parametrize("make", [regressor, ensemble])
def test_trees_that_overflow_the_stack_are_refused(make: Any) -> None:
    check(make(trees.MAX_DEPTH - 1))
    with pytest.raises(Damaged, match="deeper than 5000"):
        check(make(20_000))


def test_lists_of_numbers_are_read_as_onnx_writes_them() -> None:
    draw = random.Random(3)
    for length in (0, 1, 2, 500):
        values = [
            draw.choice((0, 1, 127, 128, 2**31, 2**63 - 1, -1, -(2**63))) for _ in range(length)
        ]
        node = helper.make_node("N", [], [], name="@@J")
        node.attribute.add(name="nodes_ids", type=7, ints=values)
        lists = Lists(memoryview(node.SerializeToString()))
        assert lists.integers("nodes_ids").tolist() == values


def test_a_list_that_is_written_in_two_ways_is_refused() -> None:
    """Else what is checked could be another list than what is run."""
    plain = regressor(2).SerializeToString()
    key = b"\x0a\x0dnodes_nodeids"
    at = plain.index(key) + len(key)
    before = plain.rindex(b"\x2a", 0, at)  # the attribute: its key and its length
    packed = b"\x42\x01\x00"
    hostile = bytearray(plain[:at] + packed + plain[at:])
    hostile[before + 1] += len(packed)
    info = NodeInfo(0, "", "TreeEnsembleRegressor", "ai.onnx.ml", (), ())
    with pytest.raises(Damaged, match="'nodes_nodeids' is not a plain list"):
        trees.check(info, memoryview(bytes(hostile)))


def test_a_forest_that_is_an_attribute_of_a_function_is_refused() -> None:
    node = regressor(1)
    [ids] = [item for item in node.attribute if item.name == "nodes_nodeids"]
    ids.CopyFrom(AttributeProto(name=ids.name, type=ids.type, ref_attr_name="of_the_caller"))
    with pytest.raises(Damaged, match="'nodes_nodeids' is its function's; expected a value"):
        check(node)
