"""Deep models of a few hundred nodes, and the same with one fault planted."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

WIDTH = 8
"""Every axis has this size, so that one axis in place of another is no mistake of shapes."""


def deep(count: int, seed: int) -> ModelProto:
    """Return a model of at least `count` nodes: blocks with skip connections, drawn by the seed.

    Its blocks are those of networks: normalised linear layers, attention, softmax and gates.
    """
    draw, numbers = Random(seed), np.random.default_rng(seed)
    nodes: list[NodeProto] = []
    weights: list[TensorProto] = []

    def weight(scale: float = 0.3, shape: tuple[int, ...] = (WIDTH, WIDTH)) -> str:
        name = f"w{len(weights)}"
        values = (scale * numbers.standard_normal(shape)).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    def made(op_type: str, *inputs: str, **attributes: object) -> str:
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(op_type, inputs, [name], f"n{len(nodes)}", **attributes))
        return name

    def normalised(x: str) -> str:
        ones, zeros = weight(1.0, (WIDTH,)), weight(0.1, (WIDTH,))
        return made("LayerNormalization", x, ones, zeros, axis=-1, epsilon=1e-5)

    def linear(x: str) -> str:
        return made("Add", made("MatMul", x, weight()), weight(0.1, (WIDTH,)))

    def attention(x: str) -> str:
        query, key, value = linear(x), linear(x), linear(x)
        scores = made("MatMul", query, made("Transpose", key, perm=[0, 2, 1]))
        return made("MatMul", made("Softmax", scores, axis=-1), value)

    def gated(x: str) -> str:
        return made("Mul", made("Sigmoid", linear(x)), made("Tanh", linear(x)))

    def convolved(x: str) -> str:
        return made("Elu", made("Transpose", linear(made("Transpose", x, perm=[0, 2, 1])),
                                perm=[0, 2, 1]), alpha=0.5)  # fmt: skip

    last = "x"
    while len(nodes) < count:
        block = draw.choice((linear, attention, gated, convolved))
        last = made("Add", last, block(normalised(last)))
    made("Identity", normalised(last))
    nodes[-1].output[0] = "y"
    shape = [2, WIDTH, WIDTH]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "deep", value[:1], value[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _epsilon(node: NodeProto) -> list[NodeProto]:
    _attribute(node, "epsilon").f = 0.3
    return [node]


def _axis(node: NodeProto) -> list[NodeProto]:
    _attribute(node, "axis").i = 1
    return [node]


def _perm(node: NodeProto) -> list[NodeProto]:
    _attribute(node, "perm").ints[:] = [0, 1, 2]
    return [node]


def _alpha(node: NodeProto) -> list[NodeProto]:
    _attribute(node, "alpha").f = 0.55
    return [node]


def _bfloat16(node: NodeProto) -> list[NodeProto]:
    """Round what the node makes to bfloat16, as a node in that type does."""
    output = node.output[0]
    node.output[0] = f"{output}/wide"
    rounded = helper.make_node(
        "Cast", [node.output[0]], [f"{output}/bf16"], to=TensorProto.BFLOAT16
    )
    back = helper.make_node("Cast", [f"{output}/bf16"], [output], to=TensorProto.FLOAT)
    return [node, rounded, back]


FAULTS: dict[str, tuple[str, Callable[[NodeProto], list[NodeProto]]]] = {
    "epsilon": ("LayerNormalization", _epsilon),
    "axis": ("Softmax", _axis),
    "perm": ("Transpose", _perm),
    "alpha": ("Elu", _alpha),
    "bfloat16": ("MatMul", _bfloat16),
}


def planted(model: ModelProto, fault: str, seed: int) -> tuple[ModelProto, str]:
    """Return a copy with a fault in a node of its kind, drawn by the seed, and what it makes."""
    op_type, change = FAULTS[fault]
    copy = ModelProto()
    copy.CopyFrom(model)
    nodes = [*copy.graph.node]
    place = Random(seed).choice([at for at, node in enumerate(nodes) if node.op_type == op_type])
    name = nodes[place].output[0]
    nodes[place : place + 1] = change(nodes[place])
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    onnx.checker.check_model(copy)
    return copy, name


def _attribute(node: NodeProto, name: str) -> onnx.AttributeProto:
    return next(attribute for attribute in node.attribute if attribute.name == name)
