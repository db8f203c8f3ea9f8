"""Tensors as the proof knows them: how they depend on the samples of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any, TypeAlias

import numpy as np

from engine.layouts.batch.sizes import BATCH, Dim, depends, quotient

Shape: TypeAlias = "tuple[Dim, ...]"
Elements: TypeAlias = "np.ndarray[Any, np.dtype[np.object_]]"

MOST_ELEMENTS = 1024
"""Elements of a tensor that are followed one by one."""


class Kind(Enum):
    """The way in which a tensor depends on a batch."""

    WHOLE = "the same for every sample and any batch"
    DIVIDED = "divided along the batch"
    BLOCKS = "divided along the batch in blocks, so that samples are interleaved"
    SIZES = "computed from the size of the batch"
    POSITIONS = "numbers of the samples in the batch"
    INDICES = "indices that begin with the number of the sample"


class Mixes(Exception):
    """A node where the samples of a batch meet, or of which nobody knows that they do not."""


class _Mark:
    """An element that is no number. is_whole: it does not depend on the batch."""

    def __init__(self, name: str, is_whole: bool) -> None:
        self.name, self.is_whole = name, is_whole

    def __repr__(self) -> str:
        return self.name


UNKNOWN, TAINTED = _Mark("UNKNOWN", True), _Mark("TAINTED", False)


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One tensor, for every size of the batch at once.

    shape: None for an open rank, which only whole tensors have. axis: of DIVIDED, POSITIONS and
    INDICES the one along which the samples lie, in order, each with an equal part; of BLOCKS they
    lie so in each of `blocks` parts of it, as where time and batch are made one axis. elements: of
    small tensors of integers, booleans, or constant floats, each with numbers, sizes and marks.
    dtype: ONNX's number, 0 where it is not known. columns: of INDICES which entries along the last
    axis are numbers of samples.
    """

    kind: Kind
    shape: Shape | None
    axis: int = -1
    elements: Elements | None = None
    dtype: int = 0
    columns: tuple[bool, ...] = field(default=())
    blocks: Dim = 1

    @property
    def is_whole(self) -> bool:
        """True where it is the same for every sample and any batch."""
        return self.kind is Kind.WHOLE

    @property
    def is_divided(self) -> bool:
        """True where each sample has its own part along one axis."""
        return self.kind is Kind.DIVIDED

    @property
    def size(self) -> Dim:
        """The size of the axis along which the samples lie."""
        assert self.shape is not None
        return self.shape[self.axis]

    @property
    def rank(self) -> int:
        """The number of axes. Raises Mixes where it is not known."""
        return len(self.dims)

    @property
    def dims(self) -> Shape:
        """The shape. Raises Mixes where the rank is not known."""
        if self.shape is None:
            raise Mixes("the rank of an input is not known")
        return self.shape


def whole(shape: Shape | None = None, dtype: int = 0, elements: Elements | None = None) -> Value:
    """Return a tensor that is the same for every sample."""
    if shape is not None and any(map(depends, shape)):
        raise Mixes("its result grows with the batch, which what it reads does not")
    return Value(Kind.WHOLE, shape, -1, elements, dtype)


def divided(axis: int, shape: Shape, dtype: int = 0, kind: Kind = Kind.DIVIDED) -> Value:
    """Return a tensor of which each sample has its own part along an axis.

    Raises Mixes where the sizes do not say so.
    """
    if any(depends(dim) for place, dim in enumerate(shape) if place != axis):
        raise Mixes("its result has the batch in two axes")
    if part(shape[axis]) is None:
        raise Mixes("its result is not of one size for each sample")
    return Value(kind, shape, axis, None, dtype)


def computed(elements: Elements, dtype: int) -> Value:
    """Return a small tensor of known elements."""
    shape: Shape = tuple(elements.shape)
    tainted = any(is_tainted(element) for element in elements.flat)
    if elements.size > MOST_ELEMENTS:
        return Value(Kind.SIZES if tainted else Kind.WHOLE, shape, -1, None, dtype)
    return Value(Kind.SIZES if tainted else Kind.WHOLE, shape, -1, elements, dtype)


def is_tainted(element: object) -> bool:
    """Return whether an element depends on the size of the batch."""
    return element is TAINTED or getattr(element, "depends", False) is True


def part(size: Dim) -> Dim | None:
    """Return the part of an axis that one sample has; None where that is not one for all."""
    each = quotient(size, BATCH)
    return None if each is None or depends(each) else each


def ints(value: Value | None) -> list[Dim] | None:
    """Return the elements where all are sizes or integers."""
    if value is None or value.elements is None:
        return None
    found: list[Any] = list(value.elements.flat)
    return found if all(is_dim(element) for element in found) else None


def is_dim(element: object) -> bool:
    """Return whether an element is an integer or a size."""
    return not isinstance(element, float | bool | _Mark | str | bytes)


def elements_of(*items: object) -> Elements:
    """Return elements of rank 1."""
    array = np.empty(len(items), object)
    for place, item in enumerate(items):
        array[place] = item
    return array


def product(dims: Shape) -> Dim:
    """Return the number of elements of a shape."""
    return prod(dims)
