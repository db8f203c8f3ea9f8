"""A model as the patterns read it, and where they put their replacements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from engine.types import ModelSource
from engine_cpu.prepare import light
from engine_cpu.prepare.kind import attribute, free_names, inferred, reads, refill, scope_of
from engine_cpu.tensors import Array


class Replacement(NamedTuple):
    """Nodes for others. The last of both makes the same value, unless nobody reads that any more.

    old: indices of the nodes that go; the last is the lead, in whose place the new ones come.
    """

    old: Sequence[int]
    new: Sequence[NodeProto]


class Graph:
    """The main graph of a model.

    Patterns see the nodes of the file, never a replacement: `are_free` says which are left.
    source: where the model's external data is. reasons: of the nodes that are replaced, by index.
    leads: the lead of each.
    """

    def __init__(self, model: ModelProto, source: ModelSource) -> None:
        self.model = model
        self._source = source
        self.nodes: Sequence[NodeProto] = list(model.graph.node)
        self.opset = next((o.version for o in model.opset_import if o.domain in _STANDARD), 1)
        self.outputs = {value.name for value in model.graph.output}
        self.reasons: dict[int, str] = {}
        self.leads: dict[int, int] = {}
        self._new: dict[int, Sequence[NodeProto]] = {}
        self._added: list[TensorProto] = []
        self._names = free_names(model, "engine_cpu.rewritten")
        self._types: dict[str, TypeProto] | None = None
        self._arrays: dict[str, Array | None] = {}
        self._pixels: dict[str, bool] = {}
        self._makers = {
            name: index for index, node in enumerate(self.nodes) for name in node.output if name
        }
        given = {value.name for value in model.graph.input}
        self._constants = {
            tensor.name: tensor for tensor in model.graph.initializer if tensor.name not in given
        }
        self._readers: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            counts = Counter(node.input)
            for name in reads(node):  # those of its subgraphs too
                self._readers.setdefault(name, []).extend([index] * max(counts[name], 1))

    def is_a(self, index: int | None, *operators: str) -> bool:
        """Return True for a node of ONNX's own with one of these operators."""
        if index is None:
            return False
        node = self.nodes[index]
        return node.op_type in operators and node.domain in _STANDARD

    def maker(self, name: str) -> int | None:
        """Return the node that makes a value; None for an input or an initializer."""
        return self._makers.get(name)

    def only_reader(self, name: str) -> int | None:
        """Return the one node that reads a value, once; None where it is an output too."""
        readers = self._readers.get(name, [])
        if len(readers) != 1 or name in self.outputs or name not in self.nodes[readers[0]].input:
            return None
        return readers[0]

    def readers(self, name: str) -> Sequence[int]:
        """Return the nodes that read a value, in their subgraphs too."""
        return self._readers.get(name, ())

    def has_pixels(self, name: str) -> bool:
        """Return True for an image that is never empty: no Conv takes or gives one that is."""
        if name not in self._pixels:
            self._pixels[name] = False  # of a circle
            self._pixels[name] = self._has_pixels(name)
        return self._pixels[name]

    def _has_pixels(self, name: str) -> bool:
        shape = self.shape(name)
        if shape is not None and len(shape) == 4 and all(shape[2:]):
            return True
        index = self.maker(name)
        if self.is_a(index, "Conv"):
            return True
        if index is None or not self.is_a(index, *_KEEPS_SIZES):
            return False
        return all(
            self.has_pixels(x) for x in self.nodes[index].input[:2] if self.constant(x) is None
        )

    def constant(self, name: str) -> Array | None:
        """Return a constant in the file, also by way of Identity and Reshape; None for others."""
        if name not in self._arrays:
            self._arrays[name] = None  # of a circle
            self._arrays[name] = self._constant(name)
        return self._arrays[name]

    def floats(self, name: str) -> Array | None:
        """Return a constant of float32; None for others."""
        array = self.constant(name)
        return array if array is not None and array.dtype == np.float32 else None

    def scalar(self, name: str) -> np.float32 | None:
        """Return the number in a float32 constant of one element; None for others."""
        array = self.floats(name)
        return None if array is None or array.size != 1 else np.float32(array.reshape(-1)[0])

    def number_beside(self, index: int, name: str | None) -> tuple[str, np.float32] | None:
        """Return the value and the number that a node of two inputs computes with.

        name: what the value must be. None for another node, and where the number's axes may give
        the result more of them than the value has.
        """
        node = self.nodes[index]
        if len(node.input) != 2:
            return None
        for x, other in (node.input, (node.input[1], node.input[0])):
            number, array = self.scalar(other), self.constant(other)
            if number is None or array is None or (name is not None and x != name):
                continue
            if self.keeps_shape(x, array):
                return x, number
        return None

    def keeps_shape(self, name: str, array: Array) -> bool:
        """Return True where a value has the same shape after it is broadcast with an array."""
        if not array.ndim:
            return True
        shape = self.shape(name)
        if shape is None or array.ndim > len(shape):
            return False
        own = shape[len(shape) - array.ndim :]
        return all(size in (1, dim) for size, dim in zip(array.shape, own, strict=True))

    def shape(self, name: str) -> list[int | None] | None:
        """Return the sizes of a value as far as they are fixed; None for an unknown rank."""
        kind = self._kind(name)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        dims = kind.tensor_type.shape.dim
        return [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]

    def is_float(self, name: str) -> bool:
        """Return True for a value that is known to be float32."""
        kind = self._kind(name)
        return kind is not None and kind.tensor_type.elem_type == TensorProto.FLOAT

    def free_name(self) -> str:
        """Return a name for a new value."""
        return next(self._names)

    def add(self, array: Array) -> str:
        """Add a constant; return its name."""
        name = self.free_name()
        self._added.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def are_free(self, indices: Iterable[int]) -> bool:
        """Return True where no pattern has replaced any of these nodes."""
        return self._taken.isdisjoint(indices)

    def put(self, replacement: Replacement, reason: str) -> None:
        """Put new nodes into the place of others."""
        lead = replacement.old[-1]
        for index in replacement.old:
            self.note(index, reason, lead)
            self._new[index] = ()
        replacement.new[-1].name = self.nodes[lead].name
        self._new[lead] = replacement.new

    def note(self, index: int, reason: str, lead: int | None = None) -> None:
        """Say how a node is computed, and with which other one."""
        self.leads[index] = index if lead is None else lead
        others = [self.reasons[index]] if index in self.reasons else []
        self.reasons[index] = "; ".join([*others, reason])

    def write(self) -> None:
        """Write the replacements into the model."""
        nodes = [new for i, node in enumerate(self.nodes) for new in self._new.get(i, (node,))]
        refill(self.model.graph.node, nodes)
        self.model.graph.initializer.extend(self._added)
        known = {opset.domain for opset in self.model.opset_import}
        for domain in {node.domain for node in nodes} - known - {*_STANDARD}:
            self.model.opset_import.append(helper.make_opsetid(domain, 1))

    @property
    def _taken(self) -> set[int]:
        return set(self._new)

    def _kind(self, name: str) -> TypeProto | None:
        if self._types is None:
            self._types = scope_of(inferred(light(self.model)).graph).types
        return self._types.get(name)

    def _constant(self, name: str) -> Array | None:
        tensor = self._constants.get(name)
        index = self.maker(name)
        if index is not None:
            node = self.nodes[index]
            if self.is_a(index, "Identity"):
                return self.constant(node.input[0])
            if self.is_a(index, "Reshape") and len(node.input) == 2:
                return self._reshaped(node)
            tensor = _value(node) if self.is_a(index, "Constant") else None
        if tensor is None or tensor.data_location != TensorProto.EXTERNAL:
            return None if tensor is None else numpy_helper.to_array(tensor)
        return self._external(tensor)

    def _external(self, tensor: TensorProto) -> Array | None:
        """Return a constant of external data, which the core has checked; None for unusual ones."""
        about = {entry.key: entry.value for entry in tensor.external_data}
        dtype = _NUMBERS.get(tensor.data_type)
        if dtype is None or "length" not in about or "location" not in about:
            return None
        begin, size = int(about.get("offset", 0)), int(about["length"])
        content = self._source.files.get(about["location"])
        if content is not None:
            data = content[begin : begin + size]
        elif self._source.folder is None:
            return None
        else:
            with open(self._source.folder / about["location"], "rb") as file:
                file.seek(begin)
                data = file.read(size)
        return np.frombuffer(data, dtype).reshape(tuple(tensor.dims))

    def _reshaped(self, node: NodeProto) -> Array | None:
        array, shape = self.constant(node.input[0]), self.constant(node.input[1])
        if array is None or shape is None or 0 in shape or attribute(node, "allowzero"):
            return None
        try:
            return array.reshape([int(size) for size in shape])
        except ValueError:  # ONNX Runtime will say so
            return None


_STANDARD = ("", "ai.onnx")
# Operators whose result is as large as the largest of their first two inputs.
_KEEPS_SIZES = (
    "Add", "BatchNormalization", "Clip", "Div", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu",
    "Mul", "PRelu", "Relu", "Sigmoid", "Sub", "Tanh",
)  # fmt: skip
_NUMBERS: dict[int, Any] = {TensorProto.FLOAT: np.dtype("<f4"), TensorProto.INT64: np.dtype("<i8")}


def _value(node: NodeProto) -> TensorProto | None:
    """Return the tensor of a Constant."""
    for item in node.attribute:
        if item.name == "value":
            tensor: TensorProto = item.t
            return tensor
        if item.name in ("value_float", "value_floats"):
            return numpy_helper.from_array(np.asarray(helper.get_attribute_value(item), np.float32))
        if item.name in ("value_int", "value_ints"):
            return numpy_helper.from_array(np.asarray(helper.get_attribute_value(item), np.int64))
    return None


def node(operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
    """Return a node with one output."""
    return helper.make_node(operator, inputs, [output], **attributes)
