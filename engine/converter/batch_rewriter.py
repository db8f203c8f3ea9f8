"""Rewrite the nodes of a graph for another batch size.

The nodes are walked in order, with the shapes of their values as they are and as they are to be;
where the second do not follow from the first, a constant is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, prod
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

from engine.converter.graphs import Names, title
from engine.converter.job import Job
from engine.formats.arrays import Array
from engine.formats.onnx.graphs import SMALL, is_small, reads, subgraphs

Dims: TypeAlias = tuple[int | None, ...]
Batches: TypeAlias = Mapping[str, tuple[int, int]]

# Operators whose operands are brought to one shape, from the last axis on.
_BROADCAST = frozenset(
    ("Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater",
     "GreaterOrEqual", "Less", "LessOrEqual", "MatMul", "Max", "Mean", "Min", "Mod", "Mul", "Or",
     "PRelu", "Pow", "Sub", "Sum", "Where", "Xor")
)  # fmt: skip


class CannotRebatch(Exception):
    """The batch cannot be changed. The message says why."""


@dataclass(frozen=True, slots=True)
class _Value:
    """Static type of a value. data: its elements, for a small constant."""

    type: TypeProto | None = None
    data: Array | None = None

    @property
    def dims(self) -> Dims | None:
        return None if self.type is None else dims_of(self.type)

    def equals(self, other: _Value) -> bool:
        if self.data is None or other.data is None:
            return self.data is other.data and self.type == other.type
        return self.type == other.type and np.array_equal(self.data, other.data)


_UNKNOWN = _Value()


class BatchRewriter:
    """Rewriter of a graph's nodes for another batch. added: their new constants."""

    def __init__(
        self,
        model: ModelProto,
        weights: ModelProto,
        given: Sequence[ValueInfoProto],
        batches: Batches,
    ) -> None:
        self.added: list[TensorProto] = []
        self._graph = model.graph
        self._opsets = {opset.domain: opset.version for opset in model.opset_import}
        self._opsets.setdefault("", self._opsets.get("ai.onnx", 1))
        self._imports = [helper.make_opsetid(*opset) for opset in self._opsets.items()]
        self._names = Names(weights)
        self._old = {sparse.values.name: _UNKNOWN for sparse in model.graph.sparse_initializer}
        for tensor in weights.graph.initializer:
            kind = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            data = numpy_helper.to_array(tensor) if is_small(tensor) else None
            self._old[tensor.name] = _Value(kind, data)
        for value in given:
            self._old[value.name] = _Value(value.type)
        self._new = dict(self._old)
        for name, (_, size) in batches.items():
            kind = TypeProto()
            kind.CopyFrom(next(fact.type for fact in given if fact.name == name))
            kind.tensor_type.shape.dim[0].dim_value = size
            self._new[name] = _Value(kind)
        self._inserted: list[NodeProto] = []
        self._from_one = min(old for old, _ in batches.values()) == 1
        # Stride of the batch within an axis it has been merged into: a Reshape of [batch, time] to
        # [time * batch] puts it inside of `time`, so later nodes must find it there.
        self._strides: dict[tuple[str, int], int] = {}

    def nodes(self, job: Job) -> list[NodeProto]:
        """Return all nodes in order, rewritten. Raises CannotRebatch, Cancelled."""
        result = []
        for node in self._graph.node:
            job.cancel.check()
            needed = reads(node)
            try:
                before = self._infer(node, self._old)
            except onnx.shape_inference.InferenceError:
                before = {}
            after = before
            if any(self._is_changed(name) for name in needed):
                node = self._rewrite(node, before)
                try:
                    after = self._infer(node, self._new)
                except onnx.shape_inference.InferenceError as error:
                    if before:
                        text = " ".join(str(error).split())
                        raise CannotRebatch(f"{title(node)}: {text}") from error
                    after = {}
            for name in node.output:
                old = self._old[name] = before.get(name, _UNKNOWN)
                new = after.get(name, _Value())  # what is not known is not the same, either
                same = after is before or (name in after and old.equals(new))
                self._new[name] = old if same else new
            if after is not before:
                self._propagate_strides(node)
            result += [*self._inserted, node]
            self._inserted.clear()
        return result

    def _propagate_strides(self, node: NodeProto) -> None:
        """Propagate the batch's strides to output axes that have the sizes of an input's axis."""
        strides = {
            self._axis_sizes(name, axis): stride
            for (name, axis), stride in self._strides.items()
            if name in node.input
        }
        for name in node.output if strides else ():
            for axis in range(len(self._new[name].dims or ())):
                old, new = self._axis_sizes(name, axis)
                stride = strides.get((old, new))
                if stride is not None and old != new:
                    self._strides.setdefault((name, axis), stride)

    def _axis_sizes(self, name: str, axis: int) -> tuple[int | None, int | None]:
        old, new = self._old[name].dims, self._new[name].dims
        if old is None or new is None or len(old) != len(new):
            return None, None
        return old[axis], new[axis]

    def _is_changed(self, name: str) -> bool:
        return self._new.get(name) is not self._old.get(name)

    # -------------------------------------------------------------------------- what a node makes

    def _infer(self, node: NodeProto, known: Mapping[str, _Value]) -> dict[str, _Value]:
        """Infer the facts of a node's outputs; none where a fact that it reads is missing.

        Raises onnx's InferenceError where the node cannot take what it reads.
        """
        domain = "" if node.domain == "ai.onnx" else node.domain
        types: dict[str, TypeProto] = {}
        data: dict[str, TensorProto] = {}
        for name in reads(node):
            value = known.get(name, _UNKNOWN)
            if value.type is None:
                return {}
            types[name] = value.type
            if value.data is not None:
                data[name] = numpy_helper.from_array(value.data, name)
        try:
            schema = onnx.defs.get_schema(node.op_type, self._opsets.get(domain, 1), domain)
        except onnx.defs.SchemaError:
            return {}
        output_types = onnx.shape_inference.infer_node_outputs(
            schema, node, types, data, opset_imports=self._imports
        )
        arrays = self._fold_small_constants(node, known, output_types)
        return {name: _Value(kind, arrays.get(name)) for name, kind in output_types.items()}

    def _fold_small_constants(
        self, node: NodeProto, known: Mapping[str, _Value], types: Mapping[str, TypeProto]
    ) -> Mapping[str, Array]:
        """Evaluate a node whose inputs are small constants: mostly shapes for other nodes."""
        sizes = [dims_of(kind) for kind in types.values()]
        if node.domain not in ("", "ai.onnx") or any(
            dims is None or None in dims or _product(dims) > SMALL for dims in sizes
        ):
            return {}
        if node.op_type in ("Shape", "Size"):
            dims = known[node.input[0]].dims
            if dims is None or None in dims:
                return {}
            # Only the shape counts, so an array without memory of its own will do.
            given = {node.input[0]: np.broadcast_to(np.int8(0), [dim or 0 for dim in dims])}
        else:
            values = {name: known[name].data for name in node.input if name}
            given = {name: array for name, array in values.items() if array is not None}
            if len(given) < len(values) or node.op_type.startswith("Random"):
                return {}
            if any(subgraphs(node)):
                return {}
        from onnx.reference import ReferenceEvaluator

        graph = helper.make_graph(
            [node],
            "one",
            [helper.make_value_info(name, known[name].type or TypeProto()) for name in given],
            [helper.make_value_info(name, kind) for name, kind in types.items()],
        )
        try:
            model = helper.make_model(graph, opset_imports=self._imports)
            results = ReferenceEvaluator(model).run(None, given)
        except Exception:  # not an operator that it has; then it is not known before a run
            return {}
        return dict(zip(types, results))

    # ----------------------------------------------------------------------- what is to be changed

    def _rewrite(self, node: NodeProto, before: Mapping[str, _Value]) -> NodeProto:
        """Return a copy of a node, its constants replaced where they hold the old batch."""
        rewritten = NodeProto()
        rewritten.CopyFrom(node)
        if node.op_type == "Reshape":
            self._fit_reshape(rewritten, before)
        elif node.op_type == "Expand":
            self._fit_sizes(rewritten, 1, from_end=True)
            self._fit_expanded(rewritten)
        elif node.op_type == "Resize" and len(node.input) > 3 and not _attribute(node, "axes"):
            self._fit_sizes(rewritten, 3)
        elif node.op_type == "Slice" and len(node.input) > 2:
            self._fit_slice(rewritten)
        elif node.op_type in _BROADCAST:
            self._fit_operands(rewritten, skip=2 if node.op_type == "MatMul" else 0)
        elif node.op_type == "Concat":
            self._fit_concat(rewritten)
        elif node.op_type in ("GRU", "LSTM", "RNN") and not _attribute(node, "layout"):
            for position, axis in ((4, 0), (5, 1), (6, 1)):
                if position < len(node.input):
                    self._fit_rows(rewritten, position, axis, *self._axis_sizes(node.input[0], 1))
        return rewritten

    def _fit_reshape(self, node: NodeProto, before: Mapping[str, _Value]) -> None:
        """Set the new size of the result's axis that has the batch."""
        data, shape = node.input[0], node.input[1]
        old, new = self._old[data].dims, self._new[data].dims
        requested = self._old[shape].data
        result = before[node.output[0]].dims if node.output[0] in before else None
        if old is None or new is None or requested is None or result is None or old == new:
            return
        target = list(result)
        for axis, (size, new_size) in enumerate(zip(old, new)):
            if size == new_size:
                continue
            result_axis = None
            if size and new_size and None not in old[:axis]:
                outer = _product(old[:axis]) * self._strides.get((data, axis), 1)
                result_axis = _batch_axis(result, outer, Fraction(new_size, size), self._from_one)
            if result_axis is None:
                raise CannotRebatch(
                    f"{title(node)} makes {_text(result)} of {_text(old)}, in which the batch has "
                    "no axis"
                )
            result_size = result[result_axis]
            target[result_axis] = None if result_size is None else result_size * new_size // size
            self._strides[node.output[0], result_axis] = outer // _product(result[:result_axis])
        try:
            inferred = self._infer(node, self._new)
        except onnx.shape_inference.InferenceError:
            inferred = {}
        if node.output[0] in inferred and inferred[node.output[0]].dims == tuple(target):
            return
        if self._is_changed(shape):
            return  # computed from shapes by the model itself
        keeps_zero = _attribute(node, "allowzero")
        sizes = [
            int(given)
            if size is None
            or given == -1
            or (
                given == 0
                and not keeps_zero
                and result_axis < len(new)
                and size == new[result_axis]
            )
            else size
            for result_axis, (given, size) in enumerate(zip(requested.tolist(), target))
        ]
        node.input[1] = self._constant(node, np.array(sizes, np.int64))

    def _fit_sizes(self, node: NodeProto, position: int, from_end: bool = False) -> None:
        """Change sizes that are given for the axes of the first input."""
        sizes = self._old[node.input[position]].data if node.input[position] else None
        old, new = self._old[node.input[0]].dims, self._new[node.input[0]].dims
        if sizes is None or old is None or new is None or self._is_changed(node.input[position]):
            return
        fitted = sizes.copy()
        shift = len(sizes) - len(old) if from_end else 0
        for axis, (size, new_size) in enumerate(zip(old, new)):
            sizes_axis = axis + shift
            if size == new_size or sizes_axis < 0 or (from_end and size == 1):
                continue  # Expand leaves an axis as it is where it is given a 1
            if fitted[sizes_axis] == size:
                fitted[sizes_axis] = new_size
        if not np.array_equal(fitted, sizes):
            node.input[position] = self._constant(node, fitted)

    def _fit_expanded(self, node: NodeProto) -> None:
        """Fit the input of an Expand whose sizes the model computes."""
        old, new = (known[node.input[1]].data for known in (self._old, self._new))
        dims = self._new[node.input[0]].dims
        if old is None or new is None or dims is None or len(old) != len(new):
            return
        for back in range(1, min(len(old), len(dims)) + 1):
            if dims[-back] != 1:
                self._fit_rows(node, 0, len(dims) - back, int(old[-back]), int(new[-back]))

    def _fit_slice(self, node: NodeProto) -> None:
        """Let a slice of the whole batch end where the new batch does."""
        names = [*node.input[1:], ""][:3]
        starts, ends, axes = (self._old[name].data if name else None for name in names)
        old, new = self._old[node.input[0]].dims, self._new[node.input[0]].dims
        if (
            starts is None
            or ends is None
            or old is None
            or new is None
            or (names[2] and axes is None)
        ):
            return
        fitted = ends.copy()
        for position, axis in enumerate(range(len(ends)) if axes is None else axes.tolist()):
            size, new_size = old[axis], new[axis]
            whole = size is not None and starts[position] == 0 and ends[position] >= size
            if whole and new_size is not None and ends[position] < new_size:
                fitted[position] = new_size
        if not np.array_equal(fitted, ends):
            node.input[2] = self._constant(node, fitted)

    def _fit_operands(self, node: NodeProto, skip: int) -> None:
        """Fit operands that are constant to those that change; skip: last axes left alone."""
        for name in dict.fromkeys(node.input):
            old, new = self._old[name].dims, self._new[name].dims
            if old is None or new is None or old == new:
                continue
            for back in range(skip + 1, len(old) + 1):
                if old[-back] == new[-back] or old[-back] == 1:
                    continue
                for position, other in enumerate(node.input):
                    dims = self._new[other].dims
                    if dims is not None and len(dims) >= back and not self._is_changed(other):
                        self._fit_rows(node, position, len(dims) - back, old[-back], new[-back])

    def _fit_concat(self, node: NodeProto) -> None:
        concat_axis = _attribute(node, "axis")
        for name in dict.fromkeys(node.input):
            old, new = self._old[name].dims, self._new[name].dims
            for axis in range(len(old or ())):
                if old is None or new is None or axis == concat_axis % len(old):
                    continue
                for position, other in enumerate(node.input):
                    if not self._is_changed(other):
                        self._fit_rows(node, position, axis, old[axis], new[axis])

    def _fit_rows(
        self, node: NodeProto, position: int, axis: int, old: int | None, new: int | None
    ) -> None:
        """Make an operand of `old` rows along an axis one of `new`: the first, or all repeated."""
        name = node.input[position]
        dims = self._new[name].dims if name else None
        if old is None or new is None or old == new or dims is None or dims[axis] != old:
            return
        if self._is_changed(name):
            return
        if self._opsets[""] < 10:
            raise CannotRebatch(
                f"{title(node)}: {name!r} is made for {old}, and opset 10 is needed"
            )
        block = new if new < old else gcd(old, new)
        if block < old:
            bounds = [self._constant(node, np.array([bound])) for bound in (0, block, axis)]
            name = self._insert("Slice", [name, *bounds])
        if block < new:
            repeats = np.ones(len(dims), np.int64)
            repeats[axis] = new // block
            name = self._insert("Tile", [name, self._constant(node, repeats)])
        node.input[position] = name

    def _insert(self, op_type: str, operands: list[str]) -> str:
        """Put a node before the one that is being fitted; returns what it makes."""
        name = self._names.free(f"{operands[0]}.batch")
        node = helper.make_node(op_type, operands, [name], name=name)
        self._inserted.append(node)
        self._old[name] = self._old[operands[0]]
        self._new[name] = self._infer(node, self._new)[name]
        return name

    def _constant(self, node: NodeProto, array: Array) -> str:
        name = self._names.free(f"{node.output[0]}.batch")
        tensor = numpy_helper.from_array(array, name)
        self.added.append(tensor)
        kind = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        self._old[name] = self._new[name] = _Value(kind, array)
        return name


