"""Layouts of a model's parameters that follow from split operators: infer_predict_layout."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from engine.errors import InputError, ModelError
from engine.formats import ModelFile
from engine.options import nearest
from engine.sharding.layout import Layout, NodeStrategy
from engine.sharding.split_axes import Axes, Dims, NoRule, axes_of
from engine.sharding.strategy import Strategy, plain_name
from engine.sharding.strategy_keys import (
    KeyedNode,
    Node,
    Origin,
    Split,
    file_name,
    is_whole,
    nodes_of,
    origins,
    parameter_of,
)
from engine.types import GraphInfo, NodeInfo, ParameterInfo

NodeStrategies: TypeAlias = (
    "Mapping[str, NodeStrategy | Sequence[Sequence[int]]] | Strategy | str | os.PathLike[str]"
)


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
        inputs that are left out follow from the others. MindSpore's names serve too: the primitive,
        "_" and its first parameter, with splits of the primitive's inputs, such as
        {"MatMul_fc1.weight": ((1, 1), (4, 1))}. Or a strategy file, of which the nodes count, and
        for a parameter that no node here reads any more its layout.
    device_num: ranks of the job; None for as many as the node with the most slices has, or the
        layouts of a strategy file.

    Parameters that no node splits are whole on each rank. Raises ModelError for a bad model;
    InputError naming node and parameter where a strategy does not fit.
    """
    graph, in_file = _graph_of(model)
    given = _loaded(strategy)
    known = {plain_name(name): layout for name, layout in _layouts_of(given).items()}
    parameters = {info.name: info.shape for info in graph.parameters}
    ranks = {spec.name: len(spec.shape) for spec in graph.inputs if spec.shape is not None}
    shapes = {**parameters, **_input_shapes(graph, inputs)}
    ranks.update((name, len(shape)) for name, shape in shapes.items())
    made = origins(_views(graph), {name: len(shape) for name, shape in parameters.items()})
    nodes = _by_node(graph, _node_strategies(given), made, in_file, known)
    splits = [_split(node, cuts, shapes, ranks) for node, cuts in nodes]
    if device_num is None and known:
        device_num = max(layout.device_count for layout in known.values())
    devices = _device_count(splits, device_num)
    found: dict[str, Layout] = {}
    by: dict[str, NodeInfo] = {}
    for (node, _), (axes, counts) in zip(nodes, splits, strict=True):
        for name, dims in zip(node.inputs, axes.inputs, strict=False):
            _check_divisible(node, name, dims, counts, shapes)
            origin = made.get(name)
            if origin is None:
                continue
            layout = _layout_of(origin, dims, parameters[origin.name], axes, counts, devices)
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
    return _named_as_in_file(found, parameters, in_file, known, devices)


def _named_as_in_file(
    found: Mapping[str, Layout],
    parameters: Mapping[str, tuple[int, ...]],
    in_file: Mapping[str, ParameterInfo],
    known: Mapping[str, Layout],
    devices: int,
) -> dict[str, Layout]:
    """Return a layout for each parameter, by the name in the model's file."""
    shapes = {name: info.shape for name, info in in_file.items()} or dict(parameters)
    by_name = {file_name(name) if in_file else name: layout for name, layout in found.items()}
    read = {file_name(name) for name in parameters} if in_file else {*parameters}
    whole = Layout((devices,))
    layouts = {}
    for name, shape in shapes.items():
        # A parameter that is part of another one now: the file's own word is all there is.
        other = known.get(name, whole) if name not in read else whole
        layout = by_name.get(name, other)
        map_ = layout.tensor_map or (-1,) * len(shape)
        layouts[name] = layout._replace(tensor_map=map_, tensor_shape=shape)
    return layouts


def _layout_of(
    origin: Origin,
    dims: Dims,
    shape: Sequence[int],
    axes: Axes,
    counts: Mapping[str, int],
    devices: int,
) -> Layout | None:
    """Return the layout of a parameter that a node reads; None where it is whole."""
    own: list[str | None] = [None] * len(dims)
    for dim, axis in enumerate(dims):
        own[origin.order[dim]] = axis
    # A dimension of 1 is broadcast, and whole on each rank.
    own = [axis if size > 1 else None for axis, size in zip(own, shape, strict=True)]
    return _layout(axes, counts, own, devices)


def _graph_of(model: object) -> tuple[GraphInfo, dict[str, ParameterInfo]]:
    """Return the graph, and the parameters in the file of a MindIR, which the graph may merge."""
    in_file: dict[str, ParameterInfo] = {}
    if isinstance(model, str | os.PathLike):
        file = ModelFile(Path(model))
        graph = file().graph
        if graph is not None and (description := file.description()) is not None:
            in_file = {info.name: info for info in description.parameters}
    elif hasattr(model, "SerializeToString"):
        graph = ModelFile.of_bytes(model.SerializeToString())().graph
    else:
        raise TypeError(
            f"model must be the path of a model or an onnx.ModelProto, but got {type(model)}."
        )
    if graph is None:
        raise ModelError(f"{model}: is a compiled form; expected an ONNX model", str(model))
    return graph, in_file


