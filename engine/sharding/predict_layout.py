"""Layouts of a model's parameters that follow from split operators: infer_predict_layout."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from engine.errors import InputError, ModelError
from engine.formats import ModelFile
from engine.options import nearest
from engine.sharding.layout import Layout
from engine.sharding.rules import Axes, Dims, NoRule, axes_of
from engine.sharding.strategy import NodeStrategy, Strategy
from engine.types import GraphInfo, NodeInfo

NodeStrategies: TypeAlias = (
    "Mapping[str, NodeStrategy | Sequence[Sequence[int]]] | Strategy | str | os.PathLike[str]"
)
Permutation: TypeAlias = "tuple[int, ...]"


class Origin(NamedTuple):
    """The parameter that a tensor is, its dimensions in another order."""

    name: str
    order: Permutation


def infer_predict_layout(
    model: object,
    inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    strategy: NodeStrategies | None = None,
    *,
    device_num: int | None = None,
) -> dict[str, Layout]:
    """Return the layout of each parameter of a model that is split over devices to predict.

    model: the path of an ONNX (or MindIR) model, or an onnx.ModelProto.
    inputs: of a predict, by name or in order (arrays, or their shapes); what they are split into
        must divide them. None leaves that open.
    strategy: for each node that splits, by its name (or that of its first output), into how many
        slices each dimension of each of its inputs is cut, such as {"fc1": ((1, 1), (1, 4))};
        inputs that are left out follow from the others. Or a strategy file, whose nodes count.
    device_num: ranks of the job; None for as many as the node with the most slices has.

    Parameters that no node splits are whole on each rank. Raises ModelError for a bad model;
    InputError naming node and parameter where a strategy does not fit.
    """
    graph = _graph_of(model)
    nodes = _by_node(graph, _node_strategies(strategy))
    parameters = {info.name: info.shape for info in graph.parameters}
    origins = _origins(graph.nodes, parameters)
    shapes = dict(parameters)
    shapes.update(_input_shapes(graph, inputs))
    ranks = {spec.name: len(spec.shape) for spec in graph.inputs if spec.shape is not None}
    ranks.update((name, len(shape)) for name, shape in shapes.items())
    splits = {node.index: _split(node, given, shapes, ranks) for node, given in nodes}
    devices = _device_count(splits.values(), device_num)
    found: dict[str, Layout] = {}
    by: dict[str, NodeInfo] = {}
    for node, _ in nodes:
        axes, counts = splits[node.index]
        for position, dims in zip(range(len(node.inputs)), axes.inputs, strict=False):
            name = node.inputs[position]
            _check_divisible(node, name, dims, counts, shapes)
            origin = origins.get(name)
            if origin is None:
                continue
            own: list[str | None] = [None] * len(dims)
            for dim, axis in enumerate(dims):
                own[origin.order[dim]] = axis
            # A dimension of 1 is broadcast, and whole on each rank.
            shape = parameters[origin.name]
            own = [axis if size > 1 else None for axis, size in zip(own, shape, strict=True)]
            layout = _layout(axes, counts, own, devices, node)
            if layout is None:
                continue
            if found.setdefault(origin.name, layout) != layout:
                raise InputError(
                    f"parameter {origin.name!r} is split in two ways: by node {_title(node)!r} as "
                    f"{_shown(layout)}, and by {_title(by[origin.name])!r} as "
                    f"{_shown(found[origin.name])}; give both nodes one strategy",
                    origin.name,
                )
            by.setdefault(origin.name, node)
    whole = {
        name: Layout((devices,), (-1,) * len(shape), tensor_shape=shape)
        for name, shape in parameters.items()
    }
    return {
        name: found[name]._replace(tensor_shape=whole[name].tensor_shape)
        if name in found
        else whole[name]
        for name in parameters
    }


def _graph_of(model: object) -> GraphInfo:
    if isinstance(model, str | os.PathLike):
        graph = ModelFile(Path(model))().graph
    elif hasattr(model, "SerializeToString"):
        graph = ModelFile.of_bytes(model.SerializeToString())().graph
    else:
        raise TypeError(
            f"model must be the path of a model or an onnx.ModelProto, but got {type(model)}."
        )
    if graph is None:
        raise ModelError(f"{model}: is a compiled form; expected an ONNX model", str(model))
    return graph


def _node_strategies(strategy: NodeStrategies | None) -> Mapping[str, Sequence[Sequence[int]]]:
    if strategy is None:
        return {}
    if isinstance(strategy, str | os.PathLike):
        strategy = Strategy.load(Path(strategy))
    given = strategy.nodes if isinstance(strategy, Strategy) else strategy
    if not isinstance(given, Mapping):
        raise TypeError(f"strategy must be dict, but got {type(strategy)}.")
    found = {}
    for name, value in given.items():
        inputs = value.inputs if isinstance(value, NodeStrategy) else value
        try:
            found[name] = tuple(tuple(int(count) for count in dims) for dims in inputs)
        except (TypeError, ValueError):
            found[name] = ()
        if not found[name] or any(count < 1 for dims in found[name] for count in dims):
            raise InputError(
                f"strategy of node {name!r}: expected a tuple for each input, such as ((1, 1), "
                f"(1, 4)), got {str(value)[:60]}",
                name,
            )
    return found


def _title(node: NodeInfo) -> str:
    return node.name or next(iter(node.outputs), "")


def _by_node(
    graph: GraphInfo, strategies: Mapping[str, Sequence[Sequence[int]]]
) -> list[tuple[NodeInfo, Sequence[Sequence[int]]]]:
    by_title: dict[str, NodeInfo] = {}
    for node in graph.nodes:
        for title in (node.name, *node.outputs[:1]):
            by_title.setdefault(title, node)
    for name in strategies:
        if name not in by_title:
            near = nearest(name, by_title)
            hint = f"; did you mean {near!r}?" if near else ""
            raise InputError(f"strategy: the model has no node {name!r}{hint}", name)
    pairs = [(by_title[name], given) for name, given in strategies.items()]
    return sorted(pairs, key=lambda pair: pair[0].index)


def _input_shapes(
    graph: GraphInfo, inputs: Mapping[str, Any] | Sequence[Any] | None
) -> dict[str, tuple[int, ...]]:
    if inputs is None:
        return {}
    names = [spec.name for spec in graph.inputs]
    if not isinstance(inputs, Mapping):
        if len(inputs) != len(names):
            raise InputError(
                f"inputs: expected {len(names)} ({', '.join(names)}), got {len(inputs)}"
            )
        inputs = dict(zip(names, inputs, strict=True))
    for name in inputs:
        if name not in names:
            raise InputError(f"inputs: the model has no input {name!r}; it has {names}", name)
    return {
        name: tuple(value) if isinstance(value, tuple | list) else tuple(np.shape(_plain(value)))
        for name, value in inputs.items()
    }


def _plain(value: Any) -> Any:
    return value.get_data_to_numpy() if hasattr(value, "get_data_to_numpy") else value


def _origins(
    nodes: Iterable[NodeInfo], parameters: Mapping[str, tuple[int, ...]]
) -> dict[str, Origin]:
    """Return which tensors are a parameter: itself, or transposed or converted."""
    found = {name: Origin(name, tuple(range(len(shape)))) for name, shape in parameters.items()}
    for node in nodes:
        origin = found.get(node.inputs[0]) if node.inputs else None
        if origin is None or node.op_type not in ("Identity", "Cast", "Transpose"):
            continue
        order = origin.order
        if node.op_type == "Transpose":
            given = node.attributes.get("perm", tuple(reversed(range(len(order)))))
            assert isinstance(given, tuple)
            order = tuple(order[int(dim)] for dim in given)
        found.setdefault(node.outputs[0], Origin(origin.name, order))
    return found


def _split(
    node: NodeInfo,
    given: Sequence[Sequence[int]],
    shapes: Mapping[str, tuple[int, ...]],
    known_ranks: Mapping[str, int],
) -> tuple[Axes, dict[str, int]]:
    """Return a node's axes, and into how many slices each is cut. Raises InputError."""
    title = _title(node)
    if len(given) > len(node.inputs):
        raise InputError(
            f"strategy of node {title!r}: is for {len(given)} inputs; {node.op_type} has "
            f"{len(node.inputs)} here",
            title,
        )
    ranks = [len(dims) for dims in given]
    # Those that are left out follow, if the model says how many dimensions they have.
    for name in node.inputs[len(given) :]:
        if name not in known_ranks:
            break
        ranks.append(known_ranks[name])
    try:
        axes = axes_of(node, ranks)
    except NoRule as error:
        raise InputError(
            f"strategy of node {title!r}: {error}; leave the node out, and it runs whole on each "
            "rank",
            title,
        ) from error
    counts = dict.fromkeys(axes.order, 1)
    for position, (dims, cuts) in enumerate(zip(axes.inputs, given, strict=False)):
        shape = shapes.get(node.inputs[position])
        if len(dims) != len(cuts) or (shape is not None and len(shape) != len(cuts)):
            wanted = len(dims) if shape is None else len(shape)
            raise InputError(
                f"strategy of node {title!r}: gives input {position} ({node.inputs[position]!r}) "
                f"{len(cuts)} dimensions, but it has {wanted}",
                title,
            )
        for dim, (axis, count) in enumerate(zip(dims, cuts, strict=True)):
            if count == 1:
                continue
            if axis is None:
                raise InputError(
                    f"strategy of node {title!r}: {node.op_type} cannot be split along dimension "
                    f"{dim} of input {position} ({node.inputs[position]!r})",
                    title,
                )
            if counts[axis] not in (1, count):
                raise InputError(
                    f"strategy of node {title!r}: dimension {dim} of input {position} "
                    f"({node.inputs[position]!r}) is cut into {count}, but what it goes with into "
                    f"{counts[axis]}",
                    title,
                )
            counts[axis] = count
    return axes, counts


