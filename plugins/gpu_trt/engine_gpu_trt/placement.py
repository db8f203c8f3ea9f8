"""Placement of nodes, as far as TensorRT's engine inspector tells."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from engine.types import CompileOptions, GraphInfo, NodeInfo, NodeState, Placement
from engine_gpu_trt.engines import Engine
from engine_gpu_trt.options import PROVIDERS

State = tuple[NodeState, int | None]


def placement_of(
    graph: GraphInfo, engine: Engine, options: CompileOptions, reason: str
) -> tuple[Placement, ...]:
    """Return one entry for each node of the graph, in order."""
    states = node_states(graph, layer_names(engine))
    return tuple(
        Placement(
            node.index,
            node.name,
            node.op_type,
            "gpu_trt",
            str(options.device),
            PROVIDERS[0],
            reason,
            *states.get(node.index, (NodeState.RUNS, None)),
        )
        for node in graph.nodes
    )


def layer_names(engine: Engine) -> list[str]:
    """Return the names of the engine's layers; [] where the inspector does not tell them.

    Engines are built with the default verbosity, which keeps names only. A layer is its name, or
    an object with a "Name", as it is at the detailed verbosity.
    """
    trt = engine.trt
    with engine.gpu:
        inspector = engine.engine.create_engine_inspector()
        if inspector is None:
            return []
        text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
        del inspector
    try:
        layers = json.loads(text)["Layers"]
        return [str(layer["Name"] if isinstance(layer, dict) else layer) for layer in layers]
    except (ValueError, TypeError, KeyError):
        return []


def node_states(graph: GraphInfo, layers: Sequence[str]) -> dict[int, State]:
    """Read from layer names what became of the nodes; a node that is not in it just runs.

    A layer "a + b" is one kernel for the nodes a and b. Names that TensorRT makes up itself
    ("__myl_...", "{ForeignNode[...]}") say nothing about nodes. A node is folded if it computes
    from constants alone and every layer is accounted for without it.
    """
    nodes = _by_layer_name(graph)
    states: dict[int, State] = {}
    is_complete = bool(layers)
    for layer in layers:
        parts = [nodes.get(part) for part in layer.split(" + ")]
        indices = [part.index for part in parts if part is not None]
        if len(indices) != len(parts):
            is_complete = False
            continue
        states[indices[0]] = (NodeState.RUNS, None)
        for index in indices[1:]:
            states[index] = (NodeState.FUSED, indices[0])
    if is_complete:
        constants = {parameter.name for parameter in graph.parameters}
        for node in graph.nodes:
            if node.index not in states and all(name in constants for name in node.inputs if name):
                states[node.index] = (NodeState.FOLDED, None)
                constants.update(node.outputs)
    return states


def _by_layer_name(graph: GraphInfo) -> Mapping[str, NodeInfo]:
    """Return the nodes by the name that TensorRT's parser gives their layer, where it is unique."""
    nodes: dict[str, NodeInfo] = {}
    ambiguous: set[str] = set()
    for node in graph.nodes:
        name = node.name or f"node_of_{node.outputs[0] if node.outputs else ''}"
        if name in nodes:
            ambiguous.add(name)
        nodes[name] = node
    return {name: node for name, node in nodes.items() if name not in ambiguous}
