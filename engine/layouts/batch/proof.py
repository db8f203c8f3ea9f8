"""Prove that no sample of a batch changes another's results, or say which node may let it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from onnx import ModelProto, TypeProto

from engine.formats.onnx.graphs import inputs
from engine.layouts.batch.rules import OF_ANY_KIND, RULES
from engine.layouts.batch.sizes import BATCH, Dim, Symbols
from engine.layouts.batch.values import Kind, Value, divided, part, whole
from engine.layouts.batch.walk import Blamed, Endless, Mixed, Scope, Walk


class OutputAxis(NamedTuple):
    """An output of a model. axis: of the batch, None where it is the same for every sample.

    is_each: a sample has one entry along the axis, and not several.
    """

    axis: int | None
    is_each: bool = False


class Proof(NamedTuple):
    """The answer. reason: why samples may meet, "" where they cannot; outputs: by name."""

    reason: str
    outputs: Mapping[str, OutputAxis]


def prove(model: ModelProto, axes: Mapping[str, int | None]) -> Proof:
    """Follow the batch from a model's inputs to its outputs.

    axes: by input, the axis of the batch; an input that is left out, or has None, is the same for
    every sample. Open axes of the same name have the same size: who relies on the proof sees to
    that. Inputs that are no caller's may stand for weights whose values may change.
    """
    walk = Walk.of(model, RULES, OF_ANY_KIND)
    scope: Scope = {}
    names: dict[str, Dim] = {}
    for value in inputs(model.graph):
        axis = axes.get(value.name)
        if axis is not None:
            dims = value.type.tensor_type.shape.dim
            if axis < len(dims) and dims[axis].dim_param:
                names[dims[axis].dim_param] = BATCH
    for value in inputs(model.graph):
        scope[value.name] = _given(
            value.name, value.type, axes.get(value.name), names, walk.symbols
        )
    try:
        walk.graph(model.graph, scope)
    except (Blamed, Endless) as error:
        return Proof(str(error), {})
    outputs: dict[str, OutputAxis] = {}
    for value in model.graph.output:
        found = scope.get(value.name)
        if isinstance(found, Mixed):
            return Proof(found.reason, {})
        if found is None or found.kind not in (Kind.WHOLE, Kind.DIVIDED):
            kind = found.kind.value if found is not None else "not known"
            return Proof(f"output {value.name!r} is {kind}", {})
        if found.is_whole:
            outputs[value.name] = OutputAxis(None)
        else:
            outputs[value.name] = OutputAxis(found.axis, part(found.size) == 1)
    return Proof("", outputs)


def _given(
    name: str, kind: TypeProto, axis: int | None, names: dict[str, Dim], symbols: Symbols
) -> Value | Mixed:
    """Return what is known of an input. names: of the open sizes so far; gains those it has."""
    tensor = kind.tensor_type
    if kind.WhichOneof("value") != "tensor_type":
        return whole() if axis is None else Mixed(f"input {name!r} is no tensor")
    if not tensor.HasField("shape"):
        return (
            whole(None, tensor.elem_type)
            if axis is None
            else Mixed(f"the rank of input {name!r} is not known")
        )
    dims: list[Dim] = []
    for place, dim in enumerate(tensor.shape.dim):
        if place == axis:
            dims.append(BATCH)
        elif dim.HasField("dim_value") and dim.dim_value >= 0:  # below, as -1, it is open
            dims.append(dim.dim_value)
        elif dim.dim_param:
            dims.append(names.setdefault(dim.dim_param, symbols.new()))
        else:
            dims.append(symbols.new())
    if BATCH in [size for place, size in enumerate(dims) if place != axis]:
        return Mixed(f"input {name!r} has the batch in another axis")
    shape = tuple(dims)
    if axis is not None and axis >= len(shape):
        return Mixed(f"input {name!r} has no axis {axis}")
    if axis is None:
        return whole(shape, tensor.elem_type)
    return divided(axis, shape, tensor.elem_type)