def _device_count(splits: Iterable[tuple[Axes, dict[str, int]]], device_num: int | None) -> int:
    slices = [prod(counts.values()) for _, counts in splits]
    devices = max(slices, default=1) if device_num is None else device_num
    if devices < 1 or any(devices % count for count in slices):
        raise InputError(
            f"strategies cut nodes into {sorted({*slices})} slices, which do not all divide "
            f"{devices} devices"
        )
    return devices


def _check_divisible(
    node: NodeInfo,
    name: str,
    dims: Dims,
    counts: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    for dim, (axis, size) in enumerate(zip(dims, shapes.get(name, ()), strict=False)):
        count = counts[axis] if axis is not None else 1
        if size % count and size != 1:
            raise InputError(
                f"strategy of node {_title(node)!r}: dimension {dim} of {name!r}, "
                f"{list(shapes[name])}, cannot be cut into {count}",
                name,
            )


def _layout(
    axes: Axes,
    counts: Mapping[str, int],
    dims: Sequence[str | None],
    devices: int,
    node: NodeInfo,
) -> Layout | None:
    """Return the layout of an input of a node; None where it is whole."""
    if all(axis is None or counts[axis] == 1 for axis in dims):
        return None
    matrix = [counts[axis] for axis in axes.order]
    order: list[str] = list(axes.order)
    replicas = devices // prod(matrix)
    if replicas > 1:
        place = 0 if axes.replicas_first else len(order)
        matrix.insert(place, replicas)
        order.insert(place, "")
    # Dimensions of 1 say nothing.
    kept = [(axis, count) for axis, count in zip(order, matrix, strict=True) if count > 1]
    names = [axis for axis, _ in kept]
    return Layout(
        tuple(count for _, count in kept),
        tuple(len(names) - 1 - names.index(axis) if axis in names else -1 for axis in dims),
    )


def _shown(layout: Layout) -> str:
    return f"{list(layout.dev_matrix)} {list(layout.tensor_map)}"
