"""The types and shapes of all tensors of a model, for one set of sizes of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any, TypeAlias

import onnx
from onnx import (
    FunctionProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    TypeProto,
    helper,
)

from engine.formats.onnx.graphs import SMALL, reads
from engine.formats.onnx.infer import types_of
from engine.plan.extract import read
from engine.plan.ranges import PartRanges, without_weights
from engine.report.explanation.flops import flops
from engine.report.explanation.found import nbytes_of
from engine.report.explanation.work import LEFT_OUT, UNKNOWN, Shape, Work
from engine.tensor.description import Array
from engine.types import Dim, DType, ModelSource, TensorSpec

_NO_VALUES = (onnx.AttributeProto.TENSOR, onnx.AttributeProto.SPARSE_TENSOR)
_STEERING = frozenset((DType.INT64, DType.INT32, DType.BOOL))
"""Types of counts, sizes and conditions."""
_dtype = cache(DType.from_onnx)


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """The tensors of a graph: of a model's main one, or of a body in it.

    nodes: as the onnx package reads them. reads: what each takes, also inside its own bodies.
    makers: the node of each tensor. kinds: types, also of what is no tensor. constants: small ones.
    functions: those of the model. values: see `computed.value_of`.
    """

    nodes: Sequence[NodeProto]
    reads: Sequence[frozenset[str]]
    makers: Mapping[str, int]
    kinds: Mapping[str, TypeProto]
    specs: Mapping[str, TensorSpec]
    nbytes: Mapping[str, int | None]
    opsets: Mapping[str, int]
    constants: Mapping[str, TensorProto]
    functions: Sequence[FunctionProto]
    values: dict[str, Array | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: ModelProto,
        kinds: Mapping[str, TypeProto],
        shapes: Mapping[str, Sequence[int]],
        functions: Sequence[FunctionProto],
    ) -> Tensors:
        """Return those of a main graph. shapes: for tensors whose type does not say all of it."""
        graph = model.graph
        specs = {name: _spec(name, kind, shapes.get(name)) for name, kind in kinds.items()}
        return cls(
            graph.node,
            [frozenset(reads(node)) for node in graph.node],
            {name: place for place, node in enumerate(graph.node) for name in node.output if name},
            kinds,
            {name: spec for name, spec in specs.items() if spec is not None},
            {name: nbytes_of(spec) for name, spec in specs.items()},
            opsets_of(model.opset_import),
            {tensor.name: tensor for tensor in graph.initializer},
            functions,
        )

    def work(self, index: int) -> int | None:
        """Return the operations of a node, see `flops`."""
        node = self.nodes[index]
        domain = "" if node.domain == "ai.onnx" else node.domain
        return flops(
            Work(
                node.op_type,
                domain,
                {one.name: _value(one) for one in node.attribute if one.type not in _NO_VALUES},
                [self._shape(name) if name else LEFT_OUT for name in node.input],
                [self._shape(name) if name else LEFT_OUT for name in node.output],
                self.opsets.get(domain, 1),
            )
        )

    def spec(self, name: str) -> TensorSpec:
        """Return the type and shape of a tensor, as far as they are known."""
        return self.specs.get(name) or TensorSpec(name, DType.FLOAT32, None)

    def kind(self, name: str) -> TypeProto | None:
        """Return the type of a value, of a tensor with the sizes that are known."""
        spec = self.specs.get(name)
        if spec is None:
            return self.kinds.get(name)
        return helper.make_tensor_type_proto(spec.dtype.onnx, spec.shape)

    def sizes(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None where a size of it is not known."""
        shape = self.spec(name).shape
        known = tuple(dim for dim in shape or () if isinstance(dim, int))
        return None if shape is None or len(known) < len(shape) else known

    def is_small(self, name: str) -> bool:
        """Return whether a tensor may hold a count, sizes, or a condition."""
        shape = self.sizes(name)
        return shape is not None and prod(shape) <= SMALL and self.spec(name).dtype in _STEERING

    def _shape(self, name: str) -> Shape:
        shape = self.sizes(name)
        return UNKNOWN if shape is None else shape


Observe: TypeAlias = (
    "Callable[[Sequence[str], Mapping[str, TypeProto]], Mapping[str, tuple[int, ...]]]"
)


def tensors_of(
    source: ModelSource, sizes: Mapping[str, Sequence[int]], observe: Observe | None = None
) -> Tensors:
    """Infer the tensors of a model. sizes: the shapes of its inputs, as far as they are known.

    observe: returns the shapes of some of them, by name, given the types of all, where they do not
    follow from the inputs'. Without it, what the file itself says is believed.
    """
    proto = read(source)
    light = without_weights(proto)
    names = {value.name for value in light.graph.output}.union(*map(reads, light.graph.node))
    names.update(name for node in light.graph.node for name in node.output if name)
    known = {} if observe is not None else _said(proto)
    kinds = types_of(light, names, guess=True, known=known)
    shapes: dict[str, tuple[int, ...]] = PartRanges(light, known).shapes_at(sizes, names)
    open_names = [
        name
        for node in light.graph.node
        for name in node.output
        if name in kinds and is_tensor(kinds[name]) and -1 in shapes.get(name, (-1,))
    ]
    if observe is not None and open_names:
        shapes.update(observe(open_names, kinds))
    return Tensors.of(light, kinds, shapes, light.functions)


def _said(proto: ModelProto) -> dict[str, TypeProto]:
    """Return what a file says of values for which onnx has no rule, as those of collectives."""
    foreign = {
        name
        for node in proto.graph.node
        if node.domain not in ("", "ai.onnx")
        for name in node.output
    }
    values = (*proto.graph.value_info, *proto.graph.output)
    return {value.name: value.type for value in values if value.name in foreign}


def is_tensor(kind: TypeProto) -> bool:
    """Return whether a type is a tensor's, of known elements."""
    return kind.HasField("tensor_type") and kind.tensor_type.elem_type != 0


def _spec(name: str, kind: TypeProto, shape: Sequence[int] | None) -> TensorSpec | None:
    if not is_tensor(kind):
        return None
    dims: tuple[Dim, ...] | None = None
    if shape is not None:
        dims = tuple(None if size < 0 else size for size in shape)
    elif kind.tensor_type.HasField("shape"):
        dims = tuple(
            dim.dim_value if dim.HasField("dim_value") else None
            for dim in kind.tensor_type.shape.dim
        )
    return TensorSpec(name, _dtype(kind.tensor_type.elem_type), dims)


def opsets_of(imports: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    """Return the versions of operator sets by domain, "" for ONNX's own."""
    return {"" if one.domain == "ai.onnx" else one.domain: one.version for one in imports}


def _value(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    return value.decode(errors="replace") if isinstance(value, bytes) else value
