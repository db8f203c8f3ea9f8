"""The sizes that tensors inside a model can have, from the ranges of the model's inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

import onnx
from onnx import ModelProto, TypeProto

from engine.config.shapes import OPEN
from engine.formats.onnx.graphs import SMALL
from engine.formats.onnx.infer import types_of
from engine.formats.onnx.reading import is_symbol
from engine.plan.extract import read
from engine.types import ModelSource, ShapeRange


class PartRanges:
    """Derives the ranges of any tensor of a model.

    proto: the whole model. types: of tensors, as far as they are known by now; it may grow.
    """

    def __init__(self, proto: ModelProto, types: Mapping[str, TypeProto]) -> None:
        self._proto = proto
        self._types = types
        self._inputs = [value.name for value in proto.graph.input]
        self._light: ModelProto | None = None

    def of(self, given: Mapping[str, ShapeRange], names: Sequence[str]) -> dict[str, ShapeRange]:
        """Return the ranges of these tensors where `given`, those of the model's inputs, say them.

        A dim that follows from them is inferred at the lowest, the usual and the highest sizes.
        """
        ranges = {name: given[name] for name in names if name in given}
        inside = [name for name in names if name not in self._inputs]
        if not given or not inside:
            return ranges
        ends = [
            self.shapes_at({name: getattr(asked, end) for name, asked in given.items()}, inside)
            for end in ("lowest", "usual", "highest")
        ]
        for name in inside:
            shapes = [shape for shapes in ends if (shape := shapes.get(name)) is not None]
            if len(shapes) < 3 or len({*map(len, shapes)}) > 1:
                continue
            axes = [
                # A size may shrink while an input's grows: in order, whichever end it comes from.
                tuple(sorted(sizes)) if min(sizes) >= 0 else OPEN
                for sizes in zip(*shapes, strict=True)
            ]
            if any(axis != OPEN for axis in axes):
                ranges[name] = ShapeRange(
                    tuple(axis[0] for axis in axes),
                    tuple(axis[1] for axis in axes),
                    tuple(axis[2] for axis in axes),
                )
        return ranges

    def shapes_at(
        self, sizes: Mapping[str, Sequence[int]], names: Collection[str]
    ) -> dict[str, tuple[int, ...]]:
        """Return the shapes of tensors where inputs have these sizes; -1 is an unknown dim.

        One that is given counts, whatever the file says. Tensors of which nothing is known are
        left out.
        """
        light = ModelProto()
        if self._light is None:
            self._light = without_weights(self._proto)
        light.CopyFrom(self._light)
        symbols: dict[str, int] = {}
        for value in light.graph.input:
            asked = sizes.get(value.name)
            tensor = value.type.tensor_type
            if asked is None:
                continue
            if not tensor.HasField("shape"):
                value.type.CopyFrom(onnx.helper.make_tensor_type_proto(tensor.elem_type, asked))
            for dim, size in zip(tensor.shape.dim, asked, strict=False):
                if is_symbol(dim.dim_param) and size >= 0:
                    symbols[dim.dim_param] = size
                if size >= 0:
                    dim.dim_value = size
        for value in light.graph.input:
            _substitute(value.type, symbols)
        known: dict[str, TypeProto] = {}
        for name, kind in self._types.items():
            fixed = TypeProto()
            fixed.CopyFrom(kind)
            _substitute(fixed, symbols)
            shape = _dims(fixed)
            if name not in self._inputs and shape is not None and -1 not in shape:
                known[name] = fixed
        types = types_of(light, names, guess=True, known=known)
        shapes = {name: _dims(kind) for name, kind in types.items()}
        return {name: shape for name, shape in shapes.items() if shape is not None}


def ranges_of(source: ModelSource) -> PartRanges:
    """Return what infers shapes in a model of which no tensor is known yet."""
    return PartRanges(without_weights(read(source)), {})


def without_weights(model: ModelProto) -> ModelProto:
    """Return a model with inputs in place of its larger constants, and no types inside."""
    graph, light = model.graph, ModelProto(ir_version=model.ir_version)
    names = {value.name for value in graph.input}
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    light.graph.name = graph.name
    light.graph.node.extend(graph.node)
    light.graph.input.extend(graph.input)
    for tensor in graph.initializer:
        if prod(tensor.dims) <= SMALL and tensor.data_location != tensor.EXTERNAL:
            light.graph.initializer.append(tensor)
        elif tensor.name not in names:
            kind = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            light.graph.input.add(name=tensor.name).type.CopyFrom(kind)
    return light


def _substitute(kind: TypeProto, symbols: Mapping[str, int]) -> None:
    for dim in kind.tensor_type.shape.dim:
        if dim.dim_param in symbols:
            dim.dim_value = symbols[dim.dim_param]


def _dims(kind: TypeProto) -> tuple[int, ...] | None:
    """Return a tensor's shape, -1 for unknown dims; None where it has none."""
    tensor = kind.tensor_type
    if not kind.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim)
