"""Operators of ai.onnx.ml: each row of a table is a sample."""

from __future__ import annotations

from engine.layouts.batch.node import Node, only_data, require
from engine.layouts.batch.rules.shapes import moved
from engine.layouts.batch.sizes import Dim
from engine.layouts.batch.values import Value, divided, whole


def elements(node: Node) -> list[Value]:
    """Operators on each element or column by itself."""
    value = node.input(0)
    if node.op_type != "LabelEncoder":
        require(
            not value.is_divided or (value.rank == 2 and value.axis == 0), "not rows of a table"
        )
    return [moved(value, value.dims, value.axis)]


def rows(node: Node) -> list[Value]:
    """Operators that give one row, or two outputs, for each row."""
    value = node.input(0)
    only_data(node.given)
    if not value.is_divided:
        return [whole() for _ in range(node.count)]
    require(value.rank == 2 and value.axis == 0, "its input is no table with a row for each sample")
    first = value.dims[0]
    scores = divided(0, (first, node.symbols.new()))
    if node.op_type.endswith("Classifier"):
        return [divided(0, (first,)), scores][: node.count]
    return [scores]


def chosen(node: Node) -> list[Value]:
    """ArrayFeatureExtractor: columns of a table."""
    value, places = node.input(0), node.input(1)
    node.require_whole(1)
    if not value.is_divided:
        return [whole()]
    require(value.axis < value.rank - 1, "it chooses among the samples of a batch")
    size: Dim = node.symbols.new()
    if places.shape is not None and all(isinstance(dim, int) for dim in places.shape):
        size = 1
        for dim in places.shape:
            size = size * dim
    return [divided(value.axis, (*value.dims[:-1], size), value.dtype)]


def joined(node: Node) -> list[Value]:
    """FeatureVectorizer: columns of several tables beside each other."""
    if all(value.is_whole for value in node.given):
        return [whole()]
    require(
        all(value.is_divided and value.axis == 0 and value.rank == 2 for value in node.given)
        and len({value.size for value in node.given}) == 1,
        "its inputs are no tables with a row for each sample",
    )
    return [divided(0, (node.input(0).dims[0], node.symbols.new()))]


def one_hot(node: Node) -> list[Value]:
    """OneHotEncoder: a new last axis."""
    value = node.input(0)
    return [moved(value, (*value.dims, node.symbols.new()), value.axis)]