def _views(graph: GraphInfo) -> list[Node]:
    return [
        Node(node.op_type, node.inputs, node.outputs, _permutation(node)) for node in graph.nodes
    ]


def _permutation(node: NodeInfo) -> tuple[int, ...] | None:
    given = node.attributes.get("perm")
    return tuple(int(dim) for dim in given) if isinstance(given, tuple) else None


def _loaded(
    strategy: NodeStrategies | None,
) -> Strategy | Mapping[str, NodeStrategy | Sequence[Sequence[int]]]:
    if strategy is None:
        return {}
    if isinstance(strategy, str | os.PathLike):
        return Strategy.load(Path(strategy))
    if not isinstance(strategy, Strategy | Mapping):
        raise TypeError(f"strategy must be dict, but got {type(strategy)}.")
    return strategy


def _layouts_of(strategy: object) -> Mapping[str, Layout]:
    return strategy.layouts if isinstance(strategy, Strategy) else {}


def _node_strategies(
    strategy: Strategy | Mapping[str, NodeStrategy | Sequence[Sequence[int]]],
) -> dict[str, tuple[Split, ...]]:
    given = strategy.nodes if isinstance(strategy, Strategy) else strategy
    found: dict[str, tuple[Split, ...]] = {}
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
    graph: GraphInfo,
    strategies: Mapping[str, tuple[Split, ...]],
    made: Mapping[str, Origin],
    in_file: Mapping[str, ParameterInfo],
    known: Mapping[str, Layout],
) -> list[tuple[NodeInfo, tuple[Split, ...]]]:
    """Return the nodes that strategies are of, in the graph's order, each with its splits."""
    by_title: dict[str, NodeInfo] = {}
    for node in graph.nodes:
        for title in (node.name, *node.outputs[:1]):
            by_title.setdefault(title, node)
    views = _views(graph)
    names = {file_name(info.name) for info in graph.parameters} | {*in_file}
    pairs: list[tuple[NodeInfo, tuple[Split, ...]]] = []
    for name, splits in strategies.items():
        if name in by_title:
            pairs.append((by_title[name], splits))
            continue
        key = parameter_of(name, names)
        if key and is_whole(splits):  # of an operator that may have no rule here
            continue
        keyed = nodes_of(*key, splits, views, made) if key else []
        if not keyed and not (key and key[1] in known):
            near = nearest(name, by_title)
            hint = f"; did you mean {near!r}?" if near else ""
            raise InputError(f"strategy: the model has no node {name!r}{hint}", name)
        pairs += [(_as_primitive(graph.nodes[one.node], one), one.splits) for one in keyed]
    return sorted(pairs, key=lambda pair: pair[0].index)


def _as_primitive(node: NodeInfo, keyed: KeyedNode) -> NodeInfo:
    """Return the part of a node that a key of MindSpore's means."""
    attributes = node.attributes if keyed.rule == node.op_type else {}
    return replace(node, op_type=keyed.rule, inputs=keyed.inputs, attributes=attributes)


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


def _split(
    node: NodeInfo,
    given: Sequence[Sequence[int]],
    shapes: Mapping[str, tuple[int, ...]],
    known_ranks: Mapping[str, int],
) -> tuple[Axes, dict[str, int]]:
    """Return a node's axes, and into how many slices each is cut. Raises InputError."""
    title = _title(node)

    def wrong(text: str) -> InputError:
        return InputError(f"strategy of node {title!r}: {text}", title)

    if len(given) > len(node.inputs):
        raise wrong(f"is for {len(given)} inputs; {node.op_type} has {len(node.inputs)} here")
    ranks = [len(dims) for dims in given]
    # Those that are left out follow, if the model says how many dimensions they have.
    for name in node.inputs[len(given) :]:
        if name not in known_ranks:
            break
        ranks.append(known_ranks[name])
    try:
        axes = axes_of(node, ranks)
    except NoRule as error:
        raise wrong(f"{error}; leave the node out, and it runs whole on each rank") from error
    counts = dict.fromkeys(axes.order, 1)
    for position, (dims, cuts) in enumerate(zip(axes.inputs, given, strict=False)):
        what = f"input {position} ({node.inputs[position]!r})"
        shape = shapes.get(node.inputs[position])
        if len(dims) != len(cuts) or (shape is not None and len(shape) != len(cuts)):
            wanted = len(dims) if shape is None else len(shape)
            raise wrong(f"gives {what} {len(cuts)} dimensions, but it has {wanted}")
        for dim, (axis, count) in enumerate(zip(dims, cuts, strict=True)):
            if count == 1:
                continue
            if axis is None:
                raise wrong(f"{node.op_type} cannot be split along dimension {dim} of {what}")
            if counts[axis] not in (1, count):
                raise wrong(
                    f"dimension {dim} of {what} is cut into {count}, but what it goes with into "
                    f"{counts[axis]}"
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
