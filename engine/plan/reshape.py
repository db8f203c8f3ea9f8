"""Other input shapes for an ONNX model, also where it fixes them; the nodes stay as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from onnx import GraphProto, ModelProto, ValueInfoProto

from engine.formats import source_of_part
from engine.formats.onnx.graphs import bodies, inputs
from engine.formats.opened import OpenedSource
from engine.plan.extract import read, relocate
from engine.plan.ranges import PartRanges, without_weights


def reshape(source: OpenedSource, shapes: Mapping[str, Sequence[int]]) -> OpenedSource:
    """Return the model with these shapes of its inputs, and what follows from them.

    The backend says if its nodes can run so: constants that were made for other
    sizes stay. Raises ModelError for a file that cannot be read.
    """
    model = read(source)
    set_shapes(model, shapes)
    names = [value.name for value in model.graph.output]
    inferred = PartRanges(without_weights(model), {}).shapes_at(shapes, names)
    for value in model.graph.output:
        tensor = value.type.tensor_type
        sizes = inferred.get(value.name)
        if sizes is not None and len(sizes) == len(tensor.shape.dim):
            for dim, size in zip(tensor.shape.dim, sizes):
                if size >= 0:
                    dim.dim_value = size
    folder = relocate(model, source)
    made = source_of_part(model.SerializeToString(), source, folder)
    return replace(made, state=source.state, variables=source.variables)


def set_shapes(model: ModelProto, shapes: Mapping[str, Sequence[int]]) -> None:
    """Set the shapes of a model's inputs, and open what was said of the values behind them."""
    for value in inputs(model.graph):
        tensor = value.type.tensor_type
        if value.name not in shapes or not value.type.HasField("tensor_type"):
            continue
        sizes = shapes[value.name]
        dims = tensor.shape.dim
        while len(dims) < len(sizes):
            dims.add()
        tensor.shape.SetInParent()  # a scalar's has no dims
        for dim, size in zip(dims, sizes, strict=True):
            dim.dim_value = size
    main, *others = bodies(model)
    open_dims(model.graph.output)
    del main.value_info[:]
    for body in others:
        del body.value_info[:]
        if isinstance(body, GraphProto):
            for value in (*body.input, *body.output):
                if value.type.HasField("tensor_type"):
                    value.type.tensor_type.ClearField("shape")


def open_dims(values: Iterable[ValueInfoProto]) -> None:
    """Forget the sizes of tensors, but not how many axes they have."""
    for value in values:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
