"""Placement of nodes, as far as TensorRT's engine inspector tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from engine.types import CompileOptions, GraphInfo, NodeState, Placement
from engine_gpu_trt.layers import Layer
from engine_gpu_trt.options import PROVIDERS

State: TypeAlias = tuple[NodeState, int | None]


def placement_of(
    graph: GraphInfo, layers: Sequence[Layer], options: CompileOptions, reason: str
) -> tuple[Placement, ...]:
    """Return one entry for each node of the graph, in order."""
    states = node_states(graph, layers)
    return tuple(
        Placement(
            node.index,
            node.name,
            node.op_type,
            "gpu_trt",
            str(options.device),
            options.provider or PROVIDERS[0],
            reason,
            *states.get(node.index, (NodeState.RUNS, None)),
        )
        for node in graph.nodes
    )


def node_states(graph: GraphInfo, layers: Sequence[Layer]) -> dict[int, State]:
    """Read from layers what became of the nodes; a node that is not in it just runs.

    A node is folded if it computes from constants alone and every layer is accounted for without
    it.
    """
    states: dict[int, State] = {}
    for layer in layers:
        if layer.nodes:
            states[layer.nodes[0]] = (NodeState.RUNS, None)
        for index in layer.nodes[1:]:
            states.setdefault(index, (NodeState.FUSED, layer.nodes[0]))
    if layers and all(layer.nodes for layer in layers):
        constants = {parameter.name for parameter in graph.parameters}
        for node in graph.nodes:
            if node.index not in states and all(name in constants for name in node.inputs if name):
                states[node.index] = (NodeState.FOLDED, None)
                constants.update(node.outputs)
    return states
