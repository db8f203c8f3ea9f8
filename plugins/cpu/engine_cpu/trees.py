"""Tree ensembles, checked before ONNX Runtime sees them: their attributes are a program.

The links between the nodes are followed without bounds, while the model loads (one call in another,
so that deep trees end the process) and in every predict (so that a circle never ends). Which of the
ids are checked differs from version to version. A large forest is tens of megabytes of attributes,
hence numpy, on the bytes as they are in the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.types import NodeInfo
from engine_cpu.lists import Damaged, Ids, Lists

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPERATORS = frozenset({"TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"})
MAX_DEPTH = 5000
"""Of a tree. ONNX Runtime 1.31 ends the process from 16,000 on, with the stack of a main thread."""

_INT32 = 2**31 - 1
_NONE = -1


def check(node: NodeInfo, part: memoryview) -> None:
    """Raise Damaged for an ensemble that leads nowhere or in a circle. part: the node's bytes."""
    lists = Lists(part)
    if node.op_type == "TreeEnsemble":
        _check_leaves_apart(node, lists)
    else:
        _check_leaves_among_nodes(node, lists)


def _check_leaves_among_nodes(node: NodeInfo, lists: Lists) -> None:
    """Check a classifier or regressor, whose nodes are told by the ids of a tree and in it."""
    trees, nodes = lists.integers("nodes_treeids"), lists.integers("nodes_nodeids")
    count = len(nodes)
    is_branch = lists.modes() != len("LEAF")
    features = lists.integers("nodes_featureids")
    links = {name: lists.integers(name) for name in ("nodes_truenodeids", "nodes_falsenodeids")}
    _same_length(nodes_treeids=trees, nodes_nodeids=nodes, nodes_modes=is_branch,
                 nodes_featureids=features, **links)  # fmt: skip
    _within("nodes_featureids", features[is_branch], _INT32)
    _within("nodes_nodeids", nodes, count - 1)
    numbers, tree = np.unique(trees, return_inverse=True)
    keys = tree * np.int64(count) + nodes
    order = np.argsort(keys, kind="stable")
    in_order = keys[order]
    if count > 1 and (same := in_order[1:] == in_order[:-1]).any():
        at = order[int(same.argmax())]
        raise Damaged(f"it has node {nodes[at]} of tree {trees[at]} twice")

    def places(name: str, tree: Ids, ids: Ids) -> Ids:
        """Return the indices of nodes that are told by a tree's index and an id in it."""
        _within(name, ids, count - 1)
        wanted = tree * np.int64(count) + ids
        found = np.minimum(np.searchsorted(in_order, wanted), count - 1)
        if (wrong := in_order[found] != wanted).any():
            at = int(wrong.argmax())
            raise Damaged(f"{name!r} has node {ids[at]}, which its tree has not")
        return order[found]

    branches = np.flatnonzero(is_branch)
    for name in ("nodes_truenodeids", "nodes_falsenodeids"):
        links[name][branches] = places(name, tree[branches], links[name][branches])
        links[name][~is_branch] = _NONE
    _check_depth(list(links.values()))

    of = "class" if node.op_type == "TreeEnsembleClassifier" else "target"
    names = [f"{of}_{what}" for what in ("treeids", "nodeids", "ids")]
    of_trees, of_nodes, ids = map(lists.integers, names)
    _same_length(**dict(zip(names, (of_trees, of_nodes, ids), strict=True)))
    if not count:
        return
    which = np.minimum(np.searchsorted(numbers, of_trees), len(numbers) - 1)
    if (wrong := numbers[which] != of_trees).any():
        raise Damaged(f"{names[0]!r} has {of_trees[wrong][0]}, which is no tree")
    places(names[1], which.astype(np.int64), of_nodes)
    _within(names[2], ids, _targets(node) - 1)


def _targets(node: NodeInfo) -> int:
    """Return how many values an ensemble gives, as far as that is known."""
    if node.op_type != "TreeEnsembleClassifier":
        count = node.attributes.get("n_targets", 1)
        return count if isinstance(count, int) else 1
    given = [node.attributes.get(f"classlabels_{kind}", ()) for kind in ("int64s", "strings")]
    counts = [len(labels) if isinstance(labels, tuple) else _INT32 for labels in given]
    return max(*counts, 1)  # None is a long list


def _check_leaves_apart(node: NodeInfo, lists: Lists) -> None:
    """Check a TreeEnsemble, whose nodes and leaves are in two lists and told by their places."""
    features, roots = lists.integers("nodes_featureids"), lists.integers("tree_roots")
    count, leaves = len(features), lists.integers("leaf_targetids")
    given = {name: lists.integers(f"nodes_{name}") for name in (
        "truenodeids", "falsenodeids", "trueleafs", "falseleafs")}  # fmt: skip
    _same_length(nodes_featureids=features, **{f"nodes_{n}": ids for n, ids in given.items()})
    _within("nodes_featureids", features, _INT32)
    _within("tree_roots", roots, count - 1)
    _within("leaf_targetids", leaves, _targets(node) - 1)
    links = []
    for side in ("true", "false"):
        name, ids, is_leaf = f"nodes_{side}nodeids", given[f"{side}nodeids"], given[f"{side}leafs"]
        _within(f"nodes_{side}leafs", is_leaf, 1)
        _within(name, ids[is_leaf == 1], len(leaves) - 1)
        _within(name, ids[is_leaf == 0], count - 1)
        links.append(np.where(is_leaf == 0, ids, _NONE))
    parents = _parents(links)
    # Each way to a node becomes a node of its own in ONNX Runtime: there may be 2 ** count.
    if parents.max(initial=0) > 1:
        raise Damaged(f"two of its nodes lead to node {int(parents.argmax())}")
    _check_depth(links)


def _check_depth(links: Sequence[Ids]) -> None:
    """Raise Damaged for nodes that lead in a circle, or for deeper trees than MAX_DEPTH.

    links: where each node leads to, on either side; _NONE for a leaf.
    """
    parents = _parents(links)
    seen, level = 0, np.flatnonzero(parents == 0)
    last = np.empty_like(parents)  # where a node is in `reached` last: np.unique is slower
    for _ in range(MAX_DEPTH):
        if not len(level):
            break
        seen += len(level)
        reached = np.concatenate([side[level] for side in links])
        reached = reached[reached != _NONE]
        np.subtract.at(parents, reached, 1)
        reached = reached[parents[reached] == 0]
        places = np.arange(len(reached))
        last[reached] = places
        level = reached[last[reached] == places]
    if seen < len(parents):
        raise Damaged(f"its nodes lead in a circle, or deeper than {MAX_DEPTH}")


def _parents(links: Sequence[Ids]) -> Ids:
    """Count the links to each node."""
    counts = [np.bincount(side[side != _NONE], minlength=len(side)) for side in links]
    return np.add(*counts, dtype=np.int64)


def _same_length(**lists: NDArray[np.generic]) -> None:
    lengths: Mapping[str, int] = {name: len(values) for name, values in lists.items()}
    if len({*lengths.values()}) > 1:
        text = ", ".join(f"{name!r} {length}" for name, length in lengths.items())
        raise Damaged(f"its lists are to be of one length, but are of several: {text}")


def _within(name: str, values: Ids, last: int) -> None:
    wrong = (values < 0) | (values > last)
    if wrong.any():
        expected = f"0..{last}" if last >= 0 else "none"
        raise Damaged(f"attribute {name!r} has {values[wrong][0]}, expected {expected}")
