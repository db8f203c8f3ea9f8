"""Nodes that bring a tensor from the state that it is in to another: joined, cut, or a term."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from engine.layouts.states import Array, State, lengths, local_size, ranges
from engine.sharding.slicing.original import Original
from engine.types import Dim, DType


class Tensors(Protocol):
    """A program that is being written, with the model that it is of."""

    ranks: int

    @property
    def model(self) -> Original:
        """The model whose ranks are written."""

    def fresh(self, wanted: str) -> str:
        """Return a name that nothing has yet."""

    def constant(self, value: Array | np.generic | Sequence[Array | np.generic]) -> str:
        """Return the name of a new constant: one value for all ranks, or one for each."""

    def note(self, name: str, dtype: DType | None, shape: tuple[Dim, ...] | None) -> None:
        """Note what is known of a tensor that the model does not have."""

    def add(self, op_type: str, inputs: Sequence[str], name: str, **attributes: Any) -> None:
        """Write a node with one result, called `name`."""

    def collective(self, kind: str, source: str, name: str, tensor: str, **attributes: Any) -> None:
        """Write a collective; its position is the same on all ranks."""


SLICE_VERSION, PAD_VERSION = 10, 11
"""Operator sets from which these take what they do as inputs: these may differ by rank."""
_PADDED = frozenset((DType.FLOAT32, DType.FLOAT64, DType.INT8, DType.INT32, DType.INT64,
                     DType.UINT8))  # fmt: skip
_MOST_RUNS = 16
"""Stretches of a tensor that are copied each by a node; more of them are looked up."""


def write_gather(writer: Tensors, tensor: str, source: str, name: str, state: State) -> None:
    """Write what makes a divided tensor whole: blocks come by rank and are put in order.

    A rank that holds less than the first brings a part of it twice, which is left out again.
    """
    if not state.blocks and not state.unit:
        writer.collective("AllGather", source, name, tensor, axis=state.axis)
        return
    shape = writer.model.shape(tensor)
    assert shape is not None
    size = shape[state.axis]
    assert isinstance(size, int)
    sizes = [local_size(size, state, writer.ranks, rank) for rank in range(writer.ranks)]
    most = sizes[0]
    if min(sizes) < most:
        source = _filled(writer, tensor, source, state.axis, sizes)
    mixed = writer.fresh(f"{tensor}/by_rank")
    together = (*shape[: state.axis], most * writer.ranks, *shape[state.axis + 1 :])
    writer.note(mixed, writer.model.dtype(tensor), together)
    writer.collective("AllGather", source, mixed, tensor, axis=state.axis)
    pieces = []  # where in `mixed` each stretch of elements is, in the order of the whole
    befores = [0] * writer.ranks
    for block in state.blocks or (size,):
        for rank, own in enumerate(lengths(block, writer.ranks, state.unit)):
            begin = rank * most + befores[rank]
            pieces.append((begin, begin + own))
            befores[rank] += own
    _picked(writer, mixed, name, state.axis, pieces)


def _filled(writer: Tensors, tensor: str, source: str, axis: int, sizes: Sequence[int]) -> str:
    """Write what brings the parts of all ranks to one length: their beginnings once more."""
    dtype, shape = writer.model.dtype(tensor), writer.model.shape(tensor)
    assert shape is not None
    name = writer.fresh(f"{tensor}/filled")
    writer.note(name, dtype, (*shape[:axis], sizes[0], *shape[axis + 1 :]))
    if dtype in _PADDED and writer.model.opsets.get("", 1) >= PAD_VERSION:
        before = [0] * (len(shape) + axis)
        after = [0] * (len(shape) - axis - 1)
        pads = [np.array([*before, sizes[0] - own, *after], np.int64) for own in sizes]
        writer.add("Pad", [source, writer.constant(pads)], name)
        return name
    places = [
        np.concatenate([np.arange(own), np.zeros(sizes[0] - own)]).astype(np.int64) for own in sizes
    ]
    writer.add("Gather", [source, writer.constant(places)], name, axis=axis)
    return name


def _picked(
    writer: Tensors, source: str, name: str, axis: int, pieces: Sequence[tuple[int, int]]
) -> None:
    """Write what puts stretches of a tensor together, in order."""
    runs: list[list[int]] = []
    for begin, end in pieces:
        if runs and runs[-1][1] == begin:
            runs[-1][1] = end
        else:
            runs.append([begin, end])
    if len(runs) > _MOST_RUNS or writer.model.opsets.get("", 1) < SLICE_VERSION:
        order = np.concatenate([np.arange(*run, dtype=np.int64) for run in runs])
        writer.add("Gather", [source, writer.constant(order)], name, axis=axis)
        return
    axes = writer.constant(np.array([axis], np.int64))
    cut = [name] if len(runs) == 1 else [writer.fresh(f"{name}/run") for _ in runs]
    for own, run in zip(cut, runs):
        edges = [writer.constant(np.array([edge], np.int64)) for edge in run]
        writer.add("Slice", [source, *edges, axes], own)
    if len(runs) > 1:
        writer.add("Concat", cut, name, axis=axis)


def write_term(writer: Tensors, tensor: str, source: str, name: str) -> None:
    """Write what makes a tensor that all have whole a term of a sum: on rank 0 all of it."""
    dtype = writer.model.dtype(tensor)
    assert dtype is not None
    is_first = writer.constant([np.array(rank == 0) for rank in range(writer.ranks)])
    zero = writer.constant(np.zeros((), dtype.numpy))
    writer.add("Where", [is_first, source, zero], name)


def write_cut(writer: Tensors, tensor: str, source: str, name: str, wanted: State) -> None:
    """Write what takes a rank's own part of a tensor that it has whole."""
    shape = writer.model.shape(tensor)
    assert shape is not None
    size = shape[wanted.axis]
    assert isinstance(size, int)
    own = [
        np.concatenate(
            [np.arange(*ends, dtype=np.int64) for ends in ranges(size, wanted, r, writer.ranks)]
        )
        for r in range(writer.ranks)
    ]
    if wanted.blocks or writer.model.opsets.get("", 1) < SLICE_VERSION:
        index = writer.constant(own)
        writer.add("Gather", [source, index], name, axis=wanted.axis)
    else:
        starts = writer.constant([part[:1] for part in own])
        ends = writer.constant([part[-1:] + 1 for part in own])
        axes = writer.constant(np.array([wanted.axis], np.int64))
        writer.add("Slice", [source, starts, ends, axes], name)