def _batch_axis(dims: Dims, outer: int, ratio: Fraction, from_one: bool) -> int | None:
    """Return the axis of a reshaped tensor that has the batch; `outer` elements lie outside of it.

    It begins there, or the batch is inside it. A batch of one may as well be the end of an axis:
    then it is the first axis that begins there, but not the last of the tensor, which has features.
    """
    starting, covering, ending = [], [], []
    for axis, size in enumerate(dims):
        if None in dims[:axis]:
            break
        start = _product(dims[:axis])
        if size is not None and (size * ratio).denominator != 1:
            continue
        if start == outer:
            starting.append(axis)
        elif start < outer and outer % start == 0 and (size is None or outer < start * size):
            covering.append(axis)
        elif start < outer and size is not None and from_one and outer == start * size:
            ending.append(axis)
    last = len(dims) - 1
    candidates = [*(start for start in starting if start < last), *covering, *ending, *starting]
    return candidates[0] if candidates else None


def _product(dims: Dims) -> int:
    return prod(dim or 0 for dim in dims)


def dims_of(kind: TypeProto) -> Dims | None:
    """Return the dims of a tensor, None for an open one; None for an unknown rank."""
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
        for dim in kind.tensor_type.shape.dim
    )


def _text(dims: Dims) -> str:
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in dims) + "]"


def _attribute(node: NodeProto, name: str) -> Any:
    """Return an attribute's value; 0 where it is not given."""
    return next(
        (
            helper.get_attribute_value(attribute)
            for attribute in node.attribute
            if attribute.name == name
        ),
        0,
    )
