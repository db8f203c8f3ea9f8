"""Tidies the nodes of a lowered graph: drops what nobody reads, joins what belongs together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engine.formats.mindir.values import Value
from engine.formats.onnx_write import Graph, Node

_KEPT = frozenset({"Send", "Receive", "Barrier"})  # they act, whoever reads their result


def fold(nodes: list[Node], constants: dict[str, Value], outputs: set[str]) -> list[Node]:
    """The nodes that are needed for `outputs`, biases joined to what they are added to.

    constants: parameters and other stored values by name; those made here are added.
    """
    nodes = _needed(nodes, outputs)
    return _with_biases(nodes, constants, outputs)


def names_used(nodes: Sequence[Node]) -> set[str]:
    """Every name that the nodes, or graphs in them, read."""
    used: set[str] = set()
    for node in nodes:
        used.update(node.inputs)
        for body in node.attributes.values():
            if isinstance(body, Graph):
                used |= names_used(body.nodes)
                used.update(each.name for each in body.outputs)
    return used


def uses_domain(nodes: Sequence[Node], domain: str) -> bool:
    """Whether a node, or one in a graph within, is of that operator set."""
    return any(
        node.domain == domain
        or any(
            uses_domain(body.nodes, domain)
            for body in node.attributes.values()
            if isinstance(body, Graph)
        )
        for node in nodes
    )


def _needed(nodes: Sequence[Node], outputs: set[str]) -> list[Node]:
    wanted = set(outputs)
    kept: list[Node] = []
    for node in reversed(nodes):
        if node.op_type in _KEPT or any(name in wanted for name in node.outputs):
            for body in node.attributes.values():
                if isinstance(body, Graph):
                    body.nodes = _needed(body.nodes, {each.name for each in body.outputs})
            wanted |= names_used([node])
            kept.append(node)
    kept.reverse()
    return kept


def _with_biases(nodes: list[Node], constants: dict[str, Value], outputs: set[str]) -> list[Node]:
    """Conv or Gemm without a bias, and the Add of a constant vector after it, as one node."""
    readers: Counter[str] = Counter()
    for node in nodes:
        readers.update(names_used([node]) if _has_body(node) else node.inputs)
    made_by = {name: node for node in nodes for name in node.outputs}
    gone: set[int] = set()
    for node in nodes:
        if node.op_type != "Add" or node.domain or len(node.inputs) != 2:
            continue
        for value, other in (node.inputs, node.inputs[::-1]):
            before = made_by.get(value)
            bias = constants.get(other)
            if (
                before is None
                or bias is None
                or before.op_type not in ("Conv", "ConvTranspose", "Gemm")
                or before.domain
                or len(before.inputs) != 2
                or readers[value] != 1
                or value in outputs
            ):
                continue
            vector = _vector(before, bias, constants)
            if vector is None:
                continue
            before.inputs = [*before.inputs, vector]
            made_by.pop(value)
            before.outputs = list(node.outputs)
            made_by[node.outputs[0]] = before
            gone.add(id(node))
            break
    return [node for node in nodes if id(node) not in gone]


def _vector(before: Node, bias: Value, constants: dict[str, Value]) -> str | None:
    """The name of the bias as `before` takes it, None where it does not fit."""
    shape = bias.shape
    if shape is None or None in shape or bias.data is None:
        return None
    if before.op_type == "Gemm":
        return bias.name if len(shape) == 1 else None
    weight = constants.get(before.inputs[1])
    if (
        weight is None
        or weight.shape is None
        or (before.attributes.get("group", 1) != 1 and (before.op_type == "ConvTranspose"))
    ):
        return None
    channels = weight.shape[0 if before.op_type == "Conv" else 1]
    axes = len(weight.shape) - 2
    wanted = (channels, *[1] * axes)
    if shape not in (wanted, (1, *wanted)):
        return None
    name = f"{bias.name}%"
    if name not in constants:
        constants[name] = Value(name, bias.dtype, (channels,), bias.data)
    return name


def _has_body(node: Node) -> bool:
    return any(isinstance(each, Graph) for each in node.attributes.values())
