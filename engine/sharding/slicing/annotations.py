"""ONNX's own annotations of sharding (IR 11): written into a copy of the model, and obeyed.

A node names for each tensor which axes are divided among how many devices. An axis in blocks is
two factors of it: the blocks, which are not divided, and what is divided in each.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

from onnx import ModelProto, NodeProto, ShardingSpecProto, numpy_helper

from engine.errors import ModelError
from engine.layouts.states import State
from engine.sharding.layout import NodeStrategy
from engine.sharding.slicing.original import Original
from engine.sharding.slicing.partitioner import Choice
from engine.sharding.strategy import Strategy

IR_VERSION = 11
ANNOTATION = "tensor_parallel"
"""The name of the configuration of devices in a model that the slicer has annotated."""
_MOST_BYTES = 1_500_000_000


def annotated_strategy(model: Original, ranks: int) -> Strategy | None:
    """Return what a model's annotations ask for; None where it has none.

    Raises ModelError where they are for another number of devices.
    """
    nodes = {}
    for node in model.nodes:
        if node.device_configurations:
            nodes[node.name] = NodeStrategy(
                tuple(_splits(node, name, model) for name in node.input)
            )
    counts = {prod(split) for node in nodes.values() for split in node.inputs} - {1, ranks}
    if counts:
        raise ModelError(
            f"{model.name}: is annotated for {max(counts)} devices, and --tp is {ranks}; ask for "
            "as many ranks, or give a strategy"
        )
    return Strategy(nodes, source=f"{model.name}: its annotations") if nodes else None


def _splits(node: NodeProto, name: str, model: Original) -> tuple[int, ...]:
    counts = [1] * len(model.shape(name) or ())
    for configuration in node.device_configurations:
        for spec in configuration.sharding_spec:
            if spec.tensor_name == name:
                for dim in spec.sharded_dim:
                    shards = prod(max(one.num_shards, 1) for one in dim.simple_sharding)
                    if -len(counts) <= dim.axis < len(counts):
                        counts[dim.axis] = shards
    return tuple(counts)


def write_annotated(model: Original, choice: Choice, path: Path) -> None:
    """Write the model as a file of its own, annotated with what was chosen. Raises ModelError."""
    total = sum(model.nbytes(name) for name in model.constants)
    if total > _MOST_BYTES:
        raise ModelError(
            f"{model.name}: has {total:,} bytes of weights, and an annotated model is one file of "
            f"up to {_MOST_BYTES:,}; use the strategy file instead"
        )
    copy = ModelProto()
    copy.CopyFrom(model.proto)
    copy.ir_version = max(copy.ir_version, IR_VERSION)
    del copy.graph.initializer[:], copy.graph.node[:]
    for name, tensor in model.constants.items():
        if tensor.external_data:
            copy.graph.initializer.append(numpy_helper.from_array(model.array(name), name))
        else:
            copy.graph.initializer.append(tensor)
    copy.configuration.add(name=ANNOTATION, num_devices=choice.ranks)
    for node, way in zip(model.nodes, choice.ways):
        own = copy.graph.node.add()
        own.CopyFrom(node)
        del own.device_configurations[:]
        pairs = [*zip(node.input, way.inputs), *zip(node.output, way.outputs)]
        divided = {name: state for name, state in pairs if name and state.is_shard}
        configuration = own.device_configurations.add(configuration_id=ANNOTATION)
        for name, state in divided.items():  # a node without any runs whole on each device
            configuration.sharding_spec.append(_spec(model, name, state, choice.ranks))
    path.write_bytes(copy.SerializeToString())


def _spec(model: Original, name: str, state: State, ranks: int) -> ShardingSpecProto:
    spec = ShardingSpecProto(tensor_name=name, device=range(ranks))
    dim = spec.sharded_dim.add(axis=state.axis)
    size = (model.shape(name) or ())[state.axis]
    if len({*state.blocks}) == 1:  # equal blocks
        dim.simple_sharding.add(dim_value=len(state.blocks), num_shards=1)
        dim.simple_sharding.add(dim_value=state.blocks[0], num_shards=ranks)
    elif isinstance(size, int):
        unit = state.unit or 1
        dim.simple_sharding.add(dim_value=size // unit, num_shards=ranks)
        if unit > 1:
            dim.simple_sharding.add(dim_value=unit, num_shards=1)
    return spec
