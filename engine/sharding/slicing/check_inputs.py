"""Inputs on which slices are compared with their model: random, and each rank's part counts.

Indices go through all of the table that they look up: of one that is divided by rows, each rank has
other rows. Lengths go from 1 to the size of their axis. Other integers are 0 or 1, which suits
masks, and once more anything, where only arithmetic is done with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from math import prod
from typing import Any, TypeAlias

import numpy as np
from onnx import NodeProto

from engine.converter.sample_inputs import random
from engine.errors import ModelError
from engine.layouts.rules import LOOKUPS
from engine.layouts.rules.elementwise import NAMES
from engine.plan.open_sizes import Shapes, fitting_shapes
from engine.sharding.slicing.original import Original
from engine.types import DType, TensorSpec

Array: TypeAlias = "np.ndarray[Any, Any]"
Inputs: TypeAlias = "dict[str, Array]"

_OPEN_SIZE = 4
_MOST_DRAWS = 8
_LARGEST = 100

_INTEGERS = {
    DType.INT8, DType.INT16, DType.INT32, DType.INT64,
    DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64,
}  # fmt: skip
_MOVES = {
    "Cast", "Concat", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze",
    "Tile", "Transpose", "Unsqueeze",
}  # fmt: skip
_PICKS = {"Gather", "GatherElements", "ReverseSequence"}
"""Operators that move the elements of their first input."""
_ARITHMETIC = _MOVES | {*NAMES} | {
    "Conv", "ConvInteger", "DequantizeLinear", "Gemm", "MatMul", "MatMulInteger", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceSum", "QLinearConv", "QLinearMatMul",
}  # fmt: skip
_SECOND = _MOVES - {"Concat"} | {"BitShift", "Div", "Mod", "Pow"}
"""Operators whose further inputs are shapes, axes, or numbers that must not be any."""


def shapes_to_try(model: Original) -> Iterator[Shapes]:
    """Yield shapes for all inputs, which fit together: as asked for, where that is said.

    Raises ModelError for an input of which too little is known.
    """
    return fitting_shapes(input_specs(model), model.asked, _OPEN_SIZE, "change --input-shape")


def input_specs(model: Original) -> list[TensorSpec]:
    """Return what a caller gives. Raises ModelError for an input of which too little is known."""
    specs = []
    for name in model.inputs:
        dtype, shape = model.dtype(name), model.shape(name)
        if dtype is None or shape is None:
            raise ModelError(
                f"{model.name}: nothing can stand for input {name!r}, whose shape or type is open; "
                "slice unchecked (--no-check)"
            )
        specs.append(TensorSpec(name, dtype, shape))
    return specs


def drawn(model: Original, shapes: Shapes, parts: int) -> Iterator[Inputs]:
    """Yield sets of inputs; the first suits any model, later ones perhaps not.

    shapes: of all inputs. parts: of a table that is divided; each is looked up in, if only all sets
    of inputs run.
    """
    tables = {name: _places(model, name, shapes) for name in model.inputs}
    draws = 1
    for name, places in tables.items():
        if places:
            count = max(1, prod(shapes[name]))
            draws = min(_MOST_DRAWS, max(draws, -(-parts // count)))
    for draw in range(draws):
        yield generated(model, shapes, draw=draw, draws=draws)
    free = {name for name, places in tables.items() if not places and _is_free(model, name)}
    if free:
        yield generated(model, shapes, anything=free)


def generated(
    model: Original,
    shapes: Shapes,
    *,
    draw: int = 0,
    draws: int = 1,
    anything: Set[str] = frozenset(),
) -> Inputs:
    """Return random inputs of these shapes.

    draw, draws: which of so many sets this is; together they go through all of a table. anything:
    inputs whose integers need not be 0 or 1.
    """
    chance = np.random.default_rng(draw)
    found = {}
    for name in model.inputs:
        dims, dtype = shapes[name], model.dtype(name)
        assert dtype is not None
        if places := _places(model, name, shapes):
            count = prod(dims)
            spread = (np.arange(count) + draw * count + chance.random(count)) / (count * draws or 1)
            own = chance.permutation((spread * len(places)).astype(np.int64)) + places.start
            found[name] = own.reshape(dims).astype(dtype.numpy)
        elif name in anything:
            limits = np.iinfo(dtype.numpy)
            low, high = max(limits.min, -_LARGEST), min(limits.max, _LARGEST)
            found[name] = chance.integers(low, high, dims, endpoint=True).astype(dtype.numpy)
        else:
            found[name] = np.asarray(random(dtype, dims, chance))
    return found


def _places(model: Original, name: str, shapes: Shapes) -> range:
    """Return the indices or lengths that all tables of an input have; none if it is of no table."""
    found = range(0)
    if model.dtype(name) not in _INTEGERS:
        return found
    sizes = {
        dim: size
        for known in model.inputs
        for dim, size in zip(model.shape(known) or (), shapes[known])
        if isinstance(dim, str)
    }
    for node, place in _readers(model, name):
        lookup = LOOKUPS.get((node.op_type, place)) if node.domain in ("", "ai.onnx") else None
        shape = model.shape(node.input[lookup.table]) if lookup else None
        if lookup and shape:
            axes = (one.i for one in node.attribute if one.name == lookup.attribute)
            dim = shape[next(axes, lookup.axis)]
            size = dim if isinstance(dim, int) else sizes.get(dim or "", 0)
            stop = lookup.first + size
            if size:
                found = range(max(found.start, lookup.first), min(found.stop or stop, stop))
    return found


def _readers(model: Original, name: str) -> Iterator[tuple[NodeProto, int]]:
    """Yield who reads a tensor, and where, also behind operators that only move elements."""
    pending, known = [name], {name}
    while pending:
        own = pending.pop()
        for node in model.readers.get(own, ()):
            for place, read in enumerate(node.input):
                if read == own:
                    yield node, place
            if node.op_type in _MOVES or (node.op_type in _PICKS and node.input[0] == own):
                further = {*node.output} - known - {""}
                known |= further
                pending += further


def _is_free(model: Original, name: str) -> bool:
    """Return whether only arithmetic is done with an input: any value is as good as another."""
    if model.dtype(name) not in _INTEGERS:
        return False
    return all(
        node.op_type in _ARITHMETIC and (place == 0 or node.op_type not in _SECOND)
        for node, place in _readers(model, name)
    )
