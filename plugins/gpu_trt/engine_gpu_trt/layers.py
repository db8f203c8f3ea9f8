"""Layers of an engine, and the model's nodes that each computes, as the engine inspector tells."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.types import GraphInfo, NodeInfo
from engine_gpu_trt.engines import Engine

_NODE = re.compile(r"\[ONNX Layer: ([^\x1e\x1f]*?)\](?=[\x1e\x1f[]|$)")


@dataclass(frozen=True, slots=True)
class Layer:
    """One kernel of an engine.

    kind: TensorRT's type of layer; "" where the engine does not tell. nodes: by index, in
    TensorRT's order; () where that is not known.
    """

    name: str
    kind: str = ""
    nodes: tuple[int, ...] = ()


def layers_of(graph: GraphInfo, engine: Engine) -> list[Layer]:
    """Return the engine's layers; [] where the inspector does not tell them."""
    trt = engine.trt
    with engine.gpu:
        inspector = engine.engine.create_engine_inspector()
        if inspector is None:
            return []
        text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
        del inspector
    return read_layers(graph, text)


def read_layers(graph: GraphInfo, text: str) -> list[Layer]:
    """Return the layers of the inspector's text.

    An engine of the default verbosity has its layers' names only: "a + b" is one kernel for the
    nodes a and b, and names that TensorRT makes up itself ("__myl_...", "{ForeignNode[...]}") say
    nothing about nodes. One of the detailed verbosity has objects, which name the nodes too.
    """
    nodes = _by_layer_name(graph)
    try:
        return [_read(layer, nodes) for layer in json.loads(text)["Layers"]]
    except (ValueError, TypeError, KeyError):
        return []


def _read(layer: Any, nodes: Mapping[str, NodeInfo]) -> Layer:
    details = layer if isinstance(layer, dict) else {"Name": layer}
    name = str(details["Name"])
    named = _NODE.findall(str(details.get("Metadata", "")))
    found = tuple(nodes[node].index for node in dict.fromkeys(named) if node in nodes)
    return Layer(name, str(details.get("LayerType", "")), found if named else _in_name(name, nodes))


def _in_name(layer: str, nodes: Mapping[str, NodeInfo]) -> tuple[int, ...]:
    """Return the nodes that a layer's name is made of; () where a part of it is none."""
    parts = [nodes.get(part) for part in layer.split(" + ")]
    indices = tuple(part.index for part in parts if part is not None)
    return indices if len(indices) == len(parts) else ()


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
