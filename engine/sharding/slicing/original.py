"""The model that is sliced: its nodes, its tensors' types, and its weights where they lie.

Weights are read where they are needed, as views of mapped files: nothing here holds a copy of one.
"""

from __future__ import annotations

import mmap
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx.inliner
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

from engine.errors import ModelError
from engine.formats import ModelFile
from engine.formats.collectives import is_collective
from engine.formats.onnx.graphs import RANDOM, inputs, reads, subgraphs
from engine.formats.onnx.infer import is_known, shape_of, types_of
from engine.formats.onnx.safe_inference import infer_shapes
from engine.formats.onnx.weights import with_weights_apart
from engine.formats.opened import OpenedSource
from engine.host.interrupts import pass_interrupt
from engine.sharding.slicing import known_shapes
from engine.types import Dim, DType

Array: TypeAlias = "np.ndarray[Any, Any]"
Shape: TypeAlias = "tuple[Dim, ...]"

_MOST_ROUNDS = 200
SMALL = 1024
"""Elements of a constant that rules may look at: shapes, axes, scales."""


@dataclass
class Original:
    """A model as the slicer sees it.

    proto: the model without Constant nodes and functions of its own; its weights are references.
    nodes: in an order in which they run, what is made of constants alone right before its reader.
    types: of every tensor that is known. constants: the initializers by name. derived: what is
    computed from constants alone. batched: the inputs whose axis 0 the file leaves open. asked:
    sizes that the user has said for inputs, with which the slices are checked.
    """

    name: str
    source: OpenedSource
    proto: ModelProto
    nodes: list[NodeProto] = field(default_factory=list)
    types: dict[str, TypeProto] = field(default_factory=dict)
    constants: dict[str, TensorProto] = field(default_factory=dict)
    derived: set[str] = field(default_factory=set)
    batched: tuple[str, ...] = ()
    asked: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _maps: dict[str, Any] = field(default_factory=dict)
    _dtypes: dict[str, DType | None] = field(default_factory=dict)
    _shapes: dict[str, Shape | None] = field(default_factory=dict)

    @property
    def inputs(self) -> list[str]:
        """The names of what a caller gives."""
        return [value.name for value in inputs(self.proto.graph)]

    @property
    def outputs(self) -> list[str]:
        """The names of the results."""
        return [value.name for value in self.proto.graph.output]

    @cached_property
    def opsets(self) -> dict[str, int]:
        """Versions of the operator sets, "" for ONNX's own."""
        return {
            "" if opset.domain == "ai.onnx" else opset.domain: opset.version
            for opset in self.proto.opset_import
        }

    @cached_property
    def readers(self) -> dict[str, list[NodeProto]]:
        """The nodes that read a tensor, by its name."""
        found: dict[str, list[NodeProto]] = defaultdict(list)
        for node in self.nodes:
            for name in reads(node):
                found[name].append(node)
        return found

    @cached_property
    def captured(self) -> set[str]:
        """Names that bodies of nodes (If, Loop) take from the main graph."""
        return {
            name
            for node in self.nodes
            if any(True for _ in subgraphs(node))
            for name in reads(node) - {*node.input}
        }

    def dtype(self, name: str) -> DType | None:
        """Return the element type of a tensor; None for what is no tensor, or not known."""
        if name not in self._dtypes:
            self._dtypes[name] = self._read_dtype(name)
        return self._dtypes[name]

    def shape(self, name: str) -> Shape | None:
        """Return the shape of a tensor as far as it is known; None for an open rank."""
        if name not in self._shapes:
            self._shapes[name] = shape_of(self.types.get(name))
        return self._shapes[name]

    def _read_dtype(self, name: str) -> DType | None:
        kind = self.types.get(name)
        if kind is None or kind.WhichOneof("value") != "tensor_type":
            return None
        try:
            return DType.from_onnx(kind.tensor_type.elem_type)
        except ValueError:
            return None

    def nbytes(self, name: str, open_size: int = 32) -> int:
        """Return the size of a tensor, open dims taken for `open_size`."""
        shape, dtype = self.shape(name), self.dtype(name)
        if shape is None or dtype is None:
            return 4 * open_size
        return stored_bytes(dtype, prod(d if isinstance(d, int) else open_size for d in shape))

    def value(self, name: str) -> Array | None:
        """Return the elements of a small constant; None for anything else."""
        tensor = self.constants.get(name)
        if tensor is None or prod(tensor.dims) > SMALL:
            return None
        return self.array(name)

    def array(self, name: str) -> Array:
        """Return the elements of a constant, as a view of where they are if they lie in a file."""
        tensor = self.constants[name]
        if tensor.data_location != TensorProto.EXTERNAL:
            return np.array(numpy_helper.to_array(tensor))
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location, offset = entries["location"], int(entries.get("offset", "0"))
        if location not in self._maps:
            self._maps[location] = self.source.files.get(location) or _mapped(self.source, location)
        dtype = DType.from_onnx(tensor.data_type)
        raw = np.frombuffer(self._maps[location], np.uint8, self._length(entries, tensor), offset)
        if dtype.bits < 8:
            light = TensorProto(data_type=tensor.data_type, dims=tensor.dims)
            light.raw_data = raw.tobytes()
            return np.array(numpy_helper.to_array(light))
        return raw.view(dtype.numpy).reshape(tuple(tensor.dims))

    def _length(self, entries: dict[str, str], tensor: TensorProto) -> int:
        bits = prod(tensor.dims) * DType.from_onnx(tensor.data_type).bits
        return int(entries.get("length", (bits + 7) // 8))

    def weight_files(self) -> set[Path]:
        """Return the files beside the model's own that its weights are in."""
        located = {
            entry.value
            for tensor in self.constants.values()
            for entry in tensor.external_data
            if entry.key == "location"
        }
        folder = Path(self.source.folder or ".")
        return {folder / location for location in located - {*self.source.files}}

    def is_random(self, node: NodeProto) -> bool:
        """Return whether a node, or one in its bodies, draws numbers: each rank has others."""
        if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:
            training = self.value(node.input[2])
            return training is None or bool(training.any())
        return node.op_type in RANDOM or any(
            self.is_random(inner) for graph in subgraphs(node) for inner in graph.node
        )

    def is_numeric(self, name: str) -> bool:
        """Return whether a tensor's elements are whole bytes that ranks can exchange."""
        dtype = self.dtype(name)
        return dtype is not None and dtype is not DType.STRING and dtype.bits >= 8


def stored_bytes(dtype: DType, elements: int) -> int:
    """Return the bytes of so many elements as a file stores them; a text counts as one byte."""
    return (elements * (dtype.bits or 8) + 7) // 8


def open_original(
    path: str | os.PathLike[str],
    *,
    input_shapes: dict[str, Sequence[int]] | None = None,
    fixed_axes: int | None = 0,
) -> Original:
    """Read a model to slice it. Raises ModelError for a file that is none, or cannot be sliced.

    input_shapes: sizes for inputs, with which the slices are checked. fixed_axes: how many axes
    these fix in the slices too, from the first on; None for all.
    """
    file = ModelFile(path)
    if file.encryption:
        raise ModelError(
            f"{file.name}: is encrypted with {file.encryption}; encrypted models are not sliced, "
            "because their slices would lie on the disk in clear: slice the model that it was "
            "made of, where that may be",
            str(path),
        )
    opened = file()
    if opened.graph is None:
        raise ModelError(
            f"{opened.name}: is compiled for one backend; slice the ONNX model", str(path)
        )
    if opened.state:
        raise ModelError(
            f"{opened.name}: assigns to its parameters ({opened.state[0].name!r}); only models "
            "without state can be sliced",
            str(path),
        )
    source = with_weights_apart(opened)
    assert isinstance(source, OpenedSource)
    if source.data is not None:
        proto = onnx.load_model_from_string(source.data)
    else:
        proto = onnx.load(str(source.path), load_external_data=False)
    for node in proto.graph.node:
        if is_collective(node.op_type, node.domain):
            raise ModelError(
                f"{opened.name}: is a slice already: {node.op_type} {node.name!r} waits for other "
                "ranks; slice the whole model",
                str(path),
            )
    return _prepared(opened.name, source, proto, input_shapes or {}, fixed_axes)


def _prepared(
    name: str,
    source: OpenedSource,
    proto: ModelProto,
    shapes: dict[str, Sequence[int]],
    fixed_axes: int | None,
) -> Original:
    if proto.functions:
        proto = onnx.inliner.inline_local_functions(proto)
    batched = tuple(value.name for value in inputs(proto.graph) if _is_batched(value))
    _set_shapes(proto, shapes, name, fixed_axes)
    asked = {name: tuple(shape) for name, shape in shapes.items()}
    original = Original(name, source, proto, batched=batched, asked=asked)
    constants = original.constants
    constants.update({tensor.name: tensor for tensor in proto.graph.initializer})
    kept = []
    for node in proto.graph.node:
        tensor = _constant(node)
        if tensor is None:
            kept.append(node)
        else:
            constants[tensor.name] = tensor
            proto.graph.initializer.append(tensor)
    for number, node in enumerate(kept):
        node.name = node.name or f"{node.op_type}_{number}"
    del proto.graph.node[:]
    proto.graph.node.extend(kept)
    # Before version 4 an initializer had to be an input too, and is not inferred from without.
    proto.ir_version = max(proto.ir_version, 8)
    given = inputs(proto.graph)
    del proto.graph.input[:]
    proto.graph.input.extend(given)
    made = {output for node in proto.graph.node for output in node.output if output}
    outside = {*constants, *(value.name for value in proto.graph.input)}
    types = {value.name: value.type for value in proto.graph.input}
    for value in proto.graph.output:  # given back as it is; onnx infers nothing of it
        if value.name in outside:
            value.type.CopyFrom(types.get(value.name) or _type(constants[value.name]))
    original.types = types_of(proto, {*made, *outside}, guess=True, known=_known(proto))
    sparse = {tensor.values.name for tensor in proto.graph.sparse_initializer}
    original.nodes = _late_constants(
        list(proto.graph.node), {*constants, *sparse}, original.derived
    )
    _refine(original)
    return original


def _refine(original: Original) -> None:
    """Note shapes that follow from others, where onnx's inference leaves them open."""
    from engine.sharding.slicing.shapes import refined

    cut_axes = {}
    for node in original.nodes:
        if node.op_type == "Slice" and len(node.input) > 1:
            rank = len(original.shape(node.input[0]) or ())
            axes = original.value(node.input[3]) if len(node.input) > 3 and node.input[3] else None
            if rank and axes is not None:
                cut_axes[node.output[0]] = {int(axis) % rank for axis in axes.reshape(-1)}
    names = [*original.types]
    shapes = {name: original.shape(name) for name in names}
    original._shapes.update(refined(original.nodes, shapes, cut_axes))


def _known(proto: ModelProto) -> dict[str, TypeProto]:
    """Return all types that can be inferred; behind an operator that onnx does not know, too."""
    known = _inferred(proto)
    for _ in range(_MOST_ROUNDS):  # one more a layer of such operators
        if not known_shapes.added(proto, known):
            break
        known = _inferred(proto)
    return known


def _inferred(proto: ModelProto) -> dict[str, TypeProto]:
    """Infer types of the whole model at once; weights are references, and nothing is copied."""
    try:
        graph = infer_shapes(proto, data_prop=True).graph
    except Exception as error:  # onnx's own, of a model that runs all the same
        pass_interrupt(error)
        return {}
    values = (*graph.value_info, *graph.output)
    return {value.name: value.type for value in values if is_known(value.type)}


def _is_batched(value: ValueInfoProto) -> bool:
    dims = value.type.tensor_type.shape.dim
    return len(dims) > 0 and not dims[0].HasField("dim_value")


def _set_shapes(
    proto: ModelProto, shapes: dict[str, Sequence[int]], model: str, fixed_axes: int | None
) -> None:
    values = {value.name: value for value in inputs(proto.graph)}
    for name, shape in shapes.items():
        if name not in values:
            raise ModelError(
                f"{model}: has no input {name!r}; it has {', '.join(map(repr, values))}"
            )
        tensor = values[name].type.tensor_type
        if not tensor.HasField("shape"):
            for _ in shape:
                tensor.shape.dim.add()
        dims = tensor.shape.dim
        if len(dims) != len(shape):
            raise ModelError(
                f"{model}: input {name!r} has {len(dims)} dims, but its shape is given as "
                f"{list(shape)}"
            )
        named = {}
        for axis, (dim, size) in enumerate(zip(dims, shape)):
            if dim.HasField("dim_value"):
                if dim.dim_value != size:
                    raise ModelError(
                        f"{model}: input {name!r}: expected {dim.dim_value} along axis {axis}, "
                        f"which the file fixes, got {size} (--input-shape)"
                    )
            elif fixed_axes is None or axis < fixed_axes:
                if dim.dim_param:
                    named[dim.dim_param] = size
                dim.dim_value = size
        for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param in named:
                    dim.dim_value = named[dim.dim_param]


def _type(tensor: TensorProto) -> TypeProto:
    return helper.make_tensor_type_proto(tensor.data_type, tensor.dims)


def _constant(node: NodeProto) -> TensorProto | None:
    """Return what a Constant node holds, as an initializer; None for any other node."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    attribute = node.attribute[0]
    held = helper.get_attribute_value(attribute)
    if attribute.name == "value":
        tensor = TensorProto()
        tensor.CopyFrom(held)
    elif attribute.name in ("value_float", "value_floats"):
        tensor = numpy_helper.from_array(np.array(held, np.float32))
    elif attribute.name in ("value_int", "value_ints"):
        tensor = numpy_helper.from_array(np.array(held, np.int64))
    else:
        return None
    tensor.name = node.output[0]
    return tensor


def _late_constants(
    nodes: list[NodeProto], constants: set[str], derived: set[str]
) -> list[NodeProto]:
    """Return the nodes with those of constants alone moved to right before the first reader.

    derived: is given the names of what these make.
    """
    makers: dict[str, NodeProto] = {}
    ordered: list[NodeProto] = []
    placed: set[int] = set()

    def place(node: NodeProto) -> None:
        pending = [node]
        while pending:
            top = pending[-1]
            before = [
                makers[name]
                for name in reads(top)
                if name in makers and id(makers[name]) not in placed
            ]
            if before:
                pending += before
                continue
            pending.pop()
            if id(top) not in placed:
                placed.add(id(top))
                ordered.append(top)

    late = []
    for node in nodes:
        if node.op_type not in RANDOM and reads(node) and reads(node) <= constants | derived:
            derived.update(filter(None, node.output))
            makers.update(dict.fromkeys(filter(None, node.output), node))
            late.append(node)
        else:
            place(node)
    for node in late:  # those that only the results read
        place(node)
    return ordered


def _mapped(source: OpenedSource, location: str) -> mmap.mmap:
    assert source.folder is not None, "external data lies beside a file"
    folder = Path(source.folder)
    with (folder / location).open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
