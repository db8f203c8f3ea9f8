"""Collectives inside the engine: TensorRT's own layers in place of a sliced model's nodes.

A model has all of its collectives there or none: ranks meet by the order of their calls alone, and
two kinds of calls would have two orders. Other models are left to the core, which cuts the
model at its collectives. Needs the onnx package.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import BackendUnavailable, ModelError
from engine.model_bytes import infer_shapes
from engine.types import CompileOptions, DType, GraphInfo, NodeInfo

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from engine_gpu_trt.model import TrtModel

OLDEST_GPU = (8, 0)
"""The compute capability that TensorRT's documentation asks for."""

_OPERATIONS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
}
_OTHERS = ("AllToAll", "Barrier", "Receive", "Send")
_DOMAIN = "com.microsoft"
_REDUCES = ("AllReduce", "ReduceScatter")
_REDUCTIONS = {
    "sum": "sum",
    "max": "max",
    "min": "min",
    "prod": "prod",
    "avg": "avg",
    "mean": "avg",
}
_FLOATS = {DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16}
_TYPES = _FLOATS | {DType.INT8, DType.INT32, DType.INT64}


def collectives_of(graph: GraphInfo) -> list[NodeInfo]:
    """Return the nodes of a graph that wait for other ranks, in order."""
    names = {*_OPERATIONS, *_OTHERS}
    return [node for node in graph.nodes if node.domain == _DOMAIN and node.op_type in names]


def take_in(model: TrtModel, options: CompileOptions) -> Mapping[int, str]:
    """Put TensorRT's nodes in place of a model's collectives, in `model.data`.

    Returns the collectives, by index, with the reason why they are left to the core; {} where they
    are inside.
    """
    graph = model.source.graph
    assert graph is not None, "the core reads every ONNX file before a backend does"
    nodes = collectives_of(graph)
    why = _refusal_of_model(model, options)
    if not why:
        why = next((f"{n.op_type} {n.name!r}: {w}" for n in nodes if (w := _refusal(n))), "")
    if not why:
        why = _rewrite(model, options.world_size)
    return {
        node.index: f"its collectives are not inside the engine: {why}" for node in nodes if why
    }


def set_ranks(network: Any, trt: Any, world_size: int) -> int:
    """Tell the layers of a parsed network how many ranks there are. Return how many layers."""
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    found = [layer for layer in layers if layer.type == trt.LayerType.DIST_COLLECTIVE]
    for layer in found:
        layer.num_ranks = world_size
    return len(found)


# ------------------------------------------------------------------------------- what is left out


def _refusal_of_model(model: TrtModel, options: CompileOptions) -> str:
    if not model.settings.in_graph_collectives:
        return "in_graph_collectives is off"
    if options.world_size < 2:
        return "there is one rank"
    if model.settings.fp16:
        return "precision_mode is preferred_fp16"
    capability = tuple(map(int, model.gpu.compute_capability.split(".")))
    if capability < OLDEST_GPU:
        return f"{model.gpu.model} has compute capability {model.gpu.compute_capability}, below 8.0"
    return ""


def _refusal(node: NodeInfo) -> str:
    """Return why TensorRT's layer does not do what a node does; "" where it does."""
    if node.op_type not in _OPERATIONS:
        return "TensorRT has no layer that is its like"
    if any(node.attributes.get(name) for name in ("group", "group_ranks")):
        return "it is of a group of some ranks"
    if node.op_type == "AllGather" and node.attributes.get("axis", 0) != 0:
        return "it gathers along another axis than the first"
    if node.op_type in _REDUCES and _reduction(node) not in _REDUCTIONS:
        return f"TensorRT does not reduce by {_reduction(node)}"
    return ""


def _reduction(node: NodeInfo) -> str:
    return str(node.attributes.get("reduction", "sum")).lower()


# ------------------------------------------------------------------------------------ the rewriting


