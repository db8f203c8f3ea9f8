"""A TreeEnsemble as ONNX Runtime before 1.24 computes it right: see known_issues.py.

That takes nodes for others, or aborts, where a node stands behind one that it leads to, where
leaves are shared or not in order, and from the second tree on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from engine_cpu.prepare.kind import Kind

_SIDES = ("true", "false")
_OF_NODES = (
    "nodes_featureids", "nodes_modes", "nodes_splits", "nodes_hitrates",
    "nodes_missing_value_tracks_true",
)  # fmt: skip
_OF_LEAVES = ("leaf_targetids", "leaf_weights")
_MEMBER = 6  # BRANCH_MEMBER: these have sets of values, in the order of the nodes
_SUM, _NONE = 1, 0  # aggregate_function and post_transform, which are these by default
_MOST_TREES = 1000


def ordered(kind: Kind) -> list[NodeProto] | None:
    """Make each tree a node of its own, in the order of depth and with leaves of its own.

    None for trees that are not summed up, and for nodes that test for a set of values.
    """
    node = kind.node
    given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    roots = given["tree_roots"]
    if kind.known_issue is None or _MEMBER in numpy_helper.to_array(given["nodes_modes"]):
        return None
    is_sum = given.get("aggregate_function", _SUM) == _SUM
    if len(roots) > 1 and not (is_sum and given.get("post_transform", _NONE) == _NONE):
        return None
    trees = [_tree(given, root) for root in roots[:_MOST_TREES]]
    if not trees or len(trees) < len(roots):
        return None
    if len(trees) == 1:
        return [helper.make_node(node.op_type, ["x0"], ["y0"], domain=node.domain, **trees[0])]
    made = [
        helper.make_node(node.op_type, ["x0"], [f"tree_{i}"], domain=node.domain, **tree)
        for i, tree in enumerate(trees)
    ]
    return [*made, helper.make_node("Sum", [tree.output[0] for tree in made], ["y0"])]


def _tree(given: dict[str, Any], root: int) -> dict[str, Any]:
    """Return the attributes of an ensemble of one of the trees."""
    nodes, leaves = [root], list[int]()
    ids: dict[str, list[int]] = {side: [] for side in _SIDES}
    are_leaves: dict[str, list[int]] = {side: [] for side in _SIDES}
    for index in nodes:  # which grows: trees.py has seen that it ends
        for side in _SIDES:
            is_leaf = given[f"nodes_{side}leafs"][index]
            found = leaves if is_leaf else nodes
            ids[side].append(len(found))
            are_leaves[side].append(is_leaf)
            found.append(given[f"nodes_{side}nodeids"][index])
    values = {**given, "tree_roots": [0]}
    for side in _SIDES:
        values |= {f"nodes_{side}nodeids": ids[side], f"nodes_{side}leafs": are_leaves[side]}
    for names, order in ((_OF_NODES, nodes), (_OF_LEAVES, leaves)):
        values |= {name: _taken(given[name], order) for name in names if name in given}
    return values


def _taken(values: Any, order: list[int]) -> Any:
    """Return the elements of a list or tensor at these places."""
    if isinstance(values, list):
        return [values[index] for index in order]
    return numpy_helper.from_array(np.take(numpy_helper.to_array(values), order))
