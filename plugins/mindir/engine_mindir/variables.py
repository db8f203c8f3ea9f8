"""Resolve declared variable weights, named by parameter or by node, to parameters."""

from __future__ import annotations

from collections.abc import Sequence

from engine.formats.variable import declared_weights
from engine_mindir.messages import GraphProto, ModelProto
from engine_mindir.names import local, primitive_named

# Those that MindSpore Lite updates, each with its inputs that may be a weight, likeliest first.
_WEIGHTED = {"Conv2D": (1,), "MatMul": (1, 0), "MatMulV2": (1, 0), "BatchMatMul": (1, 0)}
_PASSING = frozenset({"Load", "Depend", "Identity"})  # give their first input as it is
_RANKS = (2, 4)


def variable_parameters(
    model: ModelProto, wanted: Sequence[str], name: str
) -> dict[str, tuple[str, ...]]:
    """Return the parameters that `wanted` names, as the file names them, each with these names.

    A node goes by its full name ("Default/fc1-Dense/MatMul-op0") or by that without the last part,
    as MindSpore Lite has it. name: what errors call the model. Raises InputError.
    """
    main = model.graph
    assert main is not None
    by_title = {proto.ref_key or local(proto.name): proto.name for proto in main.parameters}
    titles = {own: title for title, own in by_title.items()}
    ranks = {proto.name: len(proto.dims) for proto in main.parameters}
    readers: dict[str, list[str]] = {}
    for graph in (main, *model.functions.values()):
        for full_name, parameter in _weights(model, graph, ranks):
            title = titles[parameter]
            for known in {full_name, full_name.rpartition("/")[0]} - {""}:
                if title not in readers.setdefault(known, []):
                    readers[known].append(title)
    meant = declared_weights(wanted, by_title, readers, name)
    return {by_title[title]: tuple(declared) for title, declared in meant.items()}


def _weights(model: ModelProto, graph: GraphProto, ranks: dict[str, int]) -> list[tuple[str, str]]:
    """Return the full names of a graph's weighted nodes, each with the parameter that it reads."""
    passed: dict[str, str] = {}
    result = []
    for node in graph.nodes:
        primitive, _ = primitive_named(model, node.op_type)
        if primitive in _PASSING and node.inputs:
            passed[node.output] = passed.get(node.inputs[0], node.inputs[0])
        for position in _WEIGHTED.get(primitive, ()):
            if position < len(node.inputs):
                source = passed.get(node.inputs[position], node.inputs[position])
                if ranks.get(source) in _RANKS:
                    result.append((node.domain or local(node.name), source))
                    break
    return result
