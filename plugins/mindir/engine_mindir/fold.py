"""Graph optimization after lowering: dead code elimination, bias and BatchNormalization folding.

MindIR has a convolution, its BiasAdd and its BatchNorm as nodes of their own. Runtimes fuse them
only on some devices and at some optimization levels, quantizers expect them fused, and the folded
model has fewer nodes to place. Weights are computed anew only where copies are cheap (`may_copy`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from engine.formats.onnx.writer import Graph, Node
from engine_mindir.values import DType, Value

_KEPT = frozenset({"Send", "Receive", "Barrier"})  # side effects: never dead code
COPIED_BYTES = 64 << 20  # of weights that are computed anew; many nodes may read one
_LINEAR = frozenset({"Conv", "ConvTranspose", "Gemm"})


def fold(
    nodes: list[Node], constants: dict[str, Value], outputs: set[str], may_copy: bool
) -> list[Node]:
    """Return the nodes needed for `outputs`, with biases and normalisation folded into them.

    constants: parameters and other stored values by name; those made here are added.
    may_copy: weights may be computed anew; else they stay in their file, and runtimes fold them.
    """
    room = [COPIED_BYTES if may_copy else 0]
    with np.errstate(all="ignore"):
        return _fold_into_linear(_eliminate_dead_code(nodes, outputs), constants, outputs, room)


def bodies(node: Node) -> Iterable[Graph]:
    """Return the graphs in a node's attributes."""
    if node.op_type not in ("If", "Loop"):  # what control.py writes
        return ()
    return [attribute for attribute in node.attributes.values() if isinstance(attribute, Graph)]


def names_used(nodes: Sequence[Node]) -> set[str]:
    """Return every name that the nodes, or graphs in them, read."""
    used: set[str] = set()
    for node in nodes:
        used.update(node.inputs)
        for body in bodies(node):
            used |= names_used(body.nodes)
            used.update(output.name for output in body.outputs)
    return used


def uses_domain(nodes: Sequence[Node], domain: str) -> bool:
    """Return True if a node, or one in a graph within, is of that operator set."""
    for node in nodes:
        if node.domain == domain:
            return True
        if any(uses_domain(body.nodes, domain) for body in bodies(node)):
            return True
    return False


def _eliminate_dead_code(nodes: Sequence[Node], outputs: set[str]) -> list[Node]:
    live = set(outputs)
    kept: list[Node] = []
    for node in reversed(nodes):
        if node.op_type in _KEPT or not live.isdisjoint(node.outputs):
            inner = bodies(node)
            for body in inner:
                body.nodes = _eliminate_dead_code(
                    body.nodes, {output.name for output in body.outputs}
                )
            live.update(names_used([node]) if inner else node.inputs)
            kept.append(node)
    kept.reverse()
    return kept


def _fold_into_linear(
    nodes: list[Node], constants: dict[str, Value], outputs: set[str], room: list[int]
) -> list[Node]:
    """Fold an Add or BatchNormalization into the Conv, ConvTranspose or Gemm that only it reads.

    room: how many more bytes of weights may be computed anew.
    """
    readers: Counter[str] = Counter()
    for node in nodes:
        readers.update(names_used([node]) if bodies(node) else node.inputs)
    producers: dict[str, Node] = {}
    kept = []
    for node in nodes:
        before = _linear_before(node, producers, constants)
        if (
            before is not None
            and readers[before.outputs[0]] == 1
            and before.outputs[0] not in outputs
            and (
                _fold_bias(before, node, constants)
                if node.op_type == "Add"
                else _fold_batch_norm(before, node, constants, room)
            )
        ):
            before.outputs = list(node.outputs)
            producers[node.outputs[0]] = before
            continue
        kept.append(node)
        if node.op_type in _LINEAR and not node.domain:
            producers[node.outputs[0]] = node
    return kept


def _linear_before(
    node: Node, producers: dict[str, Node], constants: dict[str, Value]
) -> Node | None:
    """Return the Conv, ConvTranspose or Gemm that a node adds a constant to, or normalises."""
    if node.op_type == "BatchNormalization":
        return producers.get(node.inputs[0])
    if node.op_type != "Add" or node.domain or len(node.inputs) != 2:
        return None
    value, other = node.inputs if node.inputs[1] in constants else node.inputs[::-1]
    return producers.get(value) if other in constants else None


def _fold_bias(before: Node, node: Node, constants: dict[str, Value]) -> bool:
    """Fold the constant that `node` adds into `before` as its bias; return True if it fits."""
    if len(before.inputs) != 2:
        return False
    value, other = node.inputs
    bias = constants[other if value == before.outputs[0] else value]
    vector = _bias_name(before, bias, constants)
    if vector is None:
        return False
    before.inputs = [*before.inputs, vector]
    return True


def _bias_name(before: Node, bias: Value, constants: dict[str, Value]) -> str | None:
    """Return the name of the bias as `before` takes it, None where it does not fit."""
    shape = bias.shape
    if shape is None or None in shape or bias.data is None:
        return None
    weight = constants.get(before.inputs[1])
    if before.op_type == "Gemm":
        if weight is None or weight.shape is None or len(shape) != 1:
            return None
        columns = weight.shape[0 if before.attributes.get("transB") else 1]
        return bias.name if shape[0] in (1, columns) else None
    if (
        weight is None
        or weight.shape is None
        or (before.attributes.get("group", 1) != 1 and (before.op_type == "ConvTranspose"))
    ):
        return None
    channels = weight.shape[0 if before.op_type == "Conv" else 1]
    axes = len(weight.shape) - 2
    expected = (channels, *[1] * axes)
    if shape not in (expected, (1, *expected)):
        return None
    name = f"{bias.name}%"
    if name not in constants:
        constants[name] = Value(name, bias.dtype, (channels,), bias.data)
    return name


def _fold_batch_norm(
    before: Node, node: Node, constants: dict[str, Value], room: list[int]
) -> bool:
    """Fold a BatchNormalization into a Conv's weight and bias: it is affine per channel."""
    if before.op_type != "Conv":
        return False
    names = (*before.inputs[1:], *node.inputs[1:])
    arrays = []
    for name in names:
        value = constants.get(name)
        if (
            value is None
            or value.dtype is not DType.FLOAT32
            or not isinstance(value.data, bytes | memoryview)
        ):
            return False
        arrays.append(np.frombuffer(value.data, np.float32))
    shape: Any = constants[names[0]].shape
    if not shape or 0 in shape or any(len(array) != shape[0] for array in arrays[1:]):
        return False
    weight, *biases, gamma, beta, mean, variance = arrays
    if weight.nbytes > room[0]:
        return False
    room[0] -= weight.nbytes
    epsilon: Any = node.attributes["epsilon"]
    factor = gamma / np.sqrt(variance + np.float32(epsilon))
    bias = (biases[0] - mean if biases else -mean) * factor + beta
    scaled = _bytes_of(weight.reshape(len(factor), -1) * factor[:, None])
    before.inputs = [
        before.inputs[0],
        _add(constants, names[0], shape, scaled),
        _add(constants, node.inputs[2], bias.shape, _bytes_of(bias)),
    ]
    return True


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    return array.data.cast("B")


def _add(constants: dict[str, Value], like: str, shape: Any, data: memoryview) -> str:
    name = f"{like}%"
    while name in constants:
        name += "%"
    constants[name] = Value(name, DType.FLOAT32, shape, data)
    return name
