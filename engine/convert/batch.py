"""Another batch for a model that was exported with a fixed one.

Such a file has its batch in the shapes that Reshape, Expand and the like are given, and in
constants that were made for each sample. The nodes are walked in order, with the shapes of their
values as they are and as they are to be; where the second do not follow from the first, the
constant is exchanged. Whether the result means the same is then not argued but tried: on random
samples it must give what the original gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from engine.convert.comparison import Comparison
from engine.convert.graphs import Names, title, write_weights
from engine.convert.job import Job
from engine.convert.weights import total_bytes
from engine.convert.write import INLINE_BYTES
from engine.errors import InputError, ModelError, ModelStateError
from engine.formats.onnx.graphs import SMALL, bodies, constants, is_small, reads, subgraphs

Array: TypeAlias = npt.NDArray[Any]
Dims: TypeAlias = tuple[int | None, ...]
Batches: TypeAlias = Mapping[str, tuple[int, int]]

# Operators whose operands are brought to one shape, from the last axis on.
_BROADCAST = frozenset(
    ("Add", "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater",
     "GreaterOrEqual", "Less", "LessOrEqual", "MatMul", "Max", "Mean", "Min", "Mod", "Mul", "Or",
     "PRelu", "Pow", "Sub", "Sum", "Where", "Xor")
)  # fmt: skip

MAPPED_BYTES = 256 << 20
"""Larger models are run from a file that is mapped: in memory it takes three times their size."""

_PHASE = "comparing with the original"


def rebatch(model: ModelProto, weights: ModelProto, batches: Batches, job: Job) -> list[str]:
    """Change the batch of `model`, a light copy of `weights`, and return notes on that.

    batches: by input, the size of its first axis and the one that it is to have, of one ratio.
    The original and the result run on the cpu backend; large ones from a temporary folder beside
    the output. The dims of inputs and outputs are set; all else that follows is for inference.
    Raises ModelError where it cannot be done or gives other results, BackendError where there is no
    cpu backend, Cancelled.
    """
    given = [value for value in model.graph.input if value.name not in constants(weights.graph)]
    grows = any(old < new for old, new in batches.values())
    _, *others = bodies(model)
    for body in others:
        if isinstance(body, GraphProto):
            _forget((*body.input, *body.output))
    try:
        walk = _Walk(model, weights, given, batches)
        nodes = walk.nodes(job)
        comparison = Comparison(given, batches)
        with _runnable(weights, job) as (tensors, folder):
            job.progress(_PHASE, 0, 2)
            try:
                before = comparison.run(model, tensors, grows, folder, job)
            except (ModelError, InputError, ModelStateError) as error:
                raise _Unfit(f"as it is it does not run, to compare with: {error}") from error
            job.progress(_PHASE, 1, 2)
            declared = _put(model, nodes, walk.added, batches)
            after = comparison.run(model, tensors, not grows, folder, job)
            job.progress(_PHASE, 2, 2)
        difference = comparison.difference(before, after)
        if difference:
            raise _Unfit(difference)
    except (_Unfit, ModelError, InputError, ModelStateError) as error:
        raise _refusal(given, batches, str(error), job) from error
    for output, kind in zip(model.graph.output, declared, strict=True):
        shapes = before[0][output.name].shape, after[0][output.name].shape
        for dim, old, new in zip(kind.tensor_type.shape.dim, *shapes):
            if old != new:
                dim.dim_value = new
        output.type.CopyFrom(kind)
    return [
        f"the fixed batch of {_changes(batches)}: {len(walk.added)} constants exchanged; on random "
        "samples the cpu backend gives what it gives for the original"
    ]


@contextmanager
def _runnable(model: ModelProto, job: Job) -> Iterator[tuple[Iterable[TensorProto], Path | None]]:
    """Weights to run a model with; those of a large one in a file, for as long as that lasts."""
    size = total_bytes(model)
    if size <= (INLINE_BYTES if job.is_secret else MAPPED_BYTES):
        yield model.graph.initializer, None
        return
    if job.is_secret:
        raise _Unfit("it is encrypted, and too large to be run without writing it to disk")
    with TemporaryDirectory(prefix=".", dir=job.output_file.parent) as folder:
        yield write_weights(model, Path(folder, "weights")), Path(folder)


def _put(
    model: ModelProto, nodes: list[NodeProto], added: list[TensorProto], batches: Batches
) -> list[TypeProto]:
    """Make a model the new one, with outputs of unknown shape; returns their types until now."""
    graph = model.graph
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(added)
    for value in graph.input:
        if value.name in batches:
            value.type.tensor_type.shape.dim[0].dim_value = batches[value.name][1]
    declared = []
    for output in graph.output:
        declared.append(TypeProto())
        declared[-1].CopyFrom(output.type)
    _forget(graph.output)
    return declared


def _forget(values: Iterable[ValueInfoProto]) -> None:
    """Drop declared shapes: the batch may be in them."""
    for value in values:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


class _Unfit(Exception):
    """Why the batch cannot be changed."""


def _changes(batches: Batches) -> str:
    return ", ".join(f"{name!r} from {old} to {new}" for name, (old, new) in batches.items())


def _refusal(
    given: Sequence[ValueInfoProto], batches: Batches, reason: str, job: Job
) -> ModelError:
    olds = {old for old, _ in batches.values()} - {1}
    others = [
        repr(value.name)
        for value in given
        if value.name not in batches and (_dims(value.type) or (None,))[0] in olds
    ]
    hint = f"give {', '.join(others)} another batch too, or " if others else ""
    return ModelError(
        f"{job.model_file}: the batch is fixed in the model, and changing that of "
        f"{_changes(batches)} fails: {reason}; {hint}export the model with a dynamic batch axis",
        str(job.model_file),
    )


@dataclass(frozen=True, slots=True)
class _Value:
    """Facts known of a value before a run. data: where it is small and the same in every run."""

    type: TypeProto | None = None
    data: Array | None = None

    @property
    def dims(self) -> Dims | None:
        return None if self.type is None else _dims(self.type)

    def equals(self, other: _Value) -> bool:
        if self.data is None or other.data is None:
            return self.data is other.data and self.type == other.type
        return self.type == other.type and np.array_equal(self.data, other.data)


_UNKNOWN = _Value()


class _Walk:
    """The nodes of a graph for another batch. added: their new constants."""

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
        # Where on an axis the batch lies: so many steps of it are in each of those before it.
        self._outside: dict[tuple[str, int], int] = {}

    def nodes(self, job: Job) -> list[NodeProto]:
        """Return all nodes in order, as they are to be. Raises _Unfit, Cancelled."""
        result = []
        for node in self._graph.node:
            job.cancel.check()
            needed = reads(node)
            try:
                before = self._outcome(node, self._old)
            except onnx.shape_inference.InferenceError:
                before = {}
            after = before
            if any(self._is_changed(name) for name in needed):
                node = self._fitted(node, before)
                try:
                    after = self._outcome(node, self._new)
                except onnx.shape_inference.InferenceError as error:
                    if before:
                        text = " ".join(str(error).split())
                        raise _Unfit(f"{title(node)}: {text}") from error
                    after = {}
            for name in node.output:
                old = self._old[name] = before.get(name, _UNKNOWN)
                new = after.get(name, _Value())  # what is not known is not the same, either
                same = after is before or (name in after and old.equals(new))
                self._new[name] = old if same else new
            if after is not before:
                self._follow(node)
            result += [*self._inserted, node]
            self._inserted.clear()
        return result

    def _follow(self, node: NodeProto) -> None:
        """Note where the batch lies on the outputs' axes: as on axes of these sizes before."""
        where = {
            self._pair(name, axis): outside
            for (name, axis), outside in self._outside.items()
            if name in node.input
        }
        for name in node.output if where else ():
            for axis in range(len(self._new[name].dims or ())):
                old, new = self._pair(name, axis)
                outside = where.get((old, new))
                if outside is not None and old != new:
                    self._outside.setdefault((name, axis), outside)

    def _pair(self, name: str, axis: int) -> tuple[int | None, int | None]:
        old, new = self._old[name].dims, self._new[name].dims
        if old is None or new is None or len(old) != len(new):
            return None, None
        return old[axis], new[axis]

    def _is_changed(self, name: str) -> bool:
        return self._new.get(name) is not self._old.get(name)

    # -------------------------------------------------------------------------- what a node makes

    def _outcome(self, node: NodeProto, known: Mapping[str, _Value]) -> dict[str, _Value]:
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
        found = onnx.shape_inference.infer_node_outputs(
            schema, node, types, data, opset_imports=self._imports
        )
        arrays = self._computed(node, known, found)
        return {name: _Value(kind, arrays.get(name)) for name, kind in found.items()}

    def _computed(
        self, node: NodeProto, known: Mapping[str, _Value], types: Mapping[str, TypeProto]
    ) -> Mapping[str, Array]:
        """The outputs of a node that computes small constants: mostly shapes for other nodes."""
        sizes = [_dims(kind) for kind in types.values()]
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

    def _fitted(self, node: NodeProto, before: Mapping[str, _Value]) -> NodeProto:
        """A node, with other constants where those that it has are made for the old batch."""
        fitted = NodeProto()
        fitted.CopyFrom(node)
        if node.op_type == "Reshape":
            self._fit_reshape(fitted, before)
        elif node.op_type == "Expand":
            self._fit_sizes(fitted, 1, from_end=True)
            self._fit_expanded(fitted)
        elif node.op_type == "Resize" and len(node.input) > 3 and not _attribute(node, "axes"):
            self._fit_sizes(fitted, 3)
        elif node.op_type == "Slice" and len(node.input) > 2:
            self._fit_slice(fitted)
        elif node.op_type in _BROADCAST:
            self._fit_operands(fitted, skip=2 if node.op_type == "MatMul" else 0)
        elif node.op_type == "Concat":
            self._fit_concat(fitted)
        elif node.op_type in ("GRU", "LSTM", "RNN") and not _attribute(node, "layout"):
            for place, axis in ((4, 0), (5, 1), (6, 1)):
                if place < len(node.input):
                    self._fit_rows(fitted, place, axis, *self._pair(node.input[0], 1))
        return fitted

    def _fit_reshape(self, node: NodeProto, before: Mapping[str, _Value]) -> None:
        """Give the axis of the result in which the batch comes first its new size."""
        data, shape = node.input[0], node.input[1]
        old, new = self._old[data].dims, self._new[data].dims
        asked = self._old[shape].data
        made = before[node.output[0]].dims if node.output[0] in before else None
        if old is None or new is None or asked is None or made is None or old == new:
            return
        wanted = list(made)
        for axis, (size, to_be) in enumerate(zip(old, new)):
            if size == to_be:
                continue
            place = None
            if size and to_be and None not in old[:axis]:
                before_it = _product(old[:axis]) * self._outside.get((data, axis), 1)
                place = _place(made, before_it, Fraction(to_be, size), self._from_one)
            if place is None:
                raise _Unfit(
                    f"{title(node)} makes {_text(made)} of {_text(old)}, in which the batch has "
                    "no axis"
                )
            there = made[place]
            wanted[place] = None if there is None else there * to_be // size
            self._outside[node.output[0], place] = before_it // _product(made[:place])
        try:
            found = self._outcome(node, self._new)
        except onnx.shape_inference.InferenceError:
            found = {}
        if node.output[0] in found and found[node.output[0]].dims == tuple(wanted):
            return
        if self._is_changed(shape):
            return  # computed from shapes by the model itself
        keeps_zero = _attribute(node, "allowzero")
        sizes = [
            int(given)
            if size is None
            or given == -1
            or (given == 0 and not keeps_zero and place < len(new) and size == new[place])
            else size
            for place, (given, size) in enumerate(zip(asked.tolist(), wanted))
        ]
        node.input[1] = self._constant(node, np.array(sizes, np.int64))

    def _fit_sizes(self, node: NodeProto, place: int, from_end: bool = False) -> None:
        """Change sizes that are given for the axes of the first input."""
        sizes = self._old[node.input[place]].data if node.input[place] else None
        old, new = self._old[node.input[0]].dims, self._new[node.input[0]].dims
        if sizes is None or old is None or new is None or self._is_changed(node.input[place]):
            return
        wanted = sizes.copy()
        shift = len(sizes) - len(old) if from_end else 0
        for axis, (size, to_be) in enumerate(zip(old, new)):
            target = axis + shift
            if size == to_be or target < 0 or (from_end and size == 1):
                continue  # Expand leaves an axis as it is where it is given a 1
            if wanted[target] == size:
                wanted[target] = to_be
        if not np.array_equal(wanted, sizes):
            node.input[place] = self._constant(node, wanted)

    def _fit_expanded(self, node: NodeProto) -> None:
        """Fit what is expanded to sizes that the model computes."""
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
        wanted = ends.copy()
        for place, axis in enumerate(range(len(ends)) if axes is None else axes.tolist()):
            size, to_be = old[axis], new[axis]
            whole = size is not None and starts[place] == 0 and ends[place] >= size
            if whole and to_be is not None and ends[place] < to_be:
                wanted[place] = to_be
        if not np.array_equal(wanted, ends):
            node.input[2] = self._constant(node, wanted)

    def _fit_operands(self, node: NodeProto, skip: int) -> None:
        """Fit operands that are constant to those that change; skip: last axes left alone."""
        for name in dict.fromkeys(node.input):
            old, new = self._old[name].dims, self._new[name].dims
            if old is None or new is None or old == new:
                continue
            for back in range(skip + 1, len(old) + 1):
                if old[-back] == new[-back] or old[-back] == 1:
                    continue
                for place, other in enumerate(node.input):
                    dims = self._new[other].dims
                    if dims is not None and len(dims) >= back and not self._is_changed(other):
                        self._fit_rows(node, place, len(dims) - back, old[-back], new[-back])

    def _fit_concat(self, node: NodeProto) -> None:
        joined = _attribute(node, "axis")
        for name in dict.fromkeys(node.input):
            old, new = self._old[name].dims, self._new[name].dims
            for axis in range(len(old or ())):
                if old is None or new is None or axis == joined % len(old):
                    continue
                for place, other in enumerate(node.input):
                    if not self._is_changed(other):
                        self._fit_rows(node, place, axis, old[axis], new[axis])

    def _fit_rows(
        self, node: NodeProto, place: int, axis: int, old: int | None, new: int | None
    ) -> None:
        """Make an operand of `old` rows along an axis one of `new`: the first, or all repeated."""
        name = node.input[place]
        dims = self._new[name].dims if name else None
        if old is None or new is None or old == new or dims is None or dims[axis] != old:
            return
        if self._is_changed(name):
            return
        if self._opsets[""] < 10:
            raise _Unfit(f"{title(node)}: {name!r} is made for {old}, and opset 10 is needed")
        unit = new if new < old else gcd(old, new)
        if unit < old:
            bounds = [self._constant(node, np.array([item])) for item in (0, unit, axis)]
            name = self._insert("Slice", [name, *bounds])
        if unit < new:
            repeats = np.ones(len(dims), np.int64)
            repeats[axis] = new // unit
            name = self._insert("Tile", [name, self._constant(node, repeats)])
        node.input[place] = name

    def _insert(self, op_type: str, operands: list[str]) -> str:
        """Put a node before the one that is being fitted; returns what it makes."""
        name = self._names.free(f"{operands[0]}.batch")
        node = helper.make_node(op_type, operands, [name], name=name)
        self._inserted.append(node)
        self._old[name] = self._old[operands[0]]
        self._new[name] = self._outcome(node, self._new)[name]
        return name

    def _constant(self, node: NodeProto, array: Array) -> str:
        name = self._names.free(f"{node.output[0]}.batch")
        tensor = numpy_helper.from_array(array, name)
        self.added.append(tensor)
        kind = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        self._old[name] = self._new[name] = _Value(kind, array)
        return name


def _place(made: Dims, before: int, ratio: Fraction, from_one: bool) -> int | None:
    """The axis of a reshaped tensor that has the batch, of which `before` elements lie outside.

    It begins there, or the batch is inside it. A batch of one may as well be the end of an axis:
    then it is the first axis that begins there, but not the last of the tensor, which has features.
    """
    begins, covers, ends = [], [], []
    for place, size in enumerate(made):
        if None in made[:place]:
            break
        start = _product(made[:place])
        if size is not None and (size * ratio).denominator != 1:
            continue
        if start == before:
            begins.append(place)
        elif start < before and before % start == 0 and (size is None or before < start * size):
            covers.append(place)
        elif start < before and size is not None and from_one and before == start * size:
            ends.append(place)
    last = len(made) - 1
    able = [*(start for start in begins if start < last), *covers, *ends, *begins]
    return able[0] if able else None


def _product(dims: Dims) -> int:
    return prod(dim or 0 for dim in dims)


def _dims(kind: TypeProto) -> Dims | None:
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