def _rewrite(model: TrtModel, world_size: int) -> str:
    """Rewrite a model; return why that cannot be."""
    try:
        import onnx
    except ImportError as error:
        raise BackendUnavailable(
            "in_graph_collectives needs the onnx package; run: pip install onnx", "gpu_trt"
        ) from error
    source, graph = model.source, model.source.graph
    assert graph is not None
    data = source.data if source.data is not None else Path(source.path or "").read_bytes()
    proto = onnx.load_model_from_string(data)
    nodes = {node.index: node for node in collectives_of(graph)}
    try:
        known = _shapes(proto, nodes, world_size)
    except Exception as error:  # onnx raises what shares no base
        text = " ".join(str(error).split())
        raise ModelError(f"{source.name}: its shapes cannot be inferred: {text}") from error
    calls = []
    for index, node in nodes.items():
        name = node.inputs[0] if node.inputs else ""
        dtype, dims = known.get(name, (None, None))
        shape = [dim for dim in dims or () if dim is not None]
        if dtype is None or dims is None or len(shape) < len(dims):
            return f"the shape of {name!r} is open, so ranks could not compare it before they run"
        reduction = _REDUCTIONS[_reduction(node)] if node.op_type in _REDUCES else "none"
        if dtype not in (_FLOATS if reduction == "avg" else _TYPES):
            return f"TensorRT does not exchange {name!r}, which is {dtype}"
        if node.op_type == "ReduceScatter" and (not shape or shape[0] % world_size):
            return f"{name!r} of {shape} has no equal part for each of {world_size} ranks"
        root = node.attributes.get("root", 0) if node.op_type == "Broadcast" else -1
        made = onnx.helper.make_node(
            "DistCollective",
            node.inputs,
            node.outputs,
            name=node.name,
            collective_operation=_OPERATIONS[node.op_type],
            reduce_op=reduction,
            root=root,
        )
        proto.graph.node[index].CopyFrom(made)
        calls.append(f"{node.op_type} ({reduction}, root {root}) of {dtype}{shape}")
    model.data = proto.SerializeToString()
    model.collectives = tuple(calls)
    return ""


def _shapes(
    proto: ModelProto, nodes: Mapping[int, NodeInfo], world_size: int
) -> dict[str, tuple[DType | None, tuple[int | None, ...] | None]]:
    """Infer the types and shapes of all tensors, collectives being what they are to one rank."""
    stand_in = type(proto)()
    stand_in.CopyFrom(proto)
    opset = next((each.version for each in proto.opset_import if not each.domain), 1)
    for index, node in nodes.items():
        stand_in.graph.node[index].CopyFrom(_like(node, world_size, opset))
    graph = infer_shapes(stand_in).graph
    known: dict[str, tuple[DType | None, tuple[int | None, ...] | None]] = {
        tensor.name: (DType.from_onnx(tensor.data_type), tuple(tensor.dims))
        for tensor in graph.initializer
    }
    for value in (*graph.value_info, *graph.input, *graph.output):
        tensor = value.type.tensor_type
        if not tensor.elem_type:
            continue
        shape = None
        if tensor.HasField("shape"):
            dims = tensor.shape.dim
            shape = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)
        known[value.name] = DType.from_onnx(tensor.elem_type), shape
    return known


def _like(node: NodeInfo, world_size: int, opset: int) -> NodeProto:
    """Return a node of ONNX whose result has the type and shape of a collective's."""
    from onnx import helper

    [name], outputs = node.inputs, node.outputs
    if node.op_type == "AllGather":
        return helper.make_node("Concat", [name] * world_size, outputs, axis=0)
    if node.op_type == "ReduceScatter":
        rest = [f"{outputs[0]} of rank {rank}" for rank in range(1, world_size)]
        if opset < 18:
            return helper.make_node("Split", [name], [*outputs, *rest], axis=0)
        return helper.make_node("Split", [name], [*outputs, *rest], axis=0, num_outputs=world_size)
    return helper.make_node("Identity", [name], outputs)
