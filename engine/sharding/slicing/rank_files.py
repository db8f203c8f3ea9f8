"""The ranks' files: a small ONNX file each, and its weights beside it, never held in memory.

net0.onnx, net0.onnx.data    of rank 0 alone
net.data                     what several ranks hold in common, once
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from engine.formats.collectives import DOMAIN, Part, is_collective
from engine.formats.micro_batches import KEY, MicroBatches
from engine.formats.onnx.graphs import reads
from engine.layouts.own_attributes import of_rank
from engine.layouts.states import PARTIAL, Array, State, local_shape, ranges
from engine.sharding.slicing.original import stored_bytes
from engine.sharding.slicing.program import Program, Weight, value_of
from engine.sharding.slicing.stages import with_open_batch
from engine.types import CancelToken, DType

PRODUCER = "inference-engine"
APART_BYTES = 1024
"""Smaller weights are in the ONNX file itself."""
_PART_BYTES = 16 << 20
_PAGE, _LINE = 4096, 64


class RankFiles:
    """The files of all ranks, in one folder."""

    def __init__(
        self, folder: Path, stem: str, cancel: CancelToken, batches: MicroBatches | None = None
    ) -> None:
        self._batches = batches
        self._folder = folder
        self._stem = stem
        self._cancel = cancel
        self._shared: dict[str, tuple[int, int]] = {}

    def write(
        self,
        program: Program,
        nodes: Sequence[NodeProto],
        outputs: Sequence[ValueInfoProto],
        part: Part,
        member: int,
    ) -> Path:
        """Write the files of one rank and return its model's.

        nodes: what it runs of the program, with what it exchanges. part: which rank it is, as the
        file itself says. member: its place in its stage.
        """
        path = self._folder / f"{self._stem}{part.rank}.onnx"
        model = _light(program, nodes, outputs, member)
        if self._batches is not None:
            model.metadata_props.add(key=KEY, value=self._batches.text())
            for value in model.graph.input:
                if value.name in self._batches.inputs:
                    value.CopyFrom(with_open_batch(value))
        for key, text in part.metadata().items():
            model.metadata_props.add(key=key, value=text)
        needed = {name for node in nodes for name in reads(node)}
        needed |= {value.name for value in outputs}
        for name, weight in program.weights.items():
            if name in needed:
                model.graph.initializer.append(self._tensor(program, name, weight, path, member))
        kept = [s for s in program.model.proto.graph.sparse_initializer if s.values.name in needed]
        model.graph.sparse_initializer.extend(kept)
        path.write_bytes(model.SerializeToString())
        return path

    def _tensor(
        self, program: Program, name: str, weight: Weight, path: Path, member: int
    ) -> TensorProto:
        if weight.values:
            own = weight.values[member if len(weight.values) > 1 else 0]
            return numpy_helper.from_array(np.ascontiguousarray(own).reshape(own.shape), name)
        source = program.model.constants[weight.source]
        dtype = DType.from_onnx(source.data_type)
        dims = local_shape(tuple(source.dims), weight.state, program.ranks, member)
        nbytes = stored_bytes(dtype, prod(dims))
        if nbytes < APART_BYTES or dtype is DType.STRING:
            return _inside(program, name, weight, member)
        if weight.is_shared:
            data = self._folder / f"{self._stem}.data"
            place = self._shared.get(weight.source)
            if place is None:
                pieces = _pieces(program, weight, dtype, member)
                place = self._shared[weight.source] = self._append(data, nbytes, pieces)
        else:
            data = path.with_name(f"{path.name}.data")
            place = self._append(data, nbytes, _pieces(program, weight, dtype, member))
        tensor = TensorProto(name=name, data_type=source.data_type)
        tensor.dims.extend(dims)
        tensor.data_location = TensorProto.EXTERNAL
        entries = {"location": data.name, "offset": place[0], "length": place[1]}
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    def _append(self, data: Path, nbytes: int, arrays: Iterator[Array]) -> tuple[int, int]:
        """Write arrays at the end of a file; returns offset and length. Large ones begin a page."""
        align = _PAGE if nbytes >= _PAGE else _LINE
        with data.open("ab") as file:
            offset = -(-file.tell() // align) * align
            file.write(b"\0" * (offset - file.tell()))
            for array in arrays:
                self._cancel.check()
                _write(file, array)
            length = file.tell() - offset
        return offset, length


def _pieces(program: Program, weight: Weight, dtype: DType, member: int) -> Iterator[Array]:
    """Yield what a rank holds of a weight as its file has it: short elements packed."""
    if dtype.bits < 8:
        own = np.ascontiguousarray(value_of(weight, program.model, member, program.ranks))
        yield np.frombuffer(numpy_helper.from_array(own).raw_data, np.uint8)
    else:
        array = program.model.array(weight.source)
        yield from stream(array, weight.state, member, program.ranks)


def stream(array: Array, state: State, rank: int, count: int) -> Iterator[Array]:
    """Yield what a rank holds of a tensor, piece by piece in the order of its bytes.

    A piece is a view, or a copy of at most 16 MB, or of one entry of the first axis.
    """
    if state == PARTIAL and rank:
        rows = max(1, _PART_BYTES // max(array[:1].nbytes, 1)) if array.ndim else 1
        for start in range(0, array.shape[0] if array.ndim else 1, rows):
            yield np.zeros_like(array[start : start + rows] if array.ndim else array)
    elif not state.is_shard:
        yield array
    elif state.axis == 0:
        for start, end in ranges(array.shape[0], state, rank, count):
            yield array[start:end]
    else:
        rows = max(1, _PART_BYTES // max(array[:1].nbytes, 1))
        lead = (slice(None),) * state.axis
        size = array.shape[state.axis]
        for first in range(0, array.shape[0], rows):
            piece = array[first : first + rows]
            pieces = [piece[(*lead, slice(*ends))] for ends in ranges(size, state, rank, count)]
            yield pieces[0] if len(pieces) == 1 else np.concatenate(pieces, state.axis)


def _write(file: BinaryIO, array: Array) -> None:
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    view = array.reshape(-1).view(np.uint8)
    for start in range(0, view.size, _PART_BYTES):
        file.write(view[start : start + _PART_BYTES].data)


def _inside(program: Program, name: str, weight: Weight, member: int) -> TensorProto:
    """Return a small weight with its data in it; one of packed elements as it is."""
    source = program.model.constants[weight.source]
    if source.data_location != TensorProto.EXTERNAL and weight.is_shared:
        tensor = TensorProto()
        tensor.CopyFrom(source)
        tensor.name = name
        return tensor
    value = np.ascontiguousarray(value_of(weight, program.model, member, program.ranks))
    tensor = numpy_helper.from_array(value, name)
    tensor.data_type = source.data_type
    del tensor.dims[:]
    tensor.dims.extend(local_shape(tuple(source.dims), weight.state, program.ranks, member))
    return tensor


def _light(
    program: Program, nodes: Sequence[NodeProto], outputs: Sequence[ValueInfoProto], member: int
) -> ModelProto:
    """Return a rank's model without its weights."""
    original = program.model.proto
    model = ModelProto(ir_version=max(original.ir_version, 8), producer_name=PRODUCER)
    model.opset_import.extend(original.opset_import)
    if any(is_collective(node.op_type, node.domain) for node in nodes) and all(
        opset.domain != DOMAIN for opset in model.opset_import
    ):
        model.opset_import.add(domain=DOMAIN, version=1)
    model.graph.name = original.graph.name or "model"
    constants = program.model.constants
    model.graph.input.extend(v for v in original.graph.input if v.name not in constants)
    model.graph.output.extend(outputs)
    model.graph.node.extend(of_rank(node, member) for node in nodes)
    own = {value.name for value in (*model.graph.input, *model.graph.output)}
    for node in nodes:
        if is_collective(node.op_type, node.domain):
            for name in (*node.input, *node.output):
                known = program.known.get(name)
                if name not in own and name not in program.weights and known is not None:
                    own.add(name)
                    model.graph.value_info.extend(_described(program, name, member))
    return model


def _described(program: Program, name: str, member: int) -> Iterator[ValueInfoProto]:
    known = program.known[name]
    if known.dtype is not None:
        own = program.shape_on(name, member)
        shape = None if own is None else list(own)
        yield helper.make_tensor_value_info(name, known.dtype.onnx, shape)
